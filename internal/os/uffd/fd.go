package uffd

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Feature is a set of abilities that are asked for when a userfaultfd is made.
type Feature uint64

// From linux/userfaultfd.h.
const (
	EventRemove Feature = 1 << 3 // tell when memory is given back (MADV_DONTNEED, MADV_REMOVE)
	HugePages   Feature = 1 << 4 // faults in memory of huge pages
	EventUnmap  Feature = 1 << 6
)

// Sizes of pages that faults are served in, in bytes.
const (
	Page = 4 << 10
	Huge = 2 << 20
)

// Kind says what happened.
type Kind uint8

// From linux/userfaultfd.h.
const (
	Fault  Kind = 0x12
	Remove Kind = 0x15
	Unmap  Kind = 0x16
)

// Event is one thing that happened in the other process. Addresses are that process's.
type Event struct {
	Kind  Kind
	Flags uint64 // of a fault: 1 for a write
	Start uint64 // of a fault: the address itself, wherever in its page
	End   uint64 // of a removal; 0 for a fault
}

// FD is a userfaultfd. It is not used any more when Close is called.
type FD struct{ fd int }

// New makes a userfaultfd for memory of this process, which faults in the kernel's own code reach, too. It
// needs /dev/userfaultfd or the right to trace processes.
func New(features Feature) (*FD, error) {
	fd, err := openDevice()
	if err != nil {
		return nil, fmt.Errorf("make a userfaultfd: %w", err)
	}
	if err := api(fd, uint64(features)); err != nil {
		return nil, errors.Join(fmt.Errorf("make a userfaultfd: %w", err), unix.Close(fd))
	}
	return Open(fd), nil
}

// Open makes an FD of a descriptor that another process made, and owns it. It is an int and no os.File,
// which would have to be blocking to give its number away.
func Open(fd int) *FD { return &FD{fd} }

// Close ends it. Memory that is still registered only with this descriptor reads as zeros from then on.
func (f *FD) Close() error { return unix.Close(f.fd) }

// Register has faults on missing pages of a range told. Start and length are multiples of its page size.
func (f *FD) Register(start, length uint64) error {
	if err := register(f.fd, start, length); err != nil {
		return fmt.Errorf("register %d bytes at %x: %w", length, start, err)
	}
	return nil
}

// Unregister lets faults of a range go their usual way again, and wakes who waits there.
func (f *FD) Unregister(start, length uint64) error {
	if err := unregister(f.fd, start, length); err != nil {
		return fmt.Errorf("unregister %d bytes at %x: %w", length, start, kernelError(err))
	}
	return nil
}

// Copy puts src at address to and wakes who waits there. It answers how many bytes it put: fewer than
// len(src) when something stopped it there, and with none put, what that was. Of src only the length of a
// multiple of the page size is legal.
func (f *FD) Copy(to uint64, src []byte) (int64, error) {
	n, err := copyPages(f.fd, to, src)
	return progress(n, err)
}

// Zero fills a range with zeros and wakes who waits there, with the results of Copy. Huge pages cannot be
// filled so.
func (f *FD) Zero(start, length uint64) (int64, error) {
	n, err := zero(f.fd, start, length)
	return progress(n, err)
}

// Continue maps pages that are in the page cache of shared memory already, with the results of Copy.
func (f *FD) Continue(start, length uint64) (int64, error) {
	n, err := continueRange(f.fd, start, length)
	return progress(n, err)
}

// Wake wakes who waits for a page of a range.
func (f *FD) Wake(start, length uint64) error {
	if err := wake(f.fd, start, length); err != nil {
		return fmt.Errorf("wake at %x: %w", start, kernelError(err))
	}
	return nil
}

func progress(n int64, err error) (int64, error) {
	if n > 0 {
		return n, nil // what stopped it shows in the next call, if it lasts
	}
	return 0, kernelError(err)
}

// kernelError turns the kernel's errors into this package's.
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
