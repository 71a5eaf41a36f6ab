package fcapi

import (
	"context"
	"encoding/json"
	"net/http"
)

// Instance returns the monitor's ID, state and version.
func (c *Client) Instance(ctx context.Context) (Instance, error) {
	var i Instance
	err := c.do(ctx, http.MethodGet, "/", nil, &i)
	i.ID, i.State, i.Version = printable(i.ID), printable(i.State), printable(i.Version)
	return i, err
}

// SetBootSource sets the kernel, initrd and kernel command line.
func (c *Client) SetBootSource(ctx context.Context, b BootSource) error {
	return c.do(ctx, http.MethodPut, "/boot-source", b, nil)
}

// SetMachine sets the number of vCPUs and the memory size.
func (c *Client) SetMachine(ctx context.Context, m MachineConfig) error {
	return c.do(ctx, http.MethodPut, "/machine-config", m, nil,
		since{m.HugePages == PagesMerged, "huge_pages Transparent", Version{1, 17, 0}})
}

// AddDrive adds a drive before the guest starts.
func (c *Client) AddDrive(ctx context.Context, d Drive) error {
	return c.do(ctx, http.MethodPut, "/drives/"+d.ID, d, nil)
}

// ChangeDrive changes the file of a drive or its rate limits. Changing the file also notifies the
// guest of a new size.
func (c *Client) ChangeDrive(ctx context.Context, d DrivePatch) error {
	return c.do(ctx, http.MethodPatch, "/drives/"+d.ID, d, nil)
}

// AddNetwork adds a network interface before the guest starts.
func (c *Client) AddNetwork(ctx context.Context, n NetworkInterface) error {
	return c.do(ctx, http.MethodPut, "/network-interfaces/"+n.ID, n, nil)
}

// ChangeNetwork sets the rate limits of a network interface.
func (c *Client) ChangeNetwork(ctx context.Context, n NetworkPatch) error {
	return c.do(ctx, http.MethodPatch, "/network-interfaces/"+n.ID, n, nil)
}

// SetVsock adds a vsock device.
func (c *Client) SetVsock(ctx context.Context, v Vsock) error {
	return c.do(ctx, http.MethodPut, "/vsock", v, nil)
}

// SetEntropy adds an entropy device (virtio-rng).
func (c *Client) SetEntropy(ctx context.Context, e Entropy) error {
	return c.do(ctx, http.MethodPut, "/entropy", e, nil)
}

// SetBalloon adds a balloon.
func (c *Client) SetBalloon(ctx context.Context, b Balloon) error {
	return c.do(ctx, http.MethodPut, "/balloon", b, nil, since{b.Reporting, "free_page_reporting", Version{1, 14, 0}})
}

// ResizeBalloon sets the target size of the balloon.
func (c *Client) ResizeBalloon(ctx context.Context, mib int) error {
	return c.do(ctx, http.MethodPatch, "/balloon", BalloonSize{mib}, nil)
}

// SetHotplugMemory adds a device for memory hotplug (virtio-mem).
func (c *Client) SetHotplugMemory(ctx context.Context, h HotplugMemory) error {
	return c.do(ctx, http.MethodPut, "/hotplug/memory", h, nil, since{true, "", Version{1, 14, 0}})
}

// PlugMemory requests that the guest plug mib MiB in addition to its boot memory.
func (c *Client) PlugMemory(ctx context.Context, mib int) error {
	return c.do(ctx, http.MethodPatch, "/hotplug/memory", HotplugSize{mib}, nil, since{true, "", Version{1, 14, 0}})
}

// HotplugMemory returns the state of the memory hotplug device.
func (c *Client) HotplugMemory(ctx context.Context) (HotplugStatus, error) {
	var s HotplugStatus
	err := c.do(ctx, http.MethodGet, "/hotplug/memory", nil, &s, since{true, "", Version{1, 14, 0}})
	return s, err
}

// SetMetadataService selects the network interfaces with access to the metadata service (MMDS).
// They must exist.
func (c *Client) SetMetadataService(ctx context.Context, s MetadataService) error {
	return c.do(ctx, http.MethodPut, "/mmds/config", s, nil)
}

// SetMetadata sets the content of the metadata service, a JSON object. The content is not part of
// snapshots. Apart from the requests for logs, this is the only one that may precede LoadSnapshot.
func (c *Client) SetMetadata(ctx context.Context, document json.RawMessage) error {
	return c.do(ctx, http.MethodPut, "/mmds", document, nil)
}

// Start boots the guest.
func (c *Client) Start(ctx context.Context) error {
	return c.do(ctx, http.MethodPut, "/actions", action{"InstanceStart"}, nil)
}

// Pause pauses the vCPUs.
func (c *Client) Pause(ctx context.Context) error {
	return c.do(ctx, http.MethodPatch, "/vm", stateChange{"Paused"}, nil)
}

// Resume resumes the vCPUs.
func (c *Client) Resume(ctx context.Context) error {
	return c.do(ctx, http.MethodPatch, "/vm", stateChange{"Resumed"}, nil)
}

// CreateSnapshot writes a snapshot of a paused machine.
func (c *Client) CreateSnapshot(ctx context.Context, s SnapshotCreate) error {
	return c.do(ctx, http.MethodPut, "/snapshot/create", s, nil)
}

// LoadSnapshot restores a machine from a snapshot. After an error the monitor process must be
// discarded.
func (c *Client) LoadSnapshot(ctx context.Context, l SnapshotLoad) error {
	return c.do(ctx, http.MethodPut, "/snapshot/load", l, nil,
		since{l.TrackDirty, "track_dirty_pages", Version{1, 13, 0}},
		since{len(l.Networks) > 0, "network_overrides", Version{1, 12, 0}},
		since{l.HugePages != "", "huge_pages", Version{1, 17, 0}})
}
