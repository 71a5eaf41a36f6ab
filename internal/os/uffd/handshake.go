package uffd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Region is one contiguous part of a guest's memory.
type Region struct {
	Base     uint64 // address in the monitor's address space
	Size     uint64 // in bytes, a multiple of PageSize
	Offset   uint64 // in the memory file
	PageSize uint64 // Page or Huge
}

// wireRegion is a region in Firecracker's message. page_size_kib also holds bytes; before version
// 1.12 it is the only one of the two.
type wireRegion struct {
	Base        uint64 `json:"base_host_virt_addr"`
	Size        uint64 `json:"size"`
	Offset      uint64 `json:"offset"`
	PageSize    uint64 `json:"page_size,omitempty"`
	PageSizeKiB uint64 `json:"page_size_kib"`
}

// Limits of a handshake. A guest has one region below 3 GiB, one above 4 GiB, and those of
// hotplugged memory.
const (
	maxHandshake = 64 << 10
	maxRegions   = 256
	maxAddress   = 1 << 57 // end of the address space on every supported machine
	maxFiles     = 4       // to receive and close superfluous descriptors, which are refused
)

// ParseRegions decodes a monitor's description of its memory. It refuses regions that overlap in
// the monitor or in the memory file, unknown page sizes, and impossible addresses.
func ParseRegions(data []byte) ([]Region, error) {
	var wire []wireRegion
	if err := json.Unmarshal(data, &wire); err != nil {
		return nil, fmt.Errorf("memory regions: %w", err)
	}
	if len(wire) == 0 || len(wire) > maxRegions {
		return nil, fmt.Errorf("%d memory regions: want 1 to %d", len(wire), maxRegions)
	}
	out := make([]Region, 0, len(wire))
	for _, w := range wire {
		r := Region{Base: w.Base, Size: w.Size, Offset: w.Offset, PageSize: w.PageSize}
		if r.PageSize == 0 {
			r.PageSize = w.PageSizeKiB
		}
		if err := r.check(); err != nil {
			return nil, err
		}
		for _, o := range out {
			if overlap(r.Base, o.Base, r.Size, o.Size) || overlap(r.Offset, o.Offset, r.Size, o.Size) {
				return nil, fmt.Errorf("memory region at %x overlaps the one at %x", r.Base, o.Base)
			}
		}
		out = append(out, r)
	}
	return out, nil
}

func (r Region) check() error {
	switch {
	case r.PageSize != Page && r.PageSize != Huge:
		return fmt.Errorf("memory region at %x: page size %d is not supported", r.Base, r.PageSize)
	case r.Size == 0 || r.Size >= maxAddress || r.Base >= maxAddress || r.Offset >= maxAddress:
		return fmt.Errorf("memory region at %x: size %d or offset %d is out of range", r.Base, r.Size, r.Offset)
	case (r.Base|r.Size|r.Offset)%r.PageSize != 0:
		return fmt.Errorf("memory region at %x: not aligned to its page size", r.Base)
	}
	return nil
}

func overlap(a, b, sizeA, sizeB uint64) bool { return a < b+sizeB && b < a+sizeA }

// Receive reads a monitor's handshake and returns its userfaultfd and memory regions. The caller
// closes the userfaultfd. If ctx ends first, Receive returns its cause. The monitor keeps its end
// of conn open until it exits.
func Receive(ctx context.Context, conn *net.UnixConn) (_ *FD, _ []Region, err error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err != nil {
			err = context.Cause(ctx)
		}
		err = errors.Join(err, conn.SetReadDeadline(time.Time{}))
	}()
	var data []byte
	var fds []int
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd) // it was never used
		}
	}()
	buf, control := make([]byte, maxHandshake), make([]byte, unix.CmsgSpace(maxFiles*4))
	for {
		n, cn, _, _, err := conn.ReadMsgUnix(buf, control)
		if err != nil {
			return nil, nil, fmt.Errorf("receive memory handshake: %w", err)
		}
		got, err := rights(control[:cn])
		fds = append(fds, got...)
		if err != nil {
			return nil, nil, err
		}
		if n == 0 {
			return nil, nil, fmt.Errorf("receive memory handshake: %w", io.ErrUnexpectedEOF)
		}
		if data = append(data, buf[:n]...); len(data) > maxHandshake {
			return nil, nil, fmt.Errorf("receive memory handshake: more than %d bytes", maxHandshake)
		}
		if len(fds) > 0 && json.Valid(data) {
			break
		}
	}
	regions, err := ParseRegions(data)
	if err != nil {
		return nil, nil, err
	}
	if len(fds) != 1 {
		return nil, nil, fmt.Errorf("receive memory handshake: got %d descriptors, want 1", len(fds))
	}
	fd := fds[0]
	if err := checkFD(fd); err != nil {
		return nil, nil, err
	}
	fds = nil
	return Open(fd), regions, nil
}

// rights returns the descriptors in a control message.
func rights(control []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, fmt.Errorf("receive memory handshake: %w", err)
	}
	for i := range messages {
		got, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // another kind of message
		}
		for _, fd := range got {
			unix.CloseOnExec(fd)
		}
		fds = append(fds, got...)
	}
	return fds, nil
}

// checkFD refuses a descriptor that is not a userfaultfd, because reading from another one could
// block forever.
func checkFD(fd int) error {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return fmt.Errorf("receive memory handshake: %w", err)
	}
	if name != "anon_inode:[userfaultfd]" {
		return fmt.Errorf("receive memory handshake: the descriptor is %q, not a userfaultfd", name)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return fmt.Errorf("receive memory handshake: %w", err)
	}
	return nil
}

// Send performs the monitor's side of the handshake.
func Send(conn *net.UnixConn, fd *FD, regions []Region) error {
	wire := make([]wireRegion, len(regions))
	for i, r := range regions {
		wire[i] = wireRegion{r.Base, r.Size, r.Offset, r.PageSize, r.PageSize}
	}
	data, err := json.Marshal(wire)
	if err != nil {
		return err
	}
	if _, _, err := conn.WriteMsgUnix(data, unix.UnixRights(fd.fd), nil); err != nil {
		return fmt.Errorf("send memory handshake: %w", err)
	}
	return nil
}
