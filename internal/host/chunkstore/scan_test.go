package chunkstore_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
)

// A scan passes the whole file, equal pages once for each position, and leaves nothing in the cache.
func TestScan(t *testing.T) {
	f := newFixture(t, quickRetries)
	data := content(3, 9<<20+100)
	copy(data[5<<20:], data[:40<<10]) // equal pages, in another chunk
	clear(data[2<<20 : 2<<20+200<<10])
	m := f.pushMemory("ws", "a", data)
	r := f.store.Reader(m, f.cache)
	for range 2 { // the second time the cache is just as empty
		var mu sync.Mutex
		got, came := make([]byte, len(data)), 0
		before := f.objects.Count("get")
		err := r.Scan(t.Context(), "memory", nil, func(off int64, part []byte) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			came += copy(got[off:], part)
			return false, nil
		})
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("Scan: got other content than was pushed (%v)", err)
		}
		if came > len(data)-200<<10 {
			t.Errorf("Scan passed %d bytes, want at most the %d that are not zero", came, len(data)-200<<10)
		}
		if f.objects.Count("get") == before {
			t.Error("Scan made no request, so it used the cache")
		}
	}
	full := errors.New("no space")
	if err := r.Scan(t.Context(), "memory", nil, func(int64, []byte) (bool, error) { return false, full }); !errors.Is(
		err,
		full,
	) {
		t.Errorf("Scan with a failing put: got %v, want its error", err)
	}
	if err := r.Scan(t.Context(), "other", nil, nil); err == nil {
		t.Error("Scan of a missing file: got nil, want an error")
	}
	f.objects.SetFaults(func(blobtest.Call) blobtest.Fault { return blobtest.Fault{Err: blob.ErrDenied} })
	if err := r.Scan(t.Context(), "memory", nil, ignore); !errors.Is(err, blob.ErrDenied) {
		t.Errorf("Scan of a store that denies access: got %v, want ErrDenied", err)
	}
}

// ignore does not keep the data.
func ignore(int64, []byte) (kept bool, err error) { return false, nil }

// Data that put keeps stays unchanged, while other buffers are reused.
func TestScanKeepsBuffers(t *testing.T) {
	one := quickRetries
	one.Parallel = 1 // the next request starts after the last data was passed
	f := newFixture(t, one)
	data := content(3, 9<<20+100)
	m := f.pushMemory("ws", "a", data)
	type part struct {
		off  int64
		data []byte
	}
	var kept []part
	n := 0
	err := f.store.Reader(m, f.cache).Scan(t.Context(), "memory", nil, func(off int64, data []byte) (bool, error) {
		if n++; n%2 == 0 {
			return false, nil
		}
		kept = append(kept, part{off, data})
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range kept {
		if !bytes.Equal(p.data, data[p.off:p.off+int64(len(p.data))]) {
			t.Errorf("kept data at %d was overwritten", p.off)
		}
	}
	if len(kept) < 3 {
		t.Errorf("put kept %d parts, want at least 3", len(kept))
	}
}

// Other readers have most of the bandwidth until alone is closed.
func TestScanLeavesBandwidth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := quickRetries
		cfg.Parallel = 8
		f := newFixture(t, cfg)
		m := f.pushMemory("ws", "a", content(3, 24<<20))
		var inside atomic.Int32
		alone, on, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() {
			ended <- f.store.Reader(m, f.cache).Scan(t.Context(), "memory", alone, func(int64, []byte) (bool, error) {
				inside.Add(1)
				<-on
				return false, nil
			})
		}()
		synctest.Wait()
		if n := inside.Load(); n != 2 {
			t.Errorf("got %d of 8 concurrent requests while others read, want 2", n)
		}
		close(alone)
		synctest.Wait()
		if n := inside.Load(); n != 8 {
			t.Errorf("got %d of 8 concurrent requests with no other reader, want 8", n)
		}
		close(on)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A scan whose context has ended reports an error even if no running request failed.
func TestScanReportsEndedContext(t *testing.T) {
	f := newFixture(t, quickRetries)
	m := f.pushMemory("ws", "a", content(3, 24<<20))
	r := f.store.Reader(m, f.cache)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, do := range map[string]func() error{
		"scan":     func() error { return r.Scan(ctx, "memory", nil, ignore) },
		"prefetch": func() error { return r.Prefetch(ctx, []chunkstore.Range{{File: "memory", Length: 24 << 20}}) },
		"pull":     func() error { _, err := r.Pull(ctx, t.TempDir(), nil, nil); return err },
	} {
		if err := do(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v, want context.Canceled", name, err)
		}
	}
}
