//go:build root

package firecracker_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/host/probe/probetest"
	"github.com/pandastack/pandastack/internal/os/uffd"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// memoryServer serves an image's memory from its file, page by page.
type memoryServer struct {
	path string

	mu      sync.Mutex
	served  int
	removed map[uint64]bool // pages that were given back, by address
	news    chan struct{}   // closed and replaced after events were handled
	fail    chan error      // ends Serve with an error
	hang    chan struct{}   // closed to make Serve handle no more faults
}

func newMemoryServer(image vmm.Image) *memoryServer {
	return &memoryServer{
		path: filepath.Join(image.Dir, "memory"), removed: map[uint64]bool{},
		news: make(chan struct{}), fail: make(chan error, 1), hang: make(chan struct{}),
	}
}

// wait waits until the given number of pages was given back. The guest continues when the event is
// read, which is before it is handled.
func (p *memoryServer) wait(t *testing.T, removed int) {
	t.Helper()
	deadline := time.After(vmmtest.Timeout)
	for {
		p.mu.Lock()
		got, news := len(p.removed), p.news
		p.mu.Unlock()
		if got == removed {
			return
		}
		select {
		case <-news:
		case <-deadline:
			t.Fatalf("got %d removed pages, want %d", got, removed)
		}
	}
}

func (p *memoryServer) File() string { return p.path }

// Serve implements vmm.Memory.
func (p *memoryServer) Serve(ctx context.Context, conn *net.UnixConn) (err error) {
	defer conn.Close()
	file, err := os.Open(p.path)
	if err != nil {
		return err
	}
	defer file.Close()
	fd, regions, err := uffd.Receive(ctx, conn)
	if err != nil {
		return err
	}
	defer fd.Close()
	waker, err := uffd.NewWaker()
	if err != nil {
		return err
	}
	defer waker.Close()
	stop := context.AfterFunc(ctx, waker.Wake)
	defer stop()
	ended := make(chan struct{})
	defer close(ended)
	var why error
	var mu sync.Mutex
	go func() {
		select {
		case err := <-p.fail:
			mu.Lock()
			why = err
			mu.Unlock()
			waker.Wake()
		case <-ended:
		}
	}()
	peer, err := uffd.PeerOf(conn)
	if err != nil {
		return err
	}
	defer peer.Close()
	reader := fd.Events()
	for {
		result, err := fd.Wait(waker, peer, -1)
		if err != nil {
			return err
		}
		mu.Lock()
		err = why
		mu.Unlock()
		if err != nil || result.PeerClosed || ctx.Err() != nil {
			return err
		}
		select {
		case <-p.hang:
			<-ctx.Done()
			return nil
		default:
		}
		events, err := reader.Read(nil)
		if err != nil {
			return err
		}
		if err := p.handle(fd, regions, file, events); err != nil {
			return err
		}
	}
}

func (p *memoryServer) handle(fd *uffd.FD, regions []uffd.Region, file *os.File, events []uffd.Event) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer func() {
		close(p.news)
		p.news = make(chan struct{})
	}()
	for _, e := range events {
		for at := e.Start; e.Kind == uffd.Remove && at < e.End; at += uffd.Page {
			p.removed[at] = true
		}
	}
	for _, e := range events {
		if e.Kind != uffd.Fault {
			continue
		}
		at := e.Start &^ (regions[0].PageSize - 1)
		page := make([]byte, regions[0].PageSize) // all regions have the same page size
		for _, r := range regions {
			if at < r.Base || at >= r.Base+r.Size || p.removed[at] {
				continue
			}
			if _, err := file.ReadAt(page, int64(at-r.Base+r.Offset)); err != nil {
				return err
			}
		}
		if _, err := fd.Copy(at, page); err != nil && !errors.Is(err, uffd.ErrExists) {
			return err
		}
		p.served++
	}
	return nil
}

// TestPager restores machines whose memory is served through a userfaultfd, which the monitor
// creates and sends.
func TestPager(t *testing.T) {
	for _, release := range releases {
		t.Run(release, func(t *testing.T) {
			w := newFixture(t, release)
			// a monitor of another user needs access to /dev/userfaultfd, which a jail provides
			w.spec.Confine = vmm.Confine{}
			h := vmmtest.Bake(t, w.lab())
			memory := newMemoryServer(h.Image)
			image := h.Image
			image.Memory = memory
			m := h.RestoreFrom(t, image, h.Disk)
			if r := m.Run(t, "echo on"); r.Stdout != "on\n" {
				t.Errorf("got %+v, want output \"on\"", r)
			}
			memory.mu.Lock()
			if memory.served == 0 {
				t.Error("no page was served, want some")
			}
			memory.mu.Unlock()
			if findRequest(
				w.requests(t, m.Spec.ID),
				"PUT /snapshot/load",
				`"backend_type":"Uffd","backend_path":"uffd.sock"`,
			) != 0 {
				t.Errorf("got requests %v, want one load with a userfaultfd", w.requests(t, m.Spec.ID))
			}
			m.Put(t, "/root/here", []byte("here"))
			child := h.Fork(t, m, 1)[0] // needs no served pages
			child.WantFile(t, "/root/here", []byte("here"))
			if err := m.Machine.(vmm.Reclaimer).Reclaim(t.Context(), 8); err != nil {
				t.Fatal(err)
			}
			memory.wait(t, 8<<20/uffd.Page)
			memory.fail <- errors.New("the store is unavailable")
			select {
			case <-m.Done():
			case <-time.After(vmmtest.Timeout):
				t.Fatal("the machine still runs without its pager")
			}
			if err := m.Err(); err == nil || !strings.Contains(err.Error(), "the store is unavailable") {
				t.Errorf("Err() = %v, want the error of the pager", err)
			}
		})
	}
}

