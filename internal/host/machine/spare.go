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

// spareLife is how long a spare waits for a create that needs it.
const spareLife = 10 * time.Minute

// spare is a monitor that waits over a template's memory, with a directory, a place in the network, a group
// and a disk: all of a machine but a guest. Nothing runs in it and nothing is loaded. A create from the
// template makes a machine of it, whose directory, group and monitor keep the spare's name.
type spare struct {
	ref  snapshot.Ref
	mc   *machine // in no list
	plan *plan    // its way back
	made time.Time
}

// wantSpare asks Run for a spare over a snapshot that a machine was just made from.
func (m *Manager) wantSpare(ref snapshot.Ref) {
	if m.cfg.Spares == 0 {
		return
	}
	select {
	case m.wanted <- ref:
	default: // Run has enough to do; the next create asks again
	}
}

// spareFits says whether a machine can be made of a spare of its template: disks of kept machines are
// opened in another way, a grown disk is another disk, and a spare is held to the host's limits alone.
func spareFits(req hostapi.Create, how start) bool {
	return req.Snapshot == "" && !req.Keep && !how.grow && req.Limits == (hostapi.Limits{})
}

// claim gives the caller the spare over a snapshot, nil when none lives.
func (m *Manager) claim(ctx context.Context, ref snapshot.Ref) *spare {
	m.mu.Lock()
	s := m.spares[ref]
	delete(m.spares, ref)
	m.mu.Unlock()
	if s == nil {
		return nil
	}
	select {
	case <-s.mc.vm.Done():
		m.dropSpare(ctx, s, fmt.Errorf("its monitor ended: %w", cmpErr(s.mc.vm.Err(), errSpare)))
		return nil
	default:
		return s
	}
}

// assume makes a new machine of a spare: the machine has what the spare had, and its record says so.
func (m *Manager) assume(ctx context.Context, p *plan, mc *machine, s *spare) error {
	p.back.Push("remove what was ready", s.plan.back.Unwind)
	mc.set(func() {
		mc.vm, mc.slot, mc.group = s.mc.vm, s.mc.slot, s.mc.group
		mc.in.Slot, mc.in.MAC = s.mc.in.Slot, s.mc.in.MAC
	})
	if err := m.writeIntent(mc, ofProcess, mc.in); err != nil {
		return err
	}
	if err := p.did("intent"); err != nil {
		return err
	}
	if err := m.wayOut(ctx, mc); err != nil {
		return err
	}
	return p.did("assume")
}

// makeSpare prepares a spare over a snapshot, unless there is one. It runs in Run alone, one at a time.
func (m *Manager) makeSpare(ctx context.Context, ref snapshot.Ref) {
	m.sparing.Lock()
	defer m.sparing.Unlock()
	m.mu.Lock()
	have := m.spares[ref] != nil
	m.mu.Unlock()
	if have || ctx.Err() != nil {
		return
	}
	s, err := m.ready(ctx, ref)
	if err != nil {
		m.log.Warn("no spare monitor", "snapshot", ref, "err", err)
		return
	}
	m.mu.Lock()
	m.spares[ref] = s
	var oldest *spare
	if len(m.spares) > m.cfg.Spares {
		all := make([]*spare, 0, len(m.spares))
		for _, s := range m.spares {
			all = append(all, s)
		}
		oldest = slices.MinFunc(all, func(a, b *spare) int { return a.made.Compare(b.made) })
		delete(m.spares, oldest.ref)
	}
	m.mu.Unlock()
	if oldest != nil {
		m.dropSpare(ctx, oldest, errSpare)
	}
}

// ready makes one spare.
func (m *Manager) ready(ctx context.Context, ref snapshot.Ref) (_ *spare, err error) {
	p := m.begin("spare")
	defer func() {
		if err != nil {
			err = p.end(ctx, err)
		}
	}()
	snap, err := m.deps.Store.Hold(ref)
	if err != nil {
		return nil, missing(err)
	}
	p.back.Push("release snapshot", func(context.Context) error { return m.deps.Store.Release(ref) })
	if err := snapshot.Check(snap); err != nil {
		return nil, err
	}
	if err := m.needSpace("a spare monitor", 0); err != nil {
		return nil, err
	}
	if err := p.did("hold"); err != nil {
		return nil, err
	}
	mc := m.unlisted(snap)
	if err := m.furnish(ctx, p, mc, snap, start{how: howRestore, diskMiB: snap.DiskMiB}); err != nil {
		return nil, err
	}
	return &spare{ref: ref, mc: mc, plan: p, made: time.Now()}, nil
}

// unlisted is a machine in the making that is in no list. A record of it removes it at the next Recover.
func (m *Manager) unlisted(snap snapshot.Snapshot) *machine {
	var raw [10]byte
	_, _ = rand.Read(raw[:]) // never fails: it ends the program instead
	id := hostapi.MachineID("rig" + hex.EncodeToString(raw[:]))
	return &machine{id: id, dir: filepath.Join(m.cfg.Dir, string(id)), busy: make(chan struct{}, 1), in: intent{
		Version: intentVersion, ID: id, State: creating, Base: snap.Ref, VCPUs: snap.VCPUs, MemoryMiB: snap.MemoryMiB,
		DiskMiB: snap.DiskMiB, Data: snap.Data, Slot: -1, Created: time.Now().UTC(),
	}}
}

// errSpare is why a spare goes that nothing is wrong with.
var errSpare = errors.New("it is not needed any more")

// dropSpare removes a spare that is in no list any more.
func (m *Manager) dropSpare(ctx context.Context, s *spare, why error) {
	m.log.Debug("spare monitor removed", "snapshot", s.ref, "err", why)
	if err := s.plan.did("drop"); err != nil && s.plan.quit {
		return
	}
	if err := s.plan.back.Unwind(ctx); err != nil {
		m.log.Error("spare monitor not removed", "machine", s.mc.id, "err", err)
	}
}

// dropSpares removes the spares that keep refuses.
func (m *Manager) dropSpares(ctx context.Context, keep func(*spare) bool) {
	var gone []*spare
	m.mu.Lock()
	for ref, s := range m.spares {
		if !keep(s) {
			gone = append(gone, s)
			delete(m.spares, ref)
		}
	}
	m.mu.Unlock()
	slices.SortFunc(gone, func(a, b *spare) int { return cmp.Compare(a.mc.id, b.mc.id) })
	for _, s := range gone {
		m.dropSpare(ctx, s, errSpare)
	}
}

// freshSpare says whether a spare may wait on: its monitor lives and it has not waited for long.
func freshSpare(s *spare) bool {
	select {
	case <-s.mc.vm.Done():
		return false
	default:
		return time.Since(s.made) < spareLife
	}
}
