//go:build root

package files

import (
	"bytes"
	"errors"
	"os"
	"path"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// TestFullDisk checks that a large file that does not fit returns ErrNoSpace and leaves nothing behind.
func TestFullDisk(t *testing.T) {
	f, _ := open(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	for _, atomic := range []bool{true, false} {
		name := path.Join(dir, "large")
		_, err := f.Write(t.Context(), name, guestapi.WriteOptions{Size: -1, Atomic: atomic},
			bytes.NewReader(make([]byte, 2<<20)))
		if !errors.Is(err, guestapi.ErrNoSpace) {
			t.Errorf("Write to a full disk, atomic %v: got error %v, want %v", atomic, err, guestapi.ErrNoSpace)
		}
		if atomic {
			if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
				t.Errorf("after the atomic write: got entries %v, %v, want none", entries, err)
			}
			continue
		}
		if info, err := os.Stat(name); err != nil || info.Size() == 0 || info.Size() > 1<<20 {
			t.Errorf("after the write in place: got %v, %v, want a file with what fitted", info, err)
		}
	}
}
