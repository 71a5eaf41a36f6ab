//go:build root

package oci_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/host/probe/probetest"
	"github.com/pandastack/pandastack/internal/image/oci"
)

// TestDiskFull pulls into a directory with too little space, with and without a cache. The error is ENOSPC, and cached
// layers stay intact.
func TestDiskFull(t *testing.T) {
	probetest.Need(t, probe.Config{}, probe.Root)
	s := newServer(t)
	small := s.push(t, "small:1", imageOf(t, "linux/amd64", tarOf(t, ent{name: "a", data: "1"})))
	large := s.push(t, "large:1", imageOf(t, "linux/amd64", tarOf(t, ent{name: "a", data: noise(2 << 20)})))
	for name, cache := range map[string]int64{"no-cache": 0, "cache": 1 << 30} {
		dir, done := t.TempDir(), make(chan struct{})
		go func() {
			defer close(done)
			// The thread, and the mount with it, ends with this goroutine.
			runtime.LockOSThread()
			if err := errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS),
				unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
				unix.Mount("none", dir, "tmpfs", 0, "size=1m")); err != nil {
				t.Errorf("mount: %v", err)
				return
			}
			// Other threads see the mount through this one's root.
			seen := fmt.Sprintf("/proc/%d/task/%d/root%s", os.Getpid(), unix.Gettid(), dir)
			p, _ := s.puller(t, func(o *oci.Options) { o.CacheBytes, o.Dir = cache, seen })
			pullIntoFull(t, name, p, seen, small, large)
		}()
		<-done
	}
}

func pullIntoFull(t *testing.T, name string, p *oci.Puller, dir, small, large string) {
	before, err := flatten(t.Context(), p, small)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	img, err := p.Resolve(t.Context(), large)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	if _, err := p.Flatten(t.Context(), img, io.Discard); !errors.Is(err, unix.ENOSPC) ||
		errors.Is(err, oci.ErrCorrupt) {
		t.Errorf("%s: got %v, want ENOSPC", name, err)
	}
	if after, err := flatten(t.Context(), p, small); err != nil || after != before {
		t.Errorf("%s: got %q, %v after the disk was full; want %q", name, after, err, before)
	}
	names, err := os.ReadDir(dir)
	if err != nil || len(names) > 1 {
		t.Errorf("%s: got files %v, %v; want at most one", name, names, err)
	}
}
