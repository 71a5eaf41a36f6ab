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

// Network provides network slots.
type Network interface {
	// Acquire gives a slot to owner, the resource name of a machine.
	Acquire(ctx context.Context, owner string) (Slot, error)
	// Adopt gives owner the slot that it has since an earlier process.
	Adopt(ctx context.Context, owner string, index int) (Slot, error)
	// CheckEgress returns hostapi.ErrInvalid, with the reason, for a policy that no slot can have.
	CheckEgress(policy hostapi.Egress) error
	// Sweep releases every slot of earlier processes that was not adopted.
	Sweep(ctx context.Context) error
}

// Slot is a network slot that a machine has.
type Slot interface {
	Info() SlotInfo
	// SetEgress applies a policy, also to existing connections. After an error the previous policy applies. A slot
	// that was just acquired allows everything. An adopted one applies the policy that it had, but resolves no names
	// until this is called, unless that policy allowed everything.
	SetEgress(ctx context.Context, policy hostapi.Egress) error
	// SetRates limits the traffic to and from the guest, in bytes per second; 0, or more than the host's limit, is
	// the host's limit. A slot that was just acquired or adopted has the host's.
	SetRates(ctx context.Context, in, out int64) error
	// SetConnections limits the connections that the guest opens: those at once, and those per second; 0 and more than
	// the host's limits as for SetRates.
	SetConnections(ctx context.Context, open, perSecond int) error
	Release(ctx context.Context) error // gives the slot back, with everything allowed again
}

// SlotInfo describes a network slot.
type SlotInfo struct {
	Index   int
	GuestIP netip.Addr // of the guest, as this host reaches it
	TapName string
	Tap     *os.File // nil if the driver needs none, and after Adopt
	Netns   *os.File // that TapName is in, for a driver that opens it by its name; otherwise nil
	MAC     net.HardwareAddr
	Guest   guestapi.Network // as the guest sees it
}

// Limits are the limits of a machine's monitor.
type Limits struct {
	VCPUs       int
	MemoryBytes int64
}

// Cgroups makes cgroups for monitors.
type Cgroups interface {
	Create(ctx context.Context, name string, limits Limits) (Cgroup, error)
	// Adopt takes over the cgroup that an earlier process made under that name.
	Adopt(ctx context.Context, name string, limits Limits) (Cgroup, error)
	// Sweep removes every cgroup of ours that was neither made nor adopted, with the processes in it.
	Sweep(ctx context.Context) error
}

// Cgroup limits one machine's monitor.
type Cgroup interface {
	Enter(pid int) error
	// Jail starts monitors in a jail, within the limits of the cgroup; nil: there is none, and Enter is used.
	Jail() vmm.Jail
	// OutOfMemory reports whether the kernel killed a process of the cgroup because it reached its limit.
	OutOfMemory() bool
	Destroy(ctx context.Context) error
}

// Disks makes disk images.
type Disks interface {
	Clone(src, dst string) error              // into a new file, sharing blocks
	CloneInto(src string, dst *os.File) error // into an open file of the same size
	Allocate(path string, bytes int64) error  // makes an empty file of that size
	Grow(path string, bytes int64) error
	Sync(path string) error // makes a file and its name durable
}

// Link is the host's end of one guest channel.
type Link interface {
	guestapi.Guest
	// Ready waits until the guest has replied to the handshake and, if it got an identity, taken it on.
	Ready(ctx context.Context) error
	// Volume asks the guest for an action on a volume; see guestapi.Backend.
	Volume(ctx context.Context, req guestapi.VolumeRequest) (guestapi.VolumeReport, error)
	Close() error
	Done() <-chan struct{} // closed when the link has ended
}

// Handshake is the first message of the host on a guest channel.
type Handshake struct {
	Generation uint64
	Identity   *guestapi.Identity // sent right behind the handshake; nil: the guest keeps its identity
	Resync     bool               // the channel's state is unknown: another process used it
}

// OpenLink sends a handshake over conn and does not wait for the reply. The link owns conn.
type OpenLink func(ctx context.Context, conn net.Conn, g Handshake) (Link, error)

// Kernel is the kernel that machines boot cold with.
type Kernel struct{ Kernel, Initramfs, Cmdline string }
