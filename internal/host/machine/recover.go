package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/vmm"
)

// lostReason is told of machines whose monitor ended while no host agent ran.
const lostReason = "the monitor ended while the host agent was not running"

// Recover takes over what an earlier process left: machines that live go on, operations that were under
// way are finished or undone, and everything that belongs to no machine is removed: monitors, network
// places, groups, images, files. Call it once, before anything else.
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

// sweep removes what belongs to no machine.
func (m *Manager) sweep(ctx context.Context) error {
	if err := m.deps.Network.Sweep(ctx); err != nil {
		return fmt.Errorf("sweep network slots: %w", err)
	}
	if err := m.deps.Groups.Sweep(ctx); err != nil {
		return fmt.Errorf("sweep groups: %w", err)
	}
	if err := m.deps.Store.Collect(); err != nil {
		return fmt.Errorf("collect snapshots: %w", err)
	}
	return nil
}

// recoverDir looks after one directory below the machines'.
func (m *Manager) recoverDir(ctx context.Context, name string) (err error) {
	dir := filepath.Join(m.cfg.Dir, name)
	in, err := readIntent(dir)
	if err == nil && (in.rig() != name || !validID(name)) {
		err = fmt.Errorf("it is the record of %q", string(in.ID))
	}
	if err != nil {
		return m.recoverRemnant(ctx, name, err)
	}
	p := m.begin("recover")
	mc, err := m.add(in)
	if err != nil {
		return err
	}
	p.mine = append(p.mine, mc)
	defer func() { err = p.end(ctx, err) }()
	if in.Base != "" && in.State != creating {
		if _, err := m.deps.Store.Hold(in.Base); err != nil {
			m.log.Warn("image of a machine is missing", "machine", mc.id, "snapshot", in.Base, "err", err)
			mc.set(func() { mc.in.Base = "" })
		}
	}
	if err := m.recoverMachine(ctx, p, mc); err != nil {
		return fmt.Errorf("machine %s: %w", mc.id, err)
	}
	return nil
}

// recoverRemnant looks after a directory whose intent cannot be used. Without an intent, or with the empty
// one that a crash of the host leaves, it never became a machine and is removed. Anything else may be a
// kept machine that another version of this program understands: its files are left alone.
func (m *Manager) recoverRemnant(ctx context.Context, name string, why error) error {
	dir := filepath.Join(m.cfg.Dir, name)
	if err := m.deps.Driver.Kill(ctx, vmm.Spec{ID: name, Dir: filepath.Join(dir, monitorDir)}); err != nil {
		return fmt.Errorf("machine %s: kill: %w", name, err)
	}
	info, err := os.Stat(filepath.Join(dir, intentFile))
	if err == nil && info.Size() > 0 {
		m.log.Error("machine left alone: its record cannot be used", "machine", name, "err", why)
		return nil
	}
	m.log.Warn("remnant of a machine removed", "machine", name, "err", why)
	return os.RemoveAll(dir)
}

// recoverMachine decides by what was written down last. A machine that was being made is removed, one
// that was being removed is removed; one that lives is taken over.
func (m *Manager) recoverMachine(ctx context.Context, p *plan, mc *machine) error {
	switch {
	case mc.in.Scratch, mc.in.State == creating, mc.in.State == destroying:
		if mc.in.State == creating {
			mc.set(func() { mc.in.Base = "" })
		}
		return m.clear(ctx, p, mc)
	case mc.in.State == hibernated, mc.in.State == waking && mc.in.Base != "" && !m.spent(mc):
		return m.recoverAsleep(ctx, p, mc)
	case mc.in.State == hibernating:
		if _, err := m.deps.Store.Get(mc.in.Next); err == nil {
			return m.finishSleep(ctx, p, mc)
		}
		before := mc.in.Before
		if err := m.record(mc, ofHost, func(in *intent) { in.State, in.Before, in.Next = before, "", "" }); err != nil {
			return err
		}
		return m.adopt(ctx, p, mc)
	case mc.in.State == failed:
		return m.killLeft(ctx, p, mc)
	default: // running, paused, waking
		return m.adopt(ctx, p, mc)
	}
}

// killLeft ends a monitor that a machine without one should not have, and gives its slot back.
func (m *Manager) killLeft(ctx context.Context, p *plan, mc *machine) error {
	if err := m.deps.Driver.Kill(ctx, m.spec(mc)); err != nil {
		return fmt.Errorf("kill: %w", err)
	}
	return p.did("kill")
}

// clear removes a machine of which only the directory is known.
func (m *Manager) clear(ctx context.Context, p *plan, mc *machine) error {
	if err := m.killLeft(ctx, p, mc); err != nil {
		return err
	}
	return m.scrap(ctx, p, mc)
}

// spent says whether the image of a machine's sleep was restored before.
func (m *Manager) spent(mc *machine) bool {
	snap, err := m.deps.Store.Get(mc.in.Base)
	return err == nil && snap.Spent()
}

