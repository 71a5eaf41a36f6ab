package guestlink_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestlink"
	"github.com/pandastack/pandastack/internal/guest/server"
)

// stub serves a few requests; all others panic.
type stub struct {
	guestapi.Backend
	mu       sync.Mutex
	files    map[string][]byte
	restored []guestapi.Identity
	fail     error
	frozen   bool
}

func (s *stub) Write(_ context.Context, path string, _ guestapi.WriteOptions, r io.Reader) (guestapi.FileInfo, error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return guestapi.FileInfo{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[path] = b
	return guestapi.FileInfo{Path: path, Kind: guestapi.KindFile, Size: int64(len(b))}, nil
}

func (s *stub) Read(_ context.Context, path, _ string, _, _ int64) (guestapi.FileInfo, io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.files[path]
	if !ok {
		return guestapi.FileInfo{}, nil, guestapi.ErrNotFound
	}
	return guestapi.FileInfo{
			Path: path,
			Kind: guestapi.KindFile,
			Size: int64(len(b)),
		}, io.NopCloser(
			bytes.NewReader(b),
		), nil
}

func (s *stub) Restore(_ context.Context, id guestapi.Identity) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return s.fail
	}
	s.restored = append(s.restored, id)
	return nil
}

func (s *stub) Freeze(context.Context, bool) error { s.frozen = true; return nil }
func (s *stub) Thaw(context.Context) error         { s.frozen = false; return nil }
func (s *stub) Stats(context.Context) (guestapi.Stats, error) {
	return guestapi.Stats{CPUs: 3}, nil
}

// channel returns the two ends of a socket pair, closed with the test.
func channel(t *testing.T) (host, guest net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := make([]net.Conn, 2)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "channel")
		if ends[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		t.Cleanup(func() { _ = ends[i].Close() })
	}
	return ends[0], ends[1]
}

// serve runs a server over conn until the test ends or the returned function is called.
func serve(t *testing.T, srv *server.Server, conn net.Conn) (stop func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- srv.Serve(t.Context(), conn) }()
	stop = sync.OnceFunc(func() {
		_ = conn.Close()
		<-done
	})
	t.Cleanup(stop)
	return stop
}

