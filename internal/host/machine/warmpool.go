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

// warmMaxAge is how long a spare waits for a create that needs it.
const warmMaxAge = 10 * time.Minute

// warmMonitor is a monitor that waits over a template's memory, with a directory, a place in the network, a group
// and a disk: all of a machine but a guest. Nothing runs in it and nothing is loaded. A create from the
// template makes a machine of it, whose directory, group and monitor keep the spare's name.
type warmMonitor struct {
	ref  snapshot.Ref
	mc   *machine   // in no list
	op   *operation // its way back
	made time.Time
}

// requestWarm asks Run for a spare over a snapshot that a machine was just made from.
func (m *Manager) requestWarm(ref snapshot.Ref) {
	if m.cfg.WarmMonitors == 0 {
		return
	}
	select {
	case m.warmRequests <- ref:
	default: // Run has enough to do; the next create asks again
	}
}

// canUseWarm says whether a machine can be made of a spare of its template: disks of kept machines are
// opened in another way, a grown disk is another disk, and a spare is held to the host's limits alone.
func canUseWarm(req hostapi.Create, how startPlan) bool {
	return req.Snapshot == "" && !req.Persistent && !how.grow && req.Limits == (hostapi.Limits{})
}

// takeWarm gives the caller the spare over a snapshot, nil when none lives.
func (m *Manager) takeWarm(ctx context.Context, ref snapshot.Ref) *warmMonitor {
	m.mu.Lock()
	s := m.warm[ref]
	delete(m.warm, ref)
	m.mu.Unlock()
	if s == nil {
		return nil
	}
	select {
	case <-s.mc.vm.Done():
		m.discardWarm(ctx, s, fmt.Errorf("its monitor ended: %w", cmpErr(s.mc.vm.Err(), errWarmNotNeeded)))
		return nil
	default:
		return s
	}
}

// adoptWarm makes a new machine of a spare: the machine has what the spare had, and its record says so.
func (m *Manager) adoptWarm(ctx context.Context, p *operation, mc *machine, s *warmMonitor) error {
	p.cleanup.Push("remove what was ready", s.op.cleanup.Unwind)
	mc.set(func() {
		mc.vm, mc.slot, mc.cgroup = s.mc.vm, s.mc.slot, s.mc.cgroup
		mc.rec.Slot, mc.rec.MAC = s.mc.rec.Slot, s.mc.rec.MAC
	})
	if err := m.writeRecord(mc, surviveProcess, mc.rec); err != nil {
		return err
	}
	if err := p.done("intent"); err != nil {
		return err
	}
	if err := m.applyEgress(ctx, mc); err != nil {
		return err
	}
	return p.done("assume")
}

// refillWarm prepares a spare over a snapshot, unless there is one. It runs in Run alone, one at a time.
func (m *Manager) refillWarm(ctx context.Context, ref snapshot.Ref) {
	m.warmMu.Lock()
	defer m.warmMu.Unlock()
	m.mu.Lock()
	have := m.warm[ref] != nil
	m.mu.Unlock()
	if have || ctx.Err() != nil {
		return
	}
	s, err := m.prepareWarm(ctx, ref)
	if err != nil {
		m.log.Warn("no spare monitor", "snapshot", ref, "err", err)
		return
	}
	m.mu.Lock()
	m.warm[ref] = s
	var oldest *warmMonitor
	if len(m.warm) > m.cfg.WarmMonitors {
		all := make([]*warmMonitor, 0, len(m.warm))
		for _, s := range m.warm {
			all = append(all, s)
		}
		oldest = slices.MinFunc(all, func(a, b *warmMonitor) int { return a.made.Compare(b.made) })
		delete(m.warm, oldest.ref)
	}
	m.mu.Unlock()
	if oldest != nil {
		m.discardWarm(ctx, oldest, errWarmNotNeeded)
	}
}

// prepareWarm makes one spare.
func (m *Manager) prepareWarm(ctx context.Context, ref snapshot.Ref) (_ *warmMonitor, err error) {
	p := m.begin("spare")
	defer func() {
		if err != nil {
			err = p.end(ctx, err)
		}
	}()
	snap, err := m.deps.Store.Acquire(ref)
	if err != nil {
		return nil, wrapStoreError(err)
	}
	p.cleanup.Push("release snapshot", func(context.Context) error { return m.deps.Store.Release(ref) })
	if err := snapshot.Check(snap); err != nil {
		return nil, err
	}
	if err := m.requireSpace("a spare monitor", 0); err != nil {
		return nil, err
	}
	if err := p.done("hold"); err != nil {
		return nil, err
	}
	mc := m.newUnlisted(snap)
	if err := m.provision(ctx, p, mc, snap, startPlan{method: methodRestore, diskMiB: snap.DiskMiB}); err != nil {
		return nil, err
	}
	return &warmMonitor{ref: ref, mc: mc, op: p, made: time.Now()}, nil
}

// newUnlisted is a machine in the making that is in no list. A record of it removes it at the next Recover.
func (m *Manager) newUnlisted(snap snapshot.Snapshot) *machine {
	var raw [10]byte
	_, _ = rand.Read(raw[:]) // never fails: it ends the program instead
	id := hostapi.MachineID("rig" + hex.EncodeToString(raw[:]))
	return &machine{id: id, dir: filepath.Join(m.cfg.Dir, string(id)), busy: make(chan struct{}, 1), rec: record{
		Version: recordVersion, ID: id, State: creating, Base: snap.Ref, VCPUs: snap.VCPUs, MemoryMiB: snap.MemoryMiB,
		DiskMiB: snap.DiskMiB, Data: snap.Data, Slot: -1, Created: time.Now().UTC(),
	}}
}

// errWarmNotNeeded is why a spare goes that nothing is wrong with.
var errWarmNotNeeded = errors.New("it is not needed any more")

// discardWarm removes a spare that is in no list any more.
func (m *Manager) discardWarm(ctx context.Context, s *warmMonitor, why error) {
	m.log.Debug("spare monitor removed", "snapshot", s.ref, "err", why)
	if err := s.op.done("drop"); err != nil && s.op.abandoned {
		return
	}
	if err := s.op.cleanup.Unwind(ctx); err != nil {
		m.log.Error("spare monitor not removed", "machine", s.mc.id, "err", err)
	}
}

// discardWarmUnless removes the spares that keep refuses.
func (m *Manager) discardWarmUnless(ctx context.Context, keep func(*warmMonitor) bool) {
	var gone []*warmMonitor
	m.mu.Lock()
	for ref, s := range m.warm {
		if !keep(s) {
			gone = append(gone, s)
			delete(m.warm, ref)
		}
	}
	m.mu.Unlock()
	slices.SortFunc(gone, func(a, b *warmMonitor) int { return cmp.Compare(a.mc.id, b.mc.id) })
	for _, s := range gone {
		m.discardWarm(ctx, s, errWarmNotNeeded)
	}
}

// warmStillUsable says whether a spare may wait on: its monitor lives and it has not waited for long.
func warmStillUsable(s *warmMonitor) bool {
	select {
	case <-s.mc.vm.Done():
		return false
	default:
		return time.Since(s.made) < warmMaxAge
	}
}
