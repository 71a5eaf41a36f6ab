// Package disktest gives tests a directory on a file system that shares blocks.
//
// It owns the directories where such tests mount file systems. Each directory belongs to one test, is removed
// at the test's end, and is protected by a lock. If the test was killed, the lock is free: the next test that
// needs such a directory finds the old one by that and removes it. The package does not know what a directory
// holds.
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
	unlockedPrefix = "panda-new-" // a directory that is not locked yet
	lockFile       = "owner"      // the lock file in such a directory
)

var swept sync.Once

// Dir returns an empty directory of the test on an XFS image of its own, of the given size. The test is
// skipped if no image can be mounted.
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
	for err == nil { // file systems reserve some space for new files
		var one *os.File
		if one, err = os.CreateTemp(dir, "stuff-"); err == nil {
			err = one.Close()
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("%s is not full: %v", dir, err)
	}
}

// MountDir returns an empty directory of the test, below which the test may mount file systems. If the test
// is killed, the next test that calls MountDir unmounts and removes them. The test is skipped if it cannot
// mount.
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

// createLocked makes a directory and locks it before another process can find it.
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

// Sweep removes the directories below parent whose tests ended without removing them.
func Sweep(parent string) error {
	places, err := filepath.Glob(filepath.Join(parent, prefix+"*"))
	for _, place := range places {
		err = errors.Join(err, sweep(place))
	}
	return err
}

func sweep(place string) error {
	lock, err := os.Open(filepath.Join(place, lockFile))
	if errors.Is(err, os.ErrNotExist) { // another process removes it
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil { // its test is running
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
	for i := len(below) - 1; i >= 0; i-- { // the newest first: one may be mounted on another
		err = errors.Join(err, unix.Unmount(below[i], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(place)
}
