package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/vmm"
)

// lostReason is the reason of machines whose monitor ended while no host agent ran.
const lostReason = "the monitor ended while the host agent was not running"

// Recover takes over what an earlier process left. Call it once, before anything else.
// Machines that run continue, operations that were in progress are finished or undone, and everything that belongs
// to no machine is removed: monitors, network slots, cgroups, images, files.
func (m *Manager) Recover(ctx context.Context) error {
	if err := os.MkdirAll(m.cfg.Dir, 0o711); err != nil {
		return fmt.Errorf("recover machines: %w", err)
	}
	if err := durable.Sweep(m.cfg.Dir); err != nil {
		return fmt.Errorf("recover machines: %w", err)
	}
	list, err := os.ReadDir(m.cfg.Dir)
	if err != nil {
		return fmt.Errorf("recover machines: %w", err)
	}
	g, each := errgroup.WithContext(ctx)
	g.SetLimit(m.cfg.Parallel)
	for _, e := range list {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			g.Go(func() error { return m.recoverDir(each, e.Name()) })
		}
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("recover machines: %w", err)
	}
	return m.sweep(ctx)
}

// sweep removes everything that belongs to no machine.
func (m *Manager) sweep(ctx context.Context) error {
	if err := m.deps.Network.Sweep(ctx); err != nil {
		return fmt.Errorf("sweep network slots: %w", err)
	}
	if err := m.deps.Cgroups.Sweep(ctx); err != nil {
		return fmt.Errorf("sweep cgroups: %w", err)
	}
	if err := m.sweepVolumes(); err != nil {
		return fmt.Errorf("sweep volumes: %w", err)
	}
	if err := m.deps.Store.GC(); err != nil {
		return fmt.Errorf("collect snapshots: %w", err)
	}
	return nil
}

// recoverDir recovers the machine in one directory.
func (m *Manager) recoverDir(ctx context.Context, name string) (err error) {
	dir := filepath.Join(m.cfg.Dir, name)
	in, err := readRecord(dir)
	if err == nil && (in.resourceName() != name || !validID(name)) {
		err = fmt.Errorf("it is the record of %q", string(in.ID))
	}
	if err != nil {
		return m.recoverRemnant(ctx, name, err)
	}
	op := m.begin("recover")
	mc, err := m.insert(in)
	if err != nil {
		return err
	}
	op.owned = append(op.owned, mc)
	defer func() { err = op.end(ctx, err) }()
	if in.Base != "" && in.State != creating {
		if _, err := m.deps.Store.Acquire(in.Base); err != nil {
			m.log.Warn("image of a machine is missing", "machine", mc.id, "snapshot", in.Base, "err", err)
			mc.set(func() { mc.rec.Base = "" })
		}
	}
	if in.State == hibernated && in.Base != mc.rec.Base {
		if err := m.setFailed(ctx, op, mc, errNoImage.Error()); err != nil {
			return fmt.Errorf("machine %s: %w", mc.id, err)
		}
		m.emit(mc, "lost", errNoImage.Error())
		return nil
	}
	if err := m.recoverMachine(ctx, op, mc); err != nil {
		return fmt.Errorf("machine %s: %w", mc.id, err)
	}
	return nil
}

// recoverRemnant handles a directory whose record cannot be used. Without a record, or with the empty one that a
// crash of the host leaves of a machine that was being made, it is removed. Anything else may be a persistent machine
// of another version of this program: its files are left alone, and so are the images that it names.
func (m *Manager) recoverRemnant(ctx context.Context, name string, why error) error {
	dir := filepath.Join(m.cfg.Dir, name)
	if err := m.deps.Driver.Kill(ctx, vmm.Spec{ID: name, Dir: filepath.Join(dir, monitorDir)}); err != nil {
		return fmt.Errorf("machine %s: kill: %w", name, err)
	}
	info, err := os.Stat(filepath.Join(dir, recordFile))
	if err == nil && info.Size() > 0 {
		m.log.Error("machine left alone: its record cannot be used", "machine", name, "err", why)
		return m.holdImages(dir)
	}
	m.log.Warn("remnant of a machine removed", "machine", name, "err", why)
	return os.RemoveAll(dir)
}

// holdImages acquires the images that the record of a machine that is left alone names, if they exist.
func (m *Manager) holdImages(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return err
	}
	var images struct {
		Base snapshot.Ref `json:"base"`
		Next snapshot.Ref `json:"next"`
	}
	_ = json.Unmarshal(data, &images) // a record without these fields names no images
	for _, ref := range []snapshot.Ref{images.Base, images.Next} {
		if _, err := m.deps.Store.Acquire(ref); err != nil && ref != "" {
			m.log.Warn("image of a machine is missing", "machine", filepath.Base(dir), "snapshot", ref, "err", err)
		}
	}
	return nil
}

