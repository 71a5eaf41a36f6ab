package seccomp

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Call is a system call that is not allowed. The calling thread waits until it is refused or continued.
type Call struct {
	PID  int // of the thread
	Name string
	Args [6]uint64
	id   uint64
}

// Listener receives the calls that a filter does not allow.
type Listener struct {
	file   *os.File
	closed atomic.Bool
}

// Install installs the filter of a policy in the calling thread; its children inherit it. The thread must have
// no_new_privs set, and must not be used for other work: calls of its own that are not allowed wait, too.
func Install(p *Policy, auditArch uint32) (*Listener, error) {
	program, err := p.Program(auditArch, unix.SECCOMP_RET_USER_NOTIF)
	if err != nil {
		return nil, err
	}
	fd, err := installListening(program)
	if err != nil {
		return nil, fmt.Errorf("filter system calls: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &Listener{file: os.NewFile(uintptr(fd), "seccomp")}, nil
}

// Close ends Next. Further calls that are not allowed fail with ENOSYS.
func (l *Listener) Close() error {
	l.closed.Store(true)
	return l.file.Close()
}

// Next waits for the next call. It returns io.EOF if no process has the filter anymore, and os.ErrClosed after Close.
func (l *Listener) Next() (Call, error) {
	raw, err := l.file.SyscallConn()
	if err != nil {
		return Call{}, os.ErrClosed
	}
	var call Call
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		for {
			// Receiving waits, so look first.
			ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(ready, 0)
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case err != nil:
				failed = err
				return true
			case n == 0:
				return false
			case ready[0].Revents&unix.POLLIN == 0:
				failed = io.EOF
				return true
			}
			call, failed = receive(int(fd))
			if errors.Is(failed, unix.ENOENT) || errors.Is(failed, unix.EINTR) { // the thread has ended meanwhile
				failed = nil
				continue
			}
			return true
		}
	})
	if err == nil {
		err = failed
	}
	switch {
	case err == nil || err == io.EOF:
		return call, err
	case l.closed.Load():
		return call, os.ErrClosed
	}
	return call, fmt.Errorf("receive a system call: %w", err)
}

// Refuse makes a call fail with ENOSYS.
func (l *Listener) Refuse(c Call) error { return l.respond(c, response{Error: -int32(unix.ENOSYS)}) }

// Continue lets the kernel do the call. The arguments may have changed since Next, so this is no decision about
// safety.
func (l *Listener) Continue(c Call) error { return l.respond(c, response{Flags: continueFlag}) }

func (l *Listener) respond(c Call, r response) error {
	raw, err := l.file.SyscallConn()
	if err != nil {
		return err
	}
	r.ID = c.id
	var failed error
	err = raw.Control(func(fd uintptr) { failed = send(int(fd), r) })
	if errors.Is(failed, unix.ENOENT) { // the thread has ended meanwhile
		failed = nil
	}
	return errors.Join(err, failed)
}
