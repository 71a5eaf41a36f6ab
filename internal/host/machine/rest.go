package machine

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/vmm"
)

// restArea holds users' snapshots and, anonymous, the images that machines sleep in. Users' names have
// no dash, so they never meet.
const restArea = "snapshots"

// describe says what a snapshot of a machine is of.
func describe(mc *machine) snapshot.Snapshot {
	in := mc.in
	return snapshot.Snapshot{
		Machine: string(in.ID), Base: in.Base, Template: string(in.Template), VCPUs: in.VCPUs, MemoryMiB: in.MemoryMiB,
		DiskMiB: in.DiskMiB, Data: in.Data, User: in.User, Workdir: in.Workdir, Hostname: in.Hostname, Env: in.Env,
		Created: time.Now().UTC(),
	}
}

// TakeSnapshot puts one moment of a running or paused machine, memory and disks, into the store under
// ref. The machine goes on in its state. finish, which may be nil, may work on the draft before it is
// committed; change, which may be nil, on its description.
func (m *Manager) TakeSnapshot(
	ctx context.Context,
	id hostapi.MachineID,
	ref snapshot.Ref,
	change func(*snapshot.Snapshot),
	finish func(context.Context, *snapshot.Draft) error,
) (_ snapshot.Snapshot, err error) {
	p := m.begin("snapshot")
	defer func() { err = p.end(ctx, err) }()
	mc, err := p.enter(ctx, id)
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	if err := mc.need("snapshot", running, paused); err != nil {
		return snapshot.Snapshot{}, err
	}
	if can := m.deps.Driver.Capabilities(); !can.Snapshot {
		return snapshot.Snapshot{}, unsupported("snapshot", can)
	}
	if err := m.whole(ctx, p, mc); err != nil {
		return snapshot.Snapshot{}, err
	}
	if _, err := m.deps.Store.Get(ref); err == nil {
		return snapshot.Snapshot{}, fmt.Errorf("snapshot %s: %w", ref, hostapi.ErrExists)
	}
	snap := describe(mc)
	snap.Ref = ref
	if change != nil {
		change(&snap)
	}
	snap, err = m.take(ctx, p, mc, snap, finish)
	if err != nil {
		return snapshot.Snapshot{}, fmt.Errorf("snapshot machine %s: %w", mc.id, missing(err))
	}
	p.back.Forget()
	p.told(mc, false)
	return snap, m.deps.Store.Release(ref)
}

// take stores one moment of a machine, held once.
func (m *Manager) take(ctx context.Context, p *plan, mc *machine, snap snapshot.Snapshot,
	finish func(context.Context, *snapshot.Draft) error) (snapshot.Snapshot, error) {
	if err := m.needSpace("a snapshot of machine "+string(mc.id), mc.in.MemoryMiB); err != nil {
		return snap, err
	}
	draft, err := m.deps.Store.Draft()
	if err != nil {
		return snap, err
	}
	p.back.Push("discard draft", func(context.Context) error { return draft.Discard() })
	if err := p.did("draft"); err != nil {
		return snap, err
	}
	capture, err := m.still(ctx, p, mc, moment{mc.vm.Capture, func() error { return m.shareDraft(mc, draft) }, "share"})
	if err != nil {
		return snap, err
	}
	p.back.Push("free capture", func(context.Context) error { return capture.Close() })
	if err := m.save(ctx, p, capture, draft, &snap); err != nil {
		return snap, err
	}
	if finish != nil {
		if err := finish(ctx, draft); err != nil {
			return snap, err
		}
		if err := p.did("finish"); err != nil {
			return snap, err
		}
	}
	if err := m.commit(p, draft, &snap); err != nil {
		return snap, err
	}
	return snap, capture.Close()
}

// save writes a capture into a draft.
func (m *Manager) save(
	ctx context.Context,
	p *plan,
	capture vmm.Capture,
	draft *snapshot.Draft,
	snap *snapshot.Snapshot,
) error {
	image, err := capture.Save(ctx, draft.ImageDir())
	if err != nil {
		return fmt.Errorf("save memory: %w", err)
	}
	snap.Manifest = image.Manifest
	return p.did("save")
}

// commit makes a draft a snapshot.
func (m *Manager) commit(p *plan, draft *snapshot.Draft, snap *snapshot.Snapshot) error {
	got, err := draft.Commit(*snap)
	if err != nil {
		return err
	}
	*snap = got
	p.back.Push("delete snapshot", func(context.Context) error {
		var err error
		if !got.Anonymous {
			err = m.deps.Store.Delete(got.Ref)
		}
		return errors.Join(err, m.deps.Store.Release(got.Ref))
	})
	return p.did("commit")
}

