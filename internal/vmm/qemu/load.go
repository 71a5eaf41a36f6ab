package qemu

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/qemu/qmp"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// Load implements vmm.Machine.
func (m *machine) Load(ctx context.Context, from vmm.Capture) error {
	if m.Phase() != vmmproc.Prepared || !m.canLoad() {
		return fmt.Errorf("load machine %s: it has already been loaded", m.spec.ID)
	}
	ctx, cancel := m.driver.monitors.WithTimeout(ctx, "load of the machine")
	defer cancel()
	var c *capture
	knownSizes := m.manifest.DiskBytes
	if from != nil {
		var ok bool
		if c, ok = from.(*capture); !ok {
			return fmt.Errorf("load machine %s: the capture was made by another driver", m.spec.ID)
		}
		knownSizes = c.manifest.DiskBytes
	}
	load := m.loadDeviceState
	if m.incoming == nil {
		load = m.restoreCheckpoint
	}
	if err := load(ctx, c, knownSizes); err != nil {
		return fmt.Errorf("load machine %s: %w", m.spec.ID, err)
	}
	m.SetPhase(vmmproc.Running)
	m.state, m.manifest.DiskRates = nil, diskRates(m.spec.Disks)
	return nil
}

// canLoad reports whether the machine was not loaded yet.
func (m *machine) canLoad() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.incoming != nil || m.stub != nil
}

// loadDeviceState restores memory and device state, from the image or from a capture, into a new
// monitor, whose guest runs from then on.
func (m *machine) loadDeviceState(ctx context.Context, from *capture, knownSizes []int64) error {
	if from != nil && from.state == nil {
		return errors.New("the capture was made for other machines")
	}
	if err := m.writeMemory(ctx, from); err != nil {
		return err
	}
	state := m.state
	if from != nil {
		state = from.state
	}
	if err := m.sendState(ctx, state); err != nil {
		return err
	}
	return m.resizeDisks(ctx, knownSizes)
}

var errNotOfImage = errors.New("the capture was not made on the image of this machine")

// writeCapture writes a capture's pages into the monitor's memory. If the capture is based on the
// image's own memory file, writeCapture writes the image's memory delta first. Such a capture is of
// a machine that started while its memory was being downloaded.
func (m *machine) writeCapture(ctx context.Context, c *capture, delta *overlay) (err error) {
	switch {
	case c.key == (vmmproc.FileKey{}):
		return errNotOfImage
	case c.key == m.record.Memory || c.key == m.altMemory:
	case delta != nil && c.key == delta.key:
		if err := m.writeOverlay(ctx, delta); err != nil {
			return err
		}
	default:
		return errNotOfImage
	}
	if err := c.Acquire(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Release()) }()
	return m.writeSpans(ctx, c.spans, c.pages.bytes())
}

// writeOverlay writes the image's memory delta into the mapped memory.
func (m *machine) writeOverlay(ctx context.Context, o *overlay) error {
	pages, err := o.read() // in parallel with the monitor's start
	if err != nil {
		return err
	}
	return errors.Join(m.writeSpans(ctx, o.spans, pages.mem), pages.free())
}

// writeSpans writes pages into the monitor's memory.
func (m *machine) writeSpans(ctx context.Context, spans []span, pages []byte) error {
	// When QEMU has sent its greeting, the machine with its memory exists.
	if err := m.WithExitReason(ctx, m.qmp.Ready(ctx)); err != nil {
		return err
	}
	r, err := m.guestMemory()
	if err != nil {
		return m.WithExitReason(ctx, err)
	}
	return m.WithExitReason(ctx, r.write(spans, pages))
}

func (m *machine) guestMemory() (guestMemory, error) {
	return findGuestMemory(m.PID(), m.record.mapped().Inode, int64(m.spec.MemoryMiB)<<20)
}

// sendState sends the device state and waits until the guest runs.
func (m *machine) sendState(ctx context.Context, state []byte) error {
	m.mu.Lock()
	in := m.incoming
	m.incoming = nil
	m.mu.Unlock()
	if in == nil {
		return m.WithExitReason(ctx, vmm.ErrGone)
	}
	defer in.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := in.SetWriteDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := in.Write(state); err != nil {
		return m.WithExitReason(ctx, errors.Join(qmp.ErrClosed, err))
	}
	if err := in.CloseWrite(); err != nil {
		return m.WithExitReason(ctx, errors.Join(qmp.ErrClosed, err))
	}
	// The guest may run before QMP is negotiated and events are sent, so ask for the status.
	status, err := m.status(ctx)
	switch {
	case err != nil:
		return err
	case status == "running", status == "io-error": // the latter of a guest that found no space at once
		return nil
	case status != "inmigrate":
		return fmt.Errorf("guest is %q after its state was loaded", status)
	}
	select {
	case <-m.resumed:
		return nil
	case <-m.Done():
		return m.WithExitReason(ctx, vmm.ErrGone)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// resizeDisks notifies the guest of disks whose size differs from known.
func (m *machine) resizeDisks(ctx context.Context, knownSizes []int64) error {
	m.manifest.DiskBytes = m.record.DiskBytes
	for i, bytes := range m.record.DiskBytes {
		if i < len(knownSizes) && knownSizes[i] == bytes {
			continue
		}
		args := map[string]any{"device": "d" + strconv.Itoa(i), "size": bytes}
		if err := m.do(ctx, "block_resize", args, nil); err != nil {
			return err
		}
	}
	return nil
}