// recoverMachine decides by the record. A machine that was being made or removed is removed; one that runs is taken
// over.
func (m *Manager) recoverMachine(ctx context.Context, op *operation, mc *machine) error {
	switch {
	case mc.rec.Ephemeral, mc.rec.State == creating, mc.rec.State == destroying:
		if mc.rec.State == creating {
			mc.set(func() { mc.rec.Base = "" })
		}
		return m.removeLeftover(ctx, op, mc)
	case mc.rec.State == hibernated, mc.rec.State == waking && mc.rec.Base != "" && !m.imageConsumed(mc):
		return m.recoverHibernated(ctx, op, mc)
	case mc.rec.State == hibernating:
		if _, err := m.deps.Store.Get(mc.rec.Next); err == nil {
			return m.finishHibernation(ctx, op, mc)
		}
		before := mc.rec.Before
		err := m.update(mc, surviveHost, func(in *record) { in.State, in.Before, in.Next = before, "", "" })
		if err != nil {
			return err
		}
		return m.adopt(ctx, op, mc)
	case mc.rec.State == failed:
		return m.killLeftover(ctx, op, mc)
	default: // running, paused, waking
		return m.adopt(ctx, op, mc)
	}
}

// killLeftover ends the monitor, if any, of a machine that must not have one.
func (m *Manager) killLeftover(ctx context.Context, op *operation, mc *machine) error {
	if err := m.deps.Driver.Kill(ctx, m.spec(mc)); err != nil {
		return fmt.Errorf("kill: %w", err)
	}
	return op.done("kill")
}

// removeLeftover removes a machine of which only the directory is known.
func (m *Manager) removeLeftover(ctx context.Context, op *operation, mc *machine) error {
	if err := m.killLeftover(ctx, op, mc); err != nil {
		return err
	}
	return m.remove(ctx, op, mc)
}

// imageConsumed reports whether the image that a machine hibernated in was restored before.
func (m *Manager) imageConsumed(mc *machine) bool {
	snap, err := m.deps.Store.Get(mc.rec.Base)
	return err == nil && snap.Consumed()
}

// recoverHibernated leaves a machine hibernated if it was, or was being woken and the call had not returned. A machine
// whose image is used has run since and has lost its memory: it is failed.
func (m *Manager) recoverHibernated(ctx context.Context, op *operation, mc *machine) error {
	if err := m.killLeftover(ctx, op, mc); err != nil {
		return err
	}
	if mc.rec.State == hibernated && mc.rec.Base == "" { // it was stopped
		return nil
	}
	if mc.rec.Base != "" && !m.imageConsumed(mc) {
		if mc.rec.State == hibernated {
			return nil
		}
		return m.update(mc, surviveHost, func(in *record) { in.State, in.Slot, in.MAC = hibernated, -1, "" })
	}
	reason := errNoImage.Error()
	if mc.rec.Base != "" {
		reason = "the host crashed just after it was woken: its memory is lost"
	}
	return m.setFailed(ctx, op, mc, reason)
}

// finishHibernation ends a hibernation whose image is complete: the machine has not run since.
func (m *Manager) finishHibernation(ctx context.Context, op *operation, mc *machine) error {
	if err := m.killLeftover(ctx, op, mc); err != nil {
		return err
	}
	old, next := mc.rec.Base, mc.rec.Next
	if _, err := m.deps.Store.Acquire(next); err != nil {
		return err
	}
	err := m.update(mc, surviveHost, func(in *record) {
		in.State, in.Before, in.Next, in.Base, in.Slot, in.MAC = hibernated, "", "", next, -1, ""
	})
	if err != nil {
		return err
	}
	if old != "" {
		if err := m.deps.Store.Release(old); err != nil {
			return err
		}
	}
	if m.imageConsumed(mc) { // it was woken since, and a crash of the host lost the record of that
		return m.recoverHibernated(ctx, op, mc)
	}
	m.emit(mc, "hibernated", "it was being hibernated when the host agent ended")
	return op.done("hibernated")
}

