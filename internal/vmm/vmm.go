package vmm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// Driver makes machines. All methods may be called concurrently.
type Driver interface {
	Capabilities() Capabilities
	// Boot starts a machine cold: kernel, initramfs, first disk. It returns when the monitor runs the guest, not when
	// the guest is ready: Dial and wait for it.
	Boot(ctx context.Context, spec Spec) (Machine, error)
	// Prepare starts a monitor over the memory of image, without a guest in it. It returns a *MismatchError for an
	// image of another driver, version, processor or shape. Dial works from here on; the guest reads what is written
	// once it is loaded. Disks must exist in their final size; their content may change until Load.
	Prepare(ctx context.Context, spec Spec, image Image) (Machine, error)
	// Adopt takes over a machine that an earlier process of ours started with the same spec. The rates of the disks
	// may differ; those of spec apply from then on. It returns ErrGone if the monitor has ended.
	Adopt(ctx context.Context, spec Spec) (Machine, error)
	// Kill ends any monitor that still belongs to spec.Dir, adopted or not, and waits for its end. It does nothing if
	// there is no monitor, and needs to know nothing of what happened in the directory.
	Kill(ctx context.Context, spec Spec) error
}

// Machine is one monitor process with its guest.
// Methods other than Dial, Done and Err are called by one goroutine at a time, except Kill, which may be called at any
// time and more than once.
type Machine interface {
	PID() int
	// Dial opens the guest channel. A machine has one channel: a second Dial ends the first.
	Dial(ctx context.Context) (net.Conn, error)
	// Load lets the guest of a prepared machine run and returns when it does: with nil from the image's own state,
	// otherwise from a Capture of a machine that was started on the same image. It is called once, after Prepare.
	Load(ctx context.Context, from Capture) error
	Pause(ctx context.Context) error  // stops the guest's processors; pausing twice is fine
	Resume(ctx context.Context) error // lets them continue; resuming twice is fine
	// Capture takes memory and device state of a paused machine. It is short, since the guest waits, and keeps the
	// result in memory; Save writes it later. The guest's disks are flushed: the caller clones them before Resume.
	Capture(ctx context.Context) (Capture, error)
	Usage() (Usage, error)
	// Kill ends the machine at once and waits for its end.
	Kill(ctx context.Context) error
	// Done is closed when the monitor has ended; Err then returns why (nil after Kill).
	Done() <-chan struct{}
	Err() error
}

// Capture is memory and device state of a machine at one moment.
// It may be loaded into many machines at once and saved; Close frees it when it is no longer used.
type Capture interface {
	DirtyBytes() int64 // memory that differs from the image the machine was started on
	// Save writes a complete image into dir, an existing empty directory on the file system of the image that the
	// machine was started on. The image that Save returns is durable.
	Save(ctx context.Context, dir string) (Image, error)
	Close() error
}

// Usage is the host's resources that a monitor process uses.
type Usage struct {
	Started  time.Time
	CPU      time.Duration // user and system time since the start
	RSSBytes int64
	PSSBytes int64
	VSZBytes int64
	Threads  int

	ReadBytes, WrittenBytes int64 // from and to storage
}

// ErrGone says that a machine's monitor has ended.
var ErrGone = errors.New("monitor has ended")

// ErrNotActive says that the guest's driver of a device is not active: a guest that is still booting may activate it
// later.
var ErrNotActive = errors.New("the guest's driver of the device is not active")

// MismatchError says why an image cannot be restored on this host.
type MismatchError struct{ Field, Image, Host string }

// Error implements error.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("image does not fit this host: %s is %q in the image and %q here; "+
		"bake the template again on this host", e.Field, e.Image, e.Host)
}

// UnsupportedError says that a driver does not support an operation.
type UnsupportedError struct{ Op, Driver string }

// Error implements error.
func (e *UnsupportedError) Error() string { return fmt.Sprintf("driver %s cannot %s", e.Driver, e.Op) }
