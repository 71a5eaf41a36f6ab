package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// Bounds on what is read of a process or of an image.
const (
	maxThreads = 64
	maxVMAs    = 8192
	maxFiles   = 512
	maxFDs     = 512
	maxFilters = 16
)

const pageSize = 4096

// maxAddress is the end of a process's own addresses with four levels of page tables.
const maxAddress = 1<<47 - pageSize

// ErrUnsupported says that a process holds what no image can: what goes on in the kernel on its behalf.
var ErrUnsupported = errors.New("no image of this process can be taken")

// Checkpoint describes a process. It holds no content of memory.
type Checkpoint struct {
	Boot           string          `json:"boot"`    // the kernel's id of the boot it was taken under
	Threads        []Thread        `json:"threads"` // the first is the main one
	VMAs           []VMA           `json:"areas"`   // by address
	Files          []File          `json:"files"`   // of areas
	SigActions     []SigAction     `json:"actions"`
	Filters        [][]byte        `json:"filters"` // the oldest first: struct sock_filter, packed
	FDs            []FD            `json:"fds"`
	Layout         [7]uint64       `json:"layout"` // start and end of code, of data, of the break; start of the stack
	Bytes          int64           `json:"bytes"`  // of the file with the stored content
	KernelMappings []KernelMapping `json:"kernel"`
}

// Thread is one thread, which stood in a system call.
type Thread struct {
	Regs    Regs   `json:"regs"`
	XSave   []byte `json:"state"` // floating point and vector registers, as XSAVE writes them
	SigMask uint64 `json:"mask"`  // blocked signals
	// ClearTID is where the kernel writes the id of the thread when it begins, and 0 when it ends.
	ClearTID uint64 `json:"clear"`
}

// SigAction is what a signal does: struct sigaction of the kernel.
type SigAction struct {
	Signal int      `json:"signal"`
	Data   [32]byte `json:"data"`
}

// Backing is where the content of an Area comes from.
type Backing string

// The backings.
const (
	Zero     Backing = "zero"    // nothing was there
	Stored   Backing = "stored"  // the file with the stored content
	Mapped   Backing = "mapped"  // a file of the host, unchanged
	External Backing = "outside" // a file that whoever makes a process gives
)

// VMA is a run of pages.
type VMA struct {
	Start   uint64  `json:"start"`
	End     uint64  `json:"end"`
	Prot    int     `json:"prot"` // as for mmap(2)
	Backing Backing `json:"backing"`
	File    int     `json:"file,omitempty"`   // Mapped: index in Image.Files
	Offset  int64   `json:"offset,omitempty"` // in the file
	Stack   bool    `json:"stack,omitempty"`  // of the main thread, which grows down
}

// KernelMapping is an area that the kernel itself gives to each process.
type KernelMapping struct {
	Name  string `json:"name"` // "[vdso]"
	Start uint64 `json:"start"`
	End   uint64 `json:"end"`
}

// File is a file of the host with code or constants.
type File struct {
	Path     string `json:"path"`
	Bytes    int64  `json:"bytes"`
	Modified int64  `json:"modified"` // nanoseconds
	Inode    uint64 `json:"inode"`
}

// FD is a descriptor of the process.
type FD struct {
	Number int    `json:"number"`
	Role   string `json:"role"`            // as Options.Role named it, or one of the roles below
	Value  uint64 `json:"value,omitempty"` // EventRole: the count; SignalRole: the signals
	// NonBlocking: calls on it never wait (O_NONBLOCK).
	NonBlocking bool `json:"non_blocking,omitempty"`
}

// Roles that this package knows and makes new files for.
const (
	EventRole  = "eventfd"
	SignalRole = "signalfd"
	PollRole   = "epoll" // that waits for nothing
)

// BootID is the kernel's id of this boot.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}

// Validate refuses an image that was damaged. An image that passes can still be nonsense: of that only the process
// made from it suffers.
func (im *Checkpoint) Validate() error {
	switch {
	case len(im.Threads) < 1 || len(im.Threads) > maxThreads:
		return fmt.Errorf("process image: %d threads", len(im.Threads))
	case len(im.VMAs) > maxVMAs || len(im.Files) > maxFiles || len(im.FDs) > maxFDs || len(im.Filters) > maxFilters:
		return errors.New("process image: too much of something")
	case im.Bytes < 0 || im.Bytes%pageSize != 0:
		return fmt.Errorf("process image: %d bytes of content", im.Bytes)
	}
	at := uint64(minAddress)
	for _, a := range im.VMAs {
		bytes := int64(a.End - a.Start)
		switch {
		case a.Start < at || a.End <= a.Start || a.End > maxAddress || a.Start%pageSize != 0 || a.End%pageSize != 0:
			return fmt.Errorf("process image: area %x-%x is out of order or range", a.Start, a.End)
		case a.Offset < 0 || a.Offset%pageSize != 0 || a.Prot&^7 != 0:
			return fmt.Errorf(
				"process image: area %x-%x has offset %d and protection %d",
				a.Start,
				a.End,
				a.Offset,
				a.Prot,
			)
		case a.Backing == Stored && (a.Offset > im.Bytes || bytes > im.Bytes-a.Offset):
			return fmt.Errorf("process image: area %x-%x lies behind the content", a.Start, a.End)
		case a.Backing == Mapped && (a.File < 0 || a.File >= len(im.Files)):
			return fmt.Errorf("process image: area %x-%x is of an unknown file", a.Start, a.End)
		}
		at = a.End
	}
	for _, fd := range im.FDs {
		if fd.Number < 0 || fd.Number >= fdStage {
			return fmt.Errorf("process image: descriptor %d", fd.Number)
		}
	}
	for _, t := range im.Threads {
		if len(t.XSave) > maxState {
			return fmt.Errorf("process image: %d bytes of registers", len(t.XSave))
		}
	}
	return nil
}

// OpenFiles opens the files that the image's code comes from. An error means that one was changed or removed since.
func (im *Checkpoint) OpenFiles() (_ []*os.File, err error) {
	var files []*os.File
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll(files))
		}
	}()
	for _, want := range im.Files {
		f, err := os.Open(want.Path)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
		have, err := statFile(f)
		if err != nil {
			return nil, err
		}
		if have != want {
			return nil, fmt.Errorf("%s was changed since the process image was taken", want.Path)
		}
	}
	return files, nil
}

// CheckFiles tells whether Open would succeed.
func (im *Checkpoint) CheckFiles() error {
	files, err := im.OpenFiles()
	return errors.Join(err, closeAll(files))
}

func closeAll(files []*os.File) error {
	var all error
	for _, f := range files {
		all = errors.Join(all, f.Close())
	}
	return all
}
