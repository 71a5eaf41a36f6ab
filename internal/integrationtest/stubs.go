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

// Network, Groups, Disks and Link are the least that machines can be made with: places without a network,
// limits that do not hold, disks that are plain copies, and the real end of the guest channel.

// Network hands out the same place to everybody.
type Network struct{}

// Acquire implements machine.Network.
func (Network) Acquire(context.Context, string) (machine.Slot, error) { return slot{}, nil }

// Adopt implements machine.Network.
func (Network) Adopt(context.Context, string, int) (machine.Slot, error) { return slot{}, nil }

// CheckEgress implements machine.Network: every policy is possible.
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
func (slot) Release(context.Context) error                   { return nil }

// Groups limit nothing.
type Groups struct{}

// Create implements machine.Groups.
func (Groups) Create(context.Context, string, machine.Limits) (machine.Cgroup, error) {
	return group{}, nil
}

// Adopt implements machine.Groups.
func (Groups) Adopt(context.Context, string, machine.Limits) (machine.Cgroup, error) {
	return group{}, nil
}

// Sweep implements machine.Groups.
func (Groups) Sweep(context.Context) error { return nil }

type group struct{}

func (group) Enter(int) error               { return nil }
func (group) Jail() vmm.Jail                { return nil }
func (group) OutOfMemory() bool             { return false }
func (group) Destroy(context.Context) error { return nil }

// Disks are copied, byte by byte.
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

// Link opens the host's end of a guest channel; it is a machine.OpenLink.
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
