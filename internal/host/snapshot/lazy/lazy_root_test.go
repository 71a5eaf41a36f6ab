//go:build root

package lazy_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/host/pager/pagertest"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/host/snapshot/lazy"
	"github.com/pandastack/pandastack/internal/os/disk/disktest"
	"github.com/pandastack/pandastack/internal/vmm"
)

const ref = snapshot.Ref("snapshots/snp1")

// host is a host and a snapshot in the store that the host does not have.
type host struct {
	t          *testing.T
	dir        string
	memory     []byte
	disk       []byte
	data       []byte // of the data disk
	source     *pagertest.Source
	prefetches *fakePrefetchStore
	store      *snapshot.Store
	mgr        *lazy.Manager
	cfg        func(*lazy.Config)
}

// fakePrefetchStore is the store of traces that hosts share.
type fakePrefetchStore struct {
	mu    sync.Mutex
	data  []byte
	pages []byte
	fail  error // of reading the pages
	saved int
	kept  chan struct{}
}

func (t *fakePrefetchStore) Load(context.Context, []byte) (lazy.Prefetch, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := lazy.Prefetch{Trace: t.data}
	if t.pages != nil {
		of.Bytes, of.Pages = int64(len(t.pages)), t.load
	}
	return of, nil
}

// load passes the pages that are not zero one by one, the last one first. It overwrites data that is not
// kept.
func (t *fakePrefetchStore) load(_ context.Context, put func(off int64, data []byte) bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for at := len(t.pages) - 4096; at >= 0; at -= 4096 {
		page := bytes.Clone(t.pages[at : at+4096])
		if !bytes.Equal(page, make([]byte, 4096)) && !put(int64(at), page) {
			copy(page, "used for other content")
		}
	}
	return t.fail
}

func (t *fakePrefetchStore) Save(_ context.Context, _, trace []byte, pages *os.File) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data, t.pages = trace, nil
	t.saved++
	if pages != nil {
		info, err := pages.Stat()
		if err != nil {
			return err
		}
		t.pages = make([]byte, info.Size())
		if _, err := pages.ReadAt(t.pages, 0); err != nil {
			return err
		}
	}
	select {
	case t.kept <- struct{}{}:
	default:
	}
	return nil
}

func newHost(t *testing.T, cfg func(*lazy.Config)) *host {
	t.Helper()
	h := &host{
		t:          t,
		dir:        disktest.Dir(t, 512<<20),
		cfg:        cfg,
		prefetches: &fakePrefetchStore{kept: make(chan struct{}, 1)},
	}
	h.memory = pagertest.Pattern(16<<20, func(page int) bool { return page%5 == 4 })
	h.disk = pagertest.Pattern(8<<20, func(page int) bool { return page%300 > 200 })
	h.data = pagertest.Pattern(4<<20, func(page int) bool { return page%7 == 3 })
	h.source = pagertest.New(
		map[string][]byte{"memory": h.memory, "state": []byte("state"), "disk.img": h.disk, "disk-data.img": h.data},
	)
	h.start()
	t.Cleanup(func() { h.stop() })
	return h
}

