package machine

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/vmm"
)

// measureEvery is how often the memory of machines is measured: reading one monitor's maps takes about a
// millisecond.
const measureEvery = 20 * time.Second

// monitorExit is the end of a monitor.
type monitorExit struct {
	mc *machine
	vm vmm.Machine
}

// Run handles the ends of monitors, prepares warm monitors and measures memory until ctx ends.
// It returns when everything that it began has ended.
func (m *Manager) Run(ctx context.Context) error {
	var work sync.WaitGroup
	work.Go(func() { m.keepSpace(ctx) })
	work.Go(func() { _ = m.watchdog.Run(ctx) }) // returns nil
	defer func() {
		work.Wait()
		m.discardWarmUnless(ctx, func(*warmMonitor) bool { return false })
	}()
	tick := time.NewTicker(measureEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			for range len(m.unsynced) {
				m.syncMachine(<-m.unsynced)
			}
			for range len(m.consumed) {
				m.removeDisks(<-m.consumed)
			}
			return nil
		case d := <-m.exits:
			work.Go(func() { m.handleExit(ctx, d) })
		case vm := <-m.lazyFailures:
			work.Go(func() { _ = vm.Kill(ctx) }) // its exit is handled, or Destroy tries again
		case dir := <-m.unsynced:
			work.Go(func() { m.syncMachine(dir) })
		case ref := <-m.consumed:
			work.Go(func() { m.removeDisks(ref) })
		case ref := <-m.warmRequests:
			work.Go(func() { m.refillWarm(ctx, ref) })
		case <-tick.C:
			m.measure(ctx)
			work.Go(func() { m.discardWarmUnless(ctx, warmStillUsable) })
		}
	}
}

// syncLater makes a machine's record and disks durable soon: in Run, or at once if Run is far behind.
func (m *Manager) syncLater(dir string) {
	select {
	case m.unsynced <- dir:
	default:
		m.syncMachine(dir)
	}
}

// syncMachine makes a machine's directory durable, unless it was removed.
func (m *Manager) syncMachine(dir string) {
	disks, err := filepath.Glob(filepath.Join(dir, snapshot.DiskPattern))
	for _, path := range disks {
		err = errors.Join(err, m.deps.Disks.Sync(path))
	}
	err = errors.Join(err, durable.Keep(filepath.Join(dir, recordFile)), durable.SyncDir(m.cfg.Dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.log.Error("machine not durable", "machine", filepath.Base(dir), "err", err)
	}
}

// measure records how much memory and disk each machine uses.
func (m *Manager) measure(ctx context.Context) {
	for _, mc := range m.List() {
		if ctx.Err() != nil {
			return
		}
		found := m.find(mc.ID)
		if found == nil {
			continue
		}
		m.measureDisks(found)
		found.mu.Lock()
		vm := found.vm
		found.mu.Unlock()
		if vm == nil {
			continue
		}
		if u, err := vm.Usage(); err == nil {
			m.ledger.setUsed(mc.ID, u.PSSBytes)
		}
	}
}

// watch reports the end of a machine's monitor to Run, and notes when the monitor stops the guest for lack of space.
func (m *Manager) watch(mc *machine) {
	vm, stream, full := mc.vm, mc.lazy, outOfSpace(mc.vm)
	if stream != nil {
		m.watchers.Go(func() { m.watchLazy(mc, vm, stream) })
	}
	m.watchers.Go(func() {
		for alive := true; alive; {
			select {
			case <-full:
				m.monitorStopped(mc, vm)
			case <-vm.Done():
				alive = false
			case <-m.closed:
				return
			}
		}
		select {
		case m.exits <- monitorExit{mc, vm}:
		case <-m.closed:
		}
	})
}

// watchLazy returns when everything is downloaded for a machine, or the machine or Run ends. It has the monitor
// ended of a machine that waits for a download that failed.
func (m *Manager) watchLazy(mc *machine, vm vmm.Machine, stream LazySource) {
	select {
	case <-stream.Complete():
		m.markDisksComplete(mc)
	case <-stream.Failed():
	case <-vm.Done():
		return
	case <-m.closed:
		return
	}
	select { // files that are mapped and complete can still fail, with the host's disk
	case <-stream.Failed():
	case <-vm.Done():
		return
	case <-m.closed:
		return
	}
	select {
	case m.lazyFailures <- vm:
	case <-m.closed:
	}
}

// handleExit handles a monitor that ended, unless an operation ended it: a persistent machine is failed and keeps
// its disks, any other is removed.
func (m *Manager) handleExit(ctx context.Context, d monitorExit) {
	op := m.begin("death")
	mc, err := m.lock(ctx, d.mc.id)
	if err != nil {
		return
	}
	op.owned = append(op.owned, mc)
	defer func() { _ = op.end(ctx, err) }() // there are no cleanups here
	if mc != d.mc || mc.vm != d.vm || mc.rec.State == destroying {
		return
	}
	if mc.isDoomed() { // Destroy ended it, and finds it gone
		if err = m.remove(ctx, op, mc); err != nil {
			m.log.Error("machine not destroyed", "machine", mc.id, "err", err)
		}
		return
	}
	reason := "the monitor ended"
	if err := d.vm.Err(); err != nil {
		reason = err.Error()
	}
	if mc.lazy != nil && mc.lazy.Err() != nil {
		reason = "download of its snapshot failed: " + mc.lazy.Err().Error()
	}
	oom := mc.cgroup != nil && mc.cgroup.OutOfMemory()
	if oom {
		reason = "out of memory: the monitor reached its limit on the host"
	}
	printed, _ := m.console(ctx, mc) // a monitor that has ended may reply no more; what was read before is used
	m.log.Warn("machine died", "machine", mc.id, "err", reason)
	if mc.rec.Persistent {
		err = m.setFailed(ctx, op, mc, reason)
	} else {
		err = m.remove(ctx, op, mc)
	}
	if err != nil {
		m.log.Error("monitor exit not handled", "machine", mc.id, "err", err)
	}
	m.deps.Emit(
		Event{
			Time:        time.Now().UTC(),
			Machine:     mc.id,
			Type:        "died",
			Reason:      reason,
			OutOfMemory: oom,
			Console:     printed,
		},
	)
}

func (m *Manager) emit(mc *machine, kind, reason string) {
	m.deps.Emit(Event{Time: time.Now().UTC(), Machine: mc.id, Type: kind, Reason: reason})
}

// setFailed records that a machine is failed and releases everything but its disks.
func (m *Manager) setFailed(ctx context.Context, op *operation, mc *machine, reason string) error {
	base, keep := mc.rec.Base, mc.rec.Base
	if !m.disksIncomplete(mc) {
		keep = ""
	}
	err := m.update(mc, surviveHost, func(in *record) {
		in.State, in.Reason, in.Base, in.Slot, in.MAC, in.Before, in.Next = failed, reason, keep, -1, "", "", ""
		in.Lazy = false
	})
	if err != nil {
		return err
	}
	if err := op.done("intent"); err != nil {
		return err
	}
	err = m.releaseResources(ctx, op, mc)
	if base != keep && !op.abandoned {
		err = errors.Join(err, m.deps.Store.Release(base))
	}
	m.ledger.release(mc.id)
	return err
}
