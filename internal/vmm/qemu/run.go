package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/proc"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/qemu/qmp"
)

// Load implements vmm.Machine.
func (m *machine) Load(ctx context.Context, from vmm.Capture) error {
	if m.at() != prepared || m.incoming == nil {
		return fmt.Errorf("load machine %s: it was loaded before", m.spec.ID)
	}
	ctx, cancel := m.driver.limited(ctx, "load of the machine")
	defer cancel()
	state, known := m.state, m.manifest.DiskBytes
	if from != nil {
		c, ok := from.(*capture)
		if !ok {
			return fmt.Errorf("load machine %s: the capture is another driver's", m.spec.ID)
		}
		if err := m.fill(ctx, c); err != nil {
			return fmt.Errorf("load machine %s: %w", m.spec.ID, err)
		}
		state, known = c.state, c.manifest.DiskBytes
	}
	if err := m.inject(ctx, state); err != nil {
		return fmt.Errorf("load machine %s: %w", m.spec.ID, err)
	}
	m.set(running)
	m.state = nil
	if err := m.tellSizes(ctx, known); err != nil {
		return fmt.Errorf("load machine %s: %w", m.spec.ID, err)
	}
	return nil
}

// fill writes a capture's pages into the monitor's memory.
func (m *machine) fill(ctx context.Context, c *capture) (err error) {
	if c.key != m.record.Memory {
		return errors.New("the capture was not taken on the image of this machine")
	}
	if err := c.hold(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.let()) }()
	// A greeting means that all of the machine is made, its memory too.
	if err := m.gone(ctx, m.qmp.Ready(ctx)); err != nil {
		return err
	}
	r, err := m.ram()
	if err != nil {
		return m.gone(ctx, err)
	}
	return m.gone(ctx, r.write(c.spans, c.pages.bytes()))
}

func (m *machine) ram() (ram, error) {
	return findRAM(m.PID(), m.record.Memory.Inode, int64(m.spec.MemoryMiB)<<20)
}

