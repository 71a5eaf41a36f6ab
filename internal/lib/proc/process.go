package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Command describes a program to start. The child has its own session, /dev/null as standard input, and a log of
// LogBytes as output and error output.
type Command struct {
	Path   string     // path of the program
	Args   []string   // without the program's name
	Env    []string   // the whole environment
	Dir    string     // working directory; "": /
	Files  []*os.File // become descriptors 3, 4, ...; the caller keeps and closes its own
	UID    int        // with GID 0: as this process
	GID    int
	Groups []uint32 // supplementary groups, if UID or GID is set
	// Fork makes the process; nil: syscall.ForkExec. An error means that no process exists.
	Fork func(path string, argv []string, attr *syscall.ProcAttr) (pid int, err error)
}

// Process is a child, or an adopted process that an earlier program started.
type Process struct {
	id    Identity
	pidfd *os.File
	log   *os.File // nil: none was found
	done  chan struct{}

	mu     sync.Mutex
	exit   Exit // valid once done is closed
	killed bool
}

// Exit describes how a process ended.
type Exit struct {
	Known  bool // false: an adopted process, whose status only its parent sees
	Code   int
	Signal syscall.Signal // 0: it exited on its own
	Killed bool           // Kill was called before the end
}

// String describes the exit for errors and logs.
func (e Exit) String() string {
	switch {
	case e.Killed:
		return "killed by us"
	case !e.Known:
		return "ended, status unknown"
	case e.Signal == syscall.SIGKILL:
		return "killed from outside (signal 9; perhaps out of memory)"
	case e.Signal != 0:
		return fmt.Sprintf("ended by signal %d (%v)", int(e.Signal), e.Signal)
	}
	return fmt.Sprintf("exited with status %d", e.Code)
}

// Start runs cmd. The child continues when this process ends. The caller must keep the Process until Done is closed,
// or call Release.
func Start(cmd Command) (*Process, error) {
	log, err := newLog()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	defer null.Close()
	files := []uintptr{null.Fd(), log.Fd(), log.Fd()}
	for _, f := range cmd.Files {
		files = append(files, f.Fd())
	}
	pidfd := -1
	attr := &syscall.ProcAttr{
		Dir: cmd.Dir, Env: cmd.Env, Files: files,
		Sys: &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd},
	}
	if cmd.Dir == "" {
		attr.Dir = "/"
	}
	if cmd.UID != 0 || cmd.GID != 0 {
		attr.Sys.Credential = &syscall.Credential{Uid: uint32(cmd.UID), Gid: uint32(cmd.GID), Groups: cmd.Groups}
	}
	fork := cmd.Fork
	if fork == nil {
		fork = syscall.ForkExec
	}
	pid, err := fork(cmd.Path, append([]string{cmd.Path}, cmd.Args...), attr)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", cmd.Path, err), log.Close())
	}
	p, err := follow(pid, pidfd, log)
	if err != nil {
		err = errors.Join(err, syscall.Kill(pid, syscall.SIGKILL), log.Close())
		_, _ = syscall.Wait4(pid, nil, 0, nil) // it was killed on the line above
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// follow takes over pidfd (-1: the kernel gave none) and begins to wait.
func follow(pid, pidfd int, log *os.File) (*Process, error) {
	var err error
	if pidfd < 0 {
		if pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
			return nil, fmt.Errorf("process %d: %w", pid, err)
		}
	}
	if err := unix.SetNonblock(pidfd, true); err != nil {
		return nil, errors.Join(err, unix.Close(pidfd))
	}
	f := os.NewFile(uintptr(pidfd), "pidfd")
	// The pidfd holds the process, dead or not, so /proc describes this process, unless it was dead before and its ID
	// is reused: then the caller's comparison of identities fails.
	id, _, err := identify(pid)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	p := &Process{id: id, pidfd: f, log: log, done: make(chan struct{})}
	go p.wait()
	return p, nil
}

// Adopt follows a process that need not be a child. The error is ErrGone if it has ended.
func Adopt(id Identity) (*Process, error) {
	pidfd, err := unix.PidfdOpen(id.PID, 0)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", id.PID, errors.Join(ErrGone, err))
	}
	if !id.Alive() {
		return nil, errors.Join(fmt.Errorf("process %d: %w", id.PID, ErrGone), unix.Close(pidfd))
	}
	return follow(id.PID, pidfd, adoptLog(id.PID))
}

// wait waits on the pidfd in the runtime's poller and reaps the process if it is a child.
func (p *Process) wait() {
	raw, err := p.pidfd.SyscallConn()
	if err != nil {
		return
	}
	err = raw.Read(func(fd uintptr) bool {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 0)
		return err == nil && n > 0
	})
	if err != nil {
		return // released
	}
	var ws syscall.WaitStatus
	pid, err := syscall.Wait4(p.id.PID, &ws, syscall.WNOHANG, nil)
	p.mu.Lock()
	p.exit = Exit{Killed: p.killed}
	if err == nil && pid == p.id.PID {
		p.exit.Known = true
		if ws.Signaled() {
			p.exit.Signal = ws.Signal()
		} else {
			p.exit.Code = ws.ExitStatus()
		}
	}
	p.mu.Unlock()
	close(p.done)
}

// Identity returns the identity of the process, for a later Adopt.
func (p *Process) Identity() Identity { return p.id }

// PID returns the process ID. Once Done is closed the ID may belong to another process.
func (p *Process) PID() int { return p.id.PID }

// Done returns a channel that is closed when the process has ended. After Release it is never closed.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit describes how the process ended. It is valid once Done is closed.
func (p *Process) Exit() Exit {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exit
}

// Signal sends a signal through the pidfd, so never to another process. It is not an error if the process has ended.
func (p *Process) Signal(sig syscall.Signal) error {
	raw, err := p.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), unix.Signal(sig), nil, 0) })
	if err != nil {
		return err
	}
	if errors.Is(sent, unix.ESRCH) {
		return nil
	}
	return sent
}

// Kill kills the process and waits for its end. It may be called in every state, and repeatedly.
func (p *Process) Kill(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	default:
	}
	p.mu.Lock()
	p.killed = true
	p.mu.Unlock()
	if err := p.Signal(syscall.SIGKILL); err != nil {
		select {
		case <-p.done: // released meanwhile
			return nil
		default:
		}
		return fmt.Errorf("kill process %d: %w", p.id.PID, err)
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of process %d: %w", p.id.PID, context.Cause(ctx))
	}
}

// Release frees the resources of p and lets the process run on. It may also be called after the end of the process.
// Only Identity may be called afterwards.
func (p *Process) Release() error {
	err := p.pidfd.Close()
	if p.log != nil {
		err = errors.Join(err, p.log.Close())
	}
	return err
}

// startTime converts clock ticks since boot to a time of day. The kernel's USER_HZ is 100 on every architecture this
// program runs on (time(7)).
func startTime(ticks uint64, boot time.Time) time.Time {
	return boot.Add(time.Duration(ticks) * (time.Second / userHZ))
}

const userHZ = 100
