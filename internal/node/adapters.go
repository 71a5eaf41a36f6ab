package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestlink"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/internal/os/egress"
	"github.com/pandastack/pandastack/internal/os/jail"
	"github.com/pandastack/pandastack/internal/os/netslot"
	"github.com/pandastack/pandastack/internal/vmm"
)

// The types in this file implement the interfaces of package machine with the packages disk, guestlink, jail and
// netslot. Neither side imports the other.

// network implements machine.Network with a pool of network slots.
type network struct {
	pool     *netslot.Pool
	tapOwner func(slot int) (uid, gid int) // the user that opens a slot's tap by name; nil if the driver gets it open
}

func (n network) Acquire(ctx context.Context, owner string) (machine.Slot, error) {
	s, err := n.pool.Acquire(ctx, owner)
	if errors.Is(err, netslot.ErrFull) {
		return nil, fmt.Errorf("%w: %w; give the node more of them with --network-slots", hostapi.ErrNoCapacity, err)
	}
	if err != nil {
		return nil, err
	}
	if n.tapOwner == nil {
		return slot{n.pool, s, nil}, nil
	}
	uid, _ := n.tapOwner(s.Index)
	netns, err := s.ShareTap(uid)
	if err != nil {
		return nil, errors.Join(err, slot{n.pool, s, nil}.Release(context.WithoutCancel(ctx)))
	}
	return slot{n.pool, s, netns}, nil
}

func (n network) Adopt(ctx context.Context, owner string, index int) (machine.Slot, error) {
	s, err := n.pool.Adopt(ctx, owner, index)
	if err != nil {
		return nil, err
	}
	return slot{n.pool, s, nil}, nil
}

// CheckEgress compiles a policy as SetEgress does, and discards the result.
func (n network) CheckEgress(policy hostapi.Egress) error {
	if _, err := egress.Compile(egress.Policy(policy)); err != nil {
		return fmt.Errorf("%w: %w", hostapi.ErrInvalid, err)
	}
	return nil
}

func (n network) Sweep(ctx context.Context) error {
	_, err := n.pool.Sweep(ctx)
	return err
}

// slot implements machine.Slot with an acquired network slot.
type slot struct {
	pool  *netslot.Pool
	s     *netslot.Slot
	netns *os.File // the slot's network namespace; nil if the tap is not shared
}

func (s slot) Info() machine.SlotInfo {
	return machine.SlotInfo{
		Index: s.s.Index, GuestIP: s.s.GuestIP, TapName: s.s.TapName, Tap: s.s.Tap, Netns: s.netns, MAC: s.s.MAC,
		Guest: guestapi.Network{
			Address: s.s.Address.String(),
			Gateway: s.s.Gateway.String(),
			DNS:     []string{s.s.DNS.String()},
			MTU:     s.s.MTU,
		},
	}
}

func (s slot) SetEgress(ctx context.Context, policy hostapi.Egress) error {
	return s.s.SetPolicy(ctx, egress.Policy(policy))
}

func (s slot) SetRates(_ context.Context, in, out int64) error { return s.s.SetRates(in, out) }

func (s slot) SetConnections(_ context.Context, open, perSecond int) error {
	return s.s.SetConnections(open, perSecond)
}

// Release returns the slot to the pool. A slot whose tap is still open belongs to the pool, too, which recreates it
// once the tap is closed; Release returns nil then.
func (s slot) Release(ctx context.Context) error {
	if s.netns != nil {
		_ = s.netns.Close() // only a reference to the namespace; a second Release finds it closed already
	}
	err := s.pool.Release(ctx, s.s)
	if _, busy := errors.AsType[*netslot.BusyError](err); busy {
		return nil
	}
	return err
}

// cgroups implements machine.Cgroups with a jail manager.
type cgroups struct {
	jail       *jail.Manager
	unconfined bool // monitors get a cgroup with limits and no jail
}

// Limits of a monitor that do not depend on the size of its guest.
const (
	monitorThreads = 256  // vCPUs, I/O workers and the monitor's own; the guest cannot add any
	monitorFiles   = 1024 // descriptors; a monitor opens all it needs when it starts
	monitorOOM     = 500  // the kernel kills a monitor before the node when the host runs out of memory
)

// limits returns the limits of a jail for the limits of a machine.
func limits(l machine.Limits) jail.Limits {
	return jail.Limits{
		CPUWeight: min(100*max(l.VCPUs, 1), 10000), MemoryMax: l.MemoryBytes,
		PIDs: monitorThreads, OpenFiles: monitorFiles, OOMScoreAdj: monitorOOM,
	}
}

func (g cgroups) Create(ctx context.Context, name string, l machine.Limits) (machine.Cgroup, error) {
	made, err := g.jail.Create(ctx, name, limits(l))
	if err != nil {
		return nil, err
	}
	return cgroup{made, g.unconfined}, nil
}

func (g cgroups) Adopt(ctx context.Context, name string, l machine.Limits) (machine.Cgroup, error) {
	found, err := g.jail.Adopt(ctx, name, limits(l))
	if err != nil {
		return nil, err
	}
	return cgroup{found, g.unconfined}, nil
}

// Sweep destroys the cgroups that no machine has adopted.
func (g cgroups) Sweep(ctx context.Context) error {
	_, err := g.jail.Sweep(ctx)
	return err
}

// cgroup implements machine.Cgroup with a cgroup of the jail manager.
type cgroup struct {
	*jail.Cgroup
	unconfined bool
}

// Jail returns the jail that the driver starts the monitor in, or nil for none.
func (g cgroup) Jail() vmm.Jail {
	if g.unconfined {
		return nil
	}
	return g.Cgroup
}

// OutOfMemory reports whether the kernel killed a process of the cgroup for memory. It is false if the statistics
// cannot be read.
func (g cgroup) OutOfMemory() bool {
	s, err := g.Stats()
	return err == nil && s.OOMKills > 0
}

// disks implements machine.Disks with package disk.
type disks struct{}

func (disks) Clone(src, dst string) error              { return disk.Clone(src, dst) }
func (disks) CloneInto(src string, dst *os.File) error { return disk.CloneInto(src, dst) }
func (disks) Allocate(path string, bytes int64) error  { return disk.Allocate(path, bytes) }
func (disks) Grow(path string, bytes int64) error      { return disk.Grow(path, bytes) }
func (disks) Sync(path string) error                   { return durable.Sync(path) }

// openLink implements machine.OpenLink with guestlink.Open. The host does not know the workspace of a machine, so every
// link has a share of its own for what the host itself asks the guest.
func (n *node) openLink(ctx context.Context, conn net.Conn, g machine.Handshake) (machine.Link, error) {
	return guestlink.Open(ctx, conn, guestlink.Options{
		Generation: g.Generation, Identity: g.Identity, Resync: g.Resync,
		Memory: n.shares.memory.Open("link " + strconv.FormatUint(n.links.Add(1), 10)),
	})
}
