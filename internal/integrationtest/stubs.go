package integrationtest

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"

	"github.com/pandastack/pandastack/internal/contract/guestlink"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/vmm"
)

// Network, Cgroups, Disks and Link are minimal dependencies of a machine manager: slots without a network, cgroups
// without limits, disks that are plain copies, and the real host end of the guest channel.

// Network implements machine.Network. All its slots are equal and have no network.
type Network struct{}

// Acquire implements machine.Network.
func (Network) Acquire(context.Context, string) (machine.Slot, error) { return slot{}, nil }

// Adopt implements machine.Network.
func (Network) Adopt(context.Context, string, int) (machine.Slot, error) { return slot{}, nil }

// CheckEgress implements machine.Network. It accepts every policy.
func (Network) CheckEgress(hostapi.Egress) error { return nil }

// Sweep implements machine.Network.
func (Network) Sweep(context.Context) error { return nil }

type slot struct{}

func (slot) Info() machine.SlotInfo {
	return machine.SlotInfo{
		GuestIP: netip.MustParseAddr("10.0.0.2"),
		TapName: "tap0",
		MAC:     net.HardwareAddr{2, 0, 0, 0, 0, 1},
	}
}
func (slot) SetEgress(context.Context, hostapi.Egress) error { return nil }
func (slot) SetRates(context.Context, int64, int64) error    { return nil }
func (slot) SetConnections(context.Context, int, int) error  { return nil }
func (slot) Release(context.Context) error                   { return nil }

// Cgroups implements machine.Cgroups without limits.
type Cgroups struct{}

// Create implements machine.Cgroups.
func (Cgroups) Create(context.Context, string, machine.Limits) (machine.Cgroup, error) {
	return cgroup{}, nil
}

// Adopt implements machine.Cgroups.
func (Cgroups) Adopt(context.Context, string, machine.Limits) (machine.Cgroup, error) {
	return cgroup{}, nil
}

// Sweep implements machine.Cgroups.
func (Cgroups) Sweep(context.Context) error { return nil }

type cgroup struct{}

func (cgroup) Enter(int) error               { return nil }
func (cgroup) Jail() vmm.Jail                { return nil }
func (cgroup) OutOfMemory() bool             { return false }
func (cgroup) Destroy(context.Context) error { return nil }

// Disks implements machine.Disks with plain copies.
type Disks struct{}

// Clone implements machine.Disks.
func (Disks) Clone(src, dst string) error {
	out, err := os.OpenFile(dst, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(Disks{}.CloneInto(src, out), out.Close())
}

// CloneInto implements machine.Disks.
func (Disks) CloneInto(src string, dst *os.File) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, in)
	return errors.Join(err, in.Close())
}

// Allocate implements machine.Disks.
func (Disks) Allocate(path string, bytes int64) error {
	return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, bytes))
}

// Grow implements machine.Disks.
func (Disks) Grow(path string, bytes int64) error { return os.Truncate(path, bytes) }

// Sync implements machine.Disks. These disks need not survive a crash.
func (Disks) Sync(path string) error { _, err := os.Stat(path); return err }

// Link implements machine.OpenLink with the real host end of the guest channel.
func Link(ctx context.Context, conn net.Conn, g machine.Handshake) (machine.Link, error) {
	l, err := guestlink.Open(
		ctx,
		conn,
		guestlink.Options{Generation: g.Generation, Identity: g.Identity, Resync: g.Resync},
	)
	if err != nil {
		return nil, err
	}
	return l, nil
}