// recoverAsleep leaves a machine asleep, also one whose guest had not begun to run again, or says that it
// lost its memory.
func (m *Manager) recoverAsleep(ctx context.Context, p *plan, mc *machine) error {
	if err := m.killLeft(ctx, p, mc); err != nil {
		return err
	}
	if mc.in.State == hibernated && mc.in.Base == "" { // it was stopped
		return nil
	}
	if mc.in.Base != "" && !m.spent(mc) {
		if mc.in.State == hibernated {
			return nil
		}
		return m.record(mc, ofHost, func(in *intent) { in.State, in.Slot, in.MAC = hibernated, -1, "" })
	}
	reason := "the image it slept in is missing or damaged"
	if mc.in.Base != "" {
		reason = "the host ended just after it woke: its memory is lost"
	}
	mc.set(func() { mc.in.State = waking }) // the only way from hibernated to failed
	return m.setFailed(ctx, p, mc, reason)
}

// finishSleep ends a hibernation whose image is complete: the machine has not run since.
func (m *Manager) finishSleep(ctx context.Context, p *plan, mc *machine) error {
	if err := m.killLeft(ctx, p, mc); err != nil {
		return err
	}
	old, next := mc.in.Base, mc.in.Next
	if _, err := m.deps.Store.Hold(next); err != nil {
		return err
	}
	err := m.record(mc, ofHost, func(in *intent) {
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
	if m.spent(mc) { // it woke since, and a crash of the host lost the record of that
		return m.recoverAsleep(ctx, p, mc)
	}
	m.emit(mc, "hibernated", "it was going to sleep when the host agent ended")
	return p.did("asleep")
}

// adopt takes over a machine that lives. One whose monitor is gone is failed or removed.
func (m *Manager) adopt(ctx context.Context, p *plan, mc *machine) error {
	if mc.in.Stream {
		return m.lost(ctx, p, mc, streamReason)
	}
	vm, err := m.deps.Driver.Adopt(ctx, m.spec(mc))
	if errors.Is(err, vmm.ErrGone) {
		return m.lost(ctx, p, mc, lostReason)
	}
	if err != nil {
		return m.lost(ctx, p, mc, "the host agent could not take it over: "+err.Error())
	}
	mc.set(func() { mc.vm = vm })
	m.ledger.grant(mc.id, mc.in.MemoryMiB)
	if err := m.adoptRig(ctx, mc); err != nil {
		return m.lost(ctx, p, mc, err.Error())
	}
	if err := p.did("adopt"); err != nil {
		return err
	}
	if err := m.revive(ctx, p, mc); err != nil {
		return err
	}
	if mc.vm == nil {
		return nil
	}
	m.watch(mc)
	m.emit(mc, "adopted", "")
	return p.did("revive")
}

func (m *Manager) adoptRig(ctx context.Context, mc *machine) error {
	slot, err := m.deps.Network.Adopt(ctx, mc.in.rig(), mc.in.Slot)
	if err != nil {
		return fmt.Errorf("adopt network slot %d: %w", mc.in.Slot, err)
	}
	mc.set(func() { mc.slot = slot })
	// Always: the record may be newer than what the earlier process put in force.
	if err := slot.SetEgress(ctx, mc.in.Egress); err != nil {
		return fmt.Errorf("set the egress policy: %w", err)
	}
	if err := m.throttle(ctx, mc); err != nil {
		return err
	}
	group, err := m.deps.Groups.Adopt(ctx, mc.in.rig(), m.limits(mc))
	if err != nil {
		// The machine is worth more than its limits, which the kernel may well still hold.
		m.log.Warn("group not adopted", "machine", mc.id, "err", err)
		return nil
	}
	mc.set(func() { mc.group = group })
	return nil
}

// revive lets an adopted machine go on. Whatever stood still for a fork or snapshot when the process
// died goes on; what its user paused stays so. A machine that was waking never confirmed who it is, so
// it is told again, or it has failed.
func (m *Manager) revive(ctx context.Context, p *plan, mc *machine) error {
	switch mc.in.State {
	case paused:
		return mc.vm.Pause(ctx)
	case waking:
		if err := mc.vm.Resume(ctx); err != nil {
			return m.lost(ctx, p, mc, "wake: "+err.Error())
		}
		mc.set(func() { mc.in.Generation++ })
		id := identity(mc, false)
		g := Greeting{Generation: mc.in.Generation, Identity: &id, Resync: true}
		if _, err := m.regreet(ctx, mc, g, m.cfg.ReadyTimeout); err != nil {
			return m.lost(ctx, p, mc, "wake: "+err.Error())
		}
		return m.record(mc, ofProcess, func(in *intent) { in.State = running })
	default:
		if err := m.goOn(ctx, mc); err != nil {
			// It lives, and may yet answer: Guest asks it again.
			m.log.Warn("adopted machine does not answer", "machine", mc.id, "err", err)
		}
		return nil
	}
}

// lost looks after a machine that cannot be taken over.
func (m *Manager) lost(ctx context.Context, p *plan, mc *machine, reason string) error {
	m.log.Warn("machine lost", "machine", mc.id, "err", reason)
	if err := m.killLeft(ctx, p, mc); err != nil {
		return err
	}
	var err error
	if mc.in.Keep || mc.in.State == waking {
		err = m.setFailed(ctx, p, mc, reason)
	} else {
		err = m.scrap(ctx, p, mc)
	}
	m.emit(mc, "lost", reason)
	return err
}
