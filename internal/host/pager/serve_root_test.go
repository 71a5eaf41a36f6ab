//go:build root

package pager_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/pager"
	"github.com/pandastack/pandastack/internal/host/pager/pagertest"
	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/host/probe/probetest"
	"github.com/pandastack/pandastack/internal/os/uffd"
	"github.com/pandastack/pandastack/internal/os/uffd/uffdtest"
)

func TestMain(m *testing.M) {
	uffdtest.Main()
	if len(os.Args) == 3 && os.Args[1] == pagerProcessArg {
		if err := pagerProcess(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// process is a process whose memory is served.
type process struct {
	*uffdtest.Process
	t     testing.TB
	ended chan error
	stop  context.CancelFunc
}

func serve(t testing.TB, f *pager.File, size int64, page int, opt pager.ServeOptions) *process {
	t.Helper()
	probetest.Need(t, probe.Config{}, probe.Root, probe.Userfaultfd)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p, err := uffdtest.Start(t.Context(), uffdtest.Options{Socket: l.Addr().String(), Bytes: size, PageSize: page})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	conn, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(errors.Join(err, p.Kill()))
	}
	ctx, cancel := context.WithCancel(t.Context())
	g := &process{Process: p, t: t, ended: make(chan error, 1), stop: cancel}
	go func() { g.ended <- f.Serve(ctx, conn, opt) }()
	t.Cleanup(func() {
		_ = p.Kill()
		cancel()
		select {
		case <-g.ended:
		case <-time.After(time.Minute):
			t.Error("Serve did not return within a minute")
		}
	})
	return g
}

// end waits for the end of the service and returns its error.
func (p *process) end() error {
	p.t.Helper()
	select {
	case err := <-p.ended:
		p.ended <- err
		return err
	case <-time.After(time.Minute):
		p.t.Fatal("Serve did not return within a minute")
		return nil
	}
}

func (p *process) wantMemory(want []byte, off int) {
	p.t.Helper()
	got, err := p.Sum(int64(off), int64(len(want)))
	if err != nil {
		p.t.Fatal(err)
	}
	if sum := fmt.Sprintf("%x", sha256.Sum256(want)); got != sum {
		p.t.Errorf("%d bytes at %d have the wrong content", len(want), off)
	}
}

// enoughSpace is a space check that always succeeds.
func enoughSpace() error { return nil }

func file(t testing.TB, source chunkstore.Source, limit time.Duration) *pager.File {
	t.Helper()
	f, err := pager.NewFile(source, "memory", limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestServeAll(t *testing.T) {
	for _, around := range []int64{uffd.Page, 0, 1 << 20} {
		data := pagertest.Pattern(16<<20, holes)
		f := file(t, pagertest.New(map[string][]byte{"memory": data}), 0)
		p := serve(t, f, int64(len(data)), uffd.Page, pager.ServeOptions{FaultAround: around})
		p.wantMemory(data[5<<20:6<<20], 5<<20)
		if _, err := p.Scatter(0, int64(len(data)), 4); err != nil {
			t.Fatal(err)
		}
		p.wantMemory(data, 0)
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := p.end(); err != nil {
			t.Errorf("Serve after the monitor ended: got %v, want nil", err)
		}
	}
}

// Memory in pages of 2 MiB is served: pages with content, pages without as zeros, removed pages as zeros;
// from the store and from a local file.
func TestServesHugePages(t *testing.T) {
	probetest.HugePages(t, 8)
	data := pagertest.Pattern(8<<20, func(page int) bool { return page < 512 || page%3 == 0 })
	source := pagertest.New(map[string][]byte{"memory": data})
	f := file(t, source, 0)
	p := serve(
		t,
		f,
		int64(len(data)),
		uffd.Huge,
		pager.ServeOptions{Prefetch: func(_ context.Context, put func(int64, []byte)) pager.Trace {
			if put != nil {
				t.Error("Prefetch of a region with huge pages: got a put function, want nil")
			}
			return pager.Trace{{File: "memory", Offset: 6 << 20, Length: uffd.Page}}
		}},
	)
	p.wantMemory(data[:4<<20], 0)
	if err := p.Drop(2<<20, uffd.Huge); err != nil {
		t.Fatal(err)
	}
	want := append([]byte(nil), data...)
	clear(want[2<<20 : 4<<20])
	if err := p.Write(3<<20, uffd.Page, 9); err != nil {
		t.Fatal(err)
	}
	for i := range uffd.Page {
		want[3<<20+i] = 9
	}
	path := filepath.Join(t.TempDir(), "memory")
	if err := errors.Join(os.WriteFile(path, data, 0o600), f.SetLocal(path)); err != nil {
		t.Fatal(err)
	}
	p.wantMemory(want, 0)
}

func TestRemovedMemoryIsZero(t *testing.T) {
	data := pagertest.Pattern(4<<20, nil)
	source := pagertest.New(map[string][]byte{"memory": data})
	f := file(t, source, 0)
	p := serve(t, f, int64(len(data)), uffd.Page, pager.ServeOptions{})
	want := append([]byte(nil), data...)
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		off := r.IntN(len(data)/uffd.Page) * uffd.Page
		n := min((1+r.IntN(40))*uffd.Page, len(data)-off)
		switch r.IntN(3) {
		case 0:
			if err := p.Drop(int64(off), int64(n)); err != nil {
				t.Fatal(err)
			}
			clear(want[off : off+n])
		case 1:
			if err := p.Write(int64(off), int64(n), byte(off>>12)); err != nil {
				t.Fatal(err)
			}
			for i := range n {
				want[off+i] = byte(off >> 12)
			}
		default:
			p.wantMemory(want[off:off+n], off)
		}
	}
	p.wantMemory(want, 0)
}

// A page is removed while its content is being fetched.
func TestRemovalDuringAFetch(t *testing.T) {
	data := pagertest.Pattern(1<<20, nil)
	source := pagertest.New(map[string][]byte{"memory": data})
	f := file(t, source, 0)
	goOn := source.Block()
	defer goOn()
	var trace pager.Trace
	for at := int64(0); at < int64(len(data)); at += uffd.Page {
		trace = append(trace, chunkstore.Range{File: "memory", Offset: at, Length: uffd.Page})
	}
	p := serve(t, f, int64(len(data)), uffd.Page, pager.ServeOptions{Prefetch: staticTrace(trace)})
	if err := p.Drop(0, 512<<10); err != nil { // while the trace is being fetched
		t.Fatal(err)
	}
	goOn()
	p.wantMemory(make([]byte, 512<<10), 0)
	p.wantMemory(data[512<<10:], 512<<10)
}

func TestTraceIsPrefetched(t *testing.T) {
	data := pagertest.Pattern(8<<20, holes)
	source := pagertest.New(map[string][]byte{"memory": data})
	f := file(t, source, 0)
	notes := pager.NewRecorder(nil)
	f.SetRecorder(notes)
	p := serve(t, f, int64(len(data)), uffd.Page, pager.ServeOptions{})
	for _, off := range []int{5 << 20, 1 << 20, 3 << 20} {
		p.wantMemory(data[off:off+64<<10], off)
	}
	trace := notes.Stop()
	if len(trace) == 0 || trace[0].Offset != 5<<20 {
		t.Fatalf("trace = %v, want it to start at 5 MiB", trace)
	}
	again := pagertest.New(map[string][]byte{"memory": data})
	f = file(t, again, 0)
	p = serve(t, f, int64(len(data)), uffd.Page, pager.ServeOptions{Prefetch: staticTrace(trace)})
	for _, off := range []int{5 << 20, 1 << 20, 3 << 20} {
		p.wantMemory(data[off:off+64<<10], off)
	}
	if asked, _ := again.Fetched(); asked > trace.Bytes()+3*chunkstore.FrameSize {
		t.Errorf(
			"fetched %d bytes with a trace of %d, want no more than the trace and some frames",
			asked,
			trace.Bytes(),
		)
	}
	await(t, "what the trace names is asked for", func() bool { return len(again.Prefetched()) > 0 })
	if ahead := again.Prefetched(); ahead[0].Offset != 5<<20 {
		t.Errorf("prefetched %v, want the start of the trace first", ahead)
	}
}

// The working set of a trace is installed without reading the source. A piece may reach beyond the memory.
func TestWorkingSetIsInstalled(t *testing.T) {
	data := pagertest.Pattern(2<<20, holes)
	source := pagertest.New(map[string][]byte{"memory": data})
	placed := make(chan struct{})
	p := serve(t, file(t, source, 0), int64(len(data)), uffd.Page, pager.ServeOptions{
		Prefetch: func(_ context.Context, put func(int64, []byte)) pager.Trace {
			defer close(placed)
			put(1<<20, append(bytes.Clone(data[1<<20:]), make([]byte, 8<<10)...))
			put(4<<20, make([]byte, 8<<10)) // outside of the memory
			return nil
		},
	})
	<-placed
	p.wantMemory(data[1<<20:], 1<<20)
	if _, reads := source.Fetched(); reads > 0 {
		t.Errorf("the source was read %d times, want 0", reads)
	}
	p.wantMemory(data[:1<<20], 0)
}

// await waits for another goroutine.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for limit := time.After(time.Minute); !holds(); {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("condition not met within a minute: %s", what)
		}
	}
}

