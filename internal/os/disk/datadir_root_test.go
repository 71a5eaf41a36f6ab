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
		t.Errorf("got %v", err)
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
		t.Error("clone differs")
	}
	for _, p := range []string{src, dst} {
		if apparent, own, err := disk.Usage(p); err != nil || apparent != 16<<20 || own != 0 {
			t.Errorf("%s measures %d, %d, %v; want all of it shared", filepath.Base(p), apparent, own, err)
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
		t.Errorf("written clone owns %d bytes, %v", own, err)
	}
	if err := disk.Clone(src, dst); !errors.Is(err, fs.ErrExist) {
		t.Errorf("cloned over an image: %v", err)
	}
	if err := disk.CloneInto(src, f); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(content(t, dst), want) {
		t.Error("clone into an open image differs")
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
		t.Fatal("release of nothing unmounted")
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
		t.Fatal("another image was mounted")
	}
	if err := release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if mounted, err := disk.Mounted(dir); err != nil || mounted {
		t.Errorf("still mounted: %v, %v", mounted, err)
	}
	loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range loops {
		if b, err := os.ReadFile(l); err == nil && strings.TrimSpace(string(b)) == disk.ImagePath(dir) {
			t.Errorf("%s still holds the image", l)
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
		t.Error("mounted over files")
	}
	if _, err := os.Stat(disk.ImagePath(dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an image stayed: %v", err)
	}
}

func TestCreateDataDirFailureLeavesNothing(t *testing.T) {
	probetest.Need(t, probe.Config{}, probe.Root, probe.Loop, probe.Tools)
	dir := filepath.Join(t.TempDir(), "data")
	if err := disk.CreateDataDir(t.Context(), dir, 1<<20); err == nil { // too small for XFS
		t.Error("made a file system of 1 MiB")
	}
	if _, err := os.Stat(disk.ImagePath(dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an image stayed: %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory stayed: %v", err)
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
		t.Errorf("error %v, want no space", err)
	}
	if _, err := os.Stat(dst); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("half an image stayed: %v", err)
	}
}
