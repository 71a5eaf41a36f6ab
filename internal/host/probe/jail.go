package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/pandastack/pandastack/internal/os/jail"
)

// jailed runs a program in a jail, as monitors are run.
func (c Config) jailed(ctx context.Context) Finding {
	const fix = "run as root on Linux 5.12 or newer with namespaces and filters of system calls; a container must " +
		"allow mounts, " +
		"and the data directory must not be mounted noexec"
	if err := c.tryJail(ctx); err != nil {
		return fail(fix, "a program cannot be run in a jail: %v", err)
	}
	return ok("a program runs with a user, root directory, namespaces and filter of its own")
}

func (c Config) tryJail(ctx context.Context) (err error) {
	layout, err := jail.Probe()
	if err != nil {
		return err
	}
	parent := c.DataDir // monitors run from copies in it
	if _, err := os.Stat(parent); err != nil {
		parent = os.TempDir()
	}
	trees, err := os.MkdirTemp(parent, "jail-probe-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(trees)) }()
	if err := os.Chmod(trees, 0o755); err != nil {
		return err
	}
	prefix := fmt.Sprintf("panda-probe-%d", os.Getpid())
	j, err := jail.New(jail.Config{Hierarchy: layout, Prefix: prefix, ProgramsDir: trees})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	g, err := j.Create(ctx, filepath.Base(trees)[:10], jail.Limits{PIDs: 16})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Destroy(context.WithoutCancel(ctx))) }()
	return runJailed(j, g)
}

func runJailed(j *jail.Manager, g *jail.Cgroup) error {
	uid, gid, err := j.User(0)
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	const program = "/bin/true"
	pid, err := g.Start(jail.Spec{Program: program}, []string{program}, &syscall.ProcAttr{
		Files: []uintptr{null.Fd(), null.Fd(), null.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}},
	})
	if err != nil {
		return err
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		return err
	}
	if !status.Exited() || status.ExitStatus() != 0 {
		return fmt.Errorf("%s ended with wait status %#x", program, int(status))
	}
	return nil
}
