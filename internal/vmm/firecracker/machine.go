package firecracker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/pandastack/pandastack/internal/proc"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
)

// phase is where a machine is in its life.
type phase string

const (
	prepared phase = "prepared"
	running  phase = "running"
	paused   phase = "paused"
)

// machine is one monitor with its guest.
type machine struct {
	driver   *Driver
	spec     vmm.Spec
	manifest vmm.Manifest // of what runs
	record   record
	proc     *proc.Process
	api      *fcapi.Client
	done     chan struct{}      // closed when the monitor has ended
	left     chan struct{}      // closed by release
	life     context.Context    // ends when the monitor has ended, or was let go
	endLife  context.CancelFunc // of life
	helpers  sync.WaitGroup     // goroutines that live with it

	// Used by the one caller at a time that vmm.Machine allows.
	known  vmm.Manifest // of the image it was prepared on
	state  []byte       // of that image; nil once used
	memory vmm.Memory   // of that image; nil: its file
	binds  []vmm.Bind   // disks that a jail must mount
	clone  bool         // a copy of base is ready for the next capture

	mu       sync.Mutex
	phase    phase
	base     *os.File // the memory that the next capture is a difference to; nil: it will be full
	dialled  *channel // by the last Dial
	err      error    // why it ended; valid once done is closed
	reason   string   // why we ended it, apart from Kill
	released bool
}

var (
	_ vmm.Machine     = (*machine)(nil)
	_ vmm.Anticipator = (*machine)(nil)
	_ vmm.Reclaimer   = (*machine)(nil)
)

func newMachine(ctx context.Context, d *Driver, spec vmm.Spec, manifest vmm.Manifest, s shape) *machine {
	m := &machine{
		driver: d, spec: spec, manifest: manifest, phase: prepared, record: record{Shape: s},
		done: make(chan struct{}), left: make(chan struct{}),
	}
	m.life, m.endLife = context.WithCancel(context.WithoutCancel(ctx))
	m.api = fcapi.New(d.version, m.reachAPI)
	return m
}

// reachAPI connects to the monitor, which may still be starting.
func (m *machine) reachAPI(ctx context.Context) (net.Conn, error) {
	for wait := newBackoff(apiPatience); ; {
		conn, err := connect(ctx, m.root(), apiSocket)
		if err == nil {
			return conn, nil
		}
		if !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, err
		}
		if err := wait.next(ctx, m.life); err != nil {
			return nil, err
		}
	}
}

// begin makes the machine known and watches its monitor.
func (m *machine) begin(p *proc.Process) {
	m.proc = p
	m.driver.add(m)
	go m.watch()
}

// watch waits for the end of the monitor.
func (m *machine) watch() {
	select {
	case <-m.proc.Done():
	case <-m.left:
		return
	}
	m.mu.Lock()
	m.err = m.verdict()
	m.mu.Unlock()
	m.hangUp()
	// Before the machine is forgotten: until then nobody starts another in its directory.
	_ = removeFiles(m.spec.Dir) // the directory is the caller's and may be gone already
	_ = m.proc.Release()        // its own end is known; a close that fails leaves nothing to do
	m.driver.forget(m)
	close(m.done)
}

// verdict says why the monitor ended; nil after Kill. m.mu is held.
func (m *machine) verdict() error {
	if m.reason != "" {
		return errors.New(m.reason)
	}
	exit := m.proc.Exit()
	if exit.Killed {
		return nil
	}
	text := ending(exit)
	if tail := m.proc.Tail(4); tail != "" {
		text += ": " + tail
	}
	return errors.New(text)
}

// fail ends the monitor for a reason of ours.
func (m *machine) fail(reason string) {
	m.mu.Lock()
	if m.reason == "" {
		m.reason = reason
	}
	m.mu.Unlock()
	_ = m.proc.Signal(syscall.SIGKILL) // if this fails the monitor has ended, which is waited for
}

