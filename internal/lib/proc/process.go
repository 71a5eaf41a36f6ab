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

// Command is a program to start. The child has its own session, /dev/null as standard input, and as
// output and error a log bounded to LogBytes.
type Command struct {
	Path   string     // of the program
	Args   []string   // without the program's name
	Env    []string   // all of its environment
	Dir    string     // working directory; "": /
	Files  []*os.File // become descriptors 3, 4, ...; the caller keeps and closes its own
	UID    int        // 0 with GID 0: as this process
	GID    int
	Groups []uint32 // supplementary groups, if UID or GID is set
	// Fork makes the process; nil: syscall.ForkExec. An error means that there is no process.
	Fork func(path string, argv []string, attr *syscall.ProcAttr) (pid int, err error)
}

// Process is a child, or an adopted process that an earlier program started.
type Process struct {
	id    Identity
	pidfd *os.File
	log   *os.File // nil: none that could be found
	done  chan struct{}

	mu     sync.Mutex
	exit   Exit // valid once done is closed
	killed bool
}

// Exit is how a process ended.
type Exit struct {
	Known  bool // false: an adopted process, whose status only its parent sees
	Code   int
	Signal syscall.Signal // 0: it exited by itself
	Killed bool           // Kill was called before the end
}

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

// Start runs cmd. The child goes on when this process ends. Every child must be waited for through
// Done by keeping the Process, or be let go with Release.
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

// follow takes over pidfd (-1: not given by the kernel) and begins to wait.
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
	// The pidfd holds the process, dead or not, so what /proc says now is of this one, unless it was
	// dead before and its id is in use again: then the caller's comparison of identities fails.
	id, _, err := identify(pid)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	p := &Process{id: id, pidfd: f, log: log, done: make(chan struct{})}
	go p.wait()
	return p, nil
}

// Adopt follows a process that is perhaps not a child. ErrGone when it has ended.
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

// wait blocks on the pidfd in the runtime's poller and reaps the process if it is a child.
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

// Identity names the process for a later Adopt.
func (p *Process) Identity() Identity { return p.id }

// PID is the process id; once Done is closed it may belong to another process.
func (p *Process) PID() int { return p.id.PID }

// Done is closed when the process has ended. After Release it is never closed.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit says how the process ended. It is meaningful once Done is closed.
func (p *Process) Exit() Exit {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exit
}

// Signal sends a signal through the pidfd, so never to another process. A process that has ended
// already is no error.
func (p *Process) Signal(sig syscall.Signal) error {
	raw, err := p.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), unix.Signal(sig), nil, 0) }); err != nil {
		return err
	}
	if errors.Is(sent, unix.ESRCH) {
		return nil
	}
	return sent
}

// Kill ends the process and waits for its end. It may be called in every state and twice.
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
		case <-p.done: // and let go of meanwhile
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

// Release lets the process go on without us and frees what this Process holds. It is also right after
// the end. Only Identity may be called afterwards.
func (p *Process) Release() error {
	err := p.pidfd.Close()
	if p.log != nil {
		err = errors.Join(err, p.log.Close())
	}
	return err
}

// started converts clock ticks since boot to a time of day. The kernel's USER_HZ is 100 on every
// architecture this program runs on (time(7)).
func started(ticks uint64, boot time.Time) time.Time {
	return boot.Add(time.Duration(ticks) * (time.Second / userHZ))
}

const userHZ = 100
