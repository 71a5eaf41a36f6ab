package chunk_test

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/internal/blob"
	"github.com/pandastack/pandastack/internal/blob/blobtest"
)

// All of a file comes, equal pages once for each place, and nothing of it stays in the host's cache.
func TestEach(t *testing.T) {
	w := newWorld(t, quick)
	data := content(3, 9<<20+100)
	copy(data[5<<20:], data[:40<<10]) // equal pages, in another chunk
	clear(data[2<<20 : 2<<20+200<<10])
	m := w.one("ws", "a", data)
	r := w.vault.Reader(m, w.cache)
	for range 2 { // the second time the cache has as little
		var mu sync.Mutex
		got, came := make([]byte, len(data)), 0
		before := w.store.Count("get")
		err := r.Each(t.Context(), "memory", func(off int64, part []byte) error {
			mu.Lock()
			defer mu.Unlock()
			came += copy(got[off:], part)
			return nil
		})
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("what came is not what was pushed (%v)", err)
		}
		if came > len(data)-200<<10 {
			t.Errorf("%d bytes came of a file with %d that are not zero", came, len(data)-200<<10)
		}
		if w.store.Count("get") == before {
			t.Error("it came from the cache")
		}
	}
	full := errors.New("no space")
	if err := r.Each(t.Context(), "memory", func(int64, []byte) error { return full }); !errors.Is(err, full) {
		t.Errorf("where it could not be put: %v", err)
	}
	if err := r.Each(t.Context(), "other", nil); err == nil {
		t.Error("a file that is not there came")
	}
	w.store.Decide(func(blobtest.Call) blobtest.Fault { return blobtest.Fault{Err: blob.ErrDenied} })
	if err := r.Each(t.Context(), "memory", func(int64, []byte) error { return nil }); !errors.Is(err, blob.ErrDenied) {
		t.Errorf("from a store that denies it: %v", err)
	}
}
