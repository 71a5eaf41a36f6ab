package machine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/vmm"
)

// spaceWait says that a machine does not run until the host has disk space for what its guest writes.
type spaceWait struct {
	vm vmm.Machine
	// halted: the space keeper stopped the machine before the file system was full. Otherwise its monitor did, and
	// repeats the write when the guest continues.
	halted bool
	// frozen: an earlier process may have stopped the workload, too.
	frozen bool
	// continued is when the guest was last let continue, to find out whether there is space; zero: not yet.
	continued time.Time
	next      time.Time     // not before then again
	delay     time.Duration // between two attempts
}

// In intervals of the space keeper: the delays between attempts to let the guest continue, since a quota may be full
// although the file system is not; and how long a guest that was let continue may take to find no space again. Its
// monitor repeats the write at once, but a full file system first writes out what it holds back: a second on XFS.
const (
	firstSpaceDelay = 5
	maxSpaceDelay   = 150
	spaceSettles    = 10
)

// errWaitsForSpace is why an operation on a waiting machine is not possible.
func errWaitsForSpace(op string, id hostapi.MachineID) error {
	return fmt.Errorf("%s machine %s: it is paused until there is disk space for it, and continues by itself then: %w",
		op, id, hostapi.ErrNoSpace)
}

// waiting returns why a machine does not run, or nil.
func (mc *machine) waiting() *spaceWait {
	mc.mu.Lock()
	defer mc.mu.Unlock()
	return mc.waitingLocked()
}

// waitingLocked is waiting for a caller that holds mu.
func (mc *machine) waitingLocked() *spaceWait {
	if mc.wait == nil || mc.wait.vm != mc.vm || mc.rec.State != running {
		return nil
	}
	return mc.wait
}

// outOfSpace returns the channel on which a monitor says that it has stopped its guest; nil if it never does.
func outOfSpace(vm vmm.Machine) <-chan struct{} {
	if w, ok := vm.(vmm.SpaceWaiter); ok {
		return w.OutOfSpace()
	}
	return nil
}

// monitorWaits reports whether a monitor has stopped its guest for lack of space.
func monitorWaits(vm vmm.Machine) bool {
	w, ok := vm.(vmm.SpaceWaiter)
	return ok && w.WaitsForSpace()
}

// monitorStopped records that the monitor of a machine has stopped the guest. The caller need not own the machine: an
// operation in progress may be waiting for that guest.
func (m *Manager) monitorStopped(mc *machine, vm vmm.Machine) {
	if monitorWaits(vm) {
		m.startWaiting(mc, &spaceWait{vm: vm})
	}
}

// startWaiting records that a machine waits, unless it does already, and tells so.
func (m *Manager) startWaiting(mc *machine, w *spaceWait) {
	w.delay = firstSpaceDelay * m.cfg.SpaceInterval
	mc.mu.Lock()
	fresh := mc.waitingLocked() == nil && mc.vm == w.vm && mc.rec.State == running
	if fresh {
		if last := mc.lastWait; last.vm == w.vm && time.Since(last.continued) < 2*m.spaceSettles() {
			w.delay = min(2*last.delay, maxSpaceDelay*m.cfg.SpaceInterval)
		}
		w.next = time.Now().Add(w.delay)
		mc.wait = w
	}
	mc.mu.Unlock()
	if !fresh {
		return
	}
	m.log.Warn("machine paused: no disk space", "machine", mc.id, "before_full", w.halted)
	m.emit(mc, "paused", string(hostapi.PausedNoSpace))
}

// stopWaiting records that a machine runs again. The caller owns the machine.
func (m *Manager) stopWaiting(mc *machine, w *spaceWait) {
	mc.set(func() {
		if mc.wait == w {
			mc.wait, mc.lastWait = nil, *w
			mc.lastWait.continued = time.Now()
		}
	})
	m.recordHalted(mc, false)
	m.log.Info("machine continues: there is disk space", "machine", mc.id)
	m.emit(mc, "resumed", string(hostapi.PausedNoSpace))
}

// recordHalted tells the next process whether the space keeper has stopped a machine. What a monitor stopped is known
// from the monitor, so the record is a hint, and a full disk may refuse it.
func (m *Manager) recordHalted(mc *machine, halted bool) {
	if mc.rec.Halted == halted {
		return
	}
	if err := m.update(mc, surviveProcess, func(in *record) { in.Halted = halted }); err != nil {
		m.log.Debug("machine not recorded as halted", "machine", mc.id, "err", err)
	}
}

// haltGuest stops a machine's processors as fast as its monitor can.
func haltGuest(ctx context.Context, vm vmm.Machine) error {
	if h, ok := vm.(vmm.Halter); ok {
		return h.Halt(ctx)
	}
	return vm.Pause(ctx)
}

// adoptWaiting leaves an adopted machine stopped that waits for disk space, and reports whether it does: the space
// keeper lets it continue.
func (m *Manager) adoptWaiting(ctx context.Context, mc *machine) bool {
	w := &spaceWait{vm: mc.vm, halted: mc.rec.Halted && !monitorWaits(mc.vm), frozen: true}
	if !w.halted && !monitorWaits(mc.vm) {
		return false
	}
	if w.halted {
		if err := haltGuest(ctx, mc.vm); err != nil {
			m.log.Warn("machine without disk space not stopped", "machine", mc.id, "err", err)
			return false
		}
	}
	m.startWaiting(mc, w)
	return true
}

// spaceSettles returns how long it takes to know that a guest that was let continue has found space.
func (m *Manager) spaceSettles() time.Duration { return spaceSettles * m.cfg.SpaceInterval }

// resumeWaiting is Resume of a machine that waits for disk space. The caller owns the machine.
func (m *Manager) resumeWaiting(ctx context.Context, mc *machine, w *spaceWait) error {
	_, free, err := m.cfg.FreeSpace(m.cfg.Dir)
	if err != nil {
		return err
	}
	if low := m.lowSpace(); free < low {
		return fmt.Errorf("resume machine %s: it waits for disk space, and %d MiB are free where at least %d must be; "+
			"delete snapshots or sandboxes: %w", mc.id, free/mib, low/mib, hostapi.ErrNoSpace)
	}
	if use := groupUse(m.allMachines()); m.groupOver(mc, use) {
		return fmt.Errorf("resume machine %s: the disks of its group take %d MiB, and %d MiB are allowed: %w",
			mc.id, use[mc.group]/mib, m.groupBounds().Of(mc.group), hostapi.ErrNoSpace)
	}
	if err := w.vm.Resume(ctx); err != nil {
		return fmt.Errorf("resume machine %s: %w", mc.id, err)
	}
	if !w.halted {
		select {
		case <-time.After(m.spaceSettles()):
		case <-w.vm.Done():
			return fmt.Errorf("resume machine %s: %w", mc.id, errors.Join(vmm.ErrGone, w.vm.Err()))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if monitorWaits(w.vm) {
		return fmt.Errorf("resume machine %s: there still is no disk space for what it writes: %w",
			mc.id, hostapi.ErrNoSpace)
	}
	m.stopWaiting(mc, w)
	return nil
}
