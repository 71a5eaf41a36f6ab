package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/chunkstore/cache"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
	"github.com/pandastack/pandastack/internal/lib/keyring"
)

// The memory that is kept with a trace is that of its own snapshot: others that grew from the same get the trace alone,
// and a later trace takes the place of the first for its own snapshot only.
func TestTracesAreKeptForAncestors(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ring, err := keyring.New(bytes.Repeat([]byte{1}, 32))
	must(err)
	vault, err := chunkstore.New(blobtest.NewMemory(), ring, chunkstore.Config{})
	must(err)
	kept, err := cache.Open(cache.Config{Dir: t.TempDir()})
	must(err)
	t.Cleanup(func() { must(errors.Join(kept.Close(), vault.Close())) })
	all := prefetchStore{&Host{deps: Deps{Objects: &Objects{Chunks: vault, Cache: kept}}}}
	tell := func(o origin) []byte {
		data, err := json.Marshal(o)
		must(err)
		return data
	}
	path := filepath.Join(t.TempDir(), "pages")
	memory := blobtest.Content(1, 3*chunkstore.PageSize)
	must(os.WriteFile(path, memory, 0o600))
	pages, err := os.Open(path)
	must(err)
	defer pages.Close()

	own := origin{"ws", "snpa", "snpparent", "tplroot"}
	must(all.Save(t.Context(), tell(own), []byte("first"), nil))
	must(all.Save(t.Context(), tell(own), []byte("second"), pages))
	for _, c := range []struct {
		of    origin
		trace string
		bytes int64
	}{
		{own, "second", int64(len(memory))},
		{origin{"ws", "snpb", "snpparent", "tplroot"}, "first", 0},
		{origin{"ws", "snpc", "", "tplroot"}, "first", 0},
		{origin{"ws", "snpparent", "tplroot", "tplroot"}, "first", 0},
		{origin{"ws", "snpd", "", ""}, "", 0},
		{origin{"other", "snpa", "snpparent", "tplroot"}, "", 0},
	} {
		got, err := all.Load(t.Context(), tell(c.of))
		if err != nil || string(got.Trace) != c.trace || got.Bytes != c.bytes || (got.Pages != nil) != (c.bytes > 0) {
			t.Errorf("%+v: %q with %d bytes, %v; want %q with %d", c.of, got.Trace, got.Bytes, err, c.trace, c.bytes)
		}
		if got.Pages == nil {
			continue
		}
		var mu sync.Mutex
		came := make([]byte, c.bytes)
		must(got.Pages(t.Context(), func(off int64, data []byte) bool {
			mu.Lock()
			defer mu.Unlock()
			copy(came[off:], data)
			return false
		}))
		if !bytes.Equal(came, memory) {
			t.Error("what came is not the memory that was kept")
		}
	}
}