// hangingServer accepts the connection of a monitor and serves nothing.
type hangingServer struct{ *memoryServer }

func (hangingServer) Serve(ctx context.Context, conn *net.UnixConn) error {
	<-ctx.Done()
	return conn.Close()
}

// TestPagerHangs checks that a load without a server of its memory, and a request to a monitor whose server hangs, end
// within the driver's limit, and that the machine ends with them.
func TestPagerHangs(t *testing.T) {
	w := newFixture(t, "1.15.1")
	w.spec.Confine = vmm.Confine{}
	h := vmmtest.Bake(t, w.lab())
	w.config.Limit = 3 * time.Second // also bounds the wait for the monitor's exit
	h.Driver = w.open(t)
	memory := newMemoryServer(h.Image)
	image := h.Image
	image.Memory = memory
	m := h.RestoreFrom(t, image, h.Disk)
	m.Put(t, "/root/large", make([]byte, 1<<20)) // needs pages that were not served yet when it is captured
	if err := m.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(memory.hang)
	if c, err := m.Capture(t.Context()); err == nil || !errors.Is(err, vmm.ErrGone) ||
		!strings.Contains(err.Error(), "its memory is no longer served") {
		t.Errorf("Capture() = %v, %v; want ErrGone and that the memory is not served", c, err)
	}
	select {
	case <-m.Done():
	default:
		t.Error("the machine still runs without its pager")
	}
	w.nothingLeft(t, m.Spec)

	image.Memory = hangingServer{newMemoryServer(h.Image)}
	spec := h.Spec(t, h.Disk)
	n, err := h.Driver.Prepare(t.Context(), spec, image)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Load(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "took over 3s") ||
		!strings.Contains(err.Error(), "its memory may not be served") {
		t.Errorf("Load() = %v, want a timeout and that the memory is not served", err)
	}
	select {
	case <-n.Done():
	default:
		t.Error("the monitor still runs after its load has failed")
	}
	w.nothingLeft(t, spec)
}

// TestPagedMachineIsNotAdopted checks that a machine with served memory ends with the process that
// served it, and is not adopted.
func TestPagedMachineIsNotAdopted(t *testing.T) {
	w := newFixture(t, "1.17.0")
	w.spec.Confine = vmm.Confine{}
	h := vmmtest.Bake(t, w.lab())
	image := h.Image
	image.Memory = newMemoryServer(h.Image)
	m := h.RestoreFrom(t, image, h.Disk)
	_ = m.Link.Close()
	h.Lab.Abandon(t, h.Driver)
	h.Driver = h.Lab.Open(t)
	if _, err := h.Driver.Adopt(t.Context(), m.Spec); !errors.Is(err, vmm.ErrGone) {
		t.Errorf("Adopt() = %v, want ErrGone", err)
	}
	w.nothingLeft(t, m.Spec)
}

// TestHugePages checks that huge pages are requested without dirty page tracking, that machines run
// on them, and that their captures are complete.
func TestHugePages(t *testing.T) {
	probetest.HugePages(t, 16)
	w := newFixture(t, "1.17.0")
	w.spec.Confine = vmm.Confine{}
	h := vmmtest.Bake(t, w.lab())
	image := h.Image
	memory := newMemoryServer(h.Image)
	image.Memory = memory
	h.Lab.Spec.HugePages = true
	m := h.RestoreFrom(t, image, h.Disk)
	if all := w.requests(t, m.Spec.ID); findRequest(
		all,
		"PUT /snapshot/load",
		`"track_dirty_pages":false,"resume_vm":true,"huge_pages":"2M"`,
	) != 0 {
		t.Errorf("got requests %v, want a load with huge pages and without dirty page tracking", all)
	}
	m.Put(t, "/root/here", []byte("here"))
	memory.mu.Lock()
	if memory.served == 0 || memory.served > 16 {
		t.Errorf("%d pages were served, want 1 to 16", memory.served)
	}
	memory.mu.Unlock()
	h.Lab.Spec.HugePages = false // not supported for memory from a file
	for _, child := range h.Fork(t, m, 2) {
		child.WantFile(t, "/root/here", []byte("here"))
	}
	if err := m.Kill(t.Context()); err != nil {
		t.Error(err)
	}
}