func (h *host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// start starts the components of a host agent.
func (h *host) start() {
	h.t.Helper()
	var err error
	h.store, err = snapshot.Open(h.dir, nil, "snapshots")
	h.must(err)
	h.must(h.store.GC())
	c := lazy.Config{
		Dir: filepath.Join(h.dir, "stream"), Store: h.store, Prefetches: h.prefetches,
		OpenSource: func(_ context.Context, origin []byte) (chunkstore.Source, error) {
			if string(origin) != "there" {
				return nil, errors.New("origin " + string(origin))
			}
			return h.source, nil
		},
		RecordTime: time.Millisecond, SettleTime: time.Hour, ReadTimeout: 300 * time.Millisecond,
	}
	if h.cfg != nil {
		h.cfg(&c)
	}
	h.mgr, err = lazy.New(h.t.Context(), c)
	h.must(err)
}

func (h *host) stop() {
	h.t.Helper()
	h.must(h.mgr.Close())
	if list, err := os.ReadDir(filepath.Join(h.dir, "stream")); err != nil && !errors.Is(err, os.ErrNotExist) ||
		len(list) != 0 {
		h.t.Errorf("mount point after Close = %v, %v; want it empty", list, err)
	}
}

// remote returns the description of the snapshot by its own host.
func (h *host) remote() snapshot.Snapshot {
	sum := sha256.Sum256([]byte("state"))
	return snapshot.Snapshot{
		Version: 1, Ref: "snapshots/other", VCPUs: 1,
		MemoryMiB: len(h.memory) >> 20, DiskMiB: len(h.disk) >> 20, Disk: true,
		Data: []snapshot.DataDisk{{Name: "data", MiB: len(h.data) >> 20, Mount: "/data"}},
		Manifest: vmm.Manifest{MemoryMiB: len(h.memory) >> 20, Files: []vmm.File{
			{Name: "memory", Bytes: int64(len(h.memory))},
			{Name: "state", Bytes: 5, SHA256: hex.EncodeToString(sum[:])},
		}},
	}
}

// params are the parameters of an import of snap from the host's source.
func (h *host) params(snap snapshot.Snapshot) lazy.ImportParams {
	return lazy.ImportParams{Ref: ref, Snapshot: snap, Origin: []byte("there"), Source: h.source}
}

func (h *host) importSnapshot() snapshot.Snapshot {
	h.t.Helper()
	snap, err := h.mgr.Import(h.t.Context(), h.params(h.remote()))
	h.must(err)
	return snap
}

// attach attaches a machine with its disks. The data disk is at dataOf the root disk's path.
func (h *host) attach(snap snapshot.Snapshot, name string) (machine.LazySource, string) {
	h.t.Helper()
	path := filepath.Join(h.dir, name)
	h.empty(path, int64(len(h.disk))+1<<20)
	h.empty(dataOf(path), int64(len(h.data)))
	s, err := h.mgr.Attach(h.t.Context(), snap, name, []string{path, dataOf(path)})
	h.must(err)
	return s, path
}

func dataOf(path string) string { return path + ".data" }

func (h *host) empty(path string, bytes int64) {
	h.t.Helper()
	f, err := os.Create(path)
	h.must(err)
	h.must(errors.Join(f.Truncate(bytes), f.Close()))
}

func (h *host) deadline() context.Context {
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	h.t.Cleanup(cancel)
	return ctx
}

func (h *host) same(path string, want []byte) {
	h.t.Helper()
	got, err := os.ReadFile(path)
	h.must(err)
	if !bytes.Equal(got, want) {
		h.t.Errorf("%s: wrong content", path)
	}
}

func (h *host) write(path string, data []byte, off int64) {
	h.t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	h.must(err)
	_, err = f.WriteAt(data, off)
	h.must(errors.Join(err, f.Sync(), f.Close()))
}

func TestRemoteBackedSnapshotBecomesLocal(t *testing.T) {
	h := newHost(t, nil)
	snap := h.importSnapshot()
	if !snap.RemoteBacked() {
		t.Fatal("RemoteBacked() after Import = false, want true")
	}
	if asked, _ := h.source.Fetched(); asked > chunkstore.FrameSize {
		t.Errorf("Import fetched %d bytes, want at most a frame", asked)
	}
	a, pathA := h.attach(snap, "a")
	b, pathB := h.attach(snap, "b")
	h.same(a.Memory().File(), h.memory)
	if a.Memory().File() != b.Memory().File() {
		t.Error("two machines of one snapshot have different memory files, want one")
	}
	want := append(bytes.Clone(h.disk), make([]byte, 1<<20)...)
	h.same(b.DiskPaths()[0], want)
	mark := bytes.Repeat([]byte("panda"), 2000)
	h.write(a.DiskPaths()[0], mark, 12345)
	copy(want[12345:], mark)
	h.same(a.DiskPaths()[0], want)
	data := bytes.Clone(h.data)
	h.same(b.DiskPaths()[1], data)
	h.write(a.DiskPaths()[1], mark, 54321)
	copy(data[54321:], mark)
	h.same(a.DiskPaths()[1], data)
	h.must(a.WaitComplete(h.deadline()))
	h.must(b.WaitComplete(h.deadline()))
	<-a.Complete()
	h.same(a.DiskPaths()[1], data)
	h.same(dataOf(pathA), data)
	h.same(dataOf(pathB), h.data)
	h.same(snap.DiskPaths()[1], h.data)
	h.same(a.DiskPaths()[0], want)
	h.same(pathA, want)
	h.same(pathB, append(bytes.Clone(h.disk), make([]byte, 1<<20)...))
	h.same(filepath.Join(snap.Image().Dir, "memory"), h.memory)
	h.same(snap.DiskPath(), h.disk)
	if now, err := h.store.Get(ref); err != nil || now.RemoteBacked() {
		t.Errorf("snapshot = %+v, %v; want it local", now, err)
	}
	h.source.SetFail(func(string, int64) error { return errors.New("the store must not be asked any more") })
	h.write(a.DiskPaths()[0], mark, 54321)
	copy(want[54321:], mark)
	h.same(a.DiskPaths()[0], want)
	h.same(a.Memory().File(), h.memory)
	late, latePath := h.attach(snap, "c") // attached before the snapshot was local
	h.must(late.WaitComplete(h.deadline()))
	h.same(latePath, append(bytes.Clone(h.disk), make([]byte, 1<<20)...))
	for _, s := range []machine.LazySource{a, b, late} {
		h.must(s.Close(t.Context()))
	}
	h.must(h.store.Delete(ref))
	h.must(h.store.GC())
	if _, err := os.Stat(snap.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory of a deleted, unused snapshot: stat = %v, want os.ErrNotExist", err)
	}
}

// touch reads a page of a machine's memory at each offset.
func (h *host) touch(s machine.LazySource, offsets []int64) {
	h.t.Helper()
	f, err := os.Open(s.Memory().File())
	h.must(err)
	h.must(unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM))
	buf := make([]byte, 4096)
	for _, off := range offsets {
		_, err = f.ReadAt(buf, off)
		h.must(err)
		if !bytes.Equal(buf, h.memory[off:off+4096]) {
			h.t.Errorf("memory at %d: wrong content", off)
		}
	}
	h.must(f.Close())
}