func open(t *testing.T, conn net.Conn, opt guestlink.Options) *guestlink.Link {
	t.Helper()
	l, err := guestlink.Open(t.Context(), conn, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestFilesOfAnySize(t *testing.T) {
	host, guest := channel(t)
	s := &stub{files: map[string][]byte{}}
	serve(t, server.New(s), guest)
	l := open(t, host, guestlink.Options{})
	ctx := within(t)
	if err := l.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{0, 1, 32 << 10, 32<<10 + 1, 5<<20 + 17} {
		want := bytes.Repeat([]byte("panda"), size/5+1)[:size]
		info, err := l.Write(ctx, "/x", guestapi.WriteOptions{Size: -1}, bytes.NewReader(want))
		if err != nil || info.Size != int64(size) {
			t.Fatalf("Write(%d bytes) = %+v, %v", size, info, err)
		}
		_, r, err := l.Read(ctx, "/x", "", 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("Read() = %d bytes, %v, want the %d that were written", len(got), err, size)
		}
		_ = r.Close()
	}
	if _, _, err := l.Read(ctx, "/y", "", 0, -1); !errors.Is(err, guestapi.ErrNotFound) {
		t.Fatalf("Read(missing file) = %v, want %v", err, guestapi.ErrNotFound)
	}
}

func TestPanicFailsOneRequest(t *testing.T) {
	host, guest := channel(t)
	serve(t, server.New(&stub{}), guest)
	l := open(t, host, guestlink.Options{})
	ctx := within(t)
	if _, err := l.Ports(ctx); !errors.Is(err, guestapi.ErrInternal) {
		t.Fatalf("Ports() = %v from a guest that panics, want %v", err, guestapi.ErrInternal)
	}
	if st, err := l.Stats(ctx); err != nil || st.CPUs != 3 {
		t.Fatalf("Stats() after a panic = %+v, %v, want 3 CPUs", st, err)
	}
}

func TestForeignGenerationNeedsRestore(t *testing.T) {
	host, guest := channel(t)
	s := &stub{files: map[string][]byte{"/x": []byte("1")}, fail: errors.New("no clock")}
	srv := server.New(s)
	stop := serve(t, srv, guest)
	ctx := within(t)

	l := open(t, host, guestlink.Options{Generation: 7})
	if err := l.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.Read(ctx, "/x", "", 0, -1); !errors.Is(err, guestapi.ErrBusy) {
		t.Fatalf("Read() before a restore = %v, want %v", err, guestapi.ErrBusy)
	}
	if err := l.Thaw(ctx); !errors.Is(err, guestapi.ErrBusy) {
		t.Fatalf("Thaw() before a restore = %v, want %v", err, guestapi.ErrBusy)
	}
	_ = l.Close()
	stop()
	host, guest = channel(t)
	stop = serve(t, srv, guest)
	id := guestapi.Identity{MachineID: "mch1", Hostname: "h", Files: map[string][]byte{"/t": make([]byte, 700<<10)}}
	l = open(t, host, guestlink.Options{Generation: 7, Identity: &id})
	if _, _, err := l.Read(ctx, "/x", "", 0, -1); !errors.Is(err, guestapi.ErrBusy) {
		t.Fatalf("Read() after a failed restore = %v, want %v", err, guestapi.ErrBusy)
	}
	if err := l.Ready(ctx); err == nil {
		t.Fatal("Ready() = nil after a failed restore, want its error")
	}
	_ = l.Close()
	stop()

	s.mu.Lock()
	s.fail = nil
	s.mu.Unlock()
	host, guest = channel(t)
	serve(t, srv, guest)
	l = open(t, host, guestlink.Options{Generation: 7, Identity: &id})
	if _, r, err := l.Read(ctx, "/x", "", 0, -1); err != nil {
		t.Fatalf("Read() after a restore: %v", err)
	} else {
		_ = r.Close()
	}
	if err := l.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	if len(s.restored) != 1 || len(s.restored[0].Files["/t"]) != 700<<10 {
		t.Fatalf("the guest was restored %d times, want once and with the whole file", len(s.restored))
	}
}

// A guest whose restore failed refuses requests even if it confirmed the same generation before, as in copies of
// one image.
func TestFailedRestoreRefusesRequests(t *testing.T) {
	host, guest := channel(t)
	s := &stub{files: map[string][]byte{"/x": []byte("1")}}
	srv := server.New(s)
	stop := serve(t, srv, guest)
	ctx := within(t)
	opt := guestlink.Options{Generation: 1, Identity: &guestapi.Identity{MachineID: "mch1"}}
	l := open(t, host, opt)
	if err := errors.Join(l.Ready(ctx), l.Freeze(ctx, false)); err != nil {
		t.Fatal(err)
	}
	again := func() *guestlink.Link {
		_ = l.Close()
		stop()
		host, guest := channel(t)
		stop = serve(t, srv, guest)
		return open(t, host, opt)
	}
	s.mu.Lock()
	s.fail = errors.New("no entropy")
	s.mu.Unlock()
	l = again()
	if err := l.Ready(ctx); err == nil {
		t.Fatal("Ready() = nil after a failed restore, want its error")
	}
	opt.Identity = nil
	for range 2 {
		if err := l.Thaw(ctx); !errors.Is(err, guestapi.ErrBusy) || !s.frozen {
			t.Errorf(
				"Thaw() after a failed restore = %v, frozen %v, want %v and frozen",
				err,
				s.frozen,
				guestapi.ErrBusy,
			)
		}
		if _, _, err := l.Read(ctx, "/x", "", 0, -1); !errors.Is(err, guestapi.ErrBusy) {
			t.Errorf("Read() after a failed restore = %v, want %v", err, guestapi.ErrBusy)
		}
		l = again()
	}
}

// endedProcess is a process that has exited.
type endedProcess struct {
	guestapi.Process
	exited bool
}

func (*endedProcess) PID() uint32 { return 7 }
func (p *endedProcess) Next(context.Context) (guestapi.Event, error) {
	if p.exited {
		return guestapi.Event{}, io.EOF
	}
	p.exited = true
	return guestapi.Event{Exit: &guestapi.Exit{Code: 3}}, nil
}
func (*endedProcess) Close() error { return nil }

func (s *stub) Start(context.Context, guestapi.ProcessSpec) (guestapi.Process, error) {
	return &endedProcess{}, nil
}

// counted counts the writes to a connection.
type counted struct {
	net.Conn
	writes atomic.Int64
}

func (c *counted) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

// Closing a process that has exited sends nothing to the guest and leaves no stream at either end.
func TestClosingExitedProcessSendsNothing(t *testing.T) {
	host, guest := channel(t)
	served := make(chan error, 1)
	go func() { served <- server.Serve(t.Context(), guest, &stub{}) }()
	conn := &counted{Conn: host}
	l, err := guestlink.Open(t.Context(), conn, guestlink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	const times = 600 // more than the limit of streams
	began := conn.writes.Load()
	for range times {
		p, err := l.Start(t.Context(), guestapi.ProcessSpec{Shell: "true"})
		if err != nil {
			t.Fatal(err)
		}
		if e, err := p.Next(t.Context()); err != nil || e.Exit == nil || e.Exit.Code != 3 {
			t.Fatalf("Next() = %+v, %v, want exit code 3", e, err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Next(t.Context()); err != io.EOF {
			t.Fatalf("Next() after the exit = %v, want io.EOF", err)
		}
	}
	if n := conn.writes.Load() - began; n > times {
		t.Errorf("%d writes for %d processes, want at most one for each", n, times)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
