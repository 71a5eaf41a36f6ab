package machine_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/vmm"
)

// far is a template that is not all on the host.
const far = snapshot.Ref("templates/far/g1")

// streams serves partial snapshots; it ends with its manager.
type streams struct {
	mu   sync.Mutex
	open map[*feed]bool
	hold bool // nothing becomes whole
}

// feed is one machine's.
type feed struct {
	s      *streams
	disks  []string
	whole  chan struct{}
	failed chan struct{}
	err    error
}

func (s *streams) Attach(_ context.Context, snap snapshot.Snapshot, _ string, disks []string) (machine.Stream, error) {
	if !snap.Partial() {
		return nil, errors.New("attached to a snapshot that is whole")
	}
	from := snap.DiskPaths()
	if len(from) != len(disks) {
		return nil, errors.New("attached with another number of disks")
	}
	for i, disk := range disks {
		if err := fillIn(from[i], disk); err != nil {
			return nil, err
		}
	}
	f := &feed{s: s, disks: disks, whole: make(chan struct{}), failed: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.hold {
		close(f.whole)
	}
	s.open[f] = true
	return f, nil
}

// fillIn writes a snapshot's disk over the begin of a machine's.
func fillIn(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}

func (s *streams) Rescue(_ context.Context, _ snapshot.Snapshot, disks []string) error {
	var err error
	for _, disk := range disks {
		_, missing := os.Stat(disk)
		err = errors.Join(err, missing)
	}
	return err
}

// left is how many machines are attached.
func (s *streams) left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// fail fails every machine.
func (s *streams) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.open {
		f.err = err
		close(f.failed)
	}
}

func (f *feed) Memory() vmm.Memory                         { return f }
func (f *feed) File() string                               { return "" }
func (f *feed) Serve(context.Context, *net.UnixConn) error { return nil }
func (f *feed) DiskPaths() []string                        { return f.disks }
func (f *feed) Whole() <-chan struct{}                     { return f.whole }
func (f *feed) Failed() <-chan struct{}                    { return f.failed }
func (f *feed) Err() error {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	return f.err
}

