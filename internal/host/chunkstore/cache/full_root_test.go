//go:build root

package cache_test

import (
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/host/chunkstore/cache"
)

// A full directory costs requests, and reads return the right content.
func TestFullDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("probe mount: cannot mount a tmpfs:", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	c, err := cache.Open(cache.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	var calls atomic.Int64
	for range 2 {
		for i := range 4 {
			o, data := object(i, 1<<20)
			fill(t, c, o, data, source(data, &calls))
		}
	}
	if s := c.Stats(); s.NotStored == 0 || s.Bytes > 1<<20 {
		t.Errorf("Stats() = %+v, want frames that were not stored and at most 1 MiB", s)
	}
}
