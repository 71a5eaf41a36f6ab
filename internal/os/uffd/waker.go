package uffd

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Waker ends waits from another goroutine. It is not used any more when Close is called.
type Waker struct{ fd int }

// NewWaker makes a bell.
func NewWaker() (*Waker, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make an event descriptor: %w", err)
	}
	return &Waker{fd}, nil
}

// Wake ends the wait under way, or the next one.
func (b *Waker) Wake() {
	_, _ = unix.Write(b.fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // fails only when it rang 2^64 times before
}

// drain makes a bell that rang silent again.
func (b *Waker) drain() {
	var count [8]byte
	_, _ = unix.Read(b.fd, count[:]) // it did not ring: nothing to read
}

// Close ends the bell.
func (b *Waker) Close() error { return unix.Close(b.fd) }

// Peer is the socket that a handshake came over: it tells when the other process ends.
type Peer struct{ fd int }

// PeerOf makes a Peer of a connection, which stays the caller's.
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

// Close ends the peer, not the connection it was made of.
func (p *Peer) Close() error { return unix.Close(p.fd) }

// WaitResult says what ended a wait; several may be true.
type WaitResult struct {
	Events     bool // there are some to read
	Woken      bool
	PeerClosed bool // the other process closed its end of the socket, or said something on it
}

// Wait blocks the calling thread until there is an event, bell rings, peer (nil: none) leaves, or limit has
// passed; negative: none. Of an end of the limit it tells nothing.
func (f *FD) Wait(bell *Waker, peer *Peer, limit time.Duration) (WaitResult, error) {
	fds := []unix.PollFd{
		{Fd: int32(f.fd), Events: unix.POLLIN},
		{Fd: int32(bell.fd), Events: unix.POLLIN},
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
		bell.drain()
	}
	return w, nil
}

// Yield lets another thread have the processor, if one waits for it.
func Yield() { _, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) } // it cannot fail
