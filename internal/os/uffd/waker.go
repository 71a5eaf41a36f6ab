package uffd

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Waker ends a Wait from another goroutine. It must not be used after Close.
type Waker struct{ fd int }

// NewWaker returns a new Waker.
func NewWaker() (*Waker, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create an eventfd: %w", err)
	}
	return &Waker{fd}, nil
}

// Wake ends the current wait or, if there is none, the next one.
func (w *Waker) Wake() {
	_, _ = unix.Write(w.fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // fails only after 2^64 calls without a wait
}

// drain resets the waker.
func (w *Waker) drain() {
	var count [8]byte
	_, _ = unix.Read(w.fd, count[:]) // fails only if Wake was not called
}

// Close closes the waker.
func (w *Waker) Close() error { return unix.Close(w.fd) }

// Peer is the socket of a handshake, which shows when the other process exits.
type Peer struct{ fd int }

// PeerOf returns a Peer for a connection. The caller keeps the connection.
func PeerOf(conn *net.UnixConn) (*Peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var p Peer
	var dup error
	err = raw.Control(func(fd uintptr) { p.fd, dup = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err := errors.Join(err, dup); err != nil {
		return nil, fmt.Errorf("duplicate a socket: %w", err)
	}
	return &p, nil
}

// Close closes the peer, but not the connection.
func (p *Peer) Close() error { return unix.Close(p.fd) }

// WaitResult says what ended a wait. Several fields may be true.
type WaitResult struct {
	Events     bool // events can be read
	Woken      bool
	PeerClosed bool // the other process has closed its end of the socket, or has written to it
}

// Wait blocks the calling thread until there is an event or the wait ends otherwise. The wait ends
// when waker is woken, peer closes, or limit has passed. peer may be nil. A negative limit means no
// limit. If the limit has passed, all fields of the result are false.
func (f *FD) Wait(waker *Waker, peer *Peer, limit time.Duration) (WaitResult, error) {
	fds := []unix.PollFd{
		{Fd: int32(f.fd), Events: unix.POLLIN},
		{Fd: int32(waker.fd), Events: unix.POLLIN},
		{Fd: -1},
	}
	if peer != nil {
		fds[2] = unix.PollFd{Fd: int32(peer.fd), Events: unix.POLLIN | unix.POLLRDHUP}
	}
	millis := -1
	if limit >= 0 {
		millis = int((limit + time.Millisecond - 1) / time.Millisecond)
	}
	for {
		_, err := unix.Poll(fds, millis)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return WaitResult{}, fmt.Errorf("wait for page faults: %w", err)
		}
	}
	w := WaitResult{Events: fds[0].Revents != 0, Woken: fds[1].Revents != 0, PeerClosed: fds[2].Revents != 0}
	if w.Woken {
		waker.drain()
	}
	return w, nil
}

// Yield lets another runnable thread use the processor.
func Yield() { _, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) } // it cannot fail
