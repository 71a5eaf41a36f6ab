package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// Limits on what is read from a process or a checkpoint.
const (
	maxThreads = 64
	maxVMAs    = 8192
	maxFiles   = 512
	maxFDs     = 512
	maxFilters = 16
)

const pageSize = 4096

// maxAddress is the end of the user address space with four levels of page tables.
const maxAddress = 1<<47 - pageSize

// ErrUnsupported reports that a process has state in the kernel that no checkpoint can hold.
var ErrUnsupported = errors.New("this process cannot be checkpointed")

// Checkpoint describes a process, without the content of its memory.
type Checkpoint struct {
	Boot       string      `json:"boot"`    // the kernel's boot ID at the time of the dump
	Threads    []Thread    `json:"threads"` // the main thread comes first
	VMAs       []VMA       `json:"areas"`   // sorted by address
	Files      []File      `json:"files"`   // mapped by VMAs
	SigActions []SigAction `json:"actions"`
	Filters    [][]byte    `json:"filters"` // seccomp filters, oldest first: packed struct sock_filter
	FDs        []FD        `json:"fds"`
	// Layout is start and end of code, of data and of the heap (brk), and the start of the stack.
	Layout         [7]uint64       `json:"layout"`
	Bytes          int64           `json:"bytes"` // size of the pages file
	KernelMappings []KernelMapping `json:"kernel"`
}

// Thread is one thread, stopped in a system call.
type Thread struct {
	Regs    Regs   `json:"regs"`
	XSave   []byte `json:"state"` // floating-point and vector registers in the format of XSAVE
	SigMask uint64 `json:"mask"`  // blocked signals
	// ClearTID is the address of the thread's ID: the kernel writes the ID there when the thread
	// starts, and 0 when it exits.
	ClearTID uint64 `json:"clear"`
}

// SigAction is what a signal does: the kernel's struct sigaction.
type SigAction struct {
	Signal int      `json:"signal"`
	Data   [32]byte `json:"data"`
}

// Backing says where the content of a VMA comes from.
type Backing string

// The kinds of backing.
const (
	Zero     Backing = "zero"    // anonymous memory without content
	Stored   Backing = "stored"  // the pages file
	Mapped   Backing = "mapped"  // an unmodified file of the host
	External Backing = "outside" // a file that the caller of Restore passes
)

// VMA is a virtual memory area.
type VMA struct {
	Start   uint64  `json:"start"`
	End     uint64  `json:"end"`
	Prot    int     `json:"prot"` // PROT_ flags of mmap(2)
	Backing Backing `json:"backing"`
	File    int     `json:"file,omitempty"`   // if Backing is Mapped: index in Checkpoint.Files
	Offset  int64   `json:"offset,omitempty"` // in the backing file
	Stack   bool    `json:"stack,omitempty"`  // the stack of the main thread, which grows down
}

// KernelMapping is a mapping that the kernel itself adds to every process.
type KernelMapping struct {
	Name  string `json:"name"` // "[vdso]"
	Start uint64 `json:"start"`
	End   uint64 `json:"end"`
}

// File identifies a file of the host that holds code or constants.
type File struct {
	Path     string `json:"path"`
	Bytes    int64  `json:"bytes"`
	Modified int64  `json:"modified"` // modification time in nanoseconds
	Inode    uint64 `json:"inode"`
}

// FD is a file descriptor of the process.
type FD struct {
	Number int    `json:"number"`
	Role   string `json:"role"`            // as returned by Options.Role, or one of the roles below
	Value  uint64 `json:"value,omitempty"` // EventRole: the counter; SignalRole: the signal mask
	// NonBlocking reports whether O_NONBLOCK is set.
	NonBlocking bool `json:"non_blocking,omitempty"`
}

// Roles that this package handles itself.
const (
	EventRole  = "eventfd"
	SignalRole = "signalfd"
	PollRole   = "epoll" // an epoll instance that watches no file
)

// BootID returns the kernel's ID of the current boot.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}

// Validate returns an error if the checkpoint is damaged. A checkpoint that passes may still be
// nonsense, but that affects only the process restored from it.
func (cp *Checkpoint) Validate() error {
	switch {
	case len(cp.Threads) < 1 || len(cp.Threads) > maxThreads:
		return fmt.Errorf("checkpoint has %d threads", len(cp.Threads))
	case len(cp.VMAs) > maxVMAs || len(cp.Files) > maxFiles || len(cp.FDs) > maxFDs || len(cp.Filters) > maxFilters:
		return errors.New("checkpoint has too many areas, files, descriptors or filters")
	case cp.Bytes < 0 || cp.Bytes%pageSize != 0:
		return fmt.Errorf("checkpoint has a pages file of %d bytes", cp.Bytes)
	}
	at := uint64(minAddress)
	for _, a := range cp.VMAs {
		bytes := int64(a.End - a.Start)
		switch {
		case a.Start < at || a.End <= a.Start || a.End > maxAddress || a.Start%pageSize != 0 || a.End%pageSize != 0:
			return fmt.Errorf("checkpoint area %x-%x is not sorted, not aligned or out of range", a.Start, a.End)
		case a.Offset < 0 || a.Offset%pageSize != 0 || a.Prot&^7 != 0:
			return fmt.Errorf(
				"checkpoint area %x-%x has invalid offset %d or protection %d",
				a.Start,
				a.End,
				a.Offset,
				a.Prot,
			)
		case a.Backing == Stored && (a.Offset > cp.Bytes || bytes > cp.Bytes-a.Offset):
			return fmt.Errorf("checkpoint area %x-%x is beyond the end of the pages file", a.Start, a.End)
		case a.Backing == Mapped && (a.File < 0 || a.File >= len(cp.Files)):
			return fmt.Errorf("checkpoint area %x-%x refers to an unknown file", a.Start, a.End)
		}
		at = a.End
	}
	for _, fd := range cp.FDs {
		if fd.Number < 0 || fd.Number >= fdStage {
			return fmt.Errorf("checkpoint has descriptor %d, which is out of range", fd.Number)
		}
	}
	for _, t := range cp.Threads {
		if len(t.XSave) > maxState {
			return fmt.Errorf("checkpoint has %d bytes of vector registers", len(t.XSave))
		}
	}
	return nil
}

// OpenFiles opens the files that the checkpoint maps. It returns an error if one of them has
// changed or was removed since the dump.
func (cp *Checkpoint) OpenFiles() (_ []*os.File, err error) {
	var files []*os.File
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll(files))
		}
	}()
	for _, want := range cp.Files {
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
			return nil, fmt.Errorf("%s has changed since the checkpoint was made", want.Path)
		}
	}
	return files, nil
}

// CheckFiles returns the error that OpenFiles would return.
func (cp *Checkpoint) CheckFiles() error {
	files, err := cp.OpenFiles()
	return errors.Join(err, closeAll(files))
}

func closeAll(files []*os.File) error {
	var all error
	for _, f := range files {
		all = errors.Join(all, f.Close())
	}
	return all
}
