package cache_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pandastack/pandastack/internal/host/chunkstore/cache"
)

func open(t *testing.T, cfg cache.Config) *cache.Cache {
	t.Helper()
	c, err := cache.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// object returns an object of n bytes whose content follows from its number.
func object(i, n int) (cache.Object, []byte) {
	var head [1024]byte
	for at := range head {
		head[at] = byte(at) ^ byte(i*37)
	}
	data := make([]byte, 0, n)
	for line := 0; len(data) < n; line++ { // in blocks, since tests with the race detector are slow by the byte
		head[0], head[1] = byte(line), byte(line>>8)
		data = append(data, head[:min(len(head), n-len(data))]...)
	}
	return cache.Object{ID: fmt.Sprintf("object%04d", i), Bytes: n}, data
}

// source serves an object and counts the calls.
func source(data []byte, calls *atomic.Int64) cache.Fetch {
	return func(_ context.Context, first, count int) ([]byte, error) {
		calls.Add(1)
		return bytes.Clone(data[first*cache.Frame : min(len(data), (first+count)*cache.Frame)]), nil
	}
}

func failingFetch(t *testing.T) cache.Fetch {
	return func(context.Context, int, int) ([]byte, error) {
		t.Error("unexpected fetch")
		return nil, errors.New("fetched")
	}
}

func fill(t *testing.T, c *cache.Cache, o cache.Object, data []byte, fetch cache.Fetch) {
	t.Helper()
	p := make([]byte, len(data))
	if err := c.Fill(t.Context(), o, []cache.Piece{{Off: 0, Into: p}}, fetch); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(p, data) {
		t.Fatalf("object %s: got other content than was fetched", o.ID)
	}
}

func TestFetchedOnceAlsoAfterARestart(t *testing.T) {
	dir := t.TempDir()
	c := open(t, cache.Config{Dir: dir})
	var calls atomic.Int64
	for i, n := range []int{1, 4096, cache.Frame, cache.Frame + 1, 4 << 20} {
		o, data := object(i, n)
		if c.Read(o, 0, make([]byte, 1)) {
			t.Errorf("Read of object %d before its fetch = true, want false", i)
		}
		fill(t, c, o, data, source(data, &calls))
		fill(t, c, o, data, failingFetch(t))
	}
	if calls.Load() != 5 {
		t.Errorf("got %d fetches, want 5", calls.Load())
	}
	c = open(t, cache.Config{Dir: dir})
	for i, n := range []int{1, 4096, cache.Frame, cache.Frame + 1, 4 << 20} {
		o, data := object(i, n)
		fill(t, c, o, data, failingFetch(t))
	}
}

func TestOnlyMissingFramesAreFetched(t *testing.T) {
	c := open(t, cache.Config{Dir: t.TempDir()})
	o, data := object(1, 10*cache.Frame)
	var got []string
	note := func(ctx context.Context, first, count int) ([]byte, error) {
		got = append(got, fmt.Sprintf("%d+%d", first, count))
		return data[first*cache.Frame : (first+count)*cache.Frame], nil
	}
	for _, r := range [][2]int{{3, 1}, {7, 2}, {0, 10}, {0, 10}} {
		if err := c.Ensure(t.Context(), o, r[0], r[1], note); err != nil {
			t.Fatal(err)
		}
	}
	if text := fmt.Sprint(got); text != "[3+1 7+2 0+3 4+3 9+1]" {
		t.Errorf("got fetches %s, want [3+1 7+2 0+3 4+3 9+1]", text)
	}
	a, b := make([]byte, 100), make([]byte, 100)
	pieces := []cache.Piece{{Off: 50, Into: a}, {Off: 9 * cache.Frame, Into: b}}
	if err := c.Fill(t.Context(), o, pieces, failingFetch(t)); err != nil ||
		!bytes.Equal(a, data[50:150]) ||
		!bytes.Equal(b, data[9*cache.Frame:9*cache.Frame+100]) {
		t.Errorf("Fill of two pieces: %v, or wrong content", err)
	}
}

func TestManyWantOneFrame(t *testing.T) {
	c := open(t, cache.Config{Dir: t.TempDir()})
	o, data := object(1, 3*cache.Frame)
	var calls atomic.Int64
	start := make(chan struct{})
	slow := func(ctx context.Context, first, count int) ([]byte, error) {
		<-start
		return source(data, &calls)(ctx, first, count)
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { fill(t, c, o, data, slow) })
	}
	close(start)
	wg.Wait()
	if calls.Load() > 3 || calls.Load() < 1 {
		t.Errorf("got %d fetches of 3 frames, want each frame once", calls.Load())
	}
}

