package machine

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
)

// warmMaxAge is how long a warm monitor waits for a create that can use it.
const warmMaxAge = 10 * time.Minute

// warmMonitor is a monitor prepared over a template's memory, with a directory, a network slot, a cgroup and disks:
// all of a machine but the guest. No guest state is loaded and nothing runs in it. A create from the template makes
// a machine of it, whose directory, cgroup and monitor keep the name of the warm monitor.
type warmMonitor struct {
	ref  snapshot.Ref
	mc   *machine   // in no list
	op   *operation // with its cleanups
	made time.Time
}

// requestWarm asks Run for a warm monitor of a snapshot that a machine was just made from.
func (m *Manager) requestWarm(ref snapshot.Ref) {
	if m.cfg.WarmMonitors == 0 {
		return
	}
	select {
	case m.warmRequests <- ref:
	default: // Run has enough to do; the next create asks again
	}
}

// canUseWarm reports whether a machine can be made of a warm monitor of its template. A larger disk is another disk,
// and a warm monitor has the host's limits and the snapshot's memory.
func canUseWarm(req CreateRequest, snap snapshot.Snapshot, plan startPlan) bool {
	return req.Snapshot == "" && req.Limits == (hostapi.Limits{}) && !plan.growDisk &&
		plan.memoryMiB == snap.MemoryMiB && !snap.RemoteBacked()
}

// takeWarm gives the caller the warm monitor of a snapshot, or nil if there is none that runs.
func (m *Manager) takeWarm(ctx context.Context, ref snapshot.Ref) *warmMonitor {
	m.mu.Lock()
	w := m.warm[ref]
	delete(m.warm, ref)
	m.mu.Unlock()
	if w == nil {
		return nil
	}
	select {
	case <-w.mc.vm.Done():
		m.discardWarm(ctx, w, fmt.Errorf("its monitor ended: %w", cmp.Or(w.mc.vm.Err(), errWarmNotNeeded)))
		return nil
	default:
		return w
	}
}

// refillWarm prepares a warm monitor of a snapshot, unless there is one. Run alone calls it; one call works at a time.
func (m *Manager) refillWarm(ctx context.Context, ref snapshot.Ref) {
	m.warmMu.Lock()
	defer m.warmMu.Unlock()
	m.mu.Lock()
	have := m.warm[ref] != nil
	m.mu.Unlock()
	if have || ctx.Err() != nil {
		return
	}
	w, err := m.prepareWarm(ctx, ref)
	if err != nil {
		m.log.Warn("warm monitor not prepared", "snapshot", ref, "err", err)
		return
	}
	m.mu.Lock()
	m.warm[ref] = w
	var oldest *warmMonitor
	if len(m.warm) > m.cfg.WarmMonitors {
		all := make([]*warmMonitor, 0, len(m.warm))
		for _, w := range m.warm {
			all = append(all, w)
		}
		oldest = slices.MinFunc(all, func(a, b *warmMonitor) int { return a.made.Compare(b.made) })
		delete(m.warm, oldest.ref)
	}
	m.mu.Unlock()
	if oldest != nil {
		m.discardWarm(ctx, oldest, errWarmNotNeeded)
	}
}

// prepareWarm makes one warm monitor.
func (m *Manager) prepareWarm(ctx context.Context, ref snapshot.Ref) (_ *warmMonitor, err error) {
	op := m.begin("warm")
	defer func() {
		if err != nil {
			err = op.end(ctx, err)
		}
	}()
	snap, err := m.acquireSnapshot(op, ref)
	if err != nil {
		return nil, err
	}
	if err := m.requireSpace("a warm monitor", 0); err != nil {
		return nil, err
	}
	plan, err := planStart(startRequest{
		op: opCreate, image: ref, haveMiB: snap.DiskMiB, memory: memoryRequest{have: snap.MemoryMiB},
	}, m.deps.Driver.Capabilities())
	if err != nil {
		return nil, err
	}
	if err := op.done("acquire"); err != nil {
		return nil, err
	}
	l := m.newLaunch(op, plan.forWarmMonitor())
	l.mc, l.snap, l.disks = m.newUnlisted(snap), snap, snap.DiskPaths()
	if err := l.run(ctx, stepPrepare); err != nil {
		return nil, err
	}
	return &warmMonitor{ref: ref, mc: l.mc, op: op, made: time.Now()}, nil
}

// newUnlisted returns a machine that is in no list. If a record of it is left behind, the next Recover removes it.
func (m *Manager) newUnlisted(snap snapshot.Snapshot) *machine {
	var raw [10]byte
	_, _ = rand.Read(raw[:]) // never fails: it ends the program instead
	id := hostapi.MachineID("rig" + hex.EncodeToString(raw[:]))
	rec := record{
		Version: recordVersion, ID: id, State: creating, Base: snap.Ref, VCPUs: snap.VCPUs, MemoryMiB: snap.MemoryMiB,
		DiskMiB: snap.DiskMiB, Data: snap.Data, Places: snap.Places(), Slot: -1,
		Created: time.Now().UTC(),
	}
	return &machine{id: id, dir: filepath.Join(m.cfg.Dir, string(id)), volumes: m.deps.Volumes,
		busy: make(chan struct{}, 1), doomed: make(chan struct{}), rec: rec}
}

// errWarmNotNeeded is why a sound warm monitor is discarded.
var errWarmNotNeeded = errors.New("it is not needed any more")

// discardWarm removes a warm monitor that is no longer in the pool.
func (m *Manager) discardWarm(ctx context.Context, w *warmMonitor, why error) {
	m.log.Debug("warm monitor removed", "snapshot", w.ref, "err", why)
	if err := w.op.done("discard"); err != nil && w.op.abandoned {
		return
	}
	if err := w.op.cleanup.Unwind(ctx); err != nil {
		m.log.Error("warm monitor not removed", "machine", w.mc.id, "err", err)
	}
}

// discardWarmUnless removes the warm monitors for which keep returns false.
func (m *Manager) discardWarmUnless(ctx context.Context, keep func(*warmMonitor) bool) {
	var discarded []*warmMonitor
	m.mu.Lock()
	for ref, w := range m.warm {
		if !keep(w) {
			discarded = append(discarded, w)
			delete(m.warm, ref)
		}
	}
	m.mu.Unlock()
	slices.SortFunc(discarded, func(a, b *warmMonitor) int { return cmp.Compare(a.mc.id, b.mc.id) })
	for _, w := range discarded {
		m.discardWarm(ctx, w, errWarmNotNeeded)
	}
}

// warmStillUsable reports whether a warm monitor may wait on: it runs and has not waited for too long.
func warmStillUsable(w *warmMonitor) bool {
	select {
	case <-w.mc.vm.Done():
		return false
	default:
		return time.Since(w.made) < warmMaxAge
	}
}
