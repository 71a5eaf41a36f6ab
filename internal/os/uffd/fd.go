package uffd

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Feature is a set of userfaultfd features (UFFD_FEATURE_).
type Feature uint64

// From linux/userfaultfd.h.
const (
	EventRemove Feature = 1 << 3 // report memory that is given back (MADV_DONTNEED, MADV_REMOVE)
	HugePages   Feature = 1 << 4 // faults in hugetlbfs memory
	EventUnmap  Feature = 1 << 6
)

// Page sizes in bytes.
const (
	Page = 4 << 10
	Huge = 2 << 20
)

// Kind is the kind of an event.
type Kind uint8

// From linux/userfaultfd.h.
const (
	Fault  Kind = 0x12
	Remove Kind = 0x15
	Unmap  Kind = 0x16
)

// Event is one event of the other process. Addresses are those of that process.
type Event struct {
	Kind  Kind
	Flags uint64 // page fault: 1 for a write
	Start uint64 // page fault: the faulting address, not rounded to the page
	End   uint64 // end of the removed range; 0 for a page fault
}

// FD is a userfaultfd. It must not be used after Close.
type FD struct{ fd int }

// New creates a userfaultfd for the memory of this process, including faults in kernel mode. It
// needs access to /dev/userfaultfd or CAP_SYS_PTRACE.
func New(features Feature) (*FD, error) {
	fd, err := openDevice()
	if err != nil {
		return nil, fmt.Errorf("create a userfaultfd: %w", err)
	}
	if err := api(fd, uint64(features)); err != nil {
		return nil, errors.Join(fmt.Errorf("create a userfaultfd: %w", err), unix.Close(fd))
	}
	return Open(fd), nil
}

// Open returns an FD for a descriptor that another process created, and takes ownership. The FD
// does not use os.File, whose Fd method would make the descriptor blocking.
func Open(fd int) *FD { return &FD{fd} }

// Close closes the userfaultfd. Missing pages that are registered only with it then read as zeros.
func (f *FD) Close() error { return unix.Close(f.fd) }

// Register starts reporting faults on missing pages of a range. start and length must be multiples
// of the page size.
func (f *FD) Register(start, length uint64) error {
	if err := register(f.fd, start, length); err != nil {
		return fmt.Errorf("register %d bytes at %x: %w", length, start, err)
	}
	return nil
}

// Unregister stops reporting faults of a range and wakes the threads that wait there.
func (f *FD) Unregister(start, length uint64) error {
	if err := unregister(f.fd, start, length); err != nil {
		return fmt.Errorf("unregister %d bytes at %x: %w", length, start, kernelError(err))
	}
	return nil
}

// Copy copies src to address to and wakes the threads that wait there. It returns the number of
// bytes copied, which is less than len(src) if the copy stopped early. If nothing was copied, it
// returns the error. len(src) must be a multiple of the page size.
func (f *FD) Copy(to uint64, src []byte) (int64, error) {
	n, err := copyPages(f.fd, to, src)
	return progress(n, err)
}

// Zero maps zero pages and wakes the threads that wait there. It returns the same values as Copy.
// The kernel supports no huge pages here.
func (f *FD) Zero(start, length uint64) (int64, error) {
	n, err := zero(f.fd, start, length)
	return progress(n, err)
}

// Continue maps pages of shared memory that are already in the page cache. It returns the same
// values as Copy.
func (f *FD) Continue(start, length uint64) (int64, error) {
	n, err := continueRange(f.fd, start, length)
	return progress(n, err)
}

// Wake wakes the threads that wait for pages of a range.
func (f *FD) Wake(start, length uint64) error {
	if err := wake(f.fd, start, length); err != nil {
		return fmt.Errorf("wake at %x: %w", start, kernelError(err))
	}
	return nil
}

func progress(n int64, err error) (int64, error) {
	if n > 0 {
		return n, nil // if the error persists, the next call returns it
	}
	return 0, kernelError(err)
}

// kernelError maps errors of the kernel to those of this package.
func kernelError(err error) error {
	switch {
	case errors.Is(err, unix.EAGAIN):
		return ErrAgain
	case errors.Is(err, unix.EEXIST):
		return ErrExists
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return err
}
