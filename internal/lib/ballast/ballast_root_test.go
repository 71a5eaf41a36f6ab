//go:build root

package ballast_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/lib/ballast"
	"github.com/pandastack/pandastack/internal/os/disk/disktest"
)

// TestBallast takes the ballast, keeps it while there is space, gives it up on a full file system and takes it again
// when there is space.
func TestBallast(t *testing.T) {
	dir := disktest.Dir(t, 512<<20)
	b, err := ballast.In(dir)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, do func() (bool, error), want bool) {
		t.Helper()
		if got, err := do(); err != nil || got != want {
			t.Errorf("%s = %v, %v; want %v", what, got, err, want)
		}
	}
	check("Release without a ballast", b.Release, false)
	check("Take", b.Take, true)
	check("Take again", b.Take, true)
	check("Release with space", b.Release, false)
	disktest.FillUp(t, dir)
	if err := os.WriteFile(filepath.Join(dir, "record"), make([]byte, 64<<10), 0o600); err == nil {
		t.Fatal("a write on a full file system succeeded, want an error")
	}
	check("Release on a full file system", b.Release, true)
	if err := os.WriteFile(filepath.Join(dir, "record"), make([]byte, 64<<10), 0o600); err != nil {
		t.Errorf("write after Release: %v, want none", err)
	}
	check("Take on a full file system", b.Take, false)
	check("Release of nothing", b.Release, false)
	if err := os.Remove(filepath.Join(dir, "stuff")); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for taken := false; !taken; { // the file system frees the space in the background
		var err error
		if taken, err = b.Take(); err != nil || time.Now().After(deadline) {
			t.Fatalf("Take with space = %v, %v; want true", taken, err)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "ballast")); err != nil || info.Size() == 0 {
		t.Errorf("ballast = %v, %v; want a file with a size", info, err)
	}
}
