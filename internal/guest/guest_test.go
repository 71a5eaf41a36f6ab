package guest_test

import (
	"net"
	"os"
	"os/user"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/guest"
	"github.com/pandastack/pandastack/internal/guest/control"
	"github.com/pandastack/pandastack/internal/guest/guesttest"
	"github.com/pandastack/pandastack/internal/guest/process"
	"github.com/pandastack/pandastack/internal/guest/server"
	"github.com/pandastack/pandastack/internal/guestlink"
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

// open runs the real backend in this process, which changes nothing of this machine but a directory.
func open(t *testing.T) guesttest.Env {
	t.Helper()
	b := guest.New(guest.Config{System: &control.Linux{}, Workload: control.Unfrozen{}, Reaper: process.NewReaper(false)})
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

func TestRealBackend(t *testing.T) { guesttest.Full(t, open) }