func TestErrorIsShared(t *testing.T) {
	c := open(t, cache.Config{Dir: t.TempDir()})
	o, data := object(1, cache.Frame)
	broken := errors.New("broken")
	var calls atomic.Int64
	fail := func(context.Context, int, int) ([]byte, error) { calls.Add(1); return nil, broken }
	if err := c.Ensure(t.Context(), o, 0, 1, fail); !errors.Is(err, broken) {
		t.Errorf("Ensure: got %v, want the error of the fetch", err)
	}
	short := func(context.Context, int, int) ([]byte, error) { return data[1:], nil }
	if err := c.Ensure(t.Context(), o, 0, 1, short); err == nil {
		t.Error("Ensure with a short fetch: got nil, want an error")
	}
	if s := c.Stats(); s.Bytes != 0 || s.Objects != 0 {
		t.Errorf("Stats() after failures = %+v, want an empty cache", s)
	}
	fill(t, c, o, data, source(data, &calls))
}

// fillFour stores four objects of one frame each. The first is the most recently used one.
func fillFour(t *testing.T, c *cache.Cache, calls *atomic.Int64) {
	t.Helper()
	for i := range 4 {
		o, data := object(i, cache.Frame)
		fill(t, c, o, data, source(data, calls))
	}
	first, data := object(0, cache.Frame)
	fill(t, c, first, data, failingFetch(t))
}

// Evict removes the least recently used objects and no more than necessary. Removed objects are fetched
// again.
func TestEvict(t *testing.T) {
	c := open(t, cache.Config{Dir: t.TempDir()})
	var calls atomic.Int64
	fillFour(t, c, &calls)
	if got := c.Evict(cache.Frame + 1); got != 2*cache.Frame || c.Stats().Bytes != 2*cache.Frame {
		t.Errorf("Evict freed %d bytes and left %+v, want the two least recently used frames freed", got, c.Stats())
	}
	first, data := object(0, cache.Frame)
	fill(t, c, first, data, failingFetch(t))
	second, data := object(1, cache.Frame)
	fill(t, c, second, data, source(data, &calls))
	if calls.Load() != 5 {
		t.Errorf("got %d fetches, want 5", calls.Load())
	}
	if got := c.Evict(1 << 40); got != 3*cache.Frame || c.Stats().Objects != 0 {
		t.Errorf("Evict freed %d bytes and left %+v, want everything freed", got, c.Stats())
	}
}

func TestLeastRecentlyUsedGoesFirst(t *testing.T) {
	dir := t.TempDir()
	c := open(t, cache.Config{Dir: dir, Bytes: 4 * cache.Frame, Files: 2})
	var calls atomic.Int64
	fillFour(t, c, &calls)
	o, more := object(4, 2*cache.Frame)
	fill(t, c, o, more, source(more, &calls))
	for i, want := range []bool{true, false, false, true} {
		o, _ := object(i, cache.Frame)
		if got := c.Read(o, 0, make([]byte, 1)); got != want {
			t.Errorf("Read of object %d = %v, want %v", i, got, want)
		}
	}
	if s := c.Stats(); s.Bytes != 4*cache.Frame || s.Evicted != 2 || s.Objects != 3 {
		t.Errorf("Stats() = %+v, want 3 objects of 4 frames and 2 evicted", s)
	}
	if files, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(files) != 3 {
		t.Errorf("files = %v, %v; want 3", files, err)
	}
	// An object larger than the limit is served all the same.
	big, lots := object(9, 4<<20)
	fill(t, c, big, lots, source(lots, &calls))
	if s := c.Stats(); s.Bytes > 4*cache.Frame {
		t.Errorf("Stats() = %+v, want at most 4 frames", s)
	}
	// A smaller limit is enforced from the start on.
	var n atomic.Int64
	for i := range 4 {
		o, data := object(i, cache.Frame)
		fill(t, c, o, data, source(data, &n))
	}
	if s := open(t, cache.Config{Dir: dir, Bytes: 1}).Stats(); s.Bytes != 0 || s.Objects != 0 {
		t.Errorf("Stats() after Open with a limit of 1 byte = %+v, want an empty cache", s)
	}
}

