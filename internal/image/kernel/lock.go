package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// workPrefix begins the names of directories that hold an unfinished kernel.
const workPrefix = ".new-kernel-"

// buildDir makes a directory below dir to make a kernel in. It keeps other processes from doing the same until done
// is called, which removes the directory. It first removes the files of a killed process.
func buildDir(ctx context.Context, dir string) (work string, done func(context.Context) error, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", nil, err
	}
	lock, err := openLocked(ctx, filepath.Join(dir, ".lock"))
	if err != nil {
		return "", nil, err
	}
	left, err := filepath.Glob(filepath.Join(dir, workPrefix+"*"))
	for _, old := range left {
		err = errors.Join(err, os.RemoveAll(old))
	}
	if err == nil {
		work, err = os.MkdirTemp(dir, workPrefix+"*")
	}
	if err != nil {
		return "", nil, errors.Join(err, lock.Close())
	}
	return work, func(context.Context) error { return errors.Join(os.RemoveAll(work), lock.Close()) }, nil
}

// openLocked opens a file and waits until no other process holds its lock. Closing the file releases the lock.
func openLocked(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(
				fmt.Errorf("wait for another process that installs a guest kernel: %w", context.Cause(ctx)),
				f.Close(),
			)
		case <-tick.C:
		}
	}
}
