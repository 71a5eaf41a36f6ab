package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestlink"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/internal/os/egress"
	"github.com/pandastack/pandastack/internal/os/jail"
	"github.com/pandastack/pandastack/internal/os/netslot"
	"github.com/pandastack/pandastack/internal/vmm"
)

// The machine manager names what it needs of mechanisms that do not know it; here they meet.

// network makes a pool of slots a machine.Network.
type network struct {
	pool *netslot.Pool
	hand func(slot int) (uid, gid int) // who opens the tap of a slot by its name; nil: nobody does
}

func (n network) Acquire(ctx context.Context, owner string) (machine.Slot, error) {
	s, err := n.pool.Acquire(ctx, owner)
	if errors.Is(err, netslot.ErrFull) {
		return nil, fmt.Errorf("%w: %w; give the node more of them with --network-slots", hostapi.ErrNoCapacity, err)
	}
	if err != nil {
		return nil, err
	}
	if n.hand == nil {
		return slot{n.pool, s, nil}, nil
	}
	uid, _ := n.hand(s.Index)
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

// CheckEgress compiles a policy as a slot would.
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

// slot makes a taken slot a machine.Slot.
type slot struct {
	pool  *netslot.Pool
	s     *netslot.Slot
	netns *os.File // nil: the tap was not handed over
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

// Release gives the slot back. One whose tap is still held is the pool's all the same, which renews it once
// it is free.
func (s slot) Release(ctx context.Context) error {
	if s.netns != nil {
		_ = s.netns.Close() // it was only named; given twice it is closed already
	}
	err := s.pool.Release(ctx, s.s)
	if _, busy := errors.AsType[*netslot.BusyError](err); busy {
		return nil
	}
	return err
}

// groups makes a jail a machine.Groups.
type groups struct {
	jail       *jail.Manager
	unconfined bool // monitors are within limits, and nothing else is done about them
}

// Limits of a monitor that have nothing to do with its guest's size.
const (
	monitorThreads = 256  // vCPUs, I/O workers and the monitor's own; the guest cannot add any
	monitorFiles   = 1024 // descriptors; it has opened all it needs when it starts
	monitorOOM     = 500  // dies before the node does when the host is out of memory
)

func limits(l machine.Limits) jail.Limits {
	return jail.Limits{
		CPUWeight: min(100*max(l.VCPUs, 1), 10000), MemoryMax: l.MemoryBytes,
		PIDs: monitorThreads, OpenFiles: monitorFiles, OOMScoreAdj: monitorOOM,
	}
}

func (g groups) Create(ctx context.Context, name string, l machine.Limits) (machine.Cgroup, error) {
	made, err := g.jail.Create(ctx, name, limits(l))
	if err != nil {
		return nil, err
	}
	return group{made, g.unconfined}, nil
}

func (g groups) Adopt(ctx context.Context, name string, l machine.Limits) (machine.Cgroup, error) {
	found, err := g.jail.Adopt(ctx, name, limits(l))
	if err != nil {
		return nil, err
	}
	return group{found, g.unconfined}, nil
}

// Sweep destroys the groups that no machine has taken over by now.
func (g groups) Sweep(ctx context.Context) error {
	_, err := g.jail.Sweep(ctx)
	return err
}

// group makes a jail's group a machine.Group.
type group struct {
	*jail.Cgroup
	unconfined bool
}

func (g group) Jail() vmm.Jail {
	if g.unconfined {
		return nil
	}
	return g.Cgroup
}

// OutOfMemory is false when it cannot be told.
func (g group) OutOfMemory() bool {
	s, err := g.Stats()
	return err == nil && s.OOMKills > 0
}

// disks makes package disk a machine.Disks.
type disks struct{}

func (disks) Clone(src, dst string) error              { return disk.Clone(src, dst) }
func (disks) CloneInto(src string, dst *os.File) error { return disk.CloneInto(src, dst) }
func (disks) Allocate(path string, bytes int64) error  { return disk.Allocate(path, bytes) }
func (disks) Grow(path string, bytes int64) error      { return disk.Grow(path, bytes) }

// openLink makes guestlink.Open a machine.OpenLink.
func openLink(ctx context.Context, conn net.Conn, g machine.Handshake) (machine.Link, error) {
	return guestlink.Open(
		ctx,
		conn,
		guestlink.Options{Generation: g.Generation, Identity: g.Identity, Resync: g.Resync},
	)
}
