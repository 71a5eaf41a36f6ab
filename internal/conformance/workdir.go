package conformance

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/os/jail"
	"github.com/pandastack/pandastack/internal/vmm"
)

// workdir is the directory of one run's machines, and the jail of their monitors. It is removed at the end of the run.
type workdir struct {
	dir    string
	lock   *os.File
	jail   *jail.Manager // nil: none
	cgroup *jail.Cgroup

	mu      sync.Mutex
	refused map[string]bool // names of system calls that are not allowed
}

// refuse is called with each system call that is not allowed.
func (a *workdir) refuse(c jail.RefusedCall) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refused == nil {
		a.refused = map[string]bool{}
	}
	a.refused[c.Name] = true
}

// jailTimeout bounds the removal of a jail, whose processes have been killed before.
const jailTimeout = 30 * time.Second

// confine makes the jail of all monitors of the run. An interrupted run's jail is removed first.
func (a *workdir) confine(ctx context.Context, o Options) (c vmm.Confine, err error) {
	if o.DisableJail {
		return vmm.Confine{}, nil
	}
	layout, err := jail.Probe()
	if err != nil {
		return c, err
	}
	programs := filepath.Join(a.dir, "jail")
	if err := os.Mkdir(programs, 0o711); err != nil {
		return c, err
	}
	// Two data directories can be used at the same time, and one that is used again has the same names.
	name := fnv.New32a()
	_, _ = name.Write([]byte(a.dir)) // never fails
	a.jail, err = jail.New(jail.Config{
		Hierarchy: layout, Prefix: fmt.Sprintf("panda-conform-%x", name.Sum32()), ProgramsDir: programs,
		OnRefusedCall: a.refuse, RecordCalls: o.RecordCalls,
	})
	if err != nil {
		return c, err
	}
	if c.UID, c.GID, err = a.jail.User(0); err != nil {
		return c, err
	}
	if a.cgroup, err = a.jail.Create(ctx, "monitors", jail.Limits{}); err != nil {
		return c, err
	}
	c.Jail = a.cgroup
	return c, nil
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

// close removes the jail and the work directory and unlocks it, even if ctx has ended.
func (a *workdir) close(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), jailTimeout)
	defer cancel()
	if a.cgroup != nil {
		err = a.cgroup.Destroy(ctx)
	}
	if a.jail != nil {
		err = errors.Join(err, a.jail.Close())
	}
	return errors.Join(err, os.RemoveAll(a.dir), a.lock.Close())
}
