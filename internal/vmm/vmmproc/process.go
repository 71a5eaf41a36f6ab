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

// Phase is where a machine is in its life.
type Phase string

// The phases.
const (
	Prepared Phase = "prepared" // no guest is in it yet
	Running  Phase = "running"
	Paused   Phase = "paused"
)

// Hooks are what a driver adds to the life of its machines.
type Hooks struct {
	// Disconnect ends all connections to the monitor, and what lives with it. It is called when the monitor has
	// ended, or is let go; perhaps twice.
	Disconnect func()
	// DescribeExit puts into words how a monitor ended by itself.
	DescribeExit func(proc.Exit) string
	// ErrClosed is the error of a connection to the monitor that broke.
	ErrClosed error
	// OnGuestExit is called in a goroutine of the life's own after Dying, while the monitor still runs; what it answers
	// is why the machine ended. It may be nil for a driver that does not call Dying.
	OnGuestExit func(ctx context.Context, data string) (reason string)
}

// Process is the process of one machine. It is prepared at first.
type Process struct {
	registry  *Registry
	spec      vmm.Spec
	hooks     Hooks
	proc      *proc.Process // set by Begin
	done      chan struct{} // closed when the monitor has ended
	detached  chan struct{} // closed by Release
	guestExit chan string   // the guest ended itself

	mu       sync.Mutex
	phase    Phase
	err      error  // why it ended; valid once done is closed
	reason   string // why we ended it, apart from Kill
	released bool
}

// New is the life of a machine whose monitor is to be started or adopted.
func (s *Registry) New(spec vmm.Spec, hooks Hooks) *Process {
	return &Process{
		registry: s, spec: spec, hooks: hooks, phase: Prepared,
		done: make(chan struct{}), detached: make(chan struct{}), guestExit: make(chan string, 1),
	}
}

// Watch makes the machine known and watches its monitor, beyond the end of ctx. It takes p over. Methods
// that look at the monitor are right from here on.
func (l *Process) Watch(ctx context.Context, p *proc.Process) {
	l.proc = p
	l.registry.add(l)
	go l.wait(context.WithoutCancel(ctx))
}

// GuestExited says that the guest has ended and the monitor has not. The first data counts.
func (l *Process) GuestExited(data string) {
	select {
	case l.guestExit <- data:
	default:
	}
}

// wait waits for the end of the monitor, and ends it when the guest has ended.
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
	// Before the machine is forgotten: until then nobody starts another in its directory.
	_ = l.registry.clear(l.spec.Dir) // the directory is the caller's and may be gone already
	_ = l.proc.Release()             // its own end is known; a close that fails leaves nothing to do
	l.registry.forget(l)
	close(l.done)
}

// exitError says why the monitor ended; nil after Kill. l.mu is held.
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

// Fail ends the monitor for a reason that Err will tell, unless there was one before.
func (l *Process) Fail(reason string) {
	l.mu.Lock()
	if l.reason == "" {
		l.reason = reason
	}
	l.mu.Unlock()
	_ = l.proc.Signal(syscall.SIGKILL) // if this fails the monitor has ended, which is waited for
}

// Release lets the monitor go on without us. Twice is fine.
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
	_ = l.proc.Release() // our descriptors of it: nothing is lost when closing one fails
}

// Discard kills after a failed start. One that ended by itself is none, since the error of the start says so.
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
	ctx, cancel := l.registry.WithTimeout(ctx, "end of the monitor")
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

// Exited is closed when the process has ended, a moment before Done: Err says nothing yet.
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

// Phase tells the phase.
func (l *Process) Phase() Phase {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.phase
}

// SetPhase notes a phase and answers the one before.
func (l *Process) SetPhase(to Phase) (from Phase) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from, l.phase = l.phase, to
	return from
}

// WithExitReason turns err into vmm.ErrGone with the reason of the monitor's end when that has ended meanwhile; else it
// answers err.
func (l *Process) WithExitReason(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	broken := errors.Is(err, l.hooks.ErrClosed)
	if broken {
		// The connection breaks a moment before the end of the process is known.
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
	case broken || errors.Is(err, vmm.ErrGone): // which say nothing more
		return fmt.Errorf("%w: %w", vmm.ErrGone, why)
	default:
		return fmt.Errorf("%w: %w: %w", vmm.ErrGone, why, err)
	}
}
