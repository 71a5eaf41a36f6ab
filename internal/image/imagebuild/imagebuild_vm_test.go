//go:build vm

package imagebuild_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/image/imagebuild"
	"github.com/pandastack/pandastack/internal/image/recipe"
	"github.com/pandastack/pandastack/internal/os/disk"

	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/host/probe/probetest"
)

func options(t *testing.T, dir string) imagebuild.Options {
	t.Helper()
	probetest.Need(t, probe.Config{}, probe.Root, probe.Tools)
	all, err := recipe.Builtin(recipe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return imagebuild.Options{
		Recipe: all["mini"],
		Work:   filepath.Join(dir, "work"),
		Cache:  filepath.Join(dir, "cache"),
		Image:  filepath.Join(dir, "image"),
		Log:    func(l string) { t.Log(l) },
	}
}

// debugfs reads a file or shows an inode of an image without mounting it.
func debugfs(t *testing.T, image, request string) string {
	t.Helper()
	out, err := exec.Command("debugfs", "-R", request, image).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestBuild(t *testing.T) {
	dir := t.TempDir()
	opt := options(t, dir)
	var steps []string
	opt.Step = func(s string) { steps = append(steps, s) }
	began := time.Now()
	if err := imagebuild.Build(t.Context(), opt); err != nil {
		t.Fatal(err)
	}
	apparent, own, err := disk.Usage(opt.Image)
	extents, _ := disk.Extents(opt.Image)
	t.Logf("%v, %d MiB of %d, %d extents, %v", time.Since(began), own>>20, apparent>>20, extents, err)
	if apparent != int64(opt.Recipe.DiskMiB)<<20 {
		t.Errorf("got an image of %d bytes", apparent)
	}
	if extents > 100 {
		t.Errorf("got an image of %d extents, each of which makes a clone slower", extents)
	}
	if _, err := os.Stat(opt.Work); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the work directory exists after the build: %v", err)
	}
	if kept, _ := filepath.Glob(filepath.Join(opt.Cache, "*.deb")); len(kept) == 0 {
		t.Error("the cache is empty after the build")
	}
	check(t, opt.Image)
	checkPython(t, opt.Image)
	if strings.Join(steps, " ") != "rootfs image" {
		t.Errorf("got steps %v", steps)
	}
}

func check(t *testing.T, image string) {
	t.Helper()
	if out, err := exec.Command("e2fsck", "-fn", image).CombinedOutput(); err != nil {
		t.Errorf("the file system is not clean: %v: %s", err, out)
	}
	if s := debugfs(t, image, "cat /etc/passwd"); !strings.Contains(s, "user:x:1000:1000::/home/user:/bin/bash") {
		t.Errorf("got passwd %q", s)
	}
	if s := debugfs(t, image, "stat /home/user"); !strings.Contains(s, "User:  1000") {
		t.Errorf("the home directory does not belong to the user: %q", s)
	}
	if s := debugfs(t, image, "cat /etc/sudoers.d/user"); !strings.Contains(s, "NOPASSWD") {
		t.Errorf("sudo asks for a password: %q", s)
	}
	if s := debugfs(t, image, "cat /etc/machine-id"); s != "" {
		t.Errorf("got machine-id %q", s)
	}
	if s := debugfs(t, image, "stat /etc/resolv.conf"); !strings.Contains(s, "Type: regular") {
		t.Errorf("resolv.conf is not a regular file: %q", s)
	}
	if s := debugfs(t, image, "ls /var/lib/apt/lists"); strings.Contains(s, "Packages") {
		t.Errorf("the image contains package lists: %q", s)
	}
	if s := debugfs(t, image, "ls /var/cache/apt/archives"); strings.Contains(s, ".deb") {
		t.Errorf("the image contains packages: %q", s)
	}
}

var pythonDir = regexp.MustCompile(`python3\.[0-9]+`)

// checkPython checks that compiled modules are validated by the time of their source. Modules validated by content,
// as in reproducible builds, make every start of Python read every source.
func checkPython(t *testing.T, image string) {
	t.Helper()
	dir := pythonDir.FindString(debugfs(t, image, "ls /usr/lib"))
	tag := "cpython-" + strings.ReplaceAll(strings.TrimPrefix(dir, "python"), ".", "")
	data := debugfs(t, image, "cat /usr/lib/"+dir+"/__pycache__/os."+tag+".pyc")
	if len(data) < 16 || data[4:8] != "\x00\x00\x00\x00" {
		t.Fatalf("os.pyc of %s: got %d bytes with flags %x", dir, len(data), data[4:min(8, len(data))])
	}
	source := debugfs(t, image, "stat /usr/lib/"+dir+"/os.py")
	if want := fmt.Sprintf("mtime: 0x%08x", binary.LittleEndian.Uint32([]byte(data[8:12]))); !strings.Contains(
		source,
		want,
	) {
		t.Errorf("os.pyc was compiled from another os.py: want %s in %s", want, source)
	}
}

func TestBuildFailureLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	opt := options(t, dir)
	opt.Recipe.Distribution.Suite = "no-such-suite"
	err := imagebuild.Build(t.Context(), opt)
	if err == nil || !strings.Contains(err.Error(), "Release") {
		t.Errorf("Build: got error %v, want the package manager's text", err)
	}
	clean(t, dir, opt)
}

func TestBuildCancelled(t *testing.T) {
	dir := t.TempDir()
	opt := options(t, dir)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	opt.Log = func(l string) {
		if strings.Contains(l, "extracting archives") {
			cancel(cause)
		}
	}
	if err := imagebuild.Build(ctx, opt); !errors.Is(err, cause) {
		t.Errorf("Build: got error %v, want the context's cause", err)
	}
	clean(t, dir, opt)
}

func clean(t *testing.T, dir string, opt imagebuild.Options) {
	t.Helper()
	for _, p := range []string{opt.Work, opt.Image, opt.Image + ".raw"} {
		if _, err := os.Lstat(p); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s exists after the build: %v", p, err)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("mounts are left below %s: %v", dir, err)
	}
}
