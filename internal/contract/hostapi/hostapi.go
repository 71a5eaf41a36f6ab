// Package hostapi is the contract between the control plane and a host agent: machines, volumes,
// snapshots, baked templates, capacity. It knows neither users nor sandboxes. The control plane is tested against a
// simulated host (package hosttest), the host agent against a scripted caller.
//
// It is a wire contract: requests and results are plain values, what arrives over time is a Stream, the channel to
// a guest is a byte stream, errors have codes (EncodeError), and every resource names its host. A network
// implementation needs nothing from either side but this package.
package hostapi

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// Ids are chosen by the caller, so that every call can be repeated.
type (
	// MachineID names a machine: 1 to 64 lower-case letters and digits.
	MachineID string
	// SnapshotID names a snapshot: 1 to 64 lower-case letters and digits.
	SnapshotID string
	// TemplateName names a template: lower-case letters, digits, dots, dashes and underscores.
	TemplateName string
)

// HostID names a host: "hst" and lower-case letters and digits. It is made with the host's data directory and
// stays with it.
type HostID string

// State of a machine on its host.
type State string

// The states of a machine.
const (
	Creating   State = "creating"
	Running    State = "running"
	Paused     State = "paused"
	Hibernated State = "hibernated"
	Failed     State = "failed" // its monitor died and its disk is kept; Wake boots it again
)

// BootMode says how a machine was started last.
type BootMode string

// The ways a machine starts.
const (
	BootCold     BootMode = "cold"     // the template was not baked: booted, baked, and then restored for the caller
	BootSnapshot BootMode = "snapshot" // restored from a baked template or a snapshot
	BootFork     BootMode = "fork"
	BootWake     BootMode = "wake"
)

// Create asks for a machine. Exactly one of Template, Snapshot and Image is set.
type Create struct {
	ID       MachineID
	Template TemplateName
	Snapshot SnapshotID
	Image    ImageID // boots cold from a copy of it, with VCPUs and MemoryMiB
	DiskMiB  int     // 0: as the template; otherwise at least that: the root file system grows
	// VCPUs and MemoryMiB are the size of a machine from an Image. Any other machine has the processors of its
	// template or snapshot, and its memory; if the host's monitor can add memory, it has MemoryMiB, unless 0.
	VCPUs     int
	MemoryMiB int
	Hostname  string
	Env       map[string]string
	Files     map[string]string // small files to write at every start, by path, readable for all users
	// Persistent: the machine's disk survives the death of its monitor, and the host agent hibernates the machine
	// when it ends instead of destroying it.
	Persistent bool
	Egress     Egress // what the machine may reach
	Limits     Limits // none wider than the host's; a fork has its parent's
	// Volumes are attached and mounted before programs of the user run. ErrInvalid: two of them, or one of them and a
	// private copy that the snapshot brings, have the same mount point.
	Volumes []VolumeAttachment
	// Group names the machines whose disk space the host bounds together, such as those of a workspace; "": none. A
	// fork is in its parent's.
	Group  string
	Labels map[string]string // stored and returned; the host acts on none of them
}

// Egress says what a machine may reach. The zero value allows everything.
//
// Entries of Allow come first, then those of Deny; anything else is allowed unless DenyOthers. An entry is an IPv4
// address, a network ("198.51.100.0/24"), a domain, or all domains below one ("*.example.com"). An Egress is a value:
// its lists must not be changed.
type Egress struct {
	Allow      []string `json:"allow,omitempty"`
	Deny       []string `json:"deny,omitempty"`
	DenyOthers bool     `json:"deny_others,omitempty"`
}

// IsZero reports whether the policy is empty, which allows everything.
func (e Egress) IsZero() bool { return len(e.Allow) == 0 && len(e.Deny) == 0 && !e.DenyOthers }

// Equal reports whether two policies have the same entries in the same order.
func (e Egress) Equal(o Egress) bool {
	return slices.Equal(e.Allow, o.Allow) && slices.Equal(e.Deny, o.Deny) && e.DenyOthers == o.DenyOthers
}

// GroupBounds bound the disk space that the machines of a group take together, in MiB; 0: no bound.
//
// Beyond its bound, a group gets no machines (ErrNoSpace), and those that grow are paused with PausedNoSpace.
// A GroupBounds is a value: its map must not be changed.
type GroupBounds struct {
	DefaultMiB int64            // of groups that MiB does not name
	MiB        map[string]int64 // by group
}

// Of returns the bound of a group in MiB; 0 is none.
func (b GroupBounds) Of(group string) int64 {
	if n, ok := b.MiB[group]; ok {
		return n
	}
	return b.DefaultMiB
}

// IsZero reports whether no group has a bound.
func (b GroupBounds) IsZero() bool {
	for _, n := range b.MiB {
		if n > 0 {
			return false
		}
	}
	return b.DefaultMiB == 0
}

// Fork asks for children of a running or paused machine, which keeps its state. They inherit its Egress.
type Fork struct {
	Parent   MachineID
	Children []Child
}

