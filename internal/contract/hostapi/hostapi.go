// Package hostapi is the contract between the control plane and a host agent: machines, snapshots,
// baked templates, capacity. It knows no user, no workspace and no sandbox. The control plane is tested
// against a simulated host, the host agent against a scripted caller.
package hostapi

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// MachineID, SnapshotID and TemplateName are text of lower-case letters and digits (and, in template
// names, dots, dashes and underscores). The caller chooses ids, so that every call can be repeated.
type (
	MachineID    string
	SnapshotID   string
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
	Failed     State = "failed" // its monitor died and its disk is kept; Wake boots it anew
)

// BootMode says how a machine came to life last.
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
	DiskMiB  int     // 0: as the template; else at least that, the root file system grows
	// VCPUs and MemoryMiB are of a machine from an Image. Any other has the processors of what it is made
	// from, and its memory or, where the host's monitor can add to it, so much as MemoryMiB says; 0: as much.
	VCPUs     int
	MemoryMiB int
	Hostname  string
	Env       map[string]string
	Files     map[string]string // small files to put at every start, by path; anybody may read them
	// Persistent: the machine's disk survives the death of its monitor, and the end of the host agent
	// hibernates it instead of destroying it.
	Persistent bool
	Egress     Egress            // what the machine may reach
	Limits     Limits            // none wider than the host's; a fork has its parent's
	Labels     map[string]string // kept and given back; not understood
}

// Egress says what a machine may reach: what Allow names, then not what Deny names, and the rest unless
// DenyOthers. An entry is an IPv4 address, a network ("198.51.100.0/24"), a domain, or all domains below one
// ("*.example.com"). The zero value allows all. It is a value: nobody changes its lists.
type Egress struct {
	Allow      []string `json:"allow,omitempty"`
	Deny       []string `json:"deny,omitempty"`
	DenyOthers bool     `json:"deny_others,omitempty"`
}

// IsZero tells whether the policy allows all by saying nothing.
func (e Egress) IsZero() bool { return len(e.Allow) == 0 && len(e.Deny) == 0 && !e.DenyOthers }

// Equal tells whether two policies say the same in the same words.
func (e Egress) Equal(o Egress) bool {
	return slices.Equal(e.Allow, o.Allow) && slices.Equal(e.Deny, o.Deny) && e.DenyOthers == o.DenyOthers
}

// Fork asks for children of a running or paused machine, which goes on in its state. They inherit its Egress.
type Fork struct {
	Parent   MachineID
	Children []Child
}

// Child is one machine to be.
type Child struct {
	ID         MachineID
	Hostname   string
	Env        map[string]string // nil: as the parent
	Files      map[string]string // nil: as the parent
	Persistent bool
	Labels     map[string]string
}

// ForkResult is what became of a child.
type ForkResult struct {
	Machine Machine
	Err     error // nil: it runs. A child that failed has left nothing behind
}

// Machine is one machine as its host sees it.
type Machine struct {
	ID         MachineID
	Host       HostID
	State      State
	Template   TemplateName // where its lineage began
	Snapshot   SnapshotID   // it was created from, if any
	Parent     MachineID    // it was forked from, if any
	VCPUs      int
	MemoryMiB  int
	DiskMiB    int
	Disks      []DataDisk // beside the root disk, in the guest's order
	GuestIP    string     // reachable from this host while it runs
	Tap        string
	MAC        string
	PID        int
	Generation uint64
	BootMode   BootMode
	Boot       time.Duration // of the last start, request to guest confirmed
	Pause      time.Duration // the last time it stood still for a fork or snapshot
	Created    time.Time
	Persistent bool
	Egress     Egress
	Limits     Limits // that were asked for; those of the host hold too
	Labels     map[string]string
	Reason     string  // why it failed
	Phases     []Phase // of the last operation, in order
}

// DataDisk is a disk beside the root disk.
type DataDisk struct {
	Name    string
	SizeMiB int
	Mount   string // where the guest has its file system
}

// Phase is a named part of an operation.
type Phase struct {
	Name string
	Took time.Duration
}

// Snapshot is a machine at rest: memory, device state and disk of one moment.
type Snapshot struct {
	ID        SnapshotID
	Host      HostID
	Machine   MachineID
	Template  TemplateName
	VCPUs     int
	MemoryMiB int
	DiskMiB   int
	Bytes     int64 // that it takes on its own
	Created   time.Time
	Labels    map[string]string
}