// hangUp ends all connections to the monitor and what lives with it.
func (m *machine) hangUp() {
	m.endLife()
	m.mu.Lock()
	dialled, base := m.dialled, m.base
	m.dialled, m.base = nil, nil
	m.mu.Unlock()
	if dialled != nil {
		_ = dialled.Close()
	}
	if base != nil {
		_ = base.Close() // it was only read
	}
	m.api.Close()
	m.helpers.Wait()
}

// release lets the monitor go on without us.
func (m *machine) release() {
	m.mu.Lock()
	was := m.released
	m.released = true
	m.mu.Unlock()
	if was {
		return
	}
	close(m.left)
	m.driver.forget(m)
	m.hangUp()
	_ = m.proc.Release() // our descriptors of it: nothing is lost when closing one fails
}

// discard kills after a failed start and tells why the monitor ended by itself, if it did.
func (m *machine) discard(ctx context.Context) error {
	select {
	case <-m.done:
		return nil // the error says it
	default:
		return m.Kill(context.WithoutCancel(ctx))
	}
}

// PID implements vmm.Machine.
func (m *machine) PID() int { return m.record.Process.PID }

// Done implements vmm.Machine.
func (m *machine) Done() <-chan struct{} { return m.done }

// Err implements vmm.Machine.
func (m *machine) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

func (m *machine) at() phase {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.phase
}

// set notes a phase; a guest that can run can be reached.
func (m *machine) set(p phase) {
	m.mu.Lock()
	was, waiting := m.phase, m.dialled
	m.phase = p
	m.mu.Unlock()
	if was == prepared && waiting != nil {
		m.reach(waiting)
	}
}

// gone turns an error into the reason of the monitor's end when it ended meanwhile.
func (m *machine) gone(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, fcapi.ErrClosed) {
		// The connection breaks a moment before the end of the process is known.
		select {
		case <-m.done:
		case <-ctx.Done():
			return err
		}
	}
	select {
	case <-m.done:
		if why := m.Err(); why != nil {
			return fmt.Errorf("%w: %w: %w", vmm.ErrGone, why, err)
		}
		return vmm.ErrGone
	default:
		return err
	}
}

// Usage implements vmm.Machine.
func (m *machine) Usage() (vmm.Usage, error) {
	u, err := m.proc.Usage()
	if errors.Is(err, proc.ErrGone) {
		return vmm.Usage{}, vmm.ErrGone
	}
	return vmm.Usage(u), err
}

// Kill implements vmm.Machine.
func (m *machine) Kill(ctx context.Context) error {
	ctx, cancel := m.driver.limited(ctx, "end of the monitor")
	defer cancel()
	if err := m.proc.Kill(ctx); err != nil {
		return fmt.Errorf("kill machine %s: %w", m.spec.ID, err)
	}
	select {
	case <-m.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("kill machine %s: %w", m.spec.ID, context.Cause(ctx))
	}
}

// takeOver makes a machine of a monitor that an earlier process of ours started.
func (m *machine) takeOver(ctx context.Context, p *proc.Process) error {
	m.manifest.MaxMemoryMiB, m.manifest.MaxDisks = m.record.MaxMemoryMiB, m.record.MaxDisks
	m.begin(p)
	if m.record.Paged {
		return errors.Join(fmt.Errorf("its memory came from a pager that has ended: %w", vmm.ErrGone), m.Kill(ctx))
	}
	if err := m.findBase(); err != nil {
		m.release()
		return err
	}
	limit, cancel := m.driver.limited(ctx, "answer of the monitor")
	defer cancel()
	i, err := m.api.Instance(limit)
	if err != nil {
		m.release()
		return m.gone(limit, err)
	}
	switch i.State {
	case fcapi.StateRunning:
		m.set(running)
	case fcapi.StatePaused:
		m.set(paused)
	default: // never loaded: nobody can use it any more
		return errors.Join(fmt.Errorf("guest is %q: %w", i.State, vmm.ErrGone), m.Kill(ctx))
	}
	return nil
}