// Child is one machine to make.
type Child struct {
	ID         MachineID
	Hostname   string
	Env        map[string]string // nil: as the parent
	Files      map[string]string // nil: as the parent
	Persistent bool
	Labels     map[string]string
}

// ForkResult is the result of one child.
type ForkResult struct {
	Machine Machine
	Failure *Error // nil: it runs. A child that failed leaves nothing behind
}

// Err returns why there is no child, or nil. Unlike Failure it can be compared with nil as an error.
func (r ForkResult) Err() error {
	if r.Failure == nil {
		return nil
	}
	return r.Failure
}

// Machine is one machine as its host sees it.
type Machine struct {
	ID         MachineID
	Host       HostID
	State      State
	Template   TemplateName // that its first ancestor was made from
	Snapshot   SnapshotID   // it was created from, if any
	Parent     MachineID    // it was forked from, if any
	VCPUs      int
	MemoryMiB  int
	DiskMiB    int
	Disks      []DataDisk // in addition to the root disk, in the guest's order
	Volumes    []AttachedVolume
	GuestIP    string // reachable from this host while it runs
	Tap        string
	MAC        string
	PID        int
	Generation uint64
	BootMode   BootMode
	Boot       time.Duration // of the last start, request to guest confirmed
	Pause      time.Duration // of the last fork or snapshot
	Created    time.Time
	Persistent bool
	Egress     Egress
	Limits     Limits // that were asked for; those of the host apply, too
	Labels     map[string]string
	Reason     string  // why it failed
	Phases     []Phase // of the last operation, in order
	// PauseReason is why the host has paused it; "": it did not.
	PauseReason PauseReason
	// Unresponsive is since when its guest does not answer although it runs; zero: it does, as far as the host knows.
	Unresponsive time.Time
	Group        string
	DiskBytes    int64 // that removing its disks would free, as last measured
}

// PauseReason says why a host has paused a machine without being asked.
type PauseReason string

// PausedNoSpace: the host has no disk space for what the guest writes. Nothing is lost, and the machine continues by
// itself when there is space.
const PausedNoSpace PauseReason = "no_space"

// DataDisk is a disk in addition to the root disk.
type DataDisk struct {
	Name    string
	SizeMiB int
	Mount   string // where the guest mounts its file system
}

// Phase is a named part of an operation.
type Phase struct {
	Name string
	Took time.Duration
}

// Snapshot is the memory, device state and disks of a machine at one moment.
type Snapshot struct {
	ID        SnapshotID
	Host      HostID
	Machine   MachineID
	Template  TemplateName
	VCPUs     int
	MemoryMiB int
	DiskMiB   int
	Bytes     int64 // of its own, not shared with others
	Created   time.Time
	Labels    map[string]string
}

// Template is a template that the host knows.
type Template struct {
	Name          TemplateName
	Host          HostID
	Description   string
	Base          string
	VCPUs         int
	MemoryMiB     int
	DiskMiB       int
	Disks         []DataDisk // beside the root disk, in the guest's order
	User          string
	Workdir       string
	Limits        Limits // of its machines, unless a create has its own
	Tools         []string
	Hidden        bool // usable by name, but not listed to users
	Baked         bool
	BakedAt       time.Time
	Bytes         int64             // of its own: without holes, and not shared with templates baked before
	ApparentBytes int64             // of memory and disks, as a machine sees them
	Bake          *Bake             // under way or ended last; nil: none
	Published     bool              // made by Publish; Labels are of that call
	Labels        map[string]string // of a published one
}

// Bake is the progress of making a template's image and snapshot.
type Bake struct {
	State   string // "running", "done", "failed"
	Step    string // "rootfs", "image", "boot", "warm", "capture"
	Percent int    // 0 to 100, by steps
	Started time.Time
	Ended   time.Time
	Err     string
	Log     []string // last lines
}

// Capacity is what a host has and what of it is in use.
type Capacity struct {
	Host                                    HostID
	Driver, Version, Accelerator, Isolation string
	Format                                  string // of the virtual hardware: other snapshots cannot be restored here
	VCPUs                                   int
	MemoryMiB                               int     // of the host
	MemoryFreeMiB                           int     // that machines may still be given
	MemoryAvailableMiB                      int     // that can be used now without swapping
	MemoryPromisedMiB                       int     // reserved for machines
	MemoryPressure                          float64 // part of the last ten seconds in which programs waited, in percent
	MemoryShort                             bool    // no machine is started until others need less
	DiskMiB                                 int
	DiskFreeMiB                             int
	Limits                                  Limits // of every machine here
	DiskReserveMiB                          int    // that stays free: below it, nothing new is made
	DiskShort                               bool   // less than the reserve is free
	Machines                                int
	Running                                 int
	WaitingForSpace                         int // paused with PausedNoSpace
	Unresponsive                            int // running, and their guests do not answer
}

