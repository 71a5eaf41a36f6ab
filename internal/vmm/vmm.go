package vmm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// Accelerator is how guest instructions are executed.
type Accelerator string

// The accelerators a driver may report.
const (
	KVM  Accelerator = "kvm"  // hardware virtualization
	TCG  Accelerator = "tcg"  // QEMU's translator
	None Accelerator = "none" // the fake driver: no guest at all
)

// Capabilities say what a driver can do, so that callers plan by them and never by its name.
type Capabilities struct {
	Name                 string // "qemu", "fake"
	Version              string // of the monitor program
	Format               string // of the virtual hardware, if the driver has changed it: images of another are refused
	Accelerator          Accelerator
	Isolation            string // what stands between guest and host, for people: "microvm"
	Snapshot             bool   // Prepare, Load and Capture work
	LiveFork             bool   // a machine goes on after Capture, and many machines load one Capture
	CaptureClosesChannel bool   // Capture ends the guest channel: dial again once the machine goes on
	OpensTapByName       bool   // the monitor opens the tap itself, by NIC.Device in NIC.Netns: nobody else may hold it
	ServesPageFaults     bool   // of Image.Memory it uses Serve; else File
	HugePages            bool   // Spec.HugePages is used
	DiskRates            bool   // Disk.Rate is held
	NICRates             bool   // the rates of NIC are held
	MemoryHotplug        bool   // a prepared machine may have more memory than its image, up to Manifest.MaxMemoryMiB
	Checkpoints          bool   // machines are Rehearsers, and those of an image of a rehearsed one are ready sooner
	DiskHotplug          bool   // a prepared machine may have more disks than its image, up to Manifest.MaxDisks
}

// A Spec is what a machine is made of. The caller owns everything it names and keeps it until the
// machine is dead.
type Spec struct {
	ID        string // unique on this host; letters and digits
	Dir       string // directory of the machine, made by the caller, used for sockets and logs
	VCPUs     int
	MemoryMiB int
	Kernel    string // path; used by Boot alone
	Initramfs string // path; used by Boot alone
	Cmdline   string // appended to what the driver needs; used by Boot alone
	Disks     []Disk
	NIC       *NIC // nil: no network
	Confine   Confine
	// HugePages: memory that Image.Memory serves is made of pages of 2 MiB, which the host must have ready.
	// Used by Prepare alone.
	HugePages bool
}

// Disk is a raw image that the guest sees as a block device; the first is /dev/vda.
type Disk struct {
	Path     string
	ReadOnly bool
	// Volatile: the disk need not survive a crash of the host, so what the guest flushes goes to the
	// host's page cache and does not wait for the medium. Clones of the disk are as good as ever.
	Volatile bool
	Rate     Rate
}

// Rate bounds what goes through a device each second; 0 is no bound.
type Rate struct {
	Bytes int64 `json:"bytes,omitempty"`
	Ops   int64 `json:"ops,omitempty"` // requests of a disk, packets of a network card
}

// NIC is the guest's network card. Tap stays open in the caller; the driver duplicates it. Adopt does
// not use it.
type NIC struct {
	Tap    *os.File // nil for a driver with NamedTap
	Device string   // name of the tap; used by a driver with NamedTap
	Netns  *os.File // network namespace that Device is in; nil: the caller's
	MAC    net.HardwareAddr
	In     Rate // towards the guest
	Out    Rate
}

// Confine limits the monitor process.
type Confine struct {
	UID, GID int // 0: the caller's own; files of the machine must be readable by them
	// Enter puts a process that was just started, and runs nothing of the guest yet, where its limits
	// hold. May be nil.
	Enter func(pid int) error
	// Jail makes the monitor's process, within its limits: Enter is not called then. nil: the driver starts
	// it as any other process.
	Jail Jail
}

// Driver makes machines. All methods may be called at once from many goroutines.
type Driver interface {
	Capabilities() Capabilities
	// Boot starts a machine cold: kernel, initramfs, first disk. It returns when the monitor runs the
	// guest, not when the guest is ready: Dial and ask it.
	Boot(ctx context.Context, spec Spec) (Machine, error)
	// Prepare starts a monitor over the memory of image, without a guest in it. It refuses an image of
	// another driver, version, processor or shape with a *MismatchError. Dial works from here on, and
	// what is written is read by the guest once it is loaded. Disks must exist with their final size;
	// their content may change until Load.
	Prepare(ctx context.Context, spec Spec, image Image) (Machine, error)
	// Adopt takes over a machine that an earlier process of ours started with the same spec, but for the rates of its
	// disks, which are those of spec from then on.
	// ErrGone when it is not there any more.
	Adopt(ctx context.Context, spec Spec) (Machine, error)
	// Kill ends whatever monitor still belongs to spec.Dir, adopted or not, and waits for its end. It
	// is right for a directory of which nothing is known, and does nothing where no monitor is left.
	Kill(ctx context.Context, spec Spec) error
}