// recordTrace returns the traces saved by a machine whose memory was touched at some offsets during the
// recording.
func recordTrace(t *testing.T, offsets []int64) *fakePrefetchStore {
	t.Helper()
	for record := 2 * time.Second; ; record *= 4 {
		h := newHost(t, func(c *lazy.Config) { c.RecordTime = record })
		snap := h.importSnapshot()
		began := time.Now()
		a, _ := h.attach(snap, "a")
		h.touch(a, offsets)
		inTime := time.Since(began) < record
		if inTime {
			select {
			case <-h.prefetches.kept:
			case <-h.deadline().Done():
				t.Fatal("no trace was saved")
			}
			if _, err := os.Stat(filepath.Join(snap.Dir(), "trace")); err != nil {
				t.Errorf("trace in the snapshot's directory: %v", err)
			}
		}
		h.must(a.Close(t.Context()))
		if inTime { // otherwise the computer was too busy, and the recording may have ended before
			h.prefetches.mu.Lock()
			defer h.prefetches.mu.Unlock()
			return &fakePrefetchStore{data: h.prefetches.data, pages: h.prefetches.pages, kept: make(chan struct{}, 1)}
		}
	}
}

func TestTraceIsSharedAndPrefetched(t *testing.T) {
	offsets := []int64{9 << 20, 3 << 20}
	h := newHost(t, nil)
	h.prefetches.data = recordTrace(t, offsets).data
	s, _ := h.attach(h.importSnapshot(), "a")
	_ = s.Memory().File()
	ctx := h.deadline()
	fetched := int64(0)
	for ; fetched < 2*chunkstore.FrameSize || len(h.source.Prefetched()) < 3; fetched, _ = h.source.Fetched() {
		h.must(ctx.Err())
		<-time.After(time.Millisecond)
	}
	asked := h.source.Prefetched()
	inOrder, behind := false, false // content in the trace; the rest of a small difference
	for i := 1; i < len(asked); i++ {
		inOrder = inOrder || asked[i-1].Offset == offsets[0] && asked[i].Offset == offsets[1]
	}
	if !inOrder {
		t.Errorf("prefetched %v, want the trace in order", asked)
	}
	for !behind {
		h.must(ctx.Err())
		<-time.After(time.Millisecond)
		behind = slices.ContainsFunc(
			h.source.Prefetched(),
			func(r chunkstore.Range) bool { return r.File == snapshot.DiskName && r.Offset == 0 },
		)
	}
	h.must(s.Close(t.Context()))
}

