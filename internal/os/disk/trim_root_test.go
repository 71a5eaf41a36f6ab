//go:build root

package disk_test

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/os/disk"
)

// Trim returns the space of deleted files to the file system below the image and keeps the other files.
func TestTrim(t *testing.T) {
	dir := reflinkDir(t)
	data := make([]byte, 64<<20)
	rand.Read(data) // never fails, by its documentation
	kept, gone := filepath.Join(dir, "kept"), filepath.Join(dir, "gone")
	for path, part := range map[string][]byte{kept: data[:8<<20], gone: data} {
		if err := os.WriteFile(path, part, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := disk.Trim(dir); err != nil {
		t.Fatal(err)
	}
	full := allocatedBytes(t, disk.ImagePath(dir))
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	// Both file systems free the space of removed files in the background.
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	limit := time.After(time.Minute)
	for allocatedBytes(t, disk.ImagePath(dir)) > full-60<<20 {
		if err := disk.Trim(dir); err != nil {
			t.Fatal(err)
		}
		select {
		case <-again.C:
		case <-limit:
			t.Fatalf(
				"image takes %d bytes after Trim, want much less than the %d with %d more bytes in it",
				allocatedBytes(t, disk.ImagePath(dir)),
				full,
				len(data),
			)
		}
	}
	if got := content(t, kept); string(got) != string(data[:8<<20]) {
		t.Error("Trim changed a file")
	}
	if err := disk.Trim(t.TempDir()); err != nil {
		t.Errorf("Trim of a directory without an image: got %v, want nil", err)
	}
}

// allocatedBytes returns the bytes that a file takes on disk.
func allocatedBytes(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}