func TestUnreachableStoreEndsServe(t *testing.T) {
	data := pagertest.Pattern(4<<20, nil)
	for _, c := range []struct {
		name  string
		spoil func(*pagertest.Source)
		want  string
	}{
		{"failing", func(s *pagertest.Source) {
			s.SetFail(func(string, int64) error { return errors.New("connection refused") })
		}, "connection refused"},
		{"blocked", func(s *pagertest.Source) { s.Block() }, "did not deliver the content within 200ms"},
		{"lying", func(s *pagertest.Source) {
			s.SetFail(func(string, int64) error {
				return &chunkstore.DamagedError{Object: "chunk x", Problem: "other bytes"}
			})
		}, "chunk x is damaged: other bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			source := pagertest.New(map[string][]byte{"memory": data})
			f := file(t, source, 200*time.Millisecond)
			p := serve(t, f, int64(len(data)), uffd.Page, pager.ServeOptions{})
			p.wantMemory(data[:uffd.Page], 0)
			c.spoil(source)
			go func() { _, _ = p.Touch(2<<20, uffd.Page) }()
			err := p.end()
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Serve = %v, want an error with %q", err, c.want)
			}
		})
	}
}

func TestDamagedReadIsRetried(t *testing.T) {
	data := pagertest.Pattern(1<<20, nil)
	source := pagertest.New(map[string][]byte{"memory": data})
	tries := 0
	source.SetFail(func(string, int64) error {
		if tries++; tries == 1 {
			return &chunkstore.DamagedError{Object: "chunk x", Problem: "short"}
		}
		return nil
	})
	buf := make([]byte, 4096)
	if err := file(t, source, 0).ReadAt(t.Context(), buf, 0); err != nil || buf[0] != data[0] {
		t.Errorf("ReadAt with an intact second copy: %v, or wrong content", err)
	}
}