// The working set is loaded with the trace, in one piece, and not read from the source. The recorded machine
// read page by page, so the working set has nothing else.
func TestWorkingSetIsLoadedWithTrace(t *testing.T) {
	offsets := []int64{9 << 20, 3 << 20, 9<<20 + 64<<10, 5 << 20}
	of := recordTrace(t, offsets)
	var want []byte
	h := newHost(t, nil)
	for _, off := range offsets {
		want = append(want, h.memory[off:off+4096]...)
	}
	if !bytes.Equal(of.pages, want) {
		t.Fatalf("the working set has %d bytes and wrong content", len(of.pages))
	}
	last := offsets[3]
	lastFrame := chunkstore.Range{
		File:   "memory",
		Offset: last - last%chunkstore.FrameSize,
		Length: chunkstore.FrameSize,
	}
	h.prefetches.data, h.prefetches.pages = of.data, of.pages[:3*4096]
	a, _ := h.attach(h.importSnapshot(), "a")
	_ = a.Memory().File()
	h.until(
		"the rest of the trace is asked for, when the other came",
		func() bool { return slices.Contains(h.source.Prefetched(), lastFrame) },
	)
	h.source.SetFail(func(file string, _ int64) error { return errors.New(file + " is not to be read") })
	h.touch(a, offsets[:3])
	h.must(a.Close(t.Context()))
}

// Zero pages of the working set are in the page cache too, so a machine that touches them causes no read.
func TestZeroRangesOfTraceArePopulated(t *testing.T) {
	h := newHost(t, nil)
	offsets := []int64{4 * 4096, 9 * 4096, 1004 * 4096} // each fifth page is zero
	of := recordTrace(t, offsets)
	h.prefetches.data, h.prefetches.pages = of.data, of.pages
	a, _ := h.attach(h.importSnapshot(), "a")
	path := a.Memory().File()
	f, err := os.Open(path) // like a monitor: the kernel keeps pages of files that are open
	h.must(err)
	defer f.Close()
	h.until("the zeros that the trace names are in the kernel's cache", func() bool {
		out, err := exec.Command("fincore", "--noheadings", "--output", "PAGES", path).Output()
		h.must(err)
		return strings.TrimSpace(string(out)) == "3"
	})
	h.must(a.Close(t.Context()))
}

// Working-set content that is missing or does not fit its trace is read from the source.
func TestBrokenWorkingSetIsReadFromSource(t *testing.T) {
	offsets := []int64{9 << 20, 3 << 20}
	of := recordTrace(t, offsets)
	frame := func(off int64) chunkstore.Range {
		return chunkstore.Range{File: "memory", Offset: off, Length: chunkstore.FrameSize}
	}
	for name, change := range map[string]func(*fakePrefetchStore){
		"fails":     func(t *fakePrefetchStore) { t.fail = errors.New("gone") },
		"too-long":  func(t *fakePrefetchStore) { t.pages = append(bytes.Clone(t.pages), t.pages...) },
		"too-large": func(t *fakePrefetchStore) { t.pages = make([]byte, 65<<20) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, nil)
			h.prefetches.data, h.prefetches.pages = of.data, of.pages
			change(h.prefetches)
			a, _ := h.attach(h.importSnapshot(), "a")
			_ = a.Memory().File()
			h.until("all of the trace is asked for", func() bool {
				asked := h.source.Prefetched()
				return slices.Contains(asked, frame(9<<20)) && slices.Contains(asked, frame(3<<20))
			})
			h.same(a.Memory().File(), h.memory)
			h.must(a.Close(t.Context()))
		})
	}
}

