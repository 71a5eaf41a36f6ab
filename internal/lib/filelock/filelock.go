// Package filelock locks names on a host for the life of a process.
//
// A lock is a file in a directory that only its owner can enter, so that no other user can take a name. The kernel
// releases it when the process ends, however that happens. Child processes do not inherit it.
package filelock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Dir is the default directory for locks: on a file system that does not outlive the boot, below one of root.
const Dir = "/run/pandastack"

// ErrHeld means that another Lock holds the name, in this process or another.
var ErrHeld = errors.New("held by another process")

// Lock is a held lock.
type Lock struct {
	file *os.File
	path string
}

// Acquire locks a name in a directory, which it makes if it does not exist; "" is Dir. The error is ErrHeld if the name
// is locked. The caller releases the lock.
func Acquire(dir, name string) (*Lock, error) {
	if dir == "" {
		dir = Dir
	}
	if name == "" || strings.Contains(name, "/") {
		return nil, fmt.Errorf("lock %q: not a file name", name)
	}
	if err := prepare(dir); err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	path := filepath.Join(dir, name+".lock")
	for {
		l, err := try(path)
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		if l != nil {
			return l, nil
		}
	}
}

// prepare makes the directory and checks that no other user can put files into it.
func prepare(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s is not a directory that only this user can write; remove it", dir)
	}
	return nil
}

// try locks the file at path. It returns nil if the file was removed meanwhile.
func try(path string) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrHeld
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	held, err1 := f.Stat()
	now, err2 := os.Lstat(path)
	switch {
	case err1 != nil, err2 != nil && !errors.Is(err2, os.ErrNotExist):
		return nil, errors.Join(err1, err2, f.Close())
	case err2 != nil || !os.SameFile(held, now): // its holder released it between open and lock
		return nil, f.Close()
	}
	return &Lock{f, path}, nil
}

// Release releases the lock. A second call is an error.
func (l *Lock) Release() error {
	if err := os.Remove(l.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return errors.Join(err, l.file.Close())
	}
	return l.file.Close()
}
