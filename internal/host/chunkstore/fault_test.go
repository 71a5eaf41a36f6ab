package chunkstore_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/chunkstore/cache"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
)

func flip(data []byte) []byte {
	out := bytes.Clone(data)
	out[len(out)/2] ^= 1
	return out
}

// isTimeout reports whether err says that the store did not respond in time.
func isTimeout(err error) bool { return errors.Is(err, blob.ErrTimeout) }

// isDamaged reports whether err says that content is damaged.
func isDamaged(err error) bool {
	_, ok := errors.AsType[*chunkstore.DamagedError](err)
	return ok
}

// Faults of a store in a read, once and permanently, and the results.
func TestReadsFromABadStore(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		fault blobtest.Fault
		check func(error) bool
	}{
		"failing":     {blobtest.Fault{Err: broken}, func(err error) bool { return errors.Is(err, broken) }},
		"hanging":     {blobtest.Fault{Hang: true}, isTimeout},
		"stalling":    {blobtest.Fault{Hang: true, Short: 100}, isTimeout},
		"wrong-bytes": {blobtest.Fault{Corrupt: flip}, isDamaged},
		"zeros":       {blobtest.Fault{Corrupt: func(d []byte) []byte { return make([]byte, len(d)) }}, isDamaged},
		"short":       {blobtest.Fault{Short: 100}, isDamaged},
		"missing-object": {blobtest.Fault{Err: blob.ErrNotFound}, func(err error) bool {
			return isDamaged(err) && errors.Is(err, blob.ErrNotFound)
		}},
		"denied": {blobtest.Fault{Err: blob.ErrDenied}, func(err error) bool {
			return errors.Is(err, blob.ErrDenied)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, quickRetries)
			data := content(1, 5<<20)
			r := f.store.Reader(f.pushMemory("ws", "a", data), f.cache)
			f.objects.SetFaults(func(blobtest.Call) blobtest.Fault { return c.fault })
			p := make([]byte, len(data))
			if err := r.ReadAt(t.Context(), "memory", p, 0); !c.check(err) {
				t.Errorf("ReadAt: got %v, want the error of the case", err)
			}
			if err := r.Prefetch(t.Context(), []chunkstore.Range{{File: "memory", Length: 4 << 20}}); !c.check(err) {
				t.Errorf("Prefetch: got %v, want the error of the case", err)
			}
			dir := t.TempDir()
			if _, err := r.Pull(t.Context(), dir, nil, nil); !c.check(err) {
				t.Errorf("Pull: got %v, want the error of the case", err)
			}
			if list, err := os.ReadDir(dir); err != nil || len(list) != 0 {
				t.Errorf("files after a failed pull = %v, %v; want none", list, err)
			}
			if n := f.cache.Stats(); n.Bytes != 0 {
				t.Errorf("the cache holds %d bytes, want none of the damaged content", n.Bytes)
			}
			// The same fault once in a while costs another request, unless a retry cannot help.
			asked := map[blobtest.Call]bool{} // guarded by the store's lock
			f.objects.SetFaults(func(call blobtest.Call) blobtest.Fault {
				call.N = 0
				if asked[call] || errors.Is(c.fault.Err, blob.ErrNotFound) || errors.Is(c.fault.Err, blob.ErrDenied) {
					return blobtest.Fault{}
				}
				asked[call] = true
				return c.fault
			})
			for off := 0; off < len(p); off += 1 << 20 {
				if err := r.ReadAt(t.Context(), "memory", p[off:off+1<<20], int64(off)); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(p, data) {
				t.Error("read other content than was pushed")
			}
		})
	}
}

// A caller that gives up on a slow store does not disturb the others.
func TestCanceledReadDoesNotFailOthers(t *testing.T) {
	f := newFixture(t, chunkstore.Config{})
	data := blobtest.Content(1, 1<<20)
	r := f.store.Reader(f.pushMemory("ws", "a", data), f.cache)
	asked := make(chan struct{})
	var once sync.Once
	f.objects.SetFaults(func(c blobtest.Call) blobtest.Fault {
		if c.N == 0 {
			once.Do(func() { close(asked) })
			return blobtest.Fault{Hang: true}
		}
		return blobtest.Fault{}
	})
	why := errors.New("went away")
	ctx, cancel := context.WithCancelCause(t.Context())
	first := make(chan error, 1)
	go func() { first <- r.ReadAt(ctx, "memory", make([]byte, 4096), 0) }()
	<-asked
	second := make(chan error, 1)
	p := make([]byte, 4096)
	go func() { second <- r.ReadAt(t.Context(), "memory", p, 0) }()
	cancel(why)
	if err := <-first; !errors.Is(err, why) {
		t.Errorf("canceled read: got %v, want the context's cause", err)
	}
	if err := <-second; err != nil || !bytes.Equal(p, data[:4096]) {
		t.Errorf("concurrent read: got %v, want the content", err)
	}
}

