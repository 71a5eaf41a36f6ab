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
func (r *Registry) New(spec vmm.Spec, hooks Hooks) *Process {
	return &Process{
		registry: r, spec: spec, hooks: hooks, phase: Prepared,
		done: make(chan struct{}), detached: make(chan struct{}), guestExit: make(chan string, 1),
	}
}

// Watch registers the process and watches it until it exits, even after ctx has ended. It takes
// ownership of monitor. Methods that inspect the monitor may be called after Watch.
func (p *Process) Watch(ctx context.Context, monitor *proc.Process) {
	p.proc = monitor
	p.registry.add(p)
	go p.wait(context.WithoutCancel(ctx))
}

// GuestExited reports that the guest has exited while the monitor still runs. Only the first call
// counts.
func (p *Process) GuestExited(data string) {
	select {
	case p.guestExit <- data:
	default:
	}
}

// wait waits for the monitor to exit, and kills it once the guest has exited.
func (p *Process) wait(ctx context.Context) {
	select {
	case <-p.proc.Done():
	case <-p.detached:
		return
	case data := <-p.guestExit:
		p.Fail(p.hooks.OnGuestExit(ctx, data))
		select {
		case <-p.proc.Done():
		case <-p.detached:
			return
		}
	}
	p.mu.Lock()
	p.err = p.exitError()
	p.mu.Unlock()
	p.hooks.Disconnect()
	// Clean up before the machine is forgotten: until then no other monitor is started in its
	// directory.
	_ = p.registry.clear(p.spec.Dir) // the caller owns the directory and may have removed it
	_ = p.proc.Release()             // the exit is known already; a failed close leaves nothing to do
	p.registry.forget(p)
	close(p.done)
}

// exitError returns the reason why the monitor exited, or nil after Kill. The caller holds p.mu.
func (p *Process) exitError() error {
	if p.reason != "" {
		return errors.New(p.reason)
	}
	exit := p.proc.Exit()
	if exit.Killed {
		return nil
	}
	text := p.hooks.DescribeExit(exit)
	if tail := p.proc.Tail(4); tail != "" {
		text += ": " + tail
	}
	return errors.New(text)
}

// Fail kills the monitor. Err then returns reason, unless there was an earlier one.
func (p *Process) Fail(reason string) {
	p.mu.Lock()
	if p.reason == "" {
		p.reason = reason
	}
	p.mu.Unlock()
	_ = p.proc.Signal(syscall.SIGKILL) // this fails only if the monitor has exited, and wait handles that
}

// Release stops watching the monitor and leaves it running. It may be called twice.
func (p *Process) Release() {
	p.mu.Lock()
	was := p.released
	p.released = true
	p.mu.Unlock()
	if was {
		return
	}
	close(p.detached)
	p.registry.forget(p)
	p.hooks.Disconnect()
	_ = p.proc.Release() // closes only descriptors of this process; a failed close loses nothing
}

// Discard kills the monitor after a failed start. It does nothing if the monitor has exited,
// because the error of the start reports that.
func (p *Process) Discard(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	default:
		return p.Kill(context.WithoutCancel(ctx))
	}
}

// Kill implements vmm.Machine.
func (p *Process) Kill(ctx context.Context) error {
	ctx, cancel := p.registry.WithTimeout(ctx, "exit of the monitor")
	defer cancel()
	if err := p.proc.Kill(ctx); err != nil {
		return fmt.Errorf("kill machine %s: %w", p.spec.ID, err)
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("kill machine %s: %w", p.spec.ID, context.Cause(ctx))
	}
}

// PID implements vmm.Machine.
func (p *Process) PID() int { return p.proc.PID() }

// Done implements vmm.Machine.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exited is closed when the process has exited. This is shortly before Done, and Err is not valid
// yet.
func (p *Process) Exited() <-chan struct{} { return p.proc.Done() }

// Err implements vmm.Machine.
func (p *Process) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Usage implements vmm.Machine.
func (p *Process) Usage() (vmm.Usage, error) {
	u, err := p.proc.Usage()
	if errors.Is(err, proc.ErrGone) {
		return vmm.Usage{}, vmm.ErrGone
	}
	return vmm.Usage(u), err
}

// Phase returns the current phase.
func (p *Process) Phase() Phase {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.phase
}

// SetPhase sets the phase and returns the previous one.
func (p *Process) SetPhase(to Phase) (from Phase) {
	p.mu.Lock()
	defer p.mu.Unlock()
	from, p.phase = p.phase, to
	return from
}

// WithExitReason explains an error by the exit of the monitor. If the monitor has exited, it
// returns vmm.ErrGone together with the reason; otherwise it returns err, with the end of the
// monitor's log if ctx has ended.
func (p *Process) WithExitReason(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	broken := errors.Is(err, p.hooks.ErrClosed)
	if broken {
		// The connection breaks shortly before the exit of the process is known.
		select {
		case <-p.done:
		case <-ctx.Done():
			return err
		}
	}
	select {
	case <-p.done:
	default:
		if tail := p.proc.Tail(4); ctx.Err() != nil && tail != "" {
			err = fmt.Errorf("%w; the monitor's log ends with: %s", err, tail)
		}
		return err
	}
	switch why := p.Err(); {
	case why == nil:
		return vmm.ErrGone
	case broken || errors.Is(err, vmm.ErrGone): // these errors add no information
		return fmt.Errorf("%w: %w", vmm.ErrGone, why)
	default:
		return fmt.Errorf("%w: %w: %w", vmm.ErrGone, why, err)
	}
}
