package qemu

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/lib/proc"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/qemu/checkpointstore"
	"github.com/pandastack/pandastack/internal/vmm/qemu/qmp"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// machine is one monitor with its guest.
type machine struct {
	*vmmproc.Process
	driver      *Driver
	spec        vmm.Spec
	manifest    vmm.Manifest // of what runs; DiskBytes are the sizes that the guest knows
	record      record
	qmp         *qmp.Client
	channelGate sync.RWMutex  // held for writing while the guest channel must be still
	resumed     chan struct{} // closed at the first RESUME

	// Used by the one caller at a time that vmm.Machine allows.
	incoming            *net.UnixConn   // way in of the device state; nil once used
	state               []byte          // the image's own
	markedForCheckpoint bool            // the next capture begins with what the monitor has learnt
	altMemory           vmmproc.FileKey // another memory that a capture may have been taken over; zero: none

	mu           sync.Mutex
	restoredFrom *checkpointstore.MonitorCheckpoint // what the monitor was made of, where this program made it
	content      *os.File                           // of made
	fullMemory   *os.File                           // the image's own memory where a view of it is mapped; nil: it is mapped itself
	overlay      *overlay                           // what the image adds to the mapped memory; nil: nothing, or used
	prepared     *preparation                       // for the next capture; nil once over
	ended        bool                               // ended or released
	nextChannel  *channel                           // connected at the start, for the first Dial
	dialled      *channel
	resumeOK     bool  // resumed is closed
	stub         *stub // a process that is to become the monitor; nil: it is one, or never was another
}

var _ vmm.Machine = (*machine)(nil)

func newMachine(d *Driver, spec vmm.Spec, manifest vmm.Manifest) *machine {
	m := &machine{driver: d, spec: spec, manifest: manifest, resumed: make(chan struct{})}
	m.Process = d.monitors.New(spec, vmmproc.Hooks{
		Disconnect: m.disconnect, ErrClosed: qmp.ErrClosed, OnGuestExit: m.guestExited,
		DescribeExit: func(e proc.Exit) string { return "QEMU " + e.String() },
	})
	return m
}

// event runs on the monitor connection's reader.
func (m *machine) event(e qmp.Event) {
	switch e.Name {
	case "RESUME":
		m.mu.Lock()
		defer m.mu.Unlock()
		if !m.resumeOK {
			m.resumeOK = true
			close(m.resumed)
		}
	case "SHUTDOWN":
		m.GuestExited(string(e.Data))
	}
}

// guestExitLimit bounds the last words with a monitor whose guest has ended.
const guestExitLimit = 10 * time.Second

// guestExited keeps the console of a guest that ended and says why it did.
func (m *machine) guestExited(ctx context.Context, data string) string {
	ctx, cancel := context.WithTimeoutCause(ctx, guestExitLimit, errors.New("monitor does not end"))
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
		_ = os.WriteFile(filepath.Join(m.spec.Dir, consoleFile), console, 0o600) // a help for people
	}
	return reason
}

// disconnect ends all connections to the monitor.
func (m *machine) disconnect() {
	m.mu.Lock()
	spare, dialled, next := m.nextChannel, m.dialled, m.prepared
	m.nextChannel, m.dialled, m.prepared, m.ended = nil, nil, nil, true
	read := []*os.File{m.fullMemory, m.content}
	m.fullMemory, m.content = nil, nil
	incoming := m.incoming
	m.mu.Unlock()
	_ = m.takeOverlay().close() // it was only read
	for _, f := range read {
		if f != nil {
			_ = f.Close() // only read, too
		}
	}
	if next != nil {
		_ = m.dropPreparation(next) // memory that is not freed twice: nothing to do about an error
	}
	for _, c := range []*channel{spare, dialled} {
		if c != nil {
			_ = c.Close()
		}
	}
	if incoming != nil {
		_ = incoming.Close()
	}
	if m.qmp != nil {
		_ = m.qmp.Close()
	}
}

// takeOverlay answers the overlay once; nil is fine to close.
func (m *machine) takeOverlay() *overlay {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.overlay
	m.overlay = nil
	return o
}

// do is one command to the monitor.
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

// connect makes a connection to the guest channel.
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

// Console answers the last of what the guest printed since Console was asked the last time.
func (m *machine) Console(ctx context.Context) ([]byte, error) {
	var text string
	err := m.do(ctx, "ringbuf-read", map[string]any{"device": "console", "size": consoleBytes}, &text)
	return []byte(text), err
}