// A push that fails at any request leaves no manifest, and the next one succeeds and reuses the stored
// chunks.
func TestPushThatFailsAtEveryRequest(t *testing.T) {
	data := content(1, 9<<20)
	in := chunkstore.Push{
		Tenant: "ws",
		ID:     "a",
		Files: []chunkstore.LocalFile{
			{Name: "memory", Path: file(t, data)},
			{Name: "state", Path: file(t, content(2, 50_000))},
		},
	}
	probe := newFixture(t, quickRetries)
	probe.push(in)
	puts, stats := probe.objects.Count("put"), probe.objects.Count("stat")
	if puts < 4 || stats < 4 {
		t.Fatalf("a push makes %d puts and %d stats, want at least 4 each for this test", puts, stats)
	}
	for name, c := range map[string]struct {
		op    string
		times int
		fault blobtest.Fault
		want  error
	}{
		"full":         {"put", puts, blobtest.Fault{Err: blob.ErrNoSpace}, blob.ErrNoSpace},
		"denied":       {"put", puts, blobtest.Fault{Err: blob.ErrDenied}, blob.ErrDenied},
		"stat-denied":  {"stat", stats, blobtest.Fault{Err: blob.ErrDenied}, blob.ErrDenied},
		"broken-pipes": {"put", puts, blobtest.Fault{Err: os.ErrClosed}, os.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, quickRetries)
			for n := range c.times {
				f = newFixture(t, quickRetries)
				f.objects.SetFaults(func(call blobtest.Call) blobtest.Fault {
					if call.Op == c.op && call.N >= n {
						return c.fault
					}
					return blobtest.Fault{}
				})
				if _, _, err := f.store.Push(t.Context(), in); !errors.Is(err, c.want) {
					t.Fatalf("Push with %s failing from request %d on: got %v, want %v", c.op, n, err, c.want)
				}
				if _, err := f.store.Open(t.Context(), "ws", "a"); !errors.Is(err, chunkstore.ErrNotFound) {
					t.Fatalf("Open after a failed push: got %v, want ErrNotFound", err)
				}
			}
			f.objects.SetFaults(nil)
			m, again := f.push(in)
			if again.Reused == 0 && c.op == "put" {
				t.Error("Push reused no chunk of the failed pushes")
			}
			f.wantFile(m, "memory", data)
		})
	}
}

// A request that is slow once, or whose reply is lost, costs another request.
func TestPushRetriesFailedRequests(t *testing.T) {
	f := newFixture(t, quickRetries)
	f.objects.SetFaults(func(c blobtest.Call) blobtest.Fault {
		if c.Op == "put" && c.N%3 == 0 {
			return blobtest.Fault{Err: errors.New("connection reset")}
		}
		return blobtest.Fault{}
	})
	data := content(1, 9<<20)
	f.wantFile(f.pushMemory("ws", "a", data), "memory", data)
}

// lostReplyStore stores an object and then returns an error.
type lostReplyStore struct {
	blob.Store
	left int
}

func (l *lostReplyStore) PutIfAbsent(ctx context.Context, key string, r io.Reader, size int64) error {
	err := l.Store.PutIfAbsent(ctx, key, r, size)
	if err == nil && l.left > 0 {
		l.left--
		return errors.New("connection reset")
	}
	return err
}

func TestPutManifestWithLostReply(t *testing.T) {
	f := newFixture(t, quickRetries)
	s, err := chunkstore.New(&lostReplyStore{Store: f.objects, left: 1}, f.ring, quickRetries)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	files := []chunkstore.LocalFile{{Name: "memory", Path: file(t, content(1, 5000))}}
	if _, _, err := s.Push(t.Context(), chunkstore.Push{Tenant: "ws", ID: "a", Files: files}); err != nil {
		t.Errorf("Push with a lost reply: got %v, want nil", err)
	}
	f.open("ws", "a")
}

