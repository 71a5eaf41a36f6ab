package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// maxReceived is the most descriptors that one message may carry.
const maxReceived = 16

// Addresses of what recvmsg(2) needs in the stub, in the memory of the table, which is not filled yet.
const (
	messageAt = tableAt        // struct msghdr
	vectorAt  = tableAt + 64   // struct iovec
	bodyAt    = tableAt + 128  // the message: one byte
	controlAt = tableAt + 1024 // its descriptors
)

// Send sends descriptors of files to a stub that waits, over the other end of Plan.Handover. Each call makes one
// message of Plan.Received. The caller may close the files afterwards.
func Send(conn *net.UnixConn, files ...*os.File) error {
	if len(files) == 0 || len(files) > maxReceived {
		return fmt.Errorf("send %d descriptors to a stub: 1 to %d can be sent at once", len(files), maxReceived)
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	if _, _, err := conn.WriteMsgUnix([]byte{0}, unix.UnixRights(fds...), nil); err != nil {
		return fmt.Errorf("send descriptors to a stub: %w", err)
	}
	return nil
}

// receiveFDs takes the descriptors that were sent to the stub after it was started.
func (r *restorer) receiveFDs() error {
	if len(r.plan.Received) == 0 {
		return nil
	}
	r.plan.Roles = maps.Clone(r.plan.Roles)
	for _, roles := range r.plan.Received {
		fds, err := r.receive(len(roles))
		if err != nil {
			return fmt.Errorf("receive descriptors: %w", err)
		}
		for i, role := range roles {
			r.plan.Roles[role] = fds[i]
			r.plan.InheritedFDs = max(r.plan.InheritedFDs, fds[i]+1)
		}
	}
	return nil
}

// receive makes the stub receive one message with n descriptors, and returns their numbers in the stub.
func (r *restorer) receive(n int) ([]int, error) {
	if n == 0 || n > maxReceived {
		return nil, fmt.Errorf("a message with %d descriptors", n)
	}
	control := make([]byte, unix.CmsgSpace(4*n))
	words := func(w ...uint64) (raw []byte) {
		for _, v := range w {
			raw = binary.LittleEndian.AppendUint64(raw, v)
		}
		return raw
	}
	header := words(0, 0, vectorAt, 1, controlAt, uint64(len(control)), 0)
	if _, err := r.t.mem.WriteAt(words(bodyAt, 1), vectorAt); err != nil {
		return nil, err
	}
	if _, err := r.t.mem.WriteAt(header, messageAt); err != nil {
		return nil, err
	}
	got, err := r.t.syscall(r.t.pid, r.stubRegs, callRecvmsg, uint64(r.plan.Handover), messageAt,
		unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, err
	}
	if _, err := r.t.mem.ReadAt(header, messageAt); err != nil {
		return nil, err
	}
	length := binary.LittleEndian.Uint64(header[40:])
	if got != 1 || length > uint64(len(control)) {
		return nil, errors.New("the message is not there")
	}
	control = control[:length]
	if _, err := r.t.mem.ReadAt(control, controlAt); err != nil {
		return nil, err
	}
	all, err := unix.ParseSocketControlMessage(control)
	if err != nil || len(all) != 1 {
		return nil, errors.Join(errors.New("the message has no descriptors"), err)
	}
	fds, err := unix.ParseUnixRights(&all[0])
	if err != nil {
		return nil, err
	}
	if len(fds) != n {
		return nil, fmt.Errorf("the message has %d descriptors, want %d", len(fds), n)
	}
	return fds, nil
}
