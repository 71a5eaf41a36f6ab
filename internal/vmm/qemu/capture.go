package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/checkpoint"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// preparation holds what Capture needs and can be made while the guest still runs.
type preparation struct {
	state        stateFile
	fdSet        int     // number of the fd set in which the monitor holds the other end of state
	pages        *buffer // nil for a machine that was booted
	monitorPages *buffer // for the monitor's private pages; nil if there will be no checkpoint
}

// slack is room for pages that the guest dirties after the estimate and before it is stopped.
const slack = 2 << 20

var _ vmm.PreCapturer = (*machine)(nil)

// PreCapture implements vmm.PreCapturer.
func (m *machine) PreCapture(ctx context.Context) error {
	if m.Phase() == vmmproc.Prepared {
		return fmt.Errorf("capture machine %s: it has not been loaded", m.spec.ID)
	}
	m.mu.Lock()
	ready := m.prepared != nil
	m.mu.Unlock()
	if ready {
		return nil
	}
	ctx, cancel := m.driver.monitors.WithTimeout(ctx, "capture of the machine")
	defer cancel()
	p, err := m.prepare(ctx)
	if err != nil {
		return fmt.Errorf("capture machine %s: %w", m.spec.ID, m.WithExitReason(ctx, err))
	}
	return m.dropPreparation(m.swapPrepared(p))
}

// swapPrepared keeps p for the next capture and returns the previous preparation. If the machine
// has ended, it keeps nothing and returns p.
func (m *machine) swapPrepared(p *preparation) *preparation {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return p
	}
	old := m.prepared
	m.prepared = p
	return old
}

// dropPreparation frees a preparation, which may be nil, in this process and in the monitor.
func (m *machine) dropPreparation(p *preparation) error {
	if p == nil {
		return nil
	}
	// The result is not needed, and responses arrive in order.
	m.qmp.Send("remove-fd", map[string]int{"fdset-id": p.fdSet})
	return errors.Join(p.state.file.Close(), p.pages.free(), p.monitorPages.free())
}

// prepare flushes the disks, allocates memory for the pages that are dirty now, and gives the
// monitor a file for its device state.
func (m *machine) prepare(ctx context.Context) (_ *preparation, err error) {
	state, err := newStateFile()
	if err != nil {
		return nil, err
	}
	p := &preparation{state: state}
	defer func() {
		if err != nil {
			err = errors.Join(err, state.file.Close(), p.pages.free(), p.monitorPages.free())
		}
	}()
	writer, err := state.writer()
	if err != nil {
		return nil, err
	}
	call := m.qmp.Send("add-fd", nil, writer)
	if err := writer.Close(); err != nil {
		return nil, err
	}
	for _, d := range m.spec.Disks {
		if err := flushDisk(d); err != nil {
			return nil, err
		}
	}
	if !m.record.Cold {
		if p.pages, err = m.dirtyBuffer(); err != nil {
			return nil, err
		}
	}
	if m.keepsCheckpoint() {
		if err := m.ensureConnected(ctx); err != nil {
			return nil, err
		}
		if err := m.readBase(); err != nil {
			return nil, err
		}
		own, err := checkpoint.PrivateBytes(m.PID(), m.record.mapped().Inode, m.record.Delta)
		if err != nil {
			return nil, err
		}
		if p.monitorPages, err = newBuffer(own + slack); err != nil {
			return nil, err
		}
	}
	var added struct {
		Set int `json:"fdset-id"`
	}
	if err := call.Wait(ctx, &added); err != nil {
		return nil, err
	}
	p.fdSet = added.Set
	return p, nil
}

// dirtyBuffer allocates a buffer for somewhat more than the pages that are dirty now.
func (m *machine) dirtyBuffer() (*buffer, error) {
	r, err := m.guestMemory()
	if err != nil {
		return nil, err
	}
	spans, err := r.dirty()
	if err != nil {
		return nil, err
	}
	bytes := total(spans)
	return newBuffer(bytes + bytes/8 + slack)
}

