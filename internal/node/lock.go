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

// InUseError reports that another node uses a data directory.
type InUseError struct {
	Dir string
	PID int // process ID of the other node; 0 if unknown
}

// Error names the directory and the node.
func (e *InUseError) Error() string {
	owner := "another node"
	if e.PID > 0 {
		owner = fmt.Sprintf("another node (process %d)", e.PID)
	}
	return fmt.Sprintf(
		"%s uses the data directory %s; stop that node, or choose another directory with --data-dir",
		owner,
		e.Dir,
	)
}

// lockDataDir locks the data directory for this process until the returned file is closed. The kernel closes it when
// the process exits or is killed.
func lockDataDir(dir string) (*os.File, error) {
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
			err = &InUseError{Dir: dir, PID: lockHolder(path)}
		}
		return nil, errors.Join(err, f.Close())
	}
	if err := errors.Join(f.Truncate(0), writeAt(f, strconv.Itoa(os.Getpid())+"\n")); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// writeAt writes text to the beginning of a file.
func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// lockHolder returns the process ID in a lock file, or 0 if it cannot be read.
func lockHolder(path string) int {
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
