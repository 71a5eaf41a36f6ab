package filelock_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pandastack/pandastack/internal/lib/filelock"
)

func TestAcquire(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	a, err := filelock.Acquire(dir, "a")
	if err != nil {
		t.Fatal(err)
	}
	if l, err := filelock.Acquire(dir, "a"); !errors.Is(err, filelock.ErrHeld) {
		t.Errorf("a held name: got %v, %v; want ErrHeld", l, err)
	}
	b, err := filelock.Acquire(dir, "b")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.Release(), b.Release()); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("after the release: got files %v, %v", left, err)
	}
	if a, err = filelock.Acquire(dir, "a"); err != nil {
		t.Fatalf("a released name: %v", err)
	}
	if err := a.Release(); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"", "/", "x/y", "../x"} {
		if _, err := filelock.Acquire(dir, name); err == nil {
			t.Errorf("name %q: got no error", name)
		}
	}
}

// TestFileOfADeadProcess locks a name whose file was left.
func TestFileOfADeadProcess(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := filelock.Acquire(dir, "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Release(); err != nil {
		t.Error(err)
	}
}

// TestDirectoryOfOthers refuses directories in which other users could hold names.
func TestDirectoryOfOthers(t *testing.T) {
	open := filepath.Join(t.TempDir(), "open")
	if err := errors.Join(os.Mkdir(open, 0o700), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{open, link} {
		if l, err := filelock.Acquire(dir, "a"); err == nil {
			t.Errorf("%s: got no error", dir)
			if err := l.Release(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestOneHolder acquires and releases a name in many goroutines: never do two hold it.
func TestOneHolder(t *testing.T) {
	dir := t.TempDir()
	var holders atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				l, err := filelock.Acquire(dir, "a")
				if errors.Is(err, filelock.ErrHeld) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d hold the name at once", n)
				}
				holders.Add(-1)
				if err := l.Release(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