// Usage is what a machine uses now.
type Usage struct {
	PID                          int
	Uptime                       time.Duration
	CPU                          time.Duration
	CPUPercent                   float64 // since the last call, of one processor
	RSSBytes, PSSBytes, VSZBytes int64
	Threads                      int
	DiskBytes                    int64 // that removing its disks would free, as last measured
	ReadBytes, WrittenBytes      int64 // from and to storage, since its monitor started
}

// Event reports what happened to a machine other than by request.
type Event struct {
	Time    time.Time
	Host    HostID
	Machine MachineID
	// Type is "died", "adopted", "hibernated", "lost", "unresponsive" and "responsive" (Machine.Unresponsive has
	// changed), or "paused" and "resumed" with a PauseReason as Reason.
	Type   string
	Reason string
	// OutOfMemory: it died because the host, or its own limit, had no memory left for it.
	OutOfMemory bool
	Console     []byte // as Host.Console, of a machine that died; nil if it is not available
}

// GuestConn is a byte stream to the guest of a machine.
type GuestConn struct {
	net.Conn
	Generation uint64 // of the machine; the stream ends with it
}

// LocalGuest is implemented by the Conn of a GuestConn whose other end is in the caller's process. The caller may then
// use Guest, which is valid for the same generation, and save the work of the stream.
type LocalGuest interface {
	Guest() guestapi.Guest
}

// Host is a host agent. All methods may be called concurrently; operations on one machine wait for each
// other. Unknown ids are ErrNotFound, except in Destroy, which may be repeated.
type Host interface {
	Create(ctx context.Context, req Create) (Machine, error)
	Fork(ctx context.Context, req Fork) ([]ForkResult, error)
	// Get returns one machine. ErrNotFound is a statement that this host does not have the machine, which only a
	// host that has completed its recovery can make; one that cannot tell returns ErrUnavailable. That a machine
	// is missing from List is no such statement.
	Get(ctx context.Context, id MachineID) (Machine, error)
	List(ctx context.Context) ([]Machine, error)
	Pause(ctx context.Context, id MachineID) error
	Resume(ctx context.Context, id MachineID) error
	Hibernate(ctx context.Context, id MachineID) error
	// Stop is Hibernate without memory: what programs wrote is on the disk, and Wake boots it. A hibernated
	// machine loses its memory; its disk is then as after a power failure.
	Stop(ctx context.Context, id MachineID) error
	Wake(ctx context.Context, id MachineID) (Machine, error)
	SetPersistent(ctx context.Context, id MachineID, keep bool) error
	// SetEgress changes what a machine may reach, in any state. On a running machine the policy is in force when
	// the call returns, also for existing connections. After an error the old policy applies. ErrInvalid: the
	// policy is not possible.
	SetEgress(ctx context.Context, id MachineID, policy Egress) error
	// SetGroupBounds replaces the bounds of groups. A host has none from its start until the first call.
	SetGroupBounds(ctx context.Context, bounds GroupBounds) error
	Destroy(ctx context.Context, id MachineID, cause string) error
	// DialGuest opens a byte stream to the guest of a running machine, on which the guest protocol is spoken (see
	// package guestlink). It ends with the machine's generation. ErrWrongState: the machine does not run.
	DialGuest(ctx context.Context, id MachineID) (GuestConn, error)
	Usage(ctx context.Context, id MachineID) (Usage, error)
	// Console returns what the guest's kernel printed, the last 64 KiB.
	Console(ctx context.Context, id MachineID) ([]byte, error)

	TakeSnapshot(ctx context.Context, machine MachineID, id SnapshotID, labels map[string]string) (Snapshot, error)
	// GetSnapshot returns one snapshot. ErrNotFound is a statement that this host does not have it; see Get.
	GetSnapshot(ctx context.Context, id SnapshotID) (Snapshot, error)
	Snapshots(ctx context.Context) ([]Snapshot, error)
	DeleteSnapshot(ctx context.Context, id SnapshotID) error

	Builder
	SnapshotTransfer
	VolumeHost

	Templates(ctx context.Context) ([]Template, error)
	// StartBake starts a bake, or joins one under way; Templates reports its progress. force bakes again.
	StartBake(ctx context.Context, name TemplateName, force bool) error
	Capacity(ctx context.Context) (Capacity, error)
	// Events returns the events from now on. The stream ends with an error if the caller does not keep up; what was
	// missed must then be found by comparing.
	Events(ctx context.Context) (Stream[Event], error)
}

// Errors of a host, to be compared with errors.Is; the wrapping text is for people.
var (
	ErrNotFound    = errors.New("not found")
	ErrExists      = errors.New("exists already")
	ErrWrongState  = errors.New("not possible in this state")
	ErrNoCapacity  = errors.New("no capacity")
	ErrNoSpace     = errors.New("no disk space")
	ErrInvalid     = errors.New("invalid")
	ErrUnsupported = errors.New("not supported by this host")
	ErrInUse       = errors.New("in use")
	// ErrUnavailable: the host is not reachable, has not recovered, or cannot read its own record.
	ErrUnavailable = errors.New("host cannot tell now")
)