// A crash leaves data without checksum, and checksums without data.
func TestFramesOfACrashDoNotCount(t *testing.T) {
	dir := t.TempDir()
	o, data := object(1, 4*cache.Frame)
	var calls atomic.Int64
	fill(t, open(t, cache.Config{Dir: dir}), o, data, source(data, &calls))
	f, err := os.OpenFile(filepath.Join(dir, o.ID), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err1 := f.WriteAt(make([]byte, cache.Frame), cache.Frame) // frame 1: its data never reached the disk
	_, err2 := f.WriteAt(make([]byte, 8), 4<<20+2*8)             // frame 2: its checksum did not
	if err := errors.Join(err1, err2, f.Close()); err != nil {
		t.Fatal(err)
	}
	c := open(t, cache.Config{Dir: dir})
	calls.Store(0)
	fill(t, c, o, data, source(data, &calls))
	if s := c.Stats(); calls.Load() == 0 || s.Misses != 2 || s.Damaged != 1 {
		t.Errorf("got %d fetches, %+v; want 2 frames fetched again and one damage", calls.Load(), s)
	}
}

func TestOddRequestsAreRefused(t *testing.T) {
	c := open(t, cache.Config{Dir: t.TempDir()})
	o, _ := object(1, 1000)
	for name, err := range map[string]error{
		"id":       c.Ensure(t.Context(), cache.Object{ID: "../../etc", Bytes: 10}, 0, 1, failingFetch(t)),
		"size":     c.Ensure(t.Context(), cache.Object{ID: "object0001", Bytes: 5 << 20}, 0, 1, failingFetch(t)),
		"empty":    c.Ensure(t.Context(), cache.Object{ID: "object0001"}, 0, 1, failingFetch(t)),
		"frame":    c.Ensure(t.Context(), o, 1, 1, failingFetch(t)),
		"negative": c.Ensure(t.Context(), o, -1, 1, failingFetch(t)),
		"beyond":   c.Fill(t.Context(), o, []cache.Piece{{Off: 999, Into: make([]byte, 2)}}, failingFetch(t)),
	} {
		if err == nil {
			t.Errorf("%s: got nil, want an error", name)
		}
	}
	if c.Read(o, 999, make([]byte, 2)) || c.Read(o, -1, make([]byte, 1)) {
		t.Error("Read outside of an object = true, want false")
	}
}

// Concurrent use of a cache that is too small while files are removed: every read returns the right content.
func TestModel(t *testing.T) {
	dir := t.TempDir()
	c := open(t, cache.Config{Dir: dir, Bytes: 12 * cache.Frame, Files: 2})
	var calls atomic.Int64
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 1))
			for range 60 {
				o, data := object(r.IntN(8), 4*cache.Frame-500)
				off := r.IntN(len(data))
				p := make([]byte, 1+r.IntN(len(data)-off))
				if err := c.Fill(t.Context(), o, []cache.Piece{{Off: off, Into: p}}, source(data, &calls)); err != nil {
					t.Error(err)
					return
				}
				if !bytes.Equal(p, data[off:off+len(p)]) {
					t.Errorf("%s: %d bytes at %d are wrong", o.ID, len(p), off)
					return
				}
				switch r.IntN(20) {
				case 0:
					_ = os.Remove(filepath.Join(dir, o.ID)) // it may be removed already
				case 1:
					ctx, cancel := context.WithCancel(t.Context())
					cancel()
					_ = c.Ensure(
						ctx,
						o,
						0,
						4,
						func(ctx context.Context, _, _ int) ([]byte, error) { return nil, ctx.Err() },
					)
				}
			}
		})
	}
	wg.Wait()
	if s := c.Stats(); s.Bytes > 12*cache.Frame {
		t.Errorf("Stats() = %+v, want at most 12 frames", s)
	}
}

func BenchmarkRead4K(b *testing.B) {
	c, err := cache.Open(cache.Config{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	o, data := object(1, 4<<20)
	var calls atomic.Int64
	if err := c.Ensure(b.Context(), o, 0, 32, source(data, &calls)); err != nil {
		b.Fatal(err)
	}
	p := make([]byte, 4096)
	b.SetBytes(4096)
	for i := 0; b.Loop(); i++ {
		if !c.Read(o, i%1024*4096, p) {
			b.Fatal("Read of a cached object = false, want true")
		}
	}
}
