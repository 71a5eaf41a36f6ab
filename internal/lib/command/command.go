// Package command runs programs of the distribution to their end and explains their failures.
//
// It sends a program's output line by line to a log, puts the last lines of it into the error, and ends the whole
// process group with the context. It does not know any program. Functions are safe for concurrent use.
package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Log receives one line of a program's output or of the caller's own progress, without the newline. It may be nil. It
// is called from one goroutine at a time.
type Log func(line string)

// Printf logs a formatted line, if l is not nil.
func (l Log) Printf(format string, args ...any) {
	if l != nil {
		l(fmt.Sprintf(format, args...))
	}
}

// Options describe how a program is run. The zero value runs it in the current directory, with this process's
// environment, without a log.
type Options struct {
	Dir   string   // working directory
	Env   []string // added to this process's environment
	Stdin string
	Log   Log
	// Attr is passed to the kernel; nil is the default. The program always gets a process group of its own.
	Attr *syscall.SysProcAttr
	// Kill kills the program with SIGKILL, at once, when the context or this process ends. It is for a program with
	// process and mount namespaces of its own, which leaves nothing behind.
	Kill bool
}

// Error reports that a program failed, with the last lines it wrote.
type Error struct {
	Name string
	Err  error
	Last []string
}

// Error implements error.
func (e *Error) Error() string {
	if len(e.Last) == 0 {
		return fmt.Sprintf("%s: %v", e.Name, e.Err)
	}
	return fmt.Sprintf("%s: %v: %s", e.Name, e.Err, strings.Join(e.Last, "; "))
}

// Unwrap returns the cause: *exec.ExitError, exec.ErrNotFound or the context's.
func (e *Error) Unwrap() error { return e.Err }

// grace is how long a program may take to clean up after SIGTERM before it is killed.
const grace = 20 * time.Second

// Run runs a program and waits for its end.
//
// Output and error output go to the log together. When the context ends, the process group gets SIGTERM, after twenty
// seconds SIGKILL, and the error wraps the context's cause. Every failure is an *Error.
func Run(ctx context.Context, opt Options, name string, args ...string) error {
	var tail tail
	tail.log = opt.Log
	cmd := prepare(ctx, opt, name, args)
	cmd.Stdout, cmd.Stderr = &tail, &tail
	err := start(cmd, opt.Kill)
	tail.flush()
	return failure(ctx, name, err, tail.last)
}

// Output runs a program as Run does and returns its standard output. Only error output goes to the log.
func Output(ctx context.Context, opt Options, name string, args ...string) (string, error) {
	var tail tail
	var out bytes.Buffer
	tail.log = opt.Log
	cmd := prepare(ctx, opt, name, args)
	cmd.Stdout, cmd.Stderr = &out, &tail
	err := start(cmd, opt.Kill)
	tail.flush()
	return out.String(), failure(ctx, name, err, tail.last)
}

func prepare(ctx context.Context, opt Options, name string, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = opt.Dir
	cmd.Env = append(os.Environ(), append([]string{"LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"}, opt.Env...)...)
	cmd.Stdin = strings.NewReader(opt.Stdin)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if opt.Attr != nil {
		attr := *opt.Attr
		cmd.SysProcAttr = &attr
	}
	cmd.SysProcAttr.Setpgid = true
	sig := syscall.SIGTERM
	if opt.Kill {
		sig = syscall.SIGKILL
		cmd.SysProcAttr.Pdeathsig = sig
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, sig) }
	cmd.WaitDelay = grace
	return cmd
}

// start runs a program to its end. The kernel sends the parent-death signal when the thread that started the program
// ends (prctl(2), PR_SET_PDEATHSIG), so start keeps that thread until then.
func start(cmd *exec.Cmd, kept bool) error {
	if kept {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	resetOOMScore(cmd.Process.Pid)
	return cmd.Wait()
}

// resetOOMScore gives a child the usual score for the kernel's choice of what to kill when memory is short. A program
// that is protected, as a node is, does not protect what it runs.
func resetOOMScore(pid int) {
	data, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil || !strings.HasPrefix(string(data), "-") {
		return
	}
	// This fails only if the child has ended.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("0"), 0)
}

func failure(ctx context.Context, name string, err error, last []string) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = errors.Join(cause, err)
	}
	if errors.Is(err, exec.ErrNotFound) {
		last = []string{"the program is not installed; `pandastack setup` installs what is needed"}
	}
	return &Error{Name: name, Err: err, Last: last}
}

const (
	keepLines = 6
	maxLine   = 4096
)

// tail passes lines on and keeps the last ones.
type tail struct {
	mu   sync.Mutex
	log  Log
	part []byte
	last []string
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range p {
		switch {
		case b == '\n' || b == '\r':
			t.end()
		case len(t.part) < maxLine:
			t.part = append(t.part, b)
		}
	}
	return len(p), nil
}

func (t *tail) flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end()
}

// end ends the current line. The caller holds mu.
func (t *tail) end() {
	line := strings.TrimSpace(string(t.part))
	t.part = t.part[:0]
	if line == "" {
		return
	}
	if t.log != nil {
		t.log(line)
	}
	if t.last = append(t.last, line); len(t.last) > keepLines {
		t.last = t.last[1:]
	}
}

// Exists reports whether a program can be run. It also searches the directories of administrators' programs.
func Exists(name string) bool {
	for _, path := range []string{name, "/usr/sbin/" + name, "/sbin/" + name} {
		if _, err := exec.LookPath(path); err == nil {
			return true
		}
	}
	return false
}
