// Package disktest gives tests a directory on a file system that shares blocks.
//
// It owns the places where such tests mount: each belongs to one test, goes with it, and is held by a lock. A place
// whose test was killed is found by that, and the next test that needs one takes it away. It must not know what
// lies in a place.
package disktest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/host/probe/probetest"
	"github.com/pandastack/pandastack/internal/os/disk"
)

const (
	prefix         = "panda-disk-"
	unlockedPrefix = "panda-new-" // a place that is not locked yet
	lockFile       = "owner"      // the file in a place that is locked
)

var swept sync.Once

// Dir is an empty directory of the test on an XFS image of its own, of so many bytes. The test is skipped where none
// can be mounted.
func Dir(t testing.TB, bytes int64) string {
	t.Helper()
	dir := filepath.Join(MountDir(t), "data")
	if err := disk.CreateDataDir(t.Context(), dir, bytes); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := disk.RemoveDataDir(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// FillUp makes files in dir until its file system has room neither for content nor for another file.
func FillUp(t testing.TB, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "stuff"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at := int64(0)
	for n := int64(64 << 20); n >= 4<<10; n /= 2 {
		for unix.Fallocate(int(f.Fd()), 0, at, n) == nil {
			at += n
		}
	}
	for err == nil { // file systems keep some room for files that they have not made yet
		var one *os.File
		if one, err = os.CreateTemp(dir, "stuff-"); err == nil {
			err = one.Close()
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("%s is not full: %v", dir, err)
	}
}

// MountDir is an empty directory of the test. What is mounted below it and stays there when the test is killed goes with
// the next one. The test is skipped where nothing can be mounted.
func MountDir(t testing.TB) string {
	t.Helper()
	probetest.Need(t, probe.Config{}, probe.Root, probe.Loop, probe.Tools)
	swept.Do(func() {
		if err := Sweep(os.TempDir()); err != nil {
			t.Error(err)
		}
	})
	place, lock, err := createLocked(os.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(os.RemoveAll(place), lock.Close()); err != nil {
			t.Error(err)
		}
	})
	return place
}

// createLocked makes a place and locks it before anybody else can find it.
func createLocked(parent string) (place string, lock *os.File, err error) {
	at, err := os.MkdirTemp(parent, unlockedPrefix+"*")
	if err != nil {
		return "", nil, err
	}
	place = filepath.Join(parent, prefix+strings.TrimPrefix(filepath.Base(at), unlockedPrefix))
	if lock, err = os.Create(filepath.Join(at, lockFile)); err == nil {
		err = errors.Join(unix.Flock(int(lock.Fd()), unix.LOCK_EX), os.Chmod(at, 0o711), os.Rename(at, place))
	}
	if err != nil {
		return "", nil, errors.Join(err, lock.Close(), os.RemoveAll(at))
	}
	return place, lock, nil
}

// Sweep takes the places below parent away whose tests have ended without that.
func Sweep(parent string) error {
	places, err := filepath.Glob(filepath.Join(parent, prefix+"*"))
	for _, place := range places {
		err = errors.Join(err, sweep(place))
	}
	return err
}

func sweep(place string) error {
	lock, err := os.Open(filepath.Join(place, lockFile))
	if errors.Is(err, os.ErrNotExist) { // it is being removed
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil { // its test runs
		return nil
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var below []string
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], place+"/") {
			below = append(below, f[4])
		}
	}
	for i := len(below) - 1; i >= 0; i-- { // the newest first: it may lie on another
		err = errors.Join(err, unix.Unmount(below[i], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(place)
}