// adopt takes over a machine that runs. One whose monitor has ended is failed or removed.
func (m *Manager) adopt(ctx context.Context, op *operation, mc *machine) error {
	if mc.rec.Lazy {
		return m.handleLost(ctx, op, mc, streamReason)
	}
	vm, err := m.deps.Driver.Adopt(ctx, m.spec(mc))
	if errors.Is(err, vmm.ErrGone) {
		return m.handleLost(ctx, op, mc, lostReason)
	}
	if err != nil {
		return m.handleLost(ctx, op, mc, "the host agent could not take it over: "+err.Error())
	}
	mc.set(func() { mc.vm = vm })
	m.ledger.grant(mc.id, mc.rec.MemoryMiB)
	if err := m.adoptHostResources(ctx, mc); err != nil {
		return m.handleLost(ctx, op, mc, err.Error())
	}
	if err := op.done("adopt"); err != nil {
		return err
	}
	if err := m.resumeAdopted(ctx, op, mc); err != nil {
		return err
	}
	if mc.vm == nil {
		return nil
	}
	if err := m.finishChange(ctx, op, mc); err != nil {
		return err
	}
	m.watch(mc)
	if m.isOwnImage(mc) {
		m.removeDisks(mc.rec.Base)
	}
	m.emit(mc, "adopted", "")
	return op.done("revive")
}

func (m *Manager) adoptHostResources(ctx context.Context, mc *machine) error {
	slot, err := m.deps.Network.Adopt(ctx, mc.rec.resourceName(), mc.rec.Slot)
	if err != nil {
		return fmt.Errorf("adopt network slot %d: %w", mc.rec.Slot, err)
	}
	mc.set(func() { mc.slot = slot })
	// Always: the record may be newer than the policy that the earlier process applied.
	if err := slot.SetEgress(ctx, mc.rec.Egress); err != nil {
		return fmt.Errorf("set the egress policy: %w", err)
	}
	if err := m.applyNetworkRates(ctx, mc); err != nil {
		return err
	}
	group, err := m.deps.Cgroups.Adopt(ctx, mc.rec.resourceName(), m.limits(mc))
	if err != nil {
		// The machine is worth more than its limits, which the kernel may well still enforce.
		m.log.Warn("cgroup not adopted", "machine", mc.id, "err", err)
		return nil
	}
	mc.set(func() { mc.cgroup = group })
	return nil
}

// resumeAdopted lets an adopted machine continue if it was stopped for a fork or snapshot when the process ended;
// what its user paused stays paused. A machine that was waking gets its identity again, since the call had not
// returned; if it does not reply, it is hibernated as before.
func (m *Manager) resumeAdopted(ctx context.Context, op *operation, mc *machine) error {
	switch mc.rec.State {
	case paused:
		return mc.vm.Pause(ctx)
	case waking:
		if err := mc.vm.Resume(ctx); err != nil {
			return m.undoWake(ctx, op, mc, err)
		}
		mc.set(func() { mc.rec.Generation++ })
		id := identity(mc, false)
		g := Handshake{Generation: mc.rec.Generation, Identity: &id, Resync: true}
		if _, err := m.redial(ctx, mc, g, m.cfg.ReadyTimeout); err != nil {
			return m.undoWake(ctx, op, mc, err)
		}
		return m.update(mc, surviveProcess, func(in *record) { in.State = running })
	default:
		if m.adoptWaiting(ctx, mc) {
			return nil
		}
		if err := m.resume(ctx, mc); err != nil {
			// It runs and may reply later: Guest tries again.
			m.log.Warn("adopted machine does not reply", "machine", mc.id, "err", err)
		}
		return nil
	}
}

// undoWake makes an adopted machine that was waking hibernated again: the image still has memory and disks of the
// moment of hibernation. A machine that was booting has no image and is failed.
func (m *Manager) undoWake(ctx context.Context, op *operation, mc *machine, why error) error {
	if err := m.deps.Store.UnmarkConsumed(mc.rec.Base); err != nil {
		return m.handleLost(ctx, op, mc, "wake: "+why.Error())
	}
	m.log.Warn("wake undone", "machine", mc.id, "err", why)
	if err := op.done("unmark"); err != nil {
		return err
	}
	if err := m.releaseResources(ctx, op, mc); err != nil {
		return err
	}
	m.ledger.release(mc.id)
	return m.update(mc, surviveHost, func(in *record) { in.State, in.Slot, in.MAC = hibernated, -1, "" })
}

// handleLost fails or removes a machine that cannot be taken over.
func (m *Manager) handleLost(ctx context.Context, op *operation, mc *machine, reason string) error {
	m.log.Warn("machine lost", "machine", mc.id, "err", reason)
	if err := m.killLeftover(ctx, op, mc); err != nil {
		return err
	}
	var err error
	if mc.rec.Persistent || mc.rec.State == waking {
		err = m.setFailed(ctx, op, mc, reason)
	} else {
		err = m.remove(ctx, op, mc)
	}
	m.emit(mc, "lost", reason)
	return err
}