// inject sends device state and waits until the guest runs.
func (m *machine) inject(ctx context.Context, state []byte) error {
	m.mu.Lock()
	in := m.incoming
	m.incoming = nil
	m.mu.Unlock()
	if in == nil {
		return m.gone(ctx, vmm.ErrGone)
	}
	defer in.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := in.SetWriteDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := in.Write(state); err != nil {
		return m.gone(ctx, errors.Join(qmp.ErrClosed, err))
	}
	if err := in.CloseWrite(); err != nil {
		return m.gone(ctx, errors.Join(qmp.ErrClosed, err))
	}
	// The guest may run before the protocol is negotiated and events are told, hence the question.
	status, err := m.status(ctx)
	switch {
	case err != nil:
		return err
	case status == "running":
		return nil
	case status != "inmigrate":
		return fmt.Errorf("guest is %q after its state was loaded", status)
	}
	select {
	case <-m.resumed:
		return nil
	case <-m.done:
		return m.gone(ctx, vmm.ErrGone)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (m *machine) status(ctx context.Context) (string, error) {
	var s struct {
		Status string `json:"status"`
	}
	err := m.do(ctx, "query-status", nil, &s)
	return s.Status, err
}

// tellSizes tells the guest of disks that are larger than it knows.
func (m *machine) tellSizes(ctx context.Context, known []int64) error {
	m.manifest.DiskBytes = m.record.DiskBytes
	for i, bytes := range m.record.DiskBytes {
		if i < len(known) && known[i] == bytes {
			continue
		}
		args := map[string]any{"device": "d" + strconv.Itoa(i), "size": bytes}
		if err := m.do(ctx, "block_resize", args, nil); err != nil {
			return err
		}
	}
	return nil
}

// preparation is what Capture needs and need not be made while the guest waits.
type preparation struct {
	state stateFile
	set   int // number of the set in which the monitor holds its end of state
	pages *buffer
}

func (p *preparation) free() error {
	if p == nil {
		return nil
	}
	return errors.Join(p.state.file.Close(), p.pages.free())
}

// slack is room for pages that a guest dirties between the estimate and its stop.
const slack = 2 << 20

// Pause implements vmm.Machine. Before it stops the guest it makes ready what a Capture would need.
func (m *machine) Pause(ctx context.Context) error {
	switch m.at() {
	case paused:
		return nil
	case prepared:
		return fmt.Errorf("pause machine %s: it was not loaded", m.spec.ID)
	}
	ctx, cancel := m.driver.limited(ctx, "pause of the machine")
	defer cancel()
	if err := m.prepareCapture(ctx); err != nil {
		return fmt.Errorf("pause machine %s: %w", m.spec.ID, m.gone(ctx, err))
	}
	if err := m.do(ctx, "stop", nil, nil); err != nil {
		return errors.Join(fmt.Errorf("pause machine %s: %w", m.spec.ID, err), m.dropPreparation())
	}
	m.set(paused)
	return nil
}

func (m *machine) prepareCapture(ctx context.Context) (err error) {
	if err := m.dropPreparation(); err != nil {
		return err
	}
	// What the guest has written goes to the disk now, not while it waits.
	for _, d := range m.spec.Disks {
		if err := syncFile(d); err != nil {
			return err
		}
	}
	p := &preparation{}
	if p.state, err = newStateFile(); err != nil {
		return err
	}
	m.next = p
	defer func() {
		if err != nil {
			err = errors.Join(err, m.dropPreparation())
		}
	}()
	writer, err := p.state.writer()
	if err != nil {
		return err
	}
	var added struct {
		Set int `json:"fdset-id"`
	}
	call := m.qmp.Send("add-fd", nil, writer)
	if err := writer.Close(); err != nil {
		return err
	}
	if !m.record.Cold {
		r, err := m.ram()
		if err != nil {
			return err
		}
		spans, err := r.dirty()
		if err != nil {
			return err
		}
		bytes := total(spans)
		if p.pages, err = newBuffer(bytes + bytes/8 + slack); err != nil {
			return err
		}
	}
	if err := call.Wait(ctx, &added); err != nil {
		return err
	}
	p.set = added.Set
	return nil
}

func syncFile(d vmm.Disk) error {
	if d.ReadOnly {
		return nil
	}
	f, err := os.OpenFile(d.Path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Fdatasync(int(f.Fd())), f.Close())
}

// dropPreparation frees what Pause got ready, here and in the monitor.
func (m *machine) dropPreparation() error {
	p := m.next
	m.next = nil
	if p == nil {
		return nil
	}
	m.qmp.Send("remove-fd", map[string]int{"fdset-id": p.set}) // answered in order, with nothing to learn
	return p.free()
}

// Resume implements vmm.Machine.
func (m *machine) Resume(ctx context.Context) error {
	switch m.at() {
	case running:
		return nil
	case prepared:
		return fmt.Errorf("resume machine %s: it was not loaded", m.spec.ID)
	}
	ctx, cancel := m.driver.limited(ctx, "resumption of the machine")
	defer cancel()
	if err := m.do(ctx, "cont", nil, nil); err != nil {
		return fmt.Errorf("resume machine %s: %w", m.spec.ID, err)
	}
	m.set(running)
	return m.dropPreparation()
}

// Capture implements vmm.Machine.
func (m *machine) Capture(ctx context.Context) (vmm.Capture, error) {
	if m.at() != paused {
		return nil, fmt.Errorf("capture machine %s: it is not paused", m.spec.ID)
	}
	ctx, cancel := m.driver.limited(ctx, "capture of the machine")
	defer cancel()
	c, err := m.capture(ctx)
	if err != nil {
		return nil, fmt.Errorf("capture machine %s: %w", m.spec.ID, m.gone(ctx, err))
	}
	return c, nil
}

func (m *machine) capture(ctx context.Context) (_ *capture, err error) {
	if m.next == nil { // a second capture, or an adopted machine that was paused
		if err := m.prepareCapture(ctx); err != nil {
			return nil, err
		}
	}
	p := m.next
	defer func() { err = errors.Join(err, m.dropPreparation()) }()
	m.gate.Lock()
	defer m.gate.Unlock()
	args := map[string]any{"filename": "/dev/fdset/" + strconv.Itoa(p.set), "live": false}
	if err := m.qmp.Do(ctx, "xen-save-devices-state", args, nil); err != nil {
		return nil, err
	}
	c := &capture{manifest: m.manifest}
	c.manifest.DiskBytes = m.record.DiskBytes
	if m.record.Cold {
		err = c.takeFile(filepath.Join(m.spec.Dir, memoryFile), m.spec.Dir)
	} else {
		err = c.takePages(m, p)
	}
	if err != nil {
		return nil, err
	}
	if c.state, err = p.state.read(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// takeFile keeps the memory of a cold machine, which is a file: a reflink without a name.
func (c *capture) takeFile(path, dir string) error {
	src, err := os.Open(path)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE, 0o600)
	if err != nil {
		return err
	}
	if err := reflink(dst, src); err != nil {
		return errors.Join(err, dst.Close())
	}
	c.base = dst
	return nil
}

// takePages copies the private pages of a machine that stands on an image, and keeps that image's memory
// open: the image may be removed meanwhile.
func (c *capture) takePages(m *machine, p *preparation) error {
	r, err := m.ram()
	if err != nil {
		return err
	}
	if c.spans, err = r.dirty(); err != nil {
		return err
	}
	need := total(c.spans)
	if p.pages == nil || int64(len(p.pages.mem)) < need {
		if err := p.pages.free(); err != nil {
			return err
		}
		if p.pages, err = newBuffer(need); err != nil {
			return err
		}
	}
	if err := r.read(c.spans, p.pages.mem); err != nil {
		return err
	}
	if c.base, err = r.open(); err != nil {
		return err
	}
	c.key = m.record.Memory
	c.pages, p.pages = p.pages, nil
	return nil
}

// open answers the file behind the mapping, which may have no name any more.
func (r ram) open() (*os.File, error) {
	return os.Open(fmt.Sprintf("/proc/%d/map_files/%x-%x", r.pid, r.start, r.start+uint64(r.bytes)))
}

// takeOver makes a machine of a monitor that an earlier process of ours started.
func (d *Driver) takeOver(ctx context.Context, spec vmm.Spec, manifest vmm.Manifest, r record, p *proc.Process) (_ *machine, err error) {
	m := newMachine(d, spec, manifest)
	m.record = r
	conn, err := connect(ctx, spec.Dir, monitorSocket)
	if err != nil {
		return nil, errors.Join(err, p.Release())
	}
	m.qmp = qmp.Open(conn, m.event)
	m.begin(ctx, p)
	ctx, cancel := d.limited(ctx, "answer of the monitor")
	defer cancel()
	status, err := m.status(ctx)
	if err != nil {
		m.release()
		return nil, err
	}
	switch status {
	case "running":
		m.set(running)
	case "paused":
		m.set(paused)
	default:
		// Never loaded, or the guest has ended: nobody can use it any more.
		return nil, errors.Join(fmt.Errorf("guest is %q: %w", status, vmm.ErrGone), m.Kill(ctx))
	}
	return m, nil
}
