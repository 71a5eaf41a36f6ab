package qemu

import (
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// channel is this process's end of the guest channel. While gate is locked for writing, reads and
// writes wait and no byte moves, so QEMU has nothing to copy into guest memory.
type channel struct {
	conn *net.UnixConn
	raw  syscall.RawConn
	gate *sync.RWMutex
}

var _ net.Conn = (*channel)(nil)

func newChannel(conn *net.UnixConn, gate *sync.RWMutex) (*channel, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &channel{conn, raw, gate}, nil
}

func (c *channel) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := c.transfer(c.raw.Read, func(fd int) (int, error) { return unix.Read(fd, p) })
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	return n, err
}

func (c *channel) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := c.transfer(c.raw.Write, func(fd int) (int, error) {
			return unix.SendmsgN(fd, p[done:], nil, nil, unix.MSG_NOSIGNAL)
		})
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// transfer performs one non-blocking system call while gate is open. If the call cannot proceed,
// transfer waits in the runtime's poller.
func (c *channel) transfer(wait func(func(uintptr) bool) error, do func(fd int) (int, error)) (int, error) {
	var n int
	var opErr error
	err := wait(func(fd uintptr) bool {
		c.gate.RLock()
		defer c.gate.RUnlock()
		for {
			n, opErr = do(int(fd))
			if opErr != unix.EINTR {
				return opErr != unix.EAGAIN
			}
		}
	})
	if err != nil {
		return 0, err
	}
	if opErr != nil {
		return 0, &net.OpError{Op: "guest channel", Net: "unix", Err: opErr}
	}
	return n, nil
}

func (c *channel) Close() error                       { return c.conn.Close() }
func (c *channel) LocalAddr() net.Addr                { return c.conn.LocalAddr() }
func (c *channel) RemoteAddr() net.Addr               { return c.conn.RemoteAddr() }
func (c *channel) SetDeadline(t time.Time) error      { return c.conn.SetDeadline(t) }
func (c *channel) SetReadDeadline(t time.Time) error  { return c.conn.SetReadDeadline(t) }
func (c *channel) SetWriteDeadline(t time.Time) error { return c.conn.SetWriteDeadline(t) }