// until waits for another goroutine.
func (h *host) until(what string, is func() bool) {
	h.t.Helper()
	ctx := h.deadline()
	for !is() {
		if ctx.Err() != nil {
			h.t.Fatalf("condition not met: %s", what)
		}
		<-time.After(time.Millisecond)
	}
}

// readMemory reads a machine's memory.
func readMemory(_ *host, s machine.LazySource) error {
	_, err := os.ReadFile(s.Memory().File())
	return err
}

// readDisk reads a machine's root disk.
func readDisk(_ *host, s machine.LazySource) error {
	_, err := os.ReadFile(s.DiskPaths()[0])
	return err
}

func TestUnreachableStoreFailsMachine(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(*pagertest.Source)
		use   func(h *host, s machine.LazySource) error
		want  string
	}{
		{"failing-memory-read", func(s *pagertest.Source) {
			s.SetFail(func(string, int64) error { return errors.New("connection refused") })
		}, readMemory, "memory: "},
		{"failing-disk-read", func(s *pagertest.Source) {
			s.SetFail(func(string, int64) error { return errors.New("connection refused") })
		}, readDisk, "connection refused"},
		{"blocked-store", func(s *pagertest.Source) { s.Block() },
			readDisk, "did not deliver the content within 300ms"},
		{"damaged-content", func(s *pagertest.Source) {
			s.SetFail(func(string, int64) error {
				return &chunkstore.DamagedError{Object: "chunk x", Problem: "other bytes"}
			})
		}, readMemory, "chunk x is damaged"},
		{"failing-partial-page-write", func(s *pagertest.Source) {
			s.SetFail(func(string, int64) error { return errors.New("connection refused") })
		}, func(_ *host, s machine.LazySource) error {
			f, err := os.OpenFile(s.DiskPaths()[0], os.O_RDWR, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt([]byte("x"), 100)
			return errors.Join(err, f.Close())
		}, "disk: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t, nil)
			s, _ := h.attach(h.importSnapshot(), "a")
			c.spoil(h.source)
			if err := c.use(h, s); !errors.Is(err, unix.EIO) {
				t.Errorf("access: got %v, want EIO", err)
			}
			select {
			case <-s.Failed():
			case <-h.deadline().Done():
				t.Fatal("the machine did not fail")
			}
			if err := s.Err(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Err() = %v, want an error with %q", err, c.want)
			}
			h.must(s.Close(t.Context()))
		})
	}
}

func TestFailedHydrationIsRetried(t *testing.T) {
	h := newHost(t, nil)
	s, _ := h.attach(h.importSnapshot(), "a")
	h.source.SetFail(func(string, int64) error { return errors.New("bad gateway") })
	if err := s.WaitComplete(h.deadline()); err == nil || !strings.Contains(err.Error(), "bad gateway") {
		t.Errorf("WaitComplete: got %v, want the error of the hydration", err)
	}
	if s.Err() != nil {
		t.Errorf("failed hydration without a waiting read failed the machine: %v", s.Err())
	}
	h.source.SetFail(nil)
	for s.WaitComplete(h.deadline()) != nil { // an attempt that began before may still fail
		h.must(h.deadline().Err())
	}
	h.must(s.Close(t.Context()))
}

