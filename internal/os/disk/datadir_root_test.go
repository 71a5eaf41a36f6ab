//go:build root

package disk_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/internal/os/disk/disktest"

	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/host/probe/probetest"
)

// reflinkDir returns a directory on an XFS image of its own that is removed at the end of the test.
func reflinkDir(t *testing.T) string {
	t.Helper()
	return disktest.Dir(t, 512<<20)
}

// Probe of a directory on a full disk returns an error that names the remedy.
func TestProbeOnAFullDisk(t *testing.T) {
	dir := reflinkDir(t)
	disktest.FillUp(t, dir)
	var full *disk.FullError
	if err := disk.Probe(dir); !errors.As(err, &full) || !errors.Is(err, unix.ENOSPC) ||
		!strings.Contains(err.Error(), "enlarge it") {
		t.Errorf("Probe on a full disk: got %v, want a FullError with the remedy", err)
	}
}

func TestCloneShares(t *testing.T) {
	dir := reflinkDir(t)
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	want := writePatches(t, src, 16<<20, 0, 8<<20)
	if err := disk.Clone(src, dst); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(content(t, dst), want) {
		t.Error("clone has other content than its source")
	}
	for _, p := range []string{src, dst} {
		if apparent, own, err := disk.Usage(p); err != nil || apparent != 16<<20 || own != 0 {
			t.Errorf("Usage(%s) = %d, %d, %v; want 16 MiB, all of it shared", filepath.Base(p), apparent, own, err)
		}
	}
	f, err := os.OpenFile(dst, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("child"), 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(content(t, src), want) {
		t.Error("writing the clone changed its source")
	}
	if _, own, err := disk.Usage(dst); err != nil || own == 0 {
		t.Errorf("Usage of a written clone: own = %d, %v; want more than 0", own, err)
	}
	if err := disk.Clone(src, dst); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Clone to an existing image: got %v, want fs.ErrExist", err)
	}
	if err := disk.CloneInto(src, f); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(content(t, dst), want) {
		t.Error("CloneInto an open image: wrong content")
	}
}

// TestAllocated measures a clone while it is written, without waiting for the disk: shared blocks do not count, what
// replaces them and what is new does, and nothing counts twice once it is on the disk.
func TestAllocated(t *testing.T) {
	dir := reflinkDir(t)
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	writePatches(t, src, 16<<20, 0, 8<<20)
	if err := disk.Clone(src, dst); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(dst, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	check := func(what string, least, most int64) {
		t.Helper()
		if got, err := disk.Allocated(dst); err != nil || got < least || got > most {
			t.Errorf("Allocated of %s = %d, %v; want %d to %d", what, got, err, least, most)
		}
	}
	const slack = 1 << 20 // the file system allocates ahead
	check("a clone", 0, 0)
	if _, err := f.WriteAt(make([]byte, 2<<20), 12<<20); err != nil { // a hole in the source
		t.Fatal(err)
	}
	check("a clone with new content", 2<<20, 2<<20+slack)
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	check("a clone with new content on the disk", 2<<20, 2<<20+slack)
	if _, err := f.WriteAt(make([]byte, 4096), 0); err != nil { // a block that is shared
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	check("a clone with a block of its own", 2<<20+4096, 2<<20+slack)
	if _, err := disk.Allocated(filepath.Join(dir, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Allocated of a missing file: got %v, want fs.ErrNotExist", err)
	}
}

func TestEnsureDataDirMountsAndReleases(t *testing.T) {
	dir := reflinkDir(t)
	mark := filepath.Join(dir, "mark")
	if err := os.WriteFile(mark, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The image is mounted already, so release leaves it mounted.
	release, err := disk.EnsureDataDir(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if content(t, mark)[0] != 'x' {
		t.Fatal("the release of EnsureDataDir without a mount unmounted the directory")
	}
	// The file system is unmounted by hand, as after a reboot.
	if err := disk.Unmount(dir); err != nil {
		t.Fatal(err)
	}
	release, err = disk.EnsureDataDir(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if content(t, mark)[0] != 'x' {
		t.Fatal("EnsureDataDir mounted another image")
	}
	if err := release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if mounted, err := disk.Mounted(dir); err != nil || mounted {
		t.Errorf("Mounted() = %v, %v; want false", mounted, err)
	}
	loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range loops {
		if b, err := os.ReadFile(l); err == nil && strings.TrimSpace(string(b)) == disk.ImagePath(dir) {
			t.Errorf("loop device %s still has the image", l)
		}
	}
}

func TestCreateDataDirRefusesToHideFiles(t *testing.T) {
	probetest.Need(t, probe.Config{}, probe.Root)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "precious"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := disk.CreateDataDir(t.Context(), dir, 512<<20); err == nil {
		t.Error("CreateDataDir of a directory with files: got nil, want an error")
	}
	if _, err := os.Stat(disk.ImagePath(dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stat of the image = %v, want fs.ErrNotExist", err)
	}
}

func TestCreateDataDirFailureLeavesNothing(t *testing.T) {
	probetest.Need(t, probe.Config{}, probe.Root, probe.Loop, probe.Tools)
	dir := filepath.Join(t.TempDir(), "data")
	if err := disk.CreateDataDir(t.Context(), dir, 1<<20); err == nil { // too small for XFS
		t.Error("CreateDataDir of 1 MiB: got nil, want an error")
	}
	if _, err := os.Stat(disk.ImagePath(dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stat of the image = %v, want fs.ErrNotExist", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stat of the directory = %v, want fs.ErrNotExist", err)
	}
}

// A Rewrite that does not fit returns ENOSPC and leaves nothing, so that the space is free again.
func TestRewriteOnFullDisk(t *testing.T) {
	dir := reflinkDir(t)
	src, dst := filepath.Join(t.TempDir(), "src"), filepath.Join(dir, "dst")
	if err := os.WriteFile(src, bytes.Repeat([]byte{1}, 600<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := disk.Rewrite(t.Context(), src, dst); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Rewrite on a full disk: got %v, want ENOSPC", err)
	}
	if _, err := os.Stat(dst); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stat of the partial copy = %v, want fs.ErrNotExist", err)
	}
}
