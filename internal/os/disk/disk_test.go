package disk_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/internal/os/disk"
)

// writePatches makes a sparse file with blocks of non-zero bytes at the given offsets.
func writePatches(t *testing.T, path string, size int64, at ...int64) []byte {
	t.Helper()
	want := make([]byte, size)
	for i, off := range at {
		copy(want[off:], bytes.Repeat([]byte{byte(i + 1)}, 8192))
	}
	if err := disk.Allocate(path, size); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, off := range at {
		if _, err := f.WriteAt(want[off:off+8192], off); err != nil {
			t.Fatal(err)
		}
	}
	return want
}

func content(t *testing.T, path string) []byte {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestAllocateAndGrow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d")
	if err := disk.Allocate(path, 64<<20); err != nil {
		t.Fatal(err)
	}
	apparent, own, err := disk.Usage(path)
	if err != nil || apparent != 64<<20 || own > 1<<20 {
		t.Errorf("Usage of an empty image of 64 MiB = %d, %d, %v; want no blocks", apparent, own, err)
	}
	if err := disk.Allocate(path, 1); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Allocate of an existing image: got %v, want fs.ErrExist", err)
	}
	if err := disk.Grow(path, 65<<20); err != nil {
		t.Fatal(err)
	}
	if err := disk.Grow(path, 64<<20); err == nil {
		t.Error("Grow to a smaller size: got nil, want an error")
	}
	if apparent, _, _ := disk.Usage(path); apparent != 65<<20 {
		t.Errorf("size after Grow = %d, want %d", apparent, 65<<20)
	}
	if err := disk.Allocate(filepath.Join(t.TempDir(), "n"), -1); err == nil {
		t.Error("Allocate of a negative size: got nil, want an error")
	}
}

func TestPunchZero(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d")
	want := writePatches(t, path, 8<<20, 0, 3<<20)
	if err := os.WriteFile(path, want, 0o600); err != nil {
		t.Fatal(err)
	}
	freed, err := disk.PunchZero(t.Context(), path)
	if err != nil || freed < 7<<20 {
		t.Errorf("PunchZero freed %d bytes, %v; want most of 8 MiB", freed, err)
	}
	if !bytes.Equal(content(t, path), want) {
		t.Error("PunchZero changed the content")
	}
	again, err := disk.PunchZero(t.Context(), path)
	if err != nil || again != 0 {
		t.Errorf("second PunchZero freed %d bytes, %v; want 0", again, err)
	}
}

func TestRewrite(t *testing.T) {
	dir := t.TempDir()
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	// Forty blocks half a megabyte apart become one extent; a distant block stays separate.
	var at []int64
	for i := range int64(40) {
		at = append(at, i*(512<<10))
	}
	want := writePatches(t, src, 64<<20, append(at, 60<<20)...)
	if err := disk.Rewrite(t.Context(), src, dst); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(content(t, dst), want) {
		t.Error("Rewrite changed the content")
	}
	before, err := disk.Extents(src)
	if err != nil {
		t.Skipf("probe fiemap: the file system cannot list extents: %v", err)
	}
	after, err := disk.Extents(dst)
	if err != nil || after >= before {
		t.Errorf("Rewrite of %d extents made %d, %v; want fewer", before, after, err)
	}
	if _, own, _ := disk.Usage(dst); own > 32<<20 {
		t.Errorf("rewritten image takes %d bytes, want the large hole to stay", own)
	}
}

func TestRewriteCancelledLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	writePatches(t, src, 1<<20, 0)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	if err := disk.Rewrite(ctx, src, dst); !errors.Is(err, cause) {
		t.Errorf("Rewrite with an ended context: got %v, want its cause", err)
	}
	if _, err := os.Stat(dst); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stat of the partial copy = %v, want fs.ErrNotExist", err)
	}
}

func TestCloneRefusesOtherSize(t *testing.T) {
	dir := t.TempDir()
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	writePatches(t, src, 1<<20, 0)
	writePatches(t, dst, 2<<20)
	f, err := os.OpenFile(dst, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := disk.CloneInto(src, f); err == nil {
		t.Error("CloneInto an image of another size: got nil, want an error")
	}
}

func TestCloneFailureLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	err := disk.Clone(filepath.Join(dir, "none"), filepath.Join(dir, "dst"))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Clone of a missing image: got %v, want fs.ErrNotExist", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("files = %v, want none", entries)
	}
}

func TestProbeLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	err := disk.Probe(dir)
	var no *disk.NoReflinkError
	if err != nil && !errors.As(err, &no) {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("files = %v, want none", entries)
	}
}