func flushDisk(d vmm.Disk) error {
	if d.ReadOnly || d.Empty {
		return nil
	}
	f, err := os.OpenFile(d.Path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if d.Volatile { // a clone needs the blocks allocated, but not on stable storage
		const all = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
		return errors.Join(unix.SyncFileRange(int(f.Fd()), 0, 0, all), f.Close())
	}
	return errors.Join(unix.Fdatasync(int(f.Fd())), f.Close())
}

// Capture implements vmm.Machine.
func (m *machine) Capture(ctx context.Context) (vmm.Capture, error) {
	c, err := m.captureWith(ctx, true)
	if err != nil {
		return nil, err
	}
	return c, nil
}

var _ vmm.ForkCapturer = (*machine)(nil)

// CaptureFor implements vmm.ForkCapturer. A checkpoint of the monitor contains the device state, so
// that need not be saved if all targets are restore stubs.
func (m *machine) CaptureFor(ctx context.Context, into []vmm.Machine) (vmm.Capture, error) {
	state := m.record.Content == 0 // the dump may fail the first time
	for _, one := range into {
		child, ok := one.(*machine)
		state = state || !ok || !child.hasStub()
	}
	c, err := m.captureWith(ctx, state)
	if err != nil {
		return nil, err
	}
	c.forkOnly = true
	return c, nil
}

// captureWith makes a capture, with device state if state is true.
func (m *machine) captureWith(ctx context.Context, state bool) (*capture, error) {
	if m.Phase() != vmmproc.Paused {
		return nil, fmt.Errorf("capture machine %s: it is not paused", m.spec.ID)
	}
	if err := m.PreCapture(ctx); err != nil { // for a second capture, or an adopted machine that was paused
		return nil, err
	}
	ctx, cancel := m.driver.monitors.WithTimeout(ctx, "capture of the machine")
	defer cancel()
	p := m.swapPrepared(nil)
	if p == nil {
		return nil, fmt.Errorf("capture machine %s: %w", m.spec.ID, m.WithExitReason(ctx, vmm.ErrGone))
	}
	c, err := m.capture(ctx, p, state)
	err = errors.Join(err, m.dropPreparation(p))
	if err != nil && c != nil {
		err = errors.Join(err, c.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("capture machine %s: %w", m.spec.ID, m.WithExitReason(ctx, err))
	}
	return c, nil
}

// capture copies the memory and, at the same time, saves the device state and then the monitor.
// Meanwhile no data passes through the guest channel; saving device state does not modify guest
// memory. capture takes the buffers that it keeps out of p.
func (m *machine) capture(ctx context.Context, p *preparation, state bool) (_ *capture, err error) {
	m.channelGate.Lock()
	defer m.channelGate.Unlock()
	c := newCapture(m.manifest)
	c.manifest.DiskBytes = m.record.DiskBytes
	if m.record.Cold {
		if err := m.captureState(ctx, c, p); err != nil {
			return c, err
		}
		return c, c.captureFile(filepath.Join(m.spec.Dir, memoryFile), m.spec.Dir)
	}
	memory := make(chan error, 1)
	go func() { memory <- c.capturePages(m, p) }() // sets other fields than the calls below
	if state {
		err = m.captureState(ctx, c, p)
	}
	if err == nil {
		err = m.captureMonitor(c, p)
	}
	return c, errors.Join(err, <-memory)
}

// captureState saves the device state.
func (m *machine) captureState(ctx context.Context, c *capture, p *preparation) (err error) {
	args := map[string]any{"filename": "/dev/fdset/" + strconv.Itoa(p.fdSet), "live": false}
	if err := m.qmp.Do(ctx, "xen-save-devices-state", args, nil); err != nil {
		return err
	}
	c.state, err = p.state.read()
	return err
}

// captureFile captures the memory of a booted machine, which is a file, as a reflink without a
// name.
func (c *capture) captureFile(path, dir string) error {
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

// capturePages copies the private pages of a machine on an image, and keeps the image's memory file
// open because the image may be removed.
func (c *capture) capturePages(m *machine, p *preparation) error {
	r, err := m.guestMemory()
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
	if c.base, err = m.openFullMemory(); err != nil {
		return err
	}
	if c.base == nil {
		if c.base, err = r.open(); err != nil {
			return err
		}
	}
	c.key = m.record.Memory
	c.pages, p.pages = p.pages, nil
	return nil
}

// openFullMemory opens the image's memory file if a view of it is mapped or if it still has its
// original path, by which memory deltas refer to it. It returns nil if the file can only be opened
// through the mapping. The file is complete by now, because machines are not captured before it is.
func (m *machine) openFullMemory() (*os.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fullMemory != nil {
		return os.Open(fdPath(int(m.fullMemory.Fd())))
	}
	f, err := os.Open(m.record.MemoryPath)
	if err != nil {
		return nil, nil // it was removed or moved
	}
	key, err := vmmproc.KeyOf(f)
	if err == nil && key == m.record.Memory {
		return f, nil
	}
	return nil, errors.Join(err, f.Close())
}

// open opens the mapped file, which may have been unlinked.
func (g guestMemory) open() (*os.File, error) {
	return os.Open(fmt.Sprintf("/proc/%d/map_files/%x-%x", g.pid, g.start, g.start+uint64(g.bytes)))
}