func TestRestartedAgentResumesHydration(t *testing.T) {
	h := newHost(t, nil)
	snap := h.importSnapshot()
	s, path := h.attach(snap, "a")
	want := append(bytes.Clone(h.disk), make([]byte, 1<<20)...)
	h.write(s.DiskPaths()[0], []byte("written"), 777)
	h.write(s.DiskPaths()[1], []byte("written"), 888)
	copy(want[777:], "written")
	data := bytes.Clone(h.data)
	copy(data[888:], "written")
	h.stop()
	h.start()
	h.mgr.Resume(t.Context())
	snap, err := h.store.Get(ref)
	if err != nil || !snap.RemoteBacked() {
		t.Fatal(snap, err)
	}
	h.must(h.mgr.CompleteDisks(h.deadline(), snap, []string{path, dataOf(path)}))
	h.same(path, want)
	h.same(dataOf(path), data)
	if snap, err = h.store.Get(ref); err != nil || snap.RemoteBacked() {
		t.Fatalf("snapshot = %+v, %v; want it local", snap, err)
	}
	h.must(h.mgr.CompleteDisks(h.deadline(), snap, []string{path, dataOf(path)}))
	h.same(path, want)
	h.same(dataOf(path), data)
}

// A failing import cancels AddFiles instead of waiting for it.
func TestFailedImportCancelsExtraFiles(t *testing.T) {
	h := newHost(t, nil)
	remote := h.remote()
	remote.DiskMiB++
	added := errors.New("it went on")
	params := h.params(remote)
	params.AddFiles = func(ctx context.Context, _ string) {
		select {
		case <-ctx.Done():
			added = nil
		case <-h.deadline().Done():
		}
	}
	_, err := h.mgr.Import(t.Context(), params)
	if err == nil || added != nil {
		t.Errorf("Import = %v, AddFiles: %v; want an error and AddFiles canceled", err, added)
	}
}

func TestFailedImportLeavesNothing(t *testing.T) {
	h := newHost(t, nil)
	for name, change := range map[string]func(*snapshot.Snapshot){
		"memory-size-differs":      func(s *snapshot.Snapshot) { s.Manifest.Files[0].Bytes++ },
		"checksum-differs":         func(s *snapshot.Snapshot) { s.Manifest.Files[1].SHA256 = strings.Repeat("0", 64) },
		"file-missing":             func(s *snapshot.Snapshot) { s.Manifest.Files[1].Name = "missing" },
		"file-name-with-path":      func(s *snapshot.Snapshot) { s.Manifest.Files[1].Name = "../state" },
		"disk-size-differs":        func(s *snapshot.Snapshot) { s.DiskMiB++ },
		"data-disk-size-differs":   func(s *snapshot.Snapshot) { s.Data[0].MiB++ },
		"data-disk-missing":        func(s *snapshot.Snapshot) { s.Data[0].Name = "other" },
		"data-disk-name-with-path": func(s *snapshot.Snapshot) { s.Data[0].Name = "../x" },
		"no-disks":                 func(s *snapshot.Snapshot) { s.Disk = false },
		"memory-missing":           func(s *snapshot.Snapshot) { s.Manifest.MemoryMiB = 7 },
		"name-taken":               nil,
	} {
		remote := h.remote()
		if change == nil {
			h.importSnapshot()
		} else {
			change(&remote)
		}
		if _, err := h.mgr.Import(t.Context(), h.params(remote)); err == nil {
			t.Errorf("Import, %s: got nil, want an error", name)
		}
		if change == nil {
			h.must(h.store.Delete(ref))
			h.must(h.mgr.Close())
			h.must(h.store.GC())
			h.start()
		}
		if _, err := h.store.Get(ref); !errors.Is(err, snapshot.ErrNotFound) {
			t.Errorf("Get after a failed import, %s: got %v, want ErrNotFound", name, err)
		}
		if list, err := os.ReadDir(filepath.Join(h.dir, "drafts")); err != nil || len(list) != 0 {
			t.Errorf("drafts after a failed import, %s = %v, %v; want none", name, list, err)
		}
	}
}
