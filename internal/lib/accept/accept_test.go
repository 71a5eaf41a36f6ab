package accept_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/pandastack/pandastack/internal/lib/accept"
)

// flaky is a listener whose first calls of Accept fail.
type flaky struct {
	net.Listener
	failures atomic.Int32
}

func (l *flaky) Accept() (net.Conn, error) {
	if l.failures.Add(-1) >= 0 {
		return nil, syscall.EMFILE
	}
	return l.Listener.Accept()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func dial(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestServe(t *testing.T) {
	l := &flaky{Listener: listen(t)}
	l.failures.Store(3) // is survived
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var drained, handled atomic.Int32
	s := accept.Server{
		Handle: func(ctx context.Context, conn net.Conn) {
			if _, err := io.WriteString(conn, "hello"); err != nil {
				t.Errorf("write: %v", err)
			}
			<-ctx.Done()
			handled.Add(1)
		},
		Drain: func(ctx context.Context) {
			if ctx.Err() != nil {
				t.Errorf("Drain was called with a context that has ended: %v", ctx.Err())
			}
			drained.Add(1)
		},
		Log: slog.New(slog.DiscardHandler),
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	var conns []net.Conn
	for range 2 {
		c := dial(t, l)
		if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
			t.Fatalf("read: %v", err)
		}
		conns = append(conns, c)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Serve() = %v, want nil when its context has ended", err)
	}
	if handled.Load() != 2 || drained.Load() != 1 {
		t.Errorf("Serve returned when %d of 2 connections were handled and %d drained", handled.Load(), drained.Load())
	}
	for _, c := range conns {
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("a connection that should be closed has %d bytes", n)
		}
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("the listener is open after Serve has returned")
	}
}

func TestServeReturnsTheErrorOfAListenerThatIsClosed(t *testing.T) {
	l := listen(t)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s := accept.Server{Log: slog.New(slog.DiscardHandler)}
	if err := s.Serve(t.Context(), l); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve() = %v, want %v", err, net.ErrClosed)
	}
}

func TestAddress(t *testing.T) {
	for remote, want := range map[string]struct {
		address string
		network string
	}{
		"192.0.2.1:80":            {"192.0.2.1", "192.0.2.1"},
		"[::ffff:192.0.2.1]:80":   {"192.0.2.1", "192.0.2.1"},
		"[2001:db8:1:2:3::4]:80":  {"2001:db8:1:2:3::4", "2001:db8:1:2::/64"},
		"[fe80::1%eth0]:80":       {"fe80::1", "fe80::/64"},
		"@":                       {"", "invalid IP"},
		"/run/pandastack.sock:80": {"", "invalid IP"},
	} {
		var address netip.Addr
		if want.address != "" {
			address = netip.MustParseAddr(want.address)
		}
		if got := accept.Address(remote); got != address || accept.Network(got) != want.network {
			t.Errorf("Address(%q) = %s of %s, want %s of %s", remote, got, accept.Network(got), address, want.network)
		}
	}
}
