package machine_test

import (
	"context"
	"errors"
	"fmt"
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

// remoteBase is a template that is not yet downloaded.
const remoteBase = snapshot.Ref("templates/far/g1")

// lazySnapshots is a fake of machine.LazySnapshots; it ends with its manager.
type lazySnapshots struct {
	mu   sync.Mutex
	open map[*lazySource]bool
	hold bool // no download completes
}

// lazySource is the source of one machine.
type lazySource struct {
	s        *lazySnapshots
	disks    []string
	complete chan struct{}
	failed   chan struct{}
	err      error
}

func (s *lazySnapshots) Attach(
	_ context.Context,
	snap snapshot.Snapshot,
	_ string,
	disks []string,
) (machine.LazySource, error) {
	if !snap.RemoteBacked() {
		return nil, errors.New("attach to a snapshot that is downloaded")
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
	f := &lazySource{s: s, disks: disks, complete: make(chan struct{}), failed: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.hold {
		close(f.complete)
	}
	s.open[f] = true
	return f, nil
}

// fillIn copies a snapshot's disk over the beginning of a machine's.
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

func (s *lazySnapshots) CompleteDisks(_ context.Context, _ snapshot.Snapshot, disks []string) error {
	var err error
	for _, disk := range disks {
		_, missing := os.Stat(disk)
		err = errors.Join(err, missing)
	}
	return err
}

// left returns how many machines are attached.
func (s *lazySnapshots) left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// fail fails the download of every machine.
func (s *lazySnapshots) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.open {
		f.err = err
		close(f.failed)
	}
}

func (f *lazySource) Memory() vmm.Memory                         { return f }
func (f *lazySource) File() string                               { return "" }
func (f *lazySource) Serve(context.Context, *net.UnixConn) error { return nil }
func (f *lazySource) DiskPaths() []string                        { return f.disks }
func (f *lazySource) Complete() <-chan struct{}                  { return f.complete }
func (f *lazySource) Failed() <-chan struct{}                    { return f.failed }
func (f *lazySource) Err() error {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	return f.err
}

func (f *lazySource) WaitComplete(ctx context.Context) error {
	select {
	case <-f.complete:
		return nil
	case <-f.failed:
		return f.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (f *lazySource) Close(context.Context) error {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	delete(f.s.open, f)
	return nil
}

// makeRemote makes remoteBase.
func (w *fixture) makeRemote() {
	w.t.Helper()
	d, err := w.store.Draft()
	w.must(err)
	image, err := (&capture{mem: memory{Frozen: true}, m: &monitor{host: w.host}}).Save(w.t.Context(), d.ImageDir())
	w.must(err)
	w.makeDisks(d)
	snap := snapshot.Snapshot{
		Ref:       remoteBase,
		Template:  "far",
		VCPUs:     1,
		MemoryMiB: 64,
		Data:      dataDisks,
		Manifest:  image.Manifest,
	}
	_, err = d.Commit(snap.WithOrigin([]byte("there")))
	w.must(err)
	w.must(w.store.Release(remoteBase))
}

func (w *fixture) createRemote(id string, keep bool) error {
	_, err := w.mgr.Create(
		w.t.Context(),
		machine.CreateRequest{ID: hostapi.MachineID(id), Template: "far", Persistent: keep, Egress: baseEgress},
		remoteBase,
		"",
	)
	return err
}

// lazyFaultCases returns the fault cases of machines that start on a snapshot that is not yet downloaded.
func lazyFaultCases() []faultCase {
	return []faultCase{
		{
			name: "create-streaming",
			prep: func(w *fixture) { w.makeRemote() },
			do:   func(w *fixture) error { return w.createRemote("b", true) },
			check: func(w *fixture, killed bool) {
				mc, err := w.mgr.Get("b")
				if errors.Is(err, hostapi.ErrNotFound) {
					return
				}
				if !killed || mc.State != hostapi.Failed || !strings.Contains(mc.Reason, "host agent ended") {
					w.t.Errorf(
						"machine b is %q (%s) with killed %v, want it removed or, if killed, failed",
						mc.State,
						mc.Reason,
						killed,
					)
				}
			},
		},
		{
			name: "wake-of-streamed",
			prep: func(w *fixture) {
				w.makeRemote()
				w.lazy.hold = true
				w.must(w.createRemote("b", true))
				w.restart(nil)
				w.wantState("b", hostapi.Failed)
			},
			do: func(w *fixture) error { _, err := w.mgr.Wake(w.t.Context(), "b"); return err },
			check: func(w *fixture, _ bool) {
				mc, err := w.mgr.Get("b")
				w.must(err)
				if mc.State == hostapi.Running {
					return
				}
				if _, err := w.mgr.Wake(w.t.Context(), "b"); err != nil {
					w.t.Errorf("second wake: %v", err)
				}
				if _, err := os.Stat(filepath.Join(w.dir, "machines", "b", "disk.partial")); !errors.Is(
					err,
					os.ErrNotExist,
				) {
					w.t.Errorf("disk.partial of a machine that was woken: got %v, want ErrNotExist", err)
				}
			},
		},
	}
}

func TestStreamingMachine(t *testing.T) {
	w := newFixture(t)
	w.makeRemote()
	w.must(w.createRemote("a", false))
	w.count("a", 1)
	incomplete := filepath.Join(w.dir, "machines", "a", "disk.partial")
	w.eventually(
		"complete disks are recorded",
		func() bool { _, err := os.Stat(incomplete); return errors.Is(err, os.ErrNotExist) },
	)
	w.must(w.store.MarkLocal(remoteBase))
	got, err := w.mgr.Fork(t.Context(), machine.ForkRequest{Parent: "a", Children: []machine.ChildRequest{{ID: "b"}}})
	w.must(err)
	w.must(got[0].Err)
	w.count("b", 2)
	w.destroy("a")
	if n := w.lazy.left(); n != 0 {
		t.Errorf("%d machines are attached, want 0", n)
	}
	w.restart(nil) // a fork of a streaming machine does not need the process that served it
	w.count("b", 3)
	w.destroy("b")
	w.checkEmpty()
}

// TestHugePagesAreReserved checks that memory which is not yet downloaded is made of huge pages while the host has
// enough of them: a machine has all of its memory of them or none, and the next can have those of one that ended.
func TestHugePagesAreReserved(t *testing.T) {
	w := newFixture(t)
	w.makeRemote()
	w.hugePages = 100 << 20 // for one machine of 64 MiB
	create := func(id string, want bool) {
		t.Helper()
		w.must(w.createRemote(id, true))
		if got := w.host.monitorOf(id).spec.HugePages; got != want {
			t.Errorf("machine %s has huge pages: %v, want %v", id, got, want)
		}
	}
	create("a", true)
	create("b", false)
	w.destroy("a")
	create("c", true)
	w.host.failNext("load", errors.New("refused"))
	w.destroy("c")
	if err := w.createRemote("d", false); err == nil {
		t.Error("create with a failing load: got no error")
	}
	create("e", true)
	w.must(w.mgr.Hibernate(t.Context(), "e"))
	create("f", true)
	w.hugePages = 0
	create("g", false)
	for _, id := range []string{"b", "e", "f", "g"} {
		w.destroy(id)
	}
	w.checkEmpty()
}

// TestMetadataIsSetBeforeLoad checks that a guest finds its metadata with its first instruction, and that a create
// fails if the monitor does not accept it.
func TestMetadataIsSetBeforeLoad(t *testing.T) {
	w := newFixture(t)
	w.create("a", false)
	got, err := w.mgr.Fork(
		t.Context(),
		machine.ForkRequest{Parent: "a", Children: []machine.ChildRequest{{ID: "b", Hostname: "other"}}},
	)
	w.must(err)
	w.must(got[0].Err)
	for id, name := range map[string]string{"a": "a", "b": "other"} {
		want := fmt.Sprintf(
			`{"latest":{"meta-data":{"hostname":%q,"instance-id":%q,"local-hostname":%q}}}`, name, id, name)
		if told := w.host.monitorOf(id).metadata; told != want {
			t.Errorf("metadata of machine %s = %s, want %s", id, told, want)
		}
	}
	w.host.failNext("identify", errors.New("refused"))
	if _, err := w.mgr.Create(t.Context(), machine.CreateRequest{ID: "c"}, base, ""); err == nil ||
		!strings.Contains(err.Error(), "refused") {
		t.Errorf("create: got %v, want another error", err)
	}
	w.destroy("a")
	w.destroy("b")
	w.checkEmpty()
}

func TestCaptureWaitsForDownload(t *testing.T) {
	w := newFixture(t)
	w.makeRemote()
	w.lazy.hold = true
	w.must(w.createRemote("a", true))
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // so the operation ends while it waits
	if _, err := w.mgr.TakeSnapshot(ctx, "a", "snapshots/s", nil, nil); err == nil {
		t.Error("snapshot before the download is complete: got no error")
	}
	if err := w.mgr.Hibernate(ctx, "a"); err == nil {
		t.Error("hibernate before the download is complete: got no error")
	}
	w.count("a", 1)
	w.destroy("a")
	w.checkEmpty()
}

func TestFailedDownloadFailsMachine(t *testing.T) {
	for _, keep := range []bool{true, false} {
		w := newFixture(t)
		w.makeRemote()
		w.lazy.hold = true
		w.must(w.createRemote("a", keep))
		w.lazy.fail(errors.New("no store"))
		w.eventually("the event", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, e := range w.events {
				if e.Type == "died" && strings.Contains(e.Reason, "download of its snapshot failed: no store") {
					return true
				}
			}
			return false
		})
		if keep {
			w.wantState("a", hostapi.Failed)
		}
		w.destroy("a")
		w.checkEmpty()
		if n := w.lazy.left(); n != 0 {
			t.Errorf("%d machines are attached, want 0", n)
		}
		w.stop()
	}
}

func TestRemoteBackedSnapshotWithoutStreaming(t *testing.T) {
	w := newFixture(t)
	w.makeRemote()
	w.lazy = nil
	w.restart(nil)
	if err := w.createRemote("a", false); !errors.Is(err, hostapi.ErrUnsupported) {
		t.Errorf("create: got %v, want another error", err)
	}
	w.checkEmpty()
}
