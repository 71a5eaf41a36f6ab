package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pandastack/pandastack/internal/proc"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/qemu/qmp"
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
	manifest vmm.Manifest // of what runs; DiskBytes are the sizes that the guest knows
	record   record
	proc     *proc.Process
	qmp      *qmp.Client
	gate     sync.RWMutex  // held for writing while the guest channel must be still
	done     chan struct{} // closed when the monitor has ended
	left     chan struct{} // closed by release
	resumed  chan struct{} // closed at the first RESUME
	shutdown chan string   // the guest ended itself; the reason

	// Used by the one caller at a time that vmm.Machine allows.
	incoming *net.UnixConn // way in of the device state; nil once used
	state    []byte        // the image's own
	also     fileKey       // another memory that a capture may have been taken over; zero: none

	mu       sync.Mutex
	whole    *os.File     // the image's own memory where a view of it is mapped; nil: it is mapped itself
	overlay  *overlay     // what the image adds to the mapped memory; nil: nothing, or used
	next     *preparation // for the next capture; nil once over
	over     bool         // ended or released
	phase    phase
	spare    *channel // connected at the start, for the first Dial
	dialled  *channel
	err      error  // why it ended; valid once done is closed
	reason   string // the guest's own end, told by QEMU
	resumeOK bool   // resumed is closed
	released bool
}

var _ vmm.Machine = (*machine)(nil)

func newMachine(d *Driver, spec vmm.Spec, manifest vmm.Manifest) *machine {
	return &machine{
		driver: d, spec: spec, manifest: manifest, phase: prepared,
		done: make(chan struct{}), left: make(chan struct{}), resumed: make(chan struct{}), shutdown: make(chan string, 1),
	}
}

// begin makes the machine known and watches its monitor.
func (m *machine) begin(ctx context.Context, p *proc.Process) {
	m.proc = p
	m.driver.add(m)
	go m.watch(context.WithoutCancel(ctx))
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
		select {
		case m.shutdown <- string(e.Data):
		default: // the first reason is the one that counts
		}
	}
}

// watch waits for the end of the monitor, and ends it when the guest has ended.
func (m *machine) watch(ctx context.Context) {
	select {
	case <-m.proc.Done():
	case <-m.left:
		return
	case data := <-m.shutdown:
		m.buryGuest(ctx, data)
		select {
		case <-m.proc.Done():
		case <-m.left:
			return
		}
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

// buryLimit bounds the last words with a monitor whose guest has ended.
const buryLimit = 10 * time.Second

// buryGuest keeps the console of a guest that ended and ends its monitor.
func (m *machine) buryGuest(ctx context.Context, data string) {
	ctx, cancel := context.WithTimeoutCause(ctx, buryLimit, errors.New("monitor does not end"))
	defer cancel()
	reason := "guest shut itself down"
	if strings.Contains(data, "guest-reset") || strings.Contains(data, "guest-panic") {
		reason = "guest rebooted or crashed"
	}
	console, err := m.Console(ctx)
	if err == nil && len(console) > 0 {
		reason += "; its console ends with: " + lastWords(console)
		_ = os.WriteFile(filepath.Join(m.spec.Dir, consoleFile), console, 0o600) // a help for people
	}
	m.mu.Lock()
	m.reason = reason
	m.mu.Unlock()
	_ = m.proc.Signal(syscall.SIGKILL) // if this fails the monitor has ended, which is waited for
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
	text := "QEMU " + exit.String()
	if tail := m.proc.Tail(4); tail != "" {
		text += ": " + tail
	}
	return errors.New(text)
}

// hangUp ends all connections to the monitor.
func (m *machine) hangUp() {
	m.mu.Lock()
	spare, dialled, next := m.spare, m.dialled, m.next
	m.spare, m.dialled, m.next, m.over = nil, nil, nil, true
	whole := m.whole
	m.whole = nil
	incoming := m.incoming
	m.mu.Unlock()
	_ = m.takeOverlay().close() // it was only read
	if whole != nil {
		_ = whole.Close() // read, too
	}
	if next != nil {
		_ = m.drop(next) // memory that is not freed twice: nothing to do about an error
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
		return m.Err()
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

func (m *machine) set(p phase) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.phase = p
}

// gone turns an error into the reason of the monitor's end when it ended meanwhile.
func (m *machine) gone(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, qmp.ErrClosed) {
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
			return fmt.Errorf("%w: %w", vmm.ErrGone, why)
		}
		return vmm.ErrGone
	default:
		return err
	}
}

// do is one command to the monitor.
func (m *machine) do(ctx context.Context, command string, args, out any, files ...*os.File) error {
	return m.gone(ctx, m.qmp.Do(ctx, command, args, out, files...))
}

// Dial implements vmm.Machine.
func (m *machine) Dial(ctx context.Context) (net.Conn, error) {
	select {
	case <-m.done:
		return nil, m.gone(ctx, vmm.ErrGone)
	default:
	}
	m.mu.Lock()
	old, fresh := m.dialled, m.spare
	m.dialled, m.spare = fresh, nil
	m.mu.Unlock()
	if fresh != nil {
		return fresh, nil
	}
	if old != nil {
		if err := old.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return nil, err
		}
	}
	conn, err := connect(ctx, m.spec.Dir, channelSocket)
	if err != nil {
		return nil, err
	}
	fresh, err = newChannel(conn, &m.gate)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return nil, errors.Join(vmm.ErrGone, conn.Close())
	}
	m.dialled = fresh
	return fresh, nil
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

// Console answers the last of what the guest printed since Console was asked the last time.
func (m *machine) Console(ctx context.Context) ([]byte, error) {
	var text string
	err := m.do(ctx, "ringbuf-read", map[string]any{"device": "console", "size": consoleBytes}, &text)
	return []byte(text), err
}

// lastWords is what a guest's console says of its end: the panic of its kernel if there was one, which
// the state of the processor may follow, and the last lines.
func lastWords(console []byte) string {
	text := lastLines(console, 5)
	at := bytes.LastIndex(console, []byte("Kernel panic"))
	if at < 0 || strings.Contains(text, "Kernel panic") {
		return text
	}
	line, _, _ := bytes.Cut(console[at:], []byte("\n"))
	return lastLines(line, 1) + "; " + text
}

// lastLines is the end of a guest's console for an error message: printable and short.
func lastLines(console []byte, n int) string {
	lines := strings.FieldsFunc(string(console), func(r rune) bool { return r == '\n' || r == '\r' })
	lines = lines[max(0, len(lines)-n):]
	for i, l := range lines {
		q := strconv.QuoteToGraphic(l[:min(len(l), 200)])
		lines[i] = q[1 : len(q)-1]
	}
	return strings.Join(lines, "; ")
}
