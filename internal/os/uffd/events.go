package uffd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// messageBytes is the size of struct uffd_msg.
const messageBytes = 32

// Reader reads events. Only one goroutine may use it.
type Reader struct {
	fd  *FD
	buf [64 * messageBytes]byte
}

// Events returns a reader for the events of f.
func (f *FD) Events() *Reader { return &Reader{fd: f} }

// Read appends the pending events to events and does not wait. It returns io.EOF if the process
// that owns the memory has exited.
func (r *Reader) Read(events []Event) ([]Event, error) {
	for {
		n, err := unix.Read(r.fd.fd, r.buf[:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return events, nil
		case err != nil:
			return events, fmt.Errorf("read page faults: %w", kernelError(err))
		case n == 0:
			return events, io.EOF
		}
		if events, err = appendEvents(events, r.buf[:n]); err != nil {
			return events, err
		}
		if n < len(r.buf) {
			return events, nil
		}
	}
}

// appendEvents decodes messages. It ignores kinds of events that are not in use.
func appendEvents(events []Event, data []byte) ([]Event, error) {
	if len(data)%messageBytes != 0 {
		return events, fmt.Errorf("read page faults: a message of %d bytes", len(data)%messageBytes)
	}
	for ; len(data) > 0; data = data[messageBytes:] {
		word := func(at int) uint64 { return binary.NativeEndian.Uint64(data[at:]) }
		switch k := Kind(data[0]); k {
		case Fault:
			events = append(events, Event{Kind: k, Flags: word(8), Start: word(16)})
		case Remove, Unmap:
			events = append(events, Event{Kind: k, Start: word(8), End: word(16)})
		}
	}
	return events, nil
}
