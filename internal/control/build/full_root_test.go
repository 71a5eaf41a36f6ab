//go:build root

package build_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/build"
	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/host/probe/probetest"
)

// smallFilesystem mounts a file system of 2 MiB in a mount namespace of its own until the test ends, and returns a path
// to it.
func smallFilesystem(t *testing.T) string {
	t.Helper()
	at, mounted, over, done := t.TempDir(), make(chan error, 1), make(chan struct{}), make(chan struct{})
	seen := ""
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread, and the mount with it, ends with this goroutine
		seen = fmt.Sprintf("/proc/%d/task/%d/root%s", os.Getpid(), unix.Gettid(), at)
		mounted <- errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("none", at, "tmpfs", 0, "size=2m"))
		<-over
	}()
	t.Cleanup(func() {
		close(over)
		<-done
	})
	if err := <-mounted; err != nil {
		t.Fatal(err)
	}
	return seen
}

// TestFullFileSystem uploads inputs in every way to a full file system: the error is no_space and nothing stays. When
// there is space again, builds use the earlier layers.
func TestFullFileSystem(t *testing.T) {
	probetest.Need(t, probe.Config{}, probe.Root)
	dir := smallFilesystem(t)
	w := newFixture(t, func(c *build.Config) { c.Dir = filepath.Join(dir, "builds") })
	text := w.seedLayers()
	hash := strings.Repeat("ab", 32)
	ways := map[string]func() error{
		"a file of a context": func() error {
			u, err := w.NewUpload(t.Context(), alice, true)
			if err != nil {
				return err
			}
			return errors.Join(u.AddFile("large", io.LimitReader(zeros{}, 5<<20)), u.Close())
		},
		"an archive": func() error {
			u, err := w.NewUpload(t.Context(), alice, false)
			if err != nil {
				return err
			}
			_, err = io.Copy(u, io.LimitReader(zeros{}, 5<<20))
			return errors.Join(err, u.Close())
		},
		"files by hash": func() error { return w.PutFiles(t.Context(), alice, hash, io.LimitReader(zeros{}, 5<<20)) },
	}
	refused := func(when string) {
		t.Helper()
		for what, do := range ways {
			if err := do(); api.CodeOf(err) != api.NoSpace {
				t.Errorf("%s, %s: got %v, want no_space", what, when, err)
			}
		}
		if exists, err := w.HasFiles(t.Context(), alice, hash); err != nil || exists {
			t.Errorf("%s: HasFiles after a refused upload = %v, %v; want false", when, exists, err)
		}
		w.checkLeftovers()
	}
	refused("with too little space")
	filler := filepath.Join(dir, "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(f, zeros{}); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the file system: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	refused("with none")
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	w.checkLayersReused(text)
}
