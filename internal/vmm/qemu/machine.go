package qemu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/lib/proc"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/checkpoint"
	"github.com/pandastack/pandastack/internal/vmm/qemu/checkpointstore"
	"github.com/pandastack/pandastack/internal/vmm/qemu/qmp"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// machine is one monitor with its guest.
type machine struct {
	*vmmproc.Process
	driver      *Driver
	spec        vmm.Spec
	manifest    vmm.Manifest // DiskBytes are the sizes that the guest knows
	record      record
	qmp         *qmp.Client
	channelGate sync.RWMutex  // locked for writing while the guest channel must be silent
	resumed     chan struct{} // closed at the first RESUME event
	noSpace     chan struct{} // holds a token after the monitor has stopped the guest for lack of space

	// vmm.Machine allows one caller at a time; only that caller uses these fields.
	incoming            *net.UnixConn   // for sending the device state; nil once used
	state               []byte          // of the image
	markedForCheckpoint bool            // the next capture includes a monitor checkpoint
	altMemory           vmmproc.FileKey // another possible base of a capture; zero: none
	// restoredFrom is the checkpoint that the monitor was restored from; nil: none, or not read yet (readBase).
	restoredFrom *checkpointstore.MonitorCheckpoint

	mu      sync.Mutex
	content *os.File // pages file that this process restored the monitor with
	// fullMemory is the image's memory file if a view of it is mapped instead; otherwise nil.
	fullMemory  *os.File
	overlay     *overlay     // the image's memory delta, until it is written; nil: none
	prepared    *preparation // for the next capture; nil after the end
	ended       bool         // exited or released
	nextChannel *channel     // connected in advance for the next Dial
	dialled     *channel
	resumeOK    bool  // resumed is closed
	waits       bool  // the monitor has stopped the guest for lack of space
	diskErrors  int   // errors of the host's disk that the guest got
	stub        *stub // the restore stub; nil after the restore and for machines without one
}

var _ vmm.Machine = (*machine)(nil)

func newMachine(d *Driver, spec vmm.Spec, manifest vmm.Manifest) *machine {
	m := &machine{
		driver: d, spec: spec, manifest: manifest,
		resumed: make(chan struct{}), noSpace: make(chan struct{}, 1),
	}
	m.Process = d.monitors.New(spec, vmmproc.Hooks{
		Disconnect: m.disconnect, ErrClosed: qmp.ErrClosed, OnGuestExit: m.guestExited,
		DescribeExit: func(e proc.Exit) string { return "QEMU " + e.String() },
	})
	return m
}

// event handles a QMP event. It runs on the reader goroutine of the connection.
func (m *machine) event(e qmp.Event) {
	switch e.Name {
	case "RESUME":
		m.mu.Lock()
		defer m.mu.Unlock()
		m.waits = false
		if !m.resumeOK {
			m.resumeOK = true
			close(m.resumed)
		}
	case "BLOCK_IO_ERROR":
		m.diskFailed(e.Data)
	case "SHUTDOWN":
		m.GuestExited(string(e.Data))
	}
}

// guestExitLimit bounds the time for the last commands to a monitor whose guest has exited.
const guestExitLimit = 10 * time.Second

// guestExited saves the console of an exited guest and returns why it exited.
func (m *machine) guestExited(ctx context.Context, data string) string {
	ctx, cancel := context.WithTimeoutCause(ctx, guestExitLimit, errors.New("monitor does not exit"))
	defer cancel()
	reason := "guest shut itself down"
	if strings.Contains(data, "guest-reset") || strings.Contains(data, "guest-panic") {
		reason = "guest rebooted or crashed"
	}
	console, err := m.Console(ctx)
	if err == nil && len(console) > 0 {
		if tail := vmm.ConsoleTail(console); tail != "" {
			reason += "; its console ends with: " + tail
		}
		_ = os.WriteFile(filepath.Join(m.spec.Dir, consoleFile), console, 0o600) // only a help for people
	}
	return reason
}

// disconnect closes all connections to the monitor and frees what belongs to the machine.
func (m *machine) disconnect() {
	m.mu.Lock()
	nextChannel, dialled, next := m.nextChannel, m.dialled, m.prepared
	m.nextChannel, m.dialled, m.prepared, m.ended = nil, nil, nil, true
	read := []*os.File{m.fullMemory, m.content}
	m.fullMemory, m.content = nil, nil
	incoming, stub := m.incoming, m.stub
	m.mu.Unlock()
	_ = m.takeOverlay().close() // was only read
	for _, f := range read {
		if f != nil {
			_ = f.Close() // was only read
		}
	}
	if next != nil {
		_ = m.dropPreparation(next) // unmapping memory fails only if it was unmapped before
	}
	for _, c := range []*channel{nextChannel, dialled} {
		if c != nil {
			_ = c.Close() // the monitor has exited or is released
		}
	}
	if incoming != nil {
		_ = incoming.Close() // without it, a monitor that waits for state exits
	}
	if stub != nil {
		_ = stub.handover.Close() // what was sent over it is gone with the stub
	}
	if m.qmp != nil {
		_ = m.qmp.Close() // closes only this process's end
	}
}

