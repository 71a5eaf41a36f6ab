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

// workdir is the directory of one run's machines. It is removed at the end of the run.
type workdir struct {
	dir  string
	lock *os.File
}

// openWorkdir locks the work directory in a data directory for one run. It first kills the monitors and removes the
// files that an interrupted run left there.
func openWorkdir(ctx context.Context, o Options) (_ *workdir, err error) {
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
			"another run of the suite uses %s; wait until it ends, or choose another data directory",
			o.DataDir,
		)
	}
	if err == nil {
		err = a.removeRemnants(ctx, o)
	}
	if err == nil {
		err = errors.Join(os.Mkdir(a.dir, 0o711), os.Chmod(a.dir, 0o711)) // Mkdir applies the umask
	}
	return a, err
}

// removeRemnants kills the monitors that an interrupted run left and removes their files.
func (a *workdir) removeRemnants(ctx context.Context, o Options) (err error) {
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

// close removes the work directory and unlocks it.
func (a *workdir) close() error { return errors.Join(os.RemoveAll(a.dir), a.lock.Close()) }
