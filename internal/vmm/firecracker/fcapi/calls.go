package fcapi

import (
	"context"
	"encoding/json"
	"net/http"
)

// Instance asks who answers and in which state it is.
func (c *Client) Instance(ctx context.Context) (Instance, error) {
	var i Instance
	err := c.do(ctx, http.MethodGet, "/", nil, &i)
	i.ID, i.State, i.Version = printable(i.ID), printable(i.State), printable(i.Version)
	return i, err
}

// SetBootSource says what the guest starts from.
func (c *Client) SetBootSource(ctx context.Context, b BootSource) error {
	return c.do(ctx, http.MethodPut, "/boot-source", b, nil)
}

// SetMachine says how many processors and how much memory there are.
func (c *Client) SetMachine(ctx context.Context, m MachineConfig) error {
	return c.do(ctx, http.MethodPut, "/machine-config", m, nil,
		since{m.HugePages == PagesMerged, "huge_pages Transparent", Version{1, 17, 0}})
}

// AddDrive adds a disk before the guest starts.
func (c *Client) AddDrive(ctx context.Context, d Drive) error {
	return c.do(ctx, http.MethodPut, "/drives/"+d.ID, d, nil)
}

// ChangeDrive puts another file below a disk, which is also how the guest is told of a new size, or sets
// its limits.
func (c *Client) ChangeDrive(ctx context.Context, d DrivePatch) error {
	return c.do(ctx, http.MethodPatch, "/drives/"+d.ID, d, nil)
}

// AddNetwork adds a network card before the guest starts.
func (c *Client) AddNetwork(ctx context.Context, n NetworkInterface) error {
	return c.do(ctx, http.MethodPut, "/network-interfaces/"+n.ID, n, nil)
}

// ChangeNetwork sets the limits of a network card.
func (c *Client) ChangeNetwork(ctx context.Context, n NetworkPatch) error {
	return c.do(ctx, http.MethodPatch, "/network-interfaces/"+n.ID, n, nil)
}

// SetVsock gives the guest a socket to the host.
func (c *Client) SetVsock(ctx context.Context, v Vsock) error {
	return c.do(ctx, http.MethodPut, "/vsock", v, nil)
}

// SetEntropy gives the guest a source of randomness.
func (c *Client) SetEntropy(ctx context.Context, e Entropy) error {
	return c.do(ctx, http.MethodPut, "/entropy", e, nil)
}

// SetBalloon gives the guest a balloon.
func (c *Client) SetBalloon(ctx context.Context, b Balloon) error {
	return c.do(ctx, http.MethodPut, "/balloon", b, nil, since{b.Reporting, "free_page_reporting", Version{1, 14, 0}})
}

// ResizeBalloon asks the guest for memory, or gives it back.
func (c *Client) ResizeBalloon(ctx context.Context, mib int) error {
	return c.do(ctx, http.MethodPatch, "/balloon", BalloonSize{mib}, nil)
}

// SetHotplugMemory gives the guest room for more memory.
func (c *Client) SetHotplugMemory(ctx context.Context, h HotplugMemory) error {
	return c.do(ctx, http.MethodPut, "/hotplug/memory", h, nil, since{true, "", Version{1, 14, 0}})
}

// PlugMemory asks the guest to take so much more memory than it began with.
func (c *Client) PlugMemory(ctx context.Context, mib int) error {
	return c.do(ctx, http.MethodPatch, "/hotplug/memory", HotplugSize{mib}, nil, since{true, "", Version{1, 14, 0}})
}

// HotplugMemory tells how much more memory the guest has taken.
func (c *Client) HotplugMemory(ctx context.Context) (HotplugStatus, error) {
	var s HotplugStatus
	err := c.do(ctx, http.MethodGet, "/hotplug/memory", nil, &s, since{true, "", Version{1, 14, 0}})
	return s, err
}

// SetMetadataService says by which network cards the guest reaches the metadata service. The cards must be there.
func (c *Client) SetMetadataService(ctx context.Context, s MetadataService) error {
	return c.do(ctx, http.MethodPut, "/mmds/config", s, nil)
}

// SetMetadata says what the metadata service answers: a JSON object. It is no part of snapshots, and the only request
// beside those for logs that may come before LoadSnapshot.
func (c *Client) SetMetadata(ctx context.Context, document json.RawMessage) error {
	return c.do(ctx, http.MethodPut, "/mmds", document, nil)
}

// Start starts the guest.
func (c *Client) Start(ctx context.Context) error {
	return c.do(ctx, http.MethodPut, "/actions", action{"InstanceStart"}, nil)
}

// Pause stops the guest's processors.
func (c *Client) Pause(ctx context.Context) error {
	return c.do(ctx, http.MethodPatch, "/vm", stateChange{"Paused"}, nil)
}

// Resume lets them go on.
func (c *Client) Resume(ctx context.Context) error {
	return c.do(ctx, http.MethodPatch, "/vm", stateChange{"Resumed"}, nil)
}

// CreateSnapshot writes a paused machine into files.
func (c *Client) CreateSnapshot(ctx context.Context, s SnapshotCreate) error {
	return c.do(ctx, http.MethodPut, "/snapshot/create", s, nil)
}

// LoadSnapshot makes the machine of a snapshot. A monitor in which this failed is of no use any more.
func (c *Client) LoadSnapshot(ctx context.Context, l SnapshotLoad) error {
	return c.do(ctx, http.MethodPut, "/snapshot/load", l, nil,
		since{l.TrackDirty, "track_dirty_pages", Version{1, 13, 0}},
		since{len(l.Networks) > 0, "network_overrides", Version{1, 12, 0}},
		since{l.HugePages != "", "huge_pages", Version{1, 17, 0}})
}
