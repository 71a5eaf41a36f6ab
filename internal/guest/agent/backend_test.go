package agent_test

import (
	"errors"
	"net"
	"os"
	"os/user"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/guestlink"
	"github.com/pandastack/pandastack/internal/guest/agent"
	"github.com/pandastack/pandastack/internal/guest/guesttest"
	"github.com/pandastack/pandastack/internal/guest/process"
	"github.com/pandastack/pandastack/internal/guest/server"
	"github.com/pandastack/pandastack/internal/guest/system"
)

// channel returns the two ends of a socket pair.
func channel(t *testing.T) (host, guest net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "channel")
		if ends[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
	return ends[0], ends[1]
}

// open runs the real backend in this process. It changes nothing of this machine but a directory.
func open(t *testing.T) guesttest.Env {
	t.Helper()
	b := agent.New(agent.Config{System: &system.Linux{}, Workload: system.Unfrozen{}, Reaper: process.NewReaper(false)})
	t.Cleanup(b.Close)
	host, far := channel(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(t.Context(), far, b)
	}()
	t.Cleanup(func() {
		_ = far.Close()
		<-done
	})
	l, err := guestlink.Open(t.Context(), host, guestlink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	return guesttest.Env{Guest: l, Dir: t.TempDir(), User: me.Username}
}

func TestBackend(t *testing.T) { guesttest.Full(t, open) }

// TestResetReachesTheHost checks that a program that resets a connection ends it on the host too, although the host
// has not ended its own direction and waits for a reply.
func TestResetReachesTheHost(t *testing.T) {
	e := open(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = c.Read(make([]byte, 1))
		_ = c.(*net.TCPConn).SetLinger(0) // unread data makes the close a reset too
		_ = c.Close()
	}()
	c, err := e.Guest.DialPort(t.Context(), uint16(l.Addr().(*net.TCPAddr).Port))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	<-accepted
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %d bytes, %v; want the end of the connection", n, err)
	}
}
