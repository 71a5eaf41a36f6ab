package netslot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/lib/budget"
	"github.com/pandastack/pandastack/internal/os/egress"
)

// What the guests of a host share. A pool of package budget gives each slot a fair part, so that no slot can take all.
const (
	sharedConns     = 16384 // connections through proxies; at most a quarter of the descriptors of this process
	sharedDials     = 1024  // dials in progress
	sharedQuestions = 2048  // questions to resolvers
	// maxEntering is the number of dials that may be in a namespace at once, each on a thread of its own.
	maxEntering = 8
)

// shares are the pools of what the guests of a host share.
type shares struct{ conns, dials, questions *budget.Pool }

func newShares() shares {
	conns := int64(sharedConns)
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil && files.Cur < 4*sharedConns {
		conns = int64(files.Cur) / 4
	}
	pool := func(name string, total, most int64) *budget.Pool {
		return budget.New(budget.Config{Name: name, Total: total, Levels: []budget.Level{{Name: "slot", Max: most}}})
	}
	return shares{
		conns:     pool("egress connections", conns, egress.MaxConns),
		dials:     pool("egress dials", sharedDials, egress.MaxDials),
		questions: pool("name questions", sharedQuestions, 0),
	}
}

// Shares returns the pools of what the guests of the host share, for metrics.
func (p *Pool) Shares() []*budget.Pool {
	return []*budget.Pool{p.shares.conns, p.shares.dials, p.shares.questions}
}

// dialFrom connects to an address from another network namespace, which inside enters. Only the socket is made there:
// no thread waits for the connection.
func (p *Pool) dialFrom(
	ctx context.Context,
	inside func(do func() error) error,
	network string,
	to netip.AddrPort,
) (net.Conn, error) {
	fd, err := p.socketFrom(ctx, inside, network, to.Addr())
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", to, err)
	}
	c, err := connect(ctx, fd, to)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", to, err)
	}
	return c, nil
}

// socketFrom makes a socket in another network namespace.
func (p *Pool) socketFrom(
	ctx context.Context,
	inside func(do func() error) error,
	network string,
	to netip.Addr,
) (fd int, err error) {
	family, kind := unix.AF_INET, unix.SOCK_STREAM
	if !to.Is4() {
		family = unix.AF_INET6
	}
	if network == "udp" {
		kind = unix.SOCK_DGRAM
	}
	if err := p.entering.Acquire(ctx, 1); err != nil {
		return -1, err
	}
	defer p.entering.Release(1)
	err = inside(func() error {
		fd, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		return os.NewSyscallError("socket", err)
	})
	return fd, err
}

// connect connects a socket that does not block, and closes it.
func connect(ctx context.Context, fd int, to netip.AddrPort) (net.Conn, error) {
	var addr unix.Sockaddr
	if to.Addr().Is4() {
		addr = &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	} else {
		addr = &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	}
	// The poller must not see the socket before it connects: until then it looks disconnected.
	began := unix.Connect(fd, addr)
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	if began != nil && !errors.Is(began, unix.EINPROGRESS) {
		return nil, os.NewSyscallError("connect", began)
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetDeadline(time.Unix(1, 0)) }) // a closed file is not waited for
	defer stop()
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var failed error
	err = raw.Write(func(fd uintptr) (done bool) {
		done, failed = connected(int(fd))
		return done
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return nil, cause
	}
	if err = errors.Join(err, os.NewSyscallError("connect", failed)); err != nil {
		return nil, err
	}
	return net.FileConn(f)
}

// connected reports whether the connection of a socket is established, or failed.
func connected(fd int) (done bool, err error) {
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return true, err
	}
	switch errno := syscall.Errno(code); errno {
	case 0:
		_, err := unix.Getpeername(fd)
		return err == nil, nil
	case unix.EINPROGRESS, unix.EALREADY, unix.EINTR:
		return false, nil
	case unix.EISCONN:
		return true, nil
	default:
		return true, errno
	}
}
