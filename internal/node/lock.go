package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// InUseError says that another node has a data directory.
type InUseError struct {
	Dir string
	PID int // of that node; 0 when it cannot be told
}

// Error names the directory and the node.
func (e *InUseError) Error() string {
	who := "another node"
	if e.PID > 0 {
		who = fmt.Sprintf("another node (process %d)", e.PID)
	}
	return fmt.Sprintf(
		"%s uses the data directory %s; stop it, or give this one a directory of its own with --data-dir",
		who,
		e.Dir,
	)
}

// lock takes the data directory for this process until the file is closed, which the kernel does when
// the process ends in whatever way.
func lock(dir string) (*os.File, error) {
	run := filepath.Join(dir, "run")
	if err := os.MkdirAll(run, 0o755); err != nil {
		return nil, err
	}
	path := filepath.Join(run, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = &InUseError{Dir: dir, PID: holder(path)}
		}
		return nil, errors.Join(err, f.Close())
	}
	if err := errors.Join(f.Truncate(0), writeAt(f, strconv.Itoa(os.Getpid())+"\n")); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// holder reads who wrote the lock file last.
func holder(path string) int {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0
	}
	return pid
}
