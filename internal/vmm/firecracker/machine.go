package firecracker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/pandastack/pandastack/internal/lib/proc"
	"github.com/pandastack/pandastack/internal/os/jail"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// machine is one monitor with its guest.
type machine struct {
	*vmmproc.Process
	driver      *Driver
	spec        vmm.Spec
	manifest    vmm.Manifest // of the running machine
	record      record
	api         *fcapi.Client
	lifetime    context.Context    // canceled when the monitor has exited or is released
	endLifetime context.CancelFunc // cancels lifetime
	helpers     sync.WaitGroup     // goroutines that end with lifetime

	// vmm.Machine allows one caller at a time; only that caller uses these fields.
	imageManifest vmm.Manifest // of the image it was prepared on
	state         []byte       // device state of that image; nil once used
	memory        vmm.Memory   // of that image; nil: its memory file
	binds         []jail.Bind  // disks that must be bind-mounted in the jail
	baseCloned    bool         // a clone of base exists for the next capture
	last          *lastCapture // the last capture, if the guest has not run since; otherwise nil

	mu      sync.Mutex
	base    *os.File // base of the next capture; nil: it will be full
	dialled *channel // by the last Dial
}

var (
	_ vmm.Machine        = (*machine)(nil)
	_ vmm.PreCapturer    = (*machine)(nil)
	_ vmm.Reclaimer      = (*machine)(nil)
	_ vmm.MetadataSetter = (*machine)(nil)
)

func newMachine(ctx context.Context, d *Driver, spec vmm.Spec, manifest vmm.Manifest, s shape) *machine {
	m := &machine{driver: d, spec: spec, manifest: manifest, record: record{Shape: s, DiskRates: diskRates(spec)}}
	m.Process = d.monitors.New(
		spec,
		vmmproc.Hooks{Disconnect: m.disconnect, DescribeExit: describeExit, ErrClosed: fcapi.ErrClosed},
	)
	m.lifetime, m.endLifetime = context.WithCancel(context.WithoutCancel(ctx))
	m.api = fcapi.New(d.version, m.dialAPI)
	return m
}

// dialAPI connects to the API of the monitor, which may still be starting.
func (m *machine) dialAPI(ctx context.Context) (net.Conn, error) {
	for wait := newBackoff(apiRetryMax); ; {
		conn, err := vmmproc.Connect(ctx, m.root(), apiSocket)
		if err == nil {
			return conn, nil
		}
		if !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, err
		}
		if err := wait.next(ctx, m.lifetime); err != nil {
			return nil, err
		}
	}
}

// disconnect closes all connections to the monitor and ends the goroutines.
func (m *machine) disconnect() {
	m.endLifetime()
	m.mu.Lock()
	dialled, base := m.dialled, m.base
	m.dialled, m.base = nil, nil
	m.mu.Unlock()
	if dialled != nil {
		_ = dialled.Close() // closes only this process's end
	}
	if base != nil {
		_ = base.Close() // was only read
	}
	m.api.Close()
	m.helpers.Wait()
}

// setPhase sets the phase. Once the guest can run, it also connects the channel.
func (m *machine) setPhase(p vmmproc.Phase) {
	m.mu.Lock()
	was, waiting := m.SetPhase(p), m.dialled
	m.mu.Unlock()
	if was == vmmproc.Prepared && waiting != nil {
		m.connectChannel(waiting)
	}
}

// request makes requests to the monitor within the driver's limit and explains their error.
//
// A monitor whose memory is not served anymore blocks in its API as well and responds to nothing. The
// server of the memory reports its own end (servePages), but it may also hang. Therefore a machine
// with served memory ends if its monitor does not respond within the limit.
func (m *machine) request(ctx context.Context, what string, do func(context.Context) error) error {
	limited, cancel := m.driver.monitors.WithTimeout(ctx, what)
	defer cancel()
	err := do(limited)
	if err != nil && m.record.Paged && limited.Err() != nil && ctx.Err() == nil {
		m.Fail("its memory is no longer served: " + context.Cause(limited).Error())
		err = errors.Join(err, m.Discard(ctx))
	}
	return m.WithExitReason(limited, err)
}

