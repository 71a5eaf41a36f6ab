package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/vmm"
)

// workdir is where one run has its machines. Below it lies what the next one would begin with: nothing.
type workdir struct {
	dir  string
	lock *os.File
}

// enter takes the arena in a data directory for one run, and ends and removes what a run left there that was killed.
func enter(ctx context.Context, o Options) (_ *workdir, err error) {
	home := filepath.Join(o.DataDir, "conformance")
	if err := os.MkdirAll(home, 0o711); err != nil {
		return nil, err
	}
	a := &workdir{dir: filepath.Join(home, "run")}
	if a.lock, err = os.OpenFile(filepath.Join(home, "lock"), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.lock.Close())
		}
	}()
	err = unix.Flock(int(a.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf(
			"another run of the suite uses %s: wait for its end, or take another data directory",
			o.DataDir,
		)
	}
	if err == nil {
		err = a.clear(ctx, o)
	}
	if err == nil {
		err = errors.Join(os.Mkdir(a.dir, 0o711), os.Chmod(a.dir, 0o711)) // whatever the mask is
	}
	return a, err
}

// clear ends the monitors that a run left and removes their files.
func (a *workdir) clear(ctx context.Context, o Options) (err error) {
	left, err := filepath.Glob(filepath.Join(a.dir, "m*"))
	if err != nil || len(left) == 0 {
		return errors.Join(err, os.RemoveAll(a.dir))
	}
	d, err := o.Open(ctx, filepath.Join(a.dir, "driver"))
	if err != nil {
		return err
	}
	for _, dir := range left {
		err = errors.Join(err, d.Kill(ctx, vmm.Spec{ID: filepath.Base(dir), Dir: dir}))
	}
	if c, ok := d.(interface{ Close() error }); ok {
		err = errors.Join(err, c.Close())
	}
	return errors.Join(err, os.RemoveAll(a.dir))
}

// leave removes what is there and lets the next run in.
func (a *workdir) leave() error { return errors.Join(os.RemoveAll(a.dir), a.lock.Close()) }