func TestParentDeletedDuringPush(t *testing.T) {
	f := newFixture(t, quickRetries)
	data := blobtest.Content(1, 1<<20)
	parent := f.pushMemory("ws", "p", data)
	path, next := file(t, data), bytes.Clone(data)
	next[0] ^= 1
	in := chunkstore.Push{
		Tenant:      "ws",
		ID:          "a",
		Files:       []chunkstore.LocalFile{{Name: "memory", Path: file(t, next)}},
		Parent:      parent,
		ParentFiles: map[string]string{"memory": path},
	}
	deleted := func(rest func(string) bool) func(c blobtest.Call) blobtest.Fault {
		return func(c blobtest.Call) blobtest.Fault {
			if c.Op == "put" && strings.Contains(c.Key, "/c/") { // the difference: the parent is deleted now
				for _, k := range blobtest.Keys(t, f.objects.Store, "w/") {
					if rest(k) {
						if err := f.objects.Store.Delete(t.Context(), k); err != nil {
							t.Error(err)
						}
					}
				}
			}
			return blobtest.Fault{}
		}
	}
	f.objects.SetFaults(deleted(func(k string) bool { return strings.HasSuffix(k, "/p") }))
	if _, _, err := f.store.Push(t.Context(), in); !errors.Is(err, chunkstore.ErrNotFound) {
		t.Errorf("Push over a collected parent: got %v, want ErrNotFound", err)
	}
}