// Template is one that this host knows.
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
	Limits        Limits // of its machines, where a create has none of its own
	Tools         []string
	Hidden        bool // usable by its name, but not to be listed to users
	Baked         bool
	BakedAt       time.Time
	Bytes         int64             // that it takes on its own: without holes and what it shares with templates baked before it
	ApparentBytes int64             // of memory and disks, as a machine sees them
	Bake          *Bake             // under way or ended last; nil: none
	Published     bool              // made by Publish; Labels are of that call
	Labels        map[string]string // of a published one
}

// Bake is progress of making a template's image and snapshot.
type Bake struct {
	State   string // "running", "done", "failed"
	Step    string // "rootfs", "image", "boot", "warm", "capture"
	Percent int    // 0 to 100, by steps
	Started time.Time
	Ended   time.Time
	Err     string
	Log     []string // last lines
}

// Capacity is what a host has and has promised.
type Capacity struct {
	Host                                    HostID
	Driver, Version, Accelerator, Isolation string
	Format                                  string // of the virtual hardware: a snapshot of another is not restored here
	VCPUs                                   int
	MemoryMiB                               int // of the host
	MemoryFreeMiB                           int // that may still be promised
	DiskMiB                                 int
	DiskFreeMiB                             int
	Limits                                  Limits // of every machine here
	Machines                                int
	Running                                 int
}

// Usage is what a machine takes now.
type Usage struct {
	PID                          int
	Uptime                       time.Duration
	CPU                          time.Duration
	CPUPercent                   float64 // since the last call, of one processor
	RSSBytes, PSSBytes, VSZBytes int64
	Threads                      int
}

// Event tells what happened to a machine without being asked for.
type Event struct {
	Time    time.Time
	Host    HostID
	Machine MachineID
	Type    string // "died", "adopted", "hibernated", "lost"
	Reason  string
	// OutOfMemory: it died because the host or its own limit had no memory for it.
	OutOfMemory bool
	Console     []byte // as Host.Console, of a machine that died; nil if it could not be had
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

// Host is a host agent. Every method may be called at once; operations on one machine wait for each
// other. Ids that are not there answer ErrNotFound, except Destroy, which is right twice.
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
	// machine forgets its memory; its disk is then as after a loss of power.
	Stop(ctx context.Context, id MachineID) error
	Wake(ctx context.Context, id MachineID) (Machine, error)
	SetPersistent(ctx context.Context, id MachineID, keep bool) error
	// SetEgress changes what a machine may reach, in any state. On a machine that lives it is in force when
	// the call returns, also for connections that are there already. After an error the old policy holds.
	// ErrInvalid: the policy is not possible.
	SetEgress(ctx context.Context, id MachineID, policy Egress) error
	Destroy(ctx context.Context, id MachineID, cause string) error
	// DialGuest opens a byte stream to the guest of a running machine, on which the guest protocol is spoken (see
	// package guestlink). It ends with the machine's generation. ErrWrongState: the machine does not run.
	DialGuest(ctx context.Context, id MachineID) (GuestConn, error)
	Usage(ctx context.Context, id MachineID) (Usage, error)
	// Console is what the guest's kernel printed, the last 64 KiB.
	Console(ctx context.Context, id MachineID) ([]byte, error)

	TakeSnapshot(ctx context.Context, machine MachineID, id SnapshotID, labels map[string]string) (Snapshot, error)
	// GetSnapshot returns one snapshot. ErrNotFound is a statement that this host does not have it; see Get.
	GetSnapshot(ctx context.Context, id SnapshotID) (Snapshot, error)
	Snapshots(ctx context.Context) ([]Snapshot, error)
	DeleteSnapshot(ctx context.Context, id SnapshotID) error

	Builder
	SnapshotTransfer

	Templates(ctx context.Context) ([]Template, error)
	// StartBake begins to bake, or joins a bake under way; Templates shows how it goes. force bakes again.
	StartBake(ctx context.Context, name TemplateName, force bool) error
	Capacity(ctx context.Context) (Capacity, error)
	// Events returns the events from now on. The stream ends with an error if the caller does not keep up; what was
	// missed must then be found by comparing.
	Events(ctx context.Context) (Stream[Event], error)
}

// What a host answers, compared with errors.Is; the wrapping text is for people.
var (
	ErrNotFound    = errors.New("not found")
	ErrExists      = errors.New("exists already")
	ErrWrongState  = errors.New("not possible in this state")
	ErrNoCapacity  = errors.New("no capacity")
	ErrNoSpace     = errors.New("no disk space")
	ErrInvalid     = errors.New("invalid")
	ErrUnsupported = errors.New("not supported by this host")
	ErrInUse       = errors.New("in use")
	ErrUnavailable = errors.New("host cannot tell now") // it is not reachable, not recovered, or cannot read its own record
)