// CompatibilityChecker is a Driver that can tell from a manifest alone whether an image can be restored here, as Prepare
// would: it answers nil or a *MismatchError. Nothing is started.
type CompatibilityChecker interface {
	CheckCompatible(ctx context.Context, m Manifest) error
}

// Machine is one monitor process with its guest. Methods other than Dial, Done and Err are called by
// one goroutine at a time, except Kill, which is right at any moment and twice.
type Machine interface {
	PID() int
	// Dial opens the guest channel. A machine has one channel: a second Dial ends the first.
	Dial(ctx context.Context) (net.Conn, error)
	// Load brings a prepared machine to life and returns when it runs: with nil from the image's own
	// state, else from a Capture of a machine that was started on the same image. Once, after Prepare.
	Load(ctx context.Context, from Capture) error
	Pause(ctx context.Context) error  // stops the guest's processors; twice is fine
	Resume(ctx context.Context) error // lets them go on; twice is fine
	// Capture takes memory and device state of a paused machine. It is short (the guest waits) and keeps
	// the result in memory; Save writes it later. The guest's disks are flushed: the caller clones them
	// before Resume.
	Capture(ctx context.Context) (Capture, error)
	Usage() (Usage, error)
	// Kill ends the machine at once and waits for its end.
	Kill(ctx context.Context) error
	// Done is closed when the monitor has ended; Err then says why (nil after Kill).
	Done() <-chan struct{}
	Err() error
}

// PreCapturer is a Machine that can make ready, while its guest runs, what the next Pause and Capture
// need, so that the guest stands still for less long. It is worth calling right before a guest's workload
// is frozen; nobody has to.
type PreCapturer interface {
	PreCapture(ctx context.Context) error
}

// ForkCapturer is a Machine of which less needs to be taken, and its guest stand still for less long, when it is known
// which machines the capture is loaded into.
type ForkCapturer interface {
	// CaptureFor is Capture for machines that are prepared already. No others can be loaded from it, and it cannot be
	// saved.
	CaptureFor(ctx context.Context, into []Machine) (Capture, error)
}

// CheckpointMarker is a Machine whose monitor learns from what its guest does, as a translator does, and can hand that
// on to the machines made from an image of it.
type CheckpointMarker interface {
	// MarkWarmedUp says that the guest did what those of the next Capture's image will do first.
	MarkWarmedUp()
}

// CheckpointStatus is a Driver of Rehearsers. Remembers tells whether machines of an image begin with what the monitor
// of a rehearsed one learnt: an image may be older than that, or of another boot of the host.
type CheckpointStatus interface {
	HasCheckpoint(image Image) (bool, error)
}

// Reclaimer is a Machine whose guest can be asked to give memory back while it runs.
type Reclaimer interface {
	// Reclaim asks the guest for so many MiB altogether; 0 gives all of it back. A guest may refuse: it is a
	// request and no limit.
	Reclaim(ctx context.Context, mib int) error
}

// MetadataSetter is a Machine whose guest can ask its monitor who it is, as guests of clouds ask a metadata service.
type MetadataSetter interface {
	// SetMetadata says what the guest is answered: a JSON object, which replaces what was said before. Said before
	// Load, it is there with the guest's first instruction.
	SetMetadata(ctx context.Context, document []byte) error
}

// Capture is memory and device state of a machine at one moment. It may be loaded into many machines at
// once and saved; Close frees it when nobody uses it any more.
type Capture interface {
	DirtyBytes() int64 // memory that differs from the image the machine was started on
	// Save writes a complete image into dir, an existing empty directory on the file system of the image
	// the machine was started on. What Save returns is durable.
	Save(ctx context.Context, dir string) (Image, error)
	Close() error
}

// Usage is what a monitor process takes of the host.
type Usage struct {
	Started  time.Time
	CPU      time.Duration // user and system time since the start
	RSSBytes int64
	PSSBytes int64
	VSZBytes int64
	Threads  int
}

// ErrGone says that a machine's monitor is not there any more.
var ErrGone = errors.New("monitor has ended")

// MismatchError says why an image cannot be restored here.
type MismatchError struct{ Field, Image, Host string }

func (e *MismatchError) Error() string {
	return fmt.Sprintf(
		"image does not fit this host: %s is %q in the image and %q here; bake the template again on this host",
		e.Field,
		e.Image,
		e.Host,
	)
}

// UnsupportedError says that a driver cannot do an operation at all.
type UnsupportedError struct{ Op, Driver string }

func (e *UnsupportedError) Error() string { return fmt.Sprintf("driver %s cannot %s", e.Driver, e.Op) }