func TestServeStopsCleanly(t *testing.T) {
	data := pagertest.Pattern(1<<20, nil)
	source := pagertest.New(map[string][]byte{"memory": data})
	f := file(t, source, 0)
	goOn := source.Block()
	defer goOn()
	p := serve(t, f, int64(len(data)), uffd.Page, pager.ServeOptions{})
	go func() { _, _ = p.Touch(0, uffd.Page) }()
	p.stop()
	if err := p.end(); err != nil {
		t.Errorf("Serve of an ended context = %v, want nil", err)
	}
}

func TestRegionBeyondFileIsRefused(t *testing.T) {
	f := file(t, pagertest.New(map[string][]byte{"memory": make([]byte, 1<<20)}), 0)
	p := serve(t, f, 2<<20, uffd.Page, pager.ServeOptions{})
	if err := p.end(); err == nil || !strings.Contains(err.Error(), "image of 1048576 bytes") {
		t.Errorf("Serve = %v, want an error with the size of the image", err)
	}
}

func TestLocalFileServes(t *testing.T) {
	data := pagertest.Pattern(4<<20, holes)
	source := pagertest.New(map[string][]byte{"memory": data})
	f := file(t, source, 0)
	path := filepath.Join(t.TempDir(), "memory")
	own, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	p := serve(t, f, int64(len(data)), uffd.Page, pager.ServeOptions{})
	p.wantMemory(data[:1<<20], 0)
	if err := f.Hydrate(t.Context(), own, enoughSpace); err != nil {
		t.Fatal(err)
	}
	if err := f.SetLocal(path); err != nil {
		t.Fatal(err)
	}
	source.SetFail(func(string, int64) error { return errors.New("the store must not be asked any more") })
	p.wantMemory(data, 0)
}

// staticTrace returns a trace without a working set.
func staticTrace(t pager.Trace) func(context.Context, func(int64, []byte)) pager.Trace {
	return func(context.Context, func(int64, []byte)) pager.Trace { return t }
}