func (f *feed) Local(ctx context.Context) error {
	select {
	case <-f.whole:
		return nil
	case <-f.failed:
		return f.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (f *feed) Close(context.Context) error {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	delete(f.s.open, f)
	return nil
}

// layFar makes the template that is not all there.
func (w *world) layFar() {
	w.t.Helper()
	d, err := w.store.Draft()
	w.must(err)
	image, err := (&capture{mem: memory{Frozen: true}, m: &monitor{host: w.host}}).Save(w.t.Context(), d.ImageDir())
	w.must(err)
	w.layDisks(d)
	snap := snapshot.Snapshot{Ref: far, Template: "far", VCPUs: 1, MemoryMiB: 64, Data: data, Manifest: image.Manifest}
	_, err = d.Commit(snap.From([]byte("there")))
	w.must(err)
	w.must(w.store.Release(far))
}

func (w *world) createFar(id string, keep bool) error {
	_, err := w.mgr.Create(
		w.t.Context(),
		hostapi.Create{ID: hostapi.MachineID(id), Template: "far", Keep: keep, Egress: few},
		far,
		"",
	)
	return err
}

// streaming is what is done to machines that begin on a partial snapshot.
func streaming() []operation {
	return []operation{
		{
			name: "create-streaming",
			prep: func(w *world) { w.layFar() },
			do:   func(w *world) error { return w.createFar("b", true) },
			sound: func(w *world, killed bool) {
				mc, err := w.mgr.Get("b")
				if errors.Is(err, hostapi.ErrNotFound) {
					return
				}
				if !killed || mc.State != hostapi.Failed || !strings.Contains(mc.Reason, "host agent ended") {
					w.t.Errorf("machine b is %q (%s), killed %v", mc.State, mc.Reason, killed)
				}
			},
		},
		{
			name: "wake-of-streamed",
			prep: func(w *world) {
				w.layFar()
				w.streams.hold = true
				w.must(w.createFar("b", true))
				w.kill(nil)
				w.state("b", hostapi.Failed)
			},
			do: func(w *world) error { _, err := w.mgr.Wake(w.t.Context(), "b"); return err },
			sound: func(w *world, _ bool) {
				mc, err := w.mgr.Get("b")
				w.must(err)
				if mc.State == hostapi.Running {
					return
				}
				if _, err := w.mgr.Wake(w.t.Context(), "b"); err != nil {
					w.t.Errorf("woken again: %v", err)
				}
				if _, err := os.Stat(filepath.Join(w.dir, "machines", "b", "disk.partial")); !errors.Is(
					err,
					os.ErrNotExist,
				) {
					w.t.Errorf("the disk of a machine that was woken is not whole: %v", err)
				}
			},
		},
	}
}

func TestStreamingMachine(t *testing.T) {
	w := newWorld(t)
	w.layFar()
	w.must(w.createFar("a", false))
	w.tick("a", 1)
	partial := filepath.Join(w.dir, "machines", "a", "disk.partial")
	w.eventually(
		"a disk that is whole is noted",
		func() bool { _, err := os.Stat(partial); return errors.Is(err, os.ErrNotExist) },
	)
	w.must(w.store.Complete(far))
	got, err := w.mgr.Fork(t.Context(), hostapi.Fork{Parent: "a", Children: []hostapi.Child{{ID: "b"}}})
	w.must(err)
	w.must(got[0].Err)
	w.tick("b", 2)
	w.destroy("a")
	if n := w.streams.left(); n != 0 {
		t.Errorf("%d machines are still attached", n)
	}
	w.kill(nil) // a fork of a streaming machine does not need this process
	w.tick("b", 3)
	w.destroy("b")
	w.empty()
}

// Memory that is still coming is made of huge pages as far as the host keeps them ready: a machine has all of its
// memory of them or none, and what one no longer needs the next may have.
func TestHugePagesGoAsFarAsTheyAre(t *testing.T) {
	w := newWorld(t)
	w.layFar()
	w.huge = 100 << 20 // for one machine of 64 MiB
	create := func(id string, want bool) {
		t.Helper()
		w.must(w.createFar(id, true))
		if got := w.host.of(id).spec.HugePages; got != want {
			t.Errorf("machine %s has huge pages: %v, want %v", id, got, want)
		}
	}
	create("a", true)
	create("b", false)
	w.destroy("a")
	create("c", true)
	w.host.failNext("load", errors.New("refused"))
	w.destroy("c")
	if err := w.createFar("d", false); err == nil {
		t.Error("it was loaded")
	}
	create("e", true)
	w.must(w.mgr.Hibernate(t.Context(), "e"))
	create("f", true)
	w.huge = 0
	create("g", false)
	for _, id := range []string{"b", "e", "f", "g"} {
		w.destroy(id)
	}
	w.empty()
}

// A guest that can ask its monitor who it is finds that with its first instruction; a create whose monitor does not
// take it is none.
func TestIdentityIsToldFirst(t *testing.T) {
	w := newWorld(t)
	w.create("a", false)
	got, err := w.mgr.Fork(
		t.Context(),
		hostapi.Fork{Parent: "a", Children: []hostapi.Child{{ID: "b", Hostname: "other"}}},
	)
	w.must(err)
	w.must(got[0].Err)
	for id, name := range map[string]string{"a": "a", "b": "other"} {
		want := `{"latest":{"meta-data":{"hostname":"` + name + `","instance-id":"` + id + `","local-hostname":"` + name + `"}}}`
		if told := w.host.of(id).told; told != want {
			t.Errorf("the guest of %s finds %s, want %s", id, told, want)
		}
	}
	w.host.failNext("identify", errors.New("refused"))
	if _, err := w.mgr.Create(t.Context(), hostapi.Create{ID: "c"}, base, ""); err == nil ||
		!strings.Contains(err.Error(), "refused") {
		t.Errorf("created: %v", err)
	}
	w.destroy("a")
	w.destroy("b")
	w.empty()
}

func TestCaptureWaitsForAll(t *testing.T) {
	w := newWorld(t)
	w.layFar()
	w.streams.hold = true
	w.must(w.createFar("a", true))
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // so it is either not even its turn, or waits no more
	if _, err := w.mgr.TakeSnapshot(ctx, "a", "snapshots/s", nil, nil); err == nil {
		t.Error("a snapshot of it was taken")
	}
	if err := w.mgr.Hibernate(ctx, "a"); err == nil {
		t.Error("it hibernated")
	}
	w.tick("a", 1)
	w.destroy("a")
	w.empty()
}

func TestStarvedMachineFails(t *testing.T) {
	for _, keep := range []bool{true, false} {
		w := newWorld(t)
		w.layFar()
		w.streams.hold = true
		w.must(w.createFar("a", keep))
		w.streams.fail(errors.New("the store is gone"))
		w.eventually("the event", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, e := range w.events {
				if e.Type == "died" && strings.Contains(e.Reason, "its snapshot does not come: the store is gone") {
					return true
				}
			}
			return false
		})
		if keep {
			w.state("a", hostapi.Failed)
		}
		w.destroy("a")
		w.empty()
		if n := w.streams.left(); n != 0 {
			t.Errorf("%d machines are still attached", n)
		}
		w.stop()
	}
}

func TestPartialSnapshotWithoutStreams(t *testing.T) {
	w := newWorld(t)
	w.layFar()
	w.streams = nil
	w.kill(nil)
	if err := w.createFar("a", false); !errors.Is(err, hostapi.ErrUnsupported) {
		t.Errorf("created: %v", err)
	}
	w.empty()
}
