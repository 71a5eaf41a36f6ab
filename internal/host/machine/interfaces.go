package machine

import (
	"context"
	"net"
	"net/netip"
	"os"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/vmm"
)

// Network hands out places in the network.
type Network interface {
	// Acquire gives a place to owner, a machine's id.
	Acquire(ctx context.Context, owner string) (Slot, error)
	// Adopt gives owner the place that it has since an earlier process.
	Adopt(ctx context.Context, owner string, index int) (Slot, error)
	// CheckEgress answers hostapi.ErrInvalid, with what is wrong, for a policy that no slot could have.
	CheckEgress(policy hostapi.Egress) error
	// Sweep takes back every place of earlier processes that was not adopted.
	Sweep(ctx context.Context) error
}

// Slot is one place in the network, taken by a machine.
type Slot interface {
	Info() SlotInfo
	// SetEgress puts a policy in force, also for connections that are there. After an error the old one
	// holds. A slot just taken allows all; an adopted one does what the policy that it had does, but answers
	// no names until this is called, unless that policy allowed all.
	SetEgress(ctx context.Context, policy hostapi.Egress) error
	// SetRates bounds what goes to and comes from the guest, in bytes a second; 0, or more than the host's bound, is
	// that. A slot just taken or adopted has the host's.
	SetRates(ctx context.Context, in, out int64) error
	Release(ctx context.Context) error // gives it back, open again
}

// SlotInfo is what a slot consists of.
type SlotInfo struct {
	Index   int
	GuestIP netip.Addr // the guest's, as this host reaches it
	TapName string
	Tap     *os.File // nil where the driver needs none, and after Adopt
	Netns   *os.File // that TapName is in, for a driver that opens it by its name; else nil
	MAC     net.HardwareAddr
	Guest   guestapi.Network // the guest's own view
}

// Limits of a machine's monitor.
type Limits struct {
	VCPUs       int
	MemoryBytes int64
}

// Cgroups limit processes.
type Cgroups interface {
	Create(ctx context.Context, name string, limits Limits) (Cgroup, error)
	// Adopt takes over the group that an earlier process made under that name.
	Adopt(ctx context.Context, name string, limits Limits) (Cgroup, error)
	// Sweep removes every group of ours that was neither made nor adopted, with the processes in it.
	Sweep(ctx context.Context) error
}

// Cgroup is the limits of one machine's monitor.
type Cgroup interface {
	Enter(pid int) error
	// Jail starts monitors in a jail, within the limits of the group; nil: there is none, and Enter is used.
	Jail() vmm.Jail
	// OutOfMemory says whether the kernel ended a process of the group because it reached its limit.
	OutOfMemory() bool
	Destroy(ctx context.Context) error
}

// Disks makes disk images.
type Disks interface {
	Clone(src, dst string) error              // into a new file, sharing blocks
	CloneInto(src string, dst *os.File) error // into a file of the same size that is open elsewhere
	Allocate(path string, bytes int64) error  // an empty file of that size
	Grow(path string, bytes int64) error
}

// Link is the host's end of one guest channel.
type Link interface {
	guestapi.Guest
	// Ready waits until the guest answered the greeting and, where an identity was given, took it on.
	Ready(ctx context.Context) error
	Close() error
	Done() <-chan struct{} // closed when the link ended
}

// Handshake is what the host says first on a guest channel.
type Handshake struct {
	Generation uint64
	Identity   *guestapi.Identity // sent right behind the greeting; nil: the guest stays who it is
	Resync     bool               // the channel's state is not known: another process spoke on it
}

// OpenLink greets a guest over conn and does not wait for its answer. The link owns conn.
type OpenLink func(ctx context.Context, conn net.Conn, g Handshake) (Link, error)

// Kernel is what a machine boots cold with.
type Kernel struct{ Kernel, Initramfs, Cmdline string }