func TestGC(t *testing.T) {
	f := newFixture(t, chunkstore.Config{Grace: time.Hour})
	mem, ok := f.objects.Store.(*blobtest.MemoryStore)
	if !ok {
		t.Fatal("the object store is not a MemoryStore")
	}
	collect := func(want int) {
		t.Helper()
		got, err := f.store.GC(t.Context())
		if err != nil || got.Chunks != want {
			t.Errorf("GC = %+v, %v; want %d chunks removed", got, err, want)
		}
	}
	base, fork := blobtest.Content(1, 8<<20), blobtest.Content(1, 8<<20)
	copy(fork, blobtest.Content(2, 300_000))
	parent := f.pushMemory(chunkstore.Common, "base", base)
	m, _ := f.push(
		chunkstore.Push{Tenant: "ws", ID: "fork", Files: []chunkstore.LocalFile{{Name: "memory", Path: file(t, fork)}},
			Parent: parent, ParentFiles: map[string]string{"memory": file(t, base)}},
	)
	collect(0)
	mem.Age(2 * time.Hour)
	collect(0) // old, and needed
	if err := f.store.Delete(t.Context(), chunkstore.Common, "base"); err != nil {
		t.Fatal(err)
	}
	mem.Age(2 * time.Hour)
	collect(0) // the fork needs all of it but its own pages, and those are in chunks that it needs
	f.wantFile(m, "memory", fork)
	if err := f.store.Delete(t.Context(), "ws", "fork"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.store.Open(t.Context(), "ws", "fork"); !errors.Is(err, chunkstore.ErrNotFound) {
		t.Errorf("Open after Delete: got %v, want ErrNotFound", err)
	}
	collect(0) // deleted a moment ago
	f.wantFile(m, "memory", fork)
	mem.Age(2 * time.Hour)
	collect(3)
	if left := blobtest.Keys(t, f.objects, ""); len(left) != 0 {
		t.Errorf("objects after the last GC = %v, want none", left)
	}
}

// The chunks of a killed push are removed after the grace period, and not before.
func TestGCAfterKilledPush(t *testing.T) {
	f := newFixture(t, chunkstore.Config{Grace: time.Hour, Attempts: 1})
	mem, _ := f.objects.Store.(*blobtest.MemoryStore)
	data := blobtest.Content(1, 8<<20)
	f.objects.SetFaults(func(c blobtest.Call) blobtest.Fault {
		if strings.Contains(c.Key, "/m/") && c.Op == "put" {
			return blobtest.Fault{Err: errors.New("killed")}
		}
		return blobtest.Fault{}
	})
	in := chunkstore.Push{Tenant: "ws", ID: "a", Files: []chunkstore.LocalFile{{Name: "memory", Path: file(t, data)}}}
	if _, _, err := f.store.Push(t.Context(), in); err == nil {
		t.Fatal("Push with a full store: got nil, want an error")
	}
	f.objects.SetFaults(nil)
	if got, err := f.store.GC(t.Context()); err != nil || got.Chunks != 0 || got.Kept != 2 {
		t.Errorf("GC = %+v, %v; want 2 chunks kept", got, err)
	}
	// Chunks found again at half of the grace period are stored again and so become young.
	mem.Age(40 * time.Minute)
	m, stats := f.push(in)
	if stats.Reused != 0 {
		t.Errorf("Push reused %d old chunks, want none", stats.Reused)
	}
	mem.Age(40 * time.Minute)
	if got, err := f.store.GC(t.Context()); err != nil || got.Chunks != 0 {
		t.Errorf("GC = %+v, %v; want no chunk removed", got, err)
	}
	f.wantFile(m, "memory", data)
}

func TestGCKeepsTenantsWithUnreadableManifests(t *testing.T) {
	f := newFixture(t, chunkstore.Config{Grace: time.Hour, Attempts: 1})
	mem, _ := f.objects.Store.(*blobtest.MemoryStore)
	f.pushMemory("ws", "a", content(1, 1<<20))
	f.pushMemory("other", "a", content(1, 1<<20))
	blobtest.Put(t, f.objects, "w/readme", []byte("x"))
	blobtest.Put(t, f.objects, "elsewhere/x", []byte("x"))
	for _, k := range blobtest.Keys(t, f.objects, "w/") {
		if strings.HasSuffix(k, "/m/a") {
			blobtest.Put(t, f.objects, k, flip(get(t, f, k)))
			break
		}
	}
	mem.Age(2 * time.Hour)
	before := len(blobtest.Keys(t, f.objects, ""))
	if _, err := f.store.GC(t.Context()); !errors.Is(err, chunkstore.ErrTampered) {
		t.Errorf("GC with a damaged manifest: got %v, want ErrTampered", err)
	}
	if after := len(blobtest.Keys(t, f.objects, "")); after != before {
		t.Errorf("got %d objects after GC, want all %d", after, before)
	}
	broken := errors.New("broken")
	for _, op := range []string{"list", "get", "stat", "delete"} {
		f.objects.SetFaults(func(c blobtest.Call) blobtest.Fault {
			if c.Op == op {
				return blobtest.Fault{Err: broken}
			}
			return blobtest.Fault{}
		})
		got, err := f.store.GC(t.Context())
		if err == nil || got.Chunks != 0 {
			t.Errorf("GC with failing %s: removed %+v, %v; want an error and nothing removed", op, got, err)
		}
	}
}

// A cache that is damaged, or stores nothing, costs requests and never returns wrong content.
func TestReadsThroughABadCache(t *testing.T) {
	data := content(1, 5<<20)
	for name, harm := range map[string]func(t *testing.T, dir string){
		"bytes-changed": func(t *testing.T, dir string) {
			forEachFile(t, dir, func(f *os.File) error { _, err := f.WriteAt([]byte("xxxx"), 70_000); return err })
		},
		"truncated": func(t *testing.T, dir string) {
			forEachFile(t, dir, func(f *os.File) error { return f.Truncate(100_000) })
		},
		"emptied": func(t *testing.T, dir string) {
			forEachFile(t, dir, func(f *os.File) error { return f.Truncate(0) })
		},
		"removed": func(t *testing.T, dir string) {
			forEachFile(t, dir, func(f *os.File) error { return os.Remove(f.Name()) })
		},
		"directory-removed": func(t *testing.T, dir string) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		},
		"directories-instead": func(t *testing.T, dir string) {
			forEachFile(t, dir, func(f *os.File) error {
				return errors.Join(os.Remove(f.Name()), os.Mkdir(f.Name(), 0o700))
			})
		},
		"file-instead": func(t *testing.T, dir string) {
			if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, quickRetries)
			dir := filepath.Join(t.TempDir(), "cache")
			f.cache = newCache(t, cache.Config{Dir: dir, Files: 1})
			m := f.pushMemory("ws", "a", data)
			f.wantFile(m, "memory", data)
			if name != "bytes-changed" { // the frames of an open file are verified already
				harm(t, dir)
				f.wantFile(m, "memory", data)
			}
			if name == "file-instead" {
				return // the next start rejects it
			}
			harmAgain := newCache(t, cache.Config{Dir: dir})
			harm(t, dir)
			f.cache = harmAgain
			f.wantFile(m, "memory", data)
			f.cache = newCache(t, cache.Config{Dir: dir})
			f.wantFile(m, "memory", data)
		})
	}
}

func forEachFile(t *testing.T, dir string, do func(*os.File) error) {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range list {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			continue // damaged already
		}
		if err := errors.Join(do(f), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
}