// Rehearsed says that a running machine's guest did what those of its next snapshot will do first. Where
// monitors learn nothing from that it does nothing.
func (m *Manager) Rehearsed(ctx context.Context, id hostapi.MachineID) error {
	mc, err := m.enter(ctx, id)
	if err != nil {
		return err
	}
	defer func() { <-mc.busy }()
	if err := mc.need("rehearse", running, paused); err != nil {
		return err
	}
	if vm, ok := mc.vm.(vmm.Rehearser); ok {
		vm.Rehearsed()
	}
	return nil
}

// Hibernate puts a running or paused machine to rest: memory and device state into an image, its disks
// stay where they are, and its monitor ends. A hibernated machine is fine. When it fails the machine goes
// on as it was.
func (m *Manager) Hibernate(ctx context.Context, id hostapi.MachineID) (err error) {
	p := m.begin("hibernate")
	defer func() { err = p.end(ctx, err) }()
	mc, err := p.enter(ctx, id)
	if err != nil {
		return err
	}
	if err := mc.need("hibernate", running, paused, hibernated); err != nil {
		return err
	}
	if mc.in.State == hibernated {
		return m.stripped(ctx, p, mc)
	}
	if can := m.deps.Driver.Capabilities(); !can.Snapshot {
		return unsupported("hibernate", can)
	}
	if err := m.whole(ctx, p, mc); err != nil {
		return err
	}
	if err := m.needSpace("hibernating machine "+string(id), mc.in.MemoryMiB); err != nil {
		return err
	}
	old := mc.in.Base
	if err := m.sleep(ctx, p, mc); err != nil {
		return fmt.Errorf("hibernate machine %s: %w", id, noSpace(err))
	}
	return m.rested(ctx, p, mc, old, "asleep")
}

// rested frees what a machine that is at rest does not need: there is no way back but Wake. old is the image that
// it ran on.
func (m *Manager) rested(ctx context.Context, p *plan, mc *machine, old snapshot.Ref, step string) error {
	p.back.Forget()
	err := p.did(step)
	if p.quit {
		return err
	}
	err = errors.Join(err, m.strip(ctx, p, mc))
	if p.quit {
		return err
	}
	if old != "" {
		err = errors.Join(err, m.deps.Store.Release(old))
	}
	m.ledger.release(mc.id)
	p.told(mc, false)
	return err
}

// sleep writes the image that a machine sleeps in and records, durably, that it does. Undone, the image
// goes first, then the record says that the machine runs, and only then does it run: at no moment can a
// crash find a running machine beside an image that it would be restored from.
func (m *Manager) sleep(ctx context.Context, p *plan, mc *machine) error {
	before, base := mc.in.State, mc.in.Base
	if before == running {
		if err := m.halt(ctx, p, mc, false); err != nil {
			return err
		}
		p.back.Push("go on", func(ctx context.Context) error { return m.goOn(ctx, mc) })
	}
	snap := describe(mc)
	snap.Ref, snap.Anonymous = snapshot.Join(restArea, fmt.Sprintf("%s-g%d", mc.id, mc.in.Generation)), true
	p.back.Push("record", func(context.Context) error {
		return m.record(mc, ofHost, func(in *intent) { in.State, in.Before, in.Next, in.Base = before, "", "", base })
	})
	err := m.record(mc, ofProcess, func(in *intent) { in.State, in.Before, in.Next = hibernating, before, snap.Ref })
	if err != nil {
		return err
	}
	if err := p.did("intent"); err != nil {
		return err
	}
	if err := m.saveAsleep(ctx, p, mc, &snap); err != nil {
		return err
	}
	return m.record(mc, ofProcess, func(in *intent) {
		in.State, in.Before, in.Next, in.Base, in.Slot, in.MAC = hibernated, "", "", snap.Ref, -1, ""
	})
}

// saveAsleep captures a machine that stands still and stores the image. While it is written, the disks
// and the intent, which names the image to come, are made durable: with the image's commit the machine
// is asleep whatever happens to the host.
func (m *Manager) saveAsleep(ctx context.Context, p *plan, mc *machine, snap *snapshot.Snapshot) error {
	draft, err := m.deps.Store.Draft()
	if err != nil {
		return err
	}
	p.back.Push("discard draft", func(context.Context) error { return draft.Discard() })
	capture, err := mc.vm.Capture(ctx)
	if err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	p.back.Push("free capture", func(context.Context) error { return capture.Close() })
	if err := p.did("capture"); err != nil {
		return err
	}
	var disk errgroup.Group
	disk.Go(func() error {
		return errors.Join(mc.syncDisks(), durable.Sync(filepath.Join(mc.dir, intentFile)))
	})
	err = m.save(ctx, p, capture, draft, snap)
	if err := errors.Join(err, disk.Wait()); err != nil {
		return err
	}
	if err := m.commit(p, draft, snap); err != nil {
		return err
	}
	return capture.Close()
}
