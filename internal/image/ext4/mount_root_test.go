//go:build root

package ext4_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/host/probe/probetest"
	"github.com/pandastack/pandastack/internal/image/ext4"
)

// TestMounted lets the kernel read what was written, and write beside it.
func TestMounted(t *testing.T) {
	probetest.Need(t, probe.Config{}, probe.Root, probe.Loop, probe.Tools)
	f, _ := write(t, ext4.Options{SizeMiB: 64}, bytes.NewReader(stream(t, everything()...)))
	dir := t.TempDir()
	done := make(chan struct{})
	go func() {
		defer close(done)
		// The thread, and the mount with it, ends with this goroutine.
		runtime.LockOSThread()
		if err := errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
			t.Errorf("mount namespace: %v", err)
			return
		}
		if out, err := exec.Command("mount", "-o", "loop,nodev,nosuid", f.Name(), dir).CombinedOutput(); err != nil {
			t.Errorf("mount: %v\n%s", err, out)
			return
		}
		assertMounted(t, dir)
		if err := os.WriteFile(
			filepath.Join(dir, "etc", "new"), bytes.Repeat([]byte("new"), 1<<18), 0o600,
		); err != nil {
			t.Errorf("write into the image: %v", err)
		}
		if err := os.RemoveAll(filepath.Join(dir, "deep")); err != nil {
			t.Errorf("remove from the image: %v", err)
		}
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v\n%s", err, out)
		}
	}()
	<-done
	checkClean(t, f.Name())
}

func assertMounted(t *testing.T, dir string) {
	t.Helper()
	for name, want := range map[string]string{
		"etc/hard":       "root:x:0:0\n",
		"big":            noise(3<<20 + 17),
		"twice":          "second",
		"holes":          strings.Repeat("\x00", 1<<20) + "x" + strings.Repeat("\x00", 2<<20),
		"\xff\xfe latin": "name of bytes",
	} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: got %d other bytes, %v", name, len(got), err)
		}
	}
	if got, err := os.Readlink(filepath.Join(dir, "long")); err != nil || got != strings.Repeat("x/", 200) {
		t.Errorf("got the link %q, %v", got, err)
	}
	var s unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "etc/passwd"), &s); err != nil || s.Uid != 4_000_000_000 ||
		s.Mode&0o7777 != 0o640 || s.Nlink != 2 ||
		s.Mtim.Sec != 5_000_000_000 ||
		s.Mtim.Nsec != 5 {
		t.Errorf("got %+v, %v", s, err)
	}
	if err := unix.Stat(filepath.Join(dir, "old"), &s); err != nil || s.Mtim.Sec != -1_000_000_000 {
		t.Errorf("got the time %d, %v", s.Mtim.Sec, err)
	}
	if err := unix.Stat(filepath.Join(dir, "dev/null"), &s); err != nil || unix.Major(s.Rdev) != 259 ||
		unix.Minor(s.Rdev) != 70000 {
		t.Errorf("got device %d:%d, %v", unix.Major(s.Rdev), unix.Minor(s.Rdev), err)
	}
	for _, row := range []struct{ path, name, want string }{
		{"bin/ping", "security.capability", capability},
		{"bin/ping", "user.note", "hello"},
		{"acl", "system.posix_acl_access", acl()},
		{"bin/big-attributes", "user.a", noise(2000)},
		{"bin/big-attributes", "user.bb", noise(1500)},
		{"bin/big-attributes", "user.c", ""},
	} {
		b := make([]byte, 1<<16)
		n, err := unix.Getxattr(filepath.Join(dir, row.path), row.name, b)
		if err != nil || string(b[:n]) != row.want {
			t.Errorf("%s of %s: got %q, %v", row.name, row.path, b[:max(n, 0)], err)
		}
	}
	if _, err := unix.Getxattr(filepath.Join(dir, "bin/big-attributes"), "user.none", nil); !errors.Is(
		err,
		unix.ENODATA,
	) {
		t.Errorf("got %v for an attribute that is not there", err)
	}
}

// TestHostFull writes an image where the host has too little space for it.
func TestHostFull(t *testing.T) {
	probetest.Need(t, probe.Config{}, probe.Root, probe.Tools)
	dir, done := t.TempDir(), make(chan struct{})
	b := stream(t, ent{name: "f", data: noise(12 << 20)})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if err := errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
			t.Errorf("mount namespace: %v", err)
			return
		}
		for _, size := range []string{"64k", "4m", "10m"} {
			if err := unix.Mount("none", dir, "tmpfs", 0, "size="+size); err != nil {
				t.Errorf("mount: %v", err)
				return
			}
			f, err := os.Create(filepath.Join(dir, "image"))
			if err != nil {
				t.Errorf("create: %v", err)
				return
			}
			if _, err := ext4.Write(t.Context(), bytes.NewReader(b), f, ext4.Options{SizeMiB: 64}); err == nil ||
				errors.Is(err, ext4.ErrFull) {
				t.Errorf("got %v with %s of space", err, size)
			}
			assertEmpty(t, f)
			if err := errors.Join(f.Close(), unix.Unmount(dir, 0)); err != nil {
				t.Errorf("unmount: %v", err)
			}
		}
	}()
	<-done
}