// takeOverlay returns the overlay once. A nil overlay may be closed.
func (m *machine) takeOverlay() *overlay {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.overlay
	m.overlay = nil
	return o
}

// do runs one QMP command.
func (m *machine) do(ctx context.Context, command string, args, out any, files ...*os.File) error {
	return m.WithExitReason(ctx, m.qmp.Do(ctx, command, args, out, files...))
}

// Dial implements vmm.Machine.
func (m *machine) Dial(ctx context.Context) (net.Conn, error) {
	select {
	case <-m.Done():
		return nil, m.WithExitReason(ctx, vmm.ErrGone)
	default:
	}
	m.mu.Lock()
	old, fresh := m.dialled, m.nextChannel
	m.dialled, m.nextChannel = fresh, nil
	m.mu.Unlock()
	if fresh != nil {
		return fresh, nil
	}
	if old != nil {
		if err := old.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return nil, err
		}
	}
	fresh, err := m.connect(ctx)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return nil, errors.Join(vmm.ErrGone, fresh.Close())
	}
	m.dialled = fresh
	return fresh, nil
}

// connect makes a new connection to the guest channel.
func (m *machine) connect(ctx context.Context) (*channel, error) {
	conn, err := vmmproc.Connect(ctx, m.spec.Dir, channelSocket)
	if err != nil {
		return nil, err
	}
	c, err := newChannel(conn, &m.channelGate)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

// Console returns the end of what the guest has printed since the last call.
func (m *machine) Console(ctx context.Context) ([]byte, error) {
	var text string
	err := m.do(ctx, "ringbuf-read", map[string]any{"device": "console", "size": consoleBytes}, &text)
	return []byte(text), err
}

func (m *machine) status(ctx context.Context) (string, error) {
	var s struct {
		Status string `json:"status"`
	}
	err := m.do(ctx, "query-status", nil, &s)
	return s.Status, err
}

// Pause implements vmm.Machine. Unless PreCapture was called, it makes the preparations for Capture
// first, while the guest still runs.
func (m *machine) Pause(ctx context.Context) error {
	switch m.Phase() {
	case vmmproc.Paused:
		return nil
	case vmmproc.Prepared:
		return fmt.Errorf("pause machine %s: it has not been loaded", m.spec.ID)
	}
	if err := m.PreCapture(ctx); err != nil {
		return err
	}
	return m.halt(ctx)
}

func (m *machine) halt(ctx context.Context) error {
	ctx, cancel := m.driver.monitors.WithTimeout(ctx, "pause of the machine")
	defer cancel()
	if err := m.do(ctx, "stop", nil, nil); err != nil {
		return fmt.Errorf("pause machine %s: %w", m.spec.ID, err)
	}
	m.SetPhase(vmmproc.Paused)
	return nil
}

// Resume implements vmm.Machine.
func (m *machine) Resume(ctx context.Context) error {
	switch m.Phase() {
	case vmmproc.Running:
		if !m.WaitsForSpace() {
			return nil
		}
	case vmmproc.Prepared:
		return fmt.Errorf("resume machine %s: it has not been loaded", m.spec.ID)
	}
	ctx, cancel := m.driver.monitors.WithTimeout(ctx, "resumption of the machine")
	defer cancel()
	if err := m.do(ctx, "cont", nil, nil); err != nil {
		return fmt.Errorf("resume machine %s: %w", m.spec.ID, err)
	}
	m.SetPhase(vmmproc.Running)
	if err := m.dropPreparation(m.swapPrepared(nil)); err != nil {
		return fmt.Errorf("resume machine %s: %w", m.spec.ID, err)
	}
	return nil
}

// adopt returns the machine of a monitor that an earlier host agent started.
func (d *Driver) adopt(
	ctx context.Context,
	spec vmm.Spec,
	manifest vmm.Manifest,
	r record,
	p *proc.Process,
) (_ *machine, err error) {
	if waits, err := checkpoint.IsStub(p.PID()); err != nil || waits { // a stub would never respond
		return nil, errors.Join(fmt.Errorf("it was never loaded: %w", vmm.ErrGone), err, p.Kill(ctx), p.Release())
	}
	m := newMachine(d, spec, manifest)
	m.record = r
	conn, err := vmmproc.Connect(ctx, spec.Dir, monitorSocket)
	if err != nil {
		return nil, errors.Join(err, p.Release())
	}
	m.qmp = qmp.Open(conn, m.event)
	m.Watch(ctx, p)
	ctx, cancel := d.monitors.WithTimeout(ctx, "response of the monitor")
	defer cancel()
	status, err := m.status(ctx)
	if err != nil {
		m.Release()
		return nil, err
	}
	switch status {
	case "running":
		m.SetPhase(vmmproc.Running)
	case "paused":
		m.SetPhase(vmmproc.Paused)
	case "io-error": // it was stopped for lack of space, while this process or the one before was connected
		m.SetPhase(vmmproc.Running)
		m.stoppedForSpace()
	default:
		// It was never loaded, or its guest has exited: the machine is of no use.
		return nil, errors.Join(fmt.Errorf("guest is %q: %w", status, vmm.ErrGone), m.Kill(ctx))
	}
	if err := m.updateThrottles(ctx); err != nil {
		m.Release()
		return nil, err
	}
	return m, nil
}
