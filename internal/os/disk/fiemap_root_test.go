//go:build root

package disk_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pandastack/pandastack/internal/os/disk"
)

// A clone shares the blocks of its original except where it was written, whether or not the write is on disk
// yet.
func TestSharedRuns(t *testing.T) {
	dir := reflinkDir(t)
	const size = 4 << 20
	from, to := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	if err := os.WriteFile(from, bytes.Repeat([]byte("panda"), size/5+1)[:size], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := disk.Clone(from, to); err != nil {
		t.Fatal(err)
	}
	a, b := opened(t, from), opened(t, to)
	same := func(want ...disk.Run) {
		t.Helper()
		got, err := disk.SharedRuns(a, b)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("SharedRuns = %v, %v; want %v", got, err, want)
		}
	}
	same(disk.Run{From: 0, To: size})
	if _, err := b.WriteAt(make([]byte, 4096), 1<<20); err != nil {
		t.Fatal(err)
	}
	same(disk.Run{From: 0, To: 1 << 20}, disk.Run{From: 1<<20 + 4096, To: size})
	if err := b.Truncate(2 << 20); err != nil {
		t.Fatal(err)
	}
	same(disk.Run{From: 0, To: 1 << 20}, disk.Run{From: 1<<20 + 4096, To: 2 << 20})
	other := filepath.Join(t.TempDir(), "c") // perhaps on another file system
	if err := os.WriteFile(other, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	b = opened(t, other)
	same()
}

func opened(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}
