package vmmproc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/pandastack/pandastack/internal/lib/proc"
	"github.com/pandastack/pandastack/internal/vmm"
)

// Phase is the phase of a machine's lifecycle.
type Phase string

// The phases.
const (
	Prepared Phase = "prepared" // the monitor has no guest yet
	Running  Phase = "running"
	Paused   Phase = "paused"
)

// Hooks are the driver's part in the lifecycle of a machine.
type Hooks struct {
	// Disconnect closes all connections to the monitor and ends everything that depends on it. It
	// is called when the monitor has exited or is released, and may be called twice.
	Disconnect func()
	// DescribeExit describes for people how a monitor exited on its own.
	DescribeExit func(proc.Exit) string
	// ErrClosed is the error of a broken connection to the monitor.
	ErrClosed error
	// OnGuestExit is called in a goroutine of its own after GuestExited, while the monitor still
	// runs. It returns the reason why the machine ended. It may be nil if the driver does not call
	// GuestExited.
	OnGuestExit func(ctx context.Context, data string) (reason string)
}

// Process is the monitor process of one machine. Its first phase is Prepared.
type Process struct {
	registry  *Registry
	spec      vmm.Spec
	hooks     Hooks
	proc      *proc.Process // set by Watch
	done      chan struct{} // closed when the monitor has exited
	detached  chan struct{} // closed by Release
	guestExit chan string   // receives the data of GuestExited

	mu       sync.Mutex
	phase    Phase
	err      error  // why the monitor exited; valid once done is closed
	reason   string // why this package killed it, except for Kill
	released bool
}

// New returns a Process for a monitor that is about to be started or adopted.
func (s *Registry) New(spec vmm.Spec, hooks Hooks) *Process {
	return &Process{
		registry: s, spec: spec, hooks: hooks, phase: Prepared,
		done: make(chan struct{}), detached: make(chan struct{}), guestExit: make(chan string, 1),
	}
}

// Watch registers the process and watches it until it exits, even after ctx has ended. It takes
// ownership of p. Methods that inspect the monitor may be called after Watch.
func (l *Process) Watch(ctx context.Context, p *proc.Process) {
	l.proc = p
	l.registry.add(l)
	go l.wait(context.WithoutCancel(ctx))
}

// GuestExited reports that the guest has exited while the monitor still runs. Only the first call
// counts.
func (l *Process) GuestExited(data string) {
	select {
	case l.guestExit <- data:
	default:
	}
}

// wait waits for the monitor to exit, and kills it once the guest has exited.
func (l *Process) wait(ctx context.Context) {
	select {
	case <-l.proc.Done():
	case <-l.detached:
		return
	case data := <-l.guestExit:
		l.Fail(l.hooks.OnGuestExit(ctx, data))
		select {
		case <-l.proc.Done():
		case <-l.detached:
			return
		}
	}
	l.mu.Lock()
	l.err = l.exitError()
	l.mu.Unlock()
	l.hooks.Disconnect()
	// Clean up before the machine is forgotten: until then no other monitor is started in its
	// directory.
	_ = l.registry.clear(l.spec.Dir) // the caller owns the directory and may have removed it
	_ = l.proc.Release()             // the exit is known already; a failed close leaves nothing to do
	l.registry.forget(l)
	close(l.done)
}

// exitError returns the reason why the monitor exited, or nil after Kill. The caller holds l.mu.
func (l *Process) exitError() error {
	if l.reason != "" {
		return errors.New(l.reason)
	}
	exit := l.proc.Exit()
	if exit.Killed {
		return nil
	}
	text := l.hooks.DescribeExit(exit)
	if tail := l.proc.Tail(4); tail != "" {
		text += ": " + tail
	}
	return errors.New(text)
}

// Fail kills the monitor. Err then returns reason, unless there was an earlier one.
func (l *Process) Fail(reason string) {
	l.mu.Lock()
	if l.reason == "" {
		l.reason = reason
	}
	l.mu.Unlock()
	_ = l.proc.Signal(syscall.SIGKILL) // this fails only if the monitor has exited, and wait handles that
}

// Release stops watching the monitor and leaves it running. It may be called twice.
func (l *Process) Release() {
	l.mu.Lock()
	was := l.released
	l.released = true
	l.mu.Unlock()
	if was {
		return
	}
	close(l.detached)
	l.registry.forget(l)
	l.hooks.Disconnect()
	_ = l.proc.Release() // closes only descriptors of this process; a failed close loses nothing
}

// Discard kills the monitor after a failed start. It does nothing if the monitor has exited,
// because the error of the start reports that.
func (l *Process) Discard(ctx context.Context) error {
	select {
	case <-l.done:
		return nil
	default:
		return l.Kill(context.WithoutCancel(ctx))
	}
}

// Kill implements vmm.Machine.
func (l *Process) Kill(ctx context.Context) error {
	ctx, cancel := l.registry.WithTimeout(ctx, "exit of the monitor")
	defer cancel()
	if err := l.proc.Kill(ctx); err != nil {
		return fmt.Errorf("kill machine %s: %w", l.spec.ID, err)
	}
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("kill machine %s: %w", l.spec.ID, context.Cause(ctx))
	}
}

// PID implements vmm.Machine.
func (l *Process) PID() int { return l.proc.PID() }

// Done implements vmm.Machine.
func (l *Process) Done() <-chan struct{} { return l.done }

// Exited is closed when the process has exited. This is shortly before Done, and Err is not valid
// yet.
func (l *Process) Exited() <-chan struct{} { return l.proc.Done() }

// Err implements vmm.Machine.
func (l *Process) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Usage implements vmm.Machine.
func (l *Process) Usage() (vmm.Usage, error) {
	u, err := l.proc.Usage()
	if errors.Is(err, proc.ErrGone) {
		return vmm.Usage{}, vmm.ErrGone
	}
	return vmm.Usage(u), err
}

// Phase returns the current phase.
func (l *Process) Phase() Phase {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.phase
}

// SetPhase sets the phase and returns the previous one.
func (l *Process) SetPhase(to Phase) (from Phase) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from, l.phase = l.phase, to
	return from
}

// WithExitReason explains an error by the exit of the monitor. If the monitor has exited, it
// returns vmm.ErrGone together with the reason; otherwise it returns err.
func (l *Process) WithExitReason(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	broken := errors.Is(err, l.hooks.ErrClosed)
	if broken {
		// The connection breaks shortly before the exit of the process is known.
		select {
		case <-l.done:
		case <-ctx.Done():
			return err
		}
	}
	select {
	case <-l.done:
	default:
		return err
	}
	switch why := l.Err(); {
	case why == nil:
		return vmm.ErrGone
	case broken || errors.Is(err, vmm.ErrGone): // these errors add no information
		return fmt.Errorf("%w: %w", vmm.ErrGone, why)
	default:
		return fmt.Errorf("%w: %w: %w", vmm.ErrGone, why, err)
	}
}
