package process

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/guest/passwd"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// launch is a resolved ProcessSpec.
type launch struct {
	user    passwd.User
	dir     string
	program string
	argv    []string
	env     []string
	size    *guestapi.Size
	stdin   bool
	timeout time.Duration
}

// plan resolves a spec without side effects.
func (t *Table) plan(spec *guestapi.ProcessSpec) (*launch, error) {
	if (len(spec.Argv) == 0) == (spec.Shell == "") {
		return nil, fmt.Errorf("%w: exactly one of argv and shell must be set", guestapi.ErrInvalid)
	}
	if len(spec.Tag) > maxTag || spec.Timeout < 0 {
		return nil, fmt.Errorf("%w: tag or timeout is out of range", guestapi.ErrInvalid)
	}
	t.mu.Lock()
	name, defaults := spec.User, t.env
	if name == "" {
		name = t.user
	}
	t.mu.Unlock()
	user, err := t.users.Lookup(name)
	if err != nil {
		return nil, err
	}
	l := &launch{user: user, argv: spec.Argv, size: spec.PTY, stdin: spec.Stdin, timeout: spec.Timeout}
	env := environment(&user, spec.PTY != nil, defaults, spec.Env)
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.IndexByte(v, 0) >= 0 {
			return nil, fmt.Errorf("%w: environment variable %q", guestapi.ErrInvalid, k)
		}
		l.env = append(l.env, k+"="+v)
	}
	if spec.Shell != "" {
		l.argv = shell(spec)
	}
	if l.dir, err = workdir(&user, spec.Dir); err != nil {
		return nil, err
	}
	l.program, err = lookup(l.argv[0], env["PATH"], l.dir)
	return l, err
}

// shell returns the command line of a shell command, as the guest API defines it.
func shell(spec *guestapi.ProcessSpec) []string {
	if !spec.Login {
		return []string{"/bin/sh", "-c", spec.Shell}
	}
	if isProgram("/bin/bash") {
		return []string{"/bin/bash", "-l", "-c", spec.Shell}
	}
	return []string{"/bin/sh", "-l", "-c", spec.Shell}
}

func environment(u *passwd.User, terminal bool, more ...map[string]string) map[string]string {
	env := map[string]string{"PATH": defaultPath, "HOME": u.Home, "USER": u.Name, "LOGNAME": u.Name, "SHELL": u.Shell}
	if terminal {
		env["TERM"] = "xterm-256color"
	}
	for _, m := range more {
		for k, v := range m {
			env[k] = v
		}
	}
	return env
}

// workdir returns the directory a process starts in. A home directory that does not exist becomes /; any other
// directory must exist.
func workdir(u *passwd.User, dir string) (string, error) {
	at := u.Resolve(dir)
	var st unix.Stat_t
	err := unix.Stat(at, &st)
	switch {
	case err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return at, nil
	case dir == "":
		return "/", nil
	case err == nil:
		return "", fmt.Errorf("working directory %q: %w", at, guestapi.ErrNotDir)
	}
	return "", fmt.Errorf("working directory %q: %w", at, guestapi.ErrNotFound)
}

// lookup finds a program as a shell does.
func lookup(name, search, dir string) (string, error) {
	if strings.IndexByte(name, 0) >= 0 || name == "" {
		return "", fmt.Errorf("%w: program name is empty or contains a zero byte", guestapi.ErrInvalid)
	}
	if strings.Contains(name, "/") {
		if path.IsAbs(name) {
			return name, nil
		}
		return path.Join(dir, name), nil
	}
	for at := range strings.SplitSeq(search, ":") {
		if at == "" {
			at = "."
		}
		if !path.IsAbs(at) {
			at = path.Join(dir, at)
		}
		if p := path.Join(at, name); isProgram(p) {
			return p, nil
		}
	}
	return "", fmt.Errorf("program %q: %w", name, guestapi.ErrNotFound)
}

func isProgram(p string) bool {
	var st unix.Stat_t
	return unix.Stat(p, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o111 != 0
}

// start starts the process with its pipes or terminal.
func (p *Process) start(l *launch) error {
	pl := stdio{owner: &l.user}
	defer pl.closeChild()
	var err error
	if l.size != nil {
		err = pl.terminal(l)
	} else {
		err = pl.pipes(l.stdin)
	}
	if err != nil {
		pl.closeParent()
		return fmt.Errorf("start process: %w", err)
	}
	attr := &syscall.ProcAttr{Dir: l.dir, Env: l.env, Files: pl.child[:], Sys: p.t.attributes(l)}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started = time.Now()
	p.pid, err = p.t.cfg.Reaper.start(
		func() (int, error) { return syscall.ForkExec(l.program, l.argv, attr) },
		p.onExit,
	)
	if err != nil {
		pl.closeParent()
		return startError(l, err)
	}
	p.stdin, p.pty = pl.in, pl.pty
	for _, o := range pl.out {
		o.p, o.ring.budget, o.room = p, &p.t.budget, make(chan struct{}, 1)
		p.outputs = append(p.outputs, o)
	}
	if l.timeout > 0 {
		p.timer = time.AfterFunc(l.timeout, p.expire)
	}
	return nil
}

func startError(l *launch, err error) error {
	kind := guestapi.ErrInvalid
	switch {
	case errors.Is(err, unix.ENOENT):
		kind = guestapi.ErrNotFound
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		kind = guestapi.ErrPermission
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM):
		kind = guestapi.ErrBusy
	}
	return fmt.Errorf("start %q: %w: %w", l.program, kind, err)
}

func (t *Table) attributes(l *launch) *syscall.SysProcAttr {
	sys := &syscall.SysProcAttr{Setsid: true, Setctty: l.size != nil}
	if t.cfg.Cgroup > 0 {
		sys.UseCgroupFD, sys.CgroupFD = true, t.cfg.Cgroup
	}
	if me := os.Getuid(); me == 0 || int(l.user.UID) != me {
		sys.Credential = &syscall.Credential{Uid: l.user.UID, Gid: l.user.GID, Groups: l.user.Groups}
	}
	return sys
}