// notYet makes the error of a device without an active driver a vmm.ErrNotActive.
func notYet(err error) error {
	if fault, ok := errors.AsType[*fcapi.FaultError](err); ok && fault.NotActive() {
		return fmt.Errorf("%w: %w", vmm.ErrNotActive, err)
	}
	return err
}

// Pause implements vmm.Machine.
func (m *machine) Pause(ctx context.Context) error {
	switch m.Phase() {
	case vmmproc.Paused:
		return nil
	case vmmproc.Prepared:
		return fmt.Errorf("pause machine %s: it has not been loaded", m.spec.ID)
	}
	if err := m.request(ctx, "pause of the machine", m.api.Pause); err != nil {
		return fmt.Errorf("pause machine %s: %w", m.spec.ID, err)
	}
	m.setPhase(vmmproc.Paused)
	return nil
}

// Resume implements vmm.Machine.
func (m *machine) Resume(ctx context.Context) error {
	switch m.Phase() {
	case vmmproc.Running:
		return nil
	case vmmproc.Prepared:
		return fmt.Errorf("resume machine %s: it has not been loaded", m.spec.ID)
	}
	m.last = nil
	if err := m.request(ctx, "resumption of the machine", m.api.Resume); err != nil {
		return fmt.Errorf("resume machine %s: %w", m.spec.ID, err)
	}
	m.setPhase(vmmproc.Running)
	return nil
}

// SetMetadata implements vmm.MetadataSetter. A guest without a network card cannot reach the
// metadata service.
func (m *machine) SetMetadata(ctx context.Context, document []byte) error {
	if m.spec.NIC == nil {
		return nil
	}
	err := m.request(ctx, "metadata of the machine", func(ctx context.Context) error {
		return m.api.SetMetadata(ctx, document)
	})
	if err != nil {
		return fmt.Errorf("set metadata of machine %s: %w", m.spec.ID, err)
	}
	return nil
}

// Reclaim implements vmm.Reclaimer.
func (m *machine) Reclaim(ctx context.Context, mib int) error {
	if m.Phase() == vmmproc.Prepared {
		return fmt.Errorf("reclaim memory of machine %s: it has not been loaded", m.spec.ID)
	}
	m.last = nil // the balloon's size is part of the device state
	err := m.request(ctx, "balloon of the machine", func(ctx context.Context) error {
		return notYet(m.api.ResizeBalloon(ctx, mib))
	})
	if err != nil {
		return fmt.Errorf("reclaim memory of machine %s: %w", m.spec.ID, err)
	}
	return nil
}

// adopt initializes the machine for a monitor that an earlier host agent started.
func (m *machine) adopt(ctx context.Context, p *proc.Process) error {
	m.manifest.MaxMemoryMiB, m.manifest.MaxDisks = m.record.MaxMemoryMiB, m.record.MaxDisks
	m.Watch(ctx, p)
	if m.record.Paged {
		return errors.Join(fmt.Errorf("its memory was served by a pager that has exited: %w", vmm.ErrGone), m.Kill(ctx))
	}
	if err := m.openBase(); err != nil {
		m.Release()
		return err
	}
	limit, cancel := m.driver.monitors.WithTimeout(ctx, "response of the monitor")
	defer cancel()
	i, err := m.api.Instance(limit)
	if err != nil {
		m.Release()
		return m.WithExitReason(limit, err)
	}
	switch i.State {
	case fcapi.StateRunning:
		m.setPhase(vmmproc.Running)
	case fcapi.StatePaused:
		m.setPhase(vmmproc.Paused)
	default: // it was never loaded and is of no use
		return errors.Join(fmt.Errorf("guest is %q: %w", i.State, vmm.ErrGone), m.Kill(ctx))
	}
	if err := m.updateRateLimits(limit); err != nil {
		m.Release()
		return m.WithExitReason(limit, err)
	}
	return nil
}
