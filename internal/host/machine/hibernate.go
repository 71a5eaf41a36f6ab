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

// snapshotArea holds users' snapshots and, anonymous, the images that machines hibernate in. Users' names have no
// dash, so the two never collide.
const snapshotArea = "snapshots"

// describe returns the description of a snapshot of a machine.
func describe(mc *machine) snapshot.Snapshot {
	in := mc.rec
	_, data := mc.captured()
	return snapshot.Snapshot{
		Machine: string(in.ID), Base: in.Base, Template: string(in.Template), VCPUs: in.VCPUs, MemoryMiB: in.MemoryMiB,
		DiskMiB: in.DiskMiB, Data: data, User: in.User, Workdir: in.Workdir, Hostname: in.Hostname, Env: in.Env,
		Created: time.Now().UTC(),
	}
}

// TakeSnapshot stores memory and disks of one moment of a running or paused machine under ref.
// The machine continues in its state. change, which may be nil, can change the description of the snapshot; finish,
// which may be nil, the draft before it is committed.
func (m *Manager) TakeSnapshot(
	ctx context.Context,
	id hostapi.MachineID,
	ref snapshot.Ref,
	change func(*snapshot.Snapshot),
	finish func(context.Context, *snapshot.Draft) error,
) (_ snapshot.Snapshot, err error) {
	op := m.begin("snapshot")
	defer func() { err = op.end(ctx, err) }()
	ctx, mc, err := op.lock(ctx, id)
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	if err := mc.requireState("snapshot", running, paused); err != nil {
		return snapshot.Snapshot{}, err
	}
	if can := m.deps.Driver.Capabilities(); !can.Snapshot {
		return snapshot.Snapshot{}, unsupported("snapshot", can)
	}
	if err := m.waitLocal(ctx, op, mc); err != nil {
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
	snap, err = m.storeSnapshot(ctx, op, mc, snap, finish)
	if err != nil {
		return snapshot.Snapshot{}, fmt.Errorf("snapshot machine %s: %w", mc.id, wrapStoreError(err))
	}
	op.cleanup.Forget()
	op.logPhases(mc, false)
	return snap, m.deps.Store.Release(ref)
}

// storeSnapshot stores one moment of a machine. The snapshot is acquired once.
func (m *Manager) storeSnapshot(ctx context.Context, op *operation, mc *machine, snap snapshot.Snapshot,
	finish func(context.Context, *snapshot.Draft) error) (snapshot.Snapshot, error) {
	if err := m.requireSpace("a snapshot of machine "+string(mc.id), mc.rec.MemoryMiB); err != nil {
		return snap, err
	}
	draft, err := m.deps.Store.Draft()
	if err != nil {
		return snap, err
	}
	op.cleanup.Push("discard draft", func(context.Context) error { return draft.Discard() })
	if err := op.done("draft"); err != nil {
		return snap, err
	}
	capture, err := m.captureStopped(
		ctx,
		op,
		mc,
		captureRequest{mc.vm.Capture, func() error { return m.cloneIntoDraft(mc, draft) }},
	)
	if err != nil {
		return snap, err
	}
	op.cleanup.Push("free capture", func(context.Context) error { return capture.Close() })
	if err := m.save(ctx, op, capture, draft, &snap); err != nil {
		return snap, err
	}
	if finish != nil {
		if err := finish(ctx, draft); err != nil {
			return snap, err
		}
		if err := op.done("finish"); err != nil {
			return snap, err
		}
	}
	if err := m.commit(op, draft, &snap); err != nil {
		return snap, err
	}
	return snap, capture.Close()
}

// save writes a capture into a draft.
func (m *Manager) save(
	ctx context.Context,
	op *operation,
	capture vmm.Capture,
	draft *snapshot.Draft,
	snap *snapshot.Snapshot,
) error {
	image, err := capture.Save(ctx, draft.ImageDir())
	if err != nil {
		return fmt.Errorf("save memory: %w", err)
	}
	snap.Manifest = image.Manifest
	return op.done("save")
}

// commit turns a draft into a snapshot.
func (m *Manager) commit(op *operation, draft *snapshot.Draft, snap *snapshot.Snapshot) error {
	got, err := draft.Commit(*snap)
	if err != nil {
		return err
	}
	*snap = got
	op.cleanup.Push("delete snapshot", func(context.Context) error {
		var err error
		if !got.Anonymous {
			err = m.deps.Store.Delete(got.Ref)
		}
		return errors.Join(err, m.deps.Store.Release(got.Ref))
	})
	return op.done("commit")
}

// MarkWarmedUp says that a machine's guest has done what machines of its next snapshot do first.
// The snapshot then gets a checkpoint of the monitor. With a driver without checkpoints the call has no effect.
func (m *Manager) MarkWarmedUp(ctx context.Context, id hostapi.MachineID) error {
	mc, err := m.lock(ctx, id)
	if err != nil {
		return err
	}
	defer mc.unlock()
	if err := mc.requireState("mark warmed up", running, paused); err != nil {
		return err
	}
	if vm, ok := mc.vm.(vmm.CheckpointMarker); ok {
		vm.MarkWarmedUp()
	}
	return nil
}

// Hibernate saves a running or paused machine into an image and ends its monitor.
// Its disks stay where they are. A hibernated machine is left as it is. If Hibernate fails, the machine continues.
func (m *Manager) Hibernate(ctx context.Context, id hostapi.MachineID) (err error) {
	op := m.begin("hibernate")
	defer func() { err = op.end(ctx, err) }()
	ctx, mc, err := op.lock(ctx, id)
	if err != nil {
		return err
	}
	if err := mc.requireState("hibernate", running, paused, hibernated); err != nil {
		return err
	}
	if mc.rec.State == hibernated {
		return m.releaseLeftovers(ctx, op, mc)
	}
	if can := m.deps.Driver.Capabilities(); !can.Snapshot {
		return unsupported("hibernate", can)
	}
	if err := m.waitLocal(ctx, op, mc); err != nil {
		return err
	}
	if err := m.requireSpace("hibernating machine "+string(id), mc.rec.MemoryMiB); err != nil {
		return err
	}
	old := mc.rec.Base
	if err := m.hibernate(ctx, op, mc); err != nil {
		return fmt.Errorf("hibernate machine %s: %w", id, wrapNoSpace(err))
	}
	// It is hibernated whatever becomes of the caller now.
	return m.releaseAtRest(context.WithoutCancel(ctx), op, mc, old, "hibernated")
}

// releaseAtRest releases what a machine at rest does not need; only Wake starts it again. old is the image that it ran
// on.
func (m *Manager) releaseAtRest(ctx context.Context, op *operation, mc *machine, old snapshot.Ref, step string) error {
	op.cleanup.Forget()
	err := op.done(step)
	if op.abandoned {
		return err
	}
	err = errors.Join(err, m.releaseResources(ctx, op, mc))
	if op.abandoned {
		return err
	}
	if old != "" {
		err = errors.Join(err, m.deps.Store.Release(old))
	}
	m.ledger.release(mc.id)
	op.logPhases(mc, false)
	return err
}

// hibernate writes the image that a machine hibernates in and records, durably, that it does. Its cleanups remove the
// image first, then record that the machine runs, and let it run only then: a crash never leaves a running machine
// beside an image that it would be restored from.
func (m *Manager) hibernate(ctx context.Context, op *operation, mc *machine) error {
	before, base := mc.rec.State, mc.rec.Base
	if before == running {
		if err := m.syncVolumes(ctx, mc); err != nil {
			return err
		}
		if err := m.quiesce(ctx, op, mc, false); err != nil {
			return err
		}
		op.cleanup.Push("resume", func(ctx context.Context) error { return m.resume(ctx, mc) })
	}
	snap := describe(mc)
	snap.Ref, snap.Anonymous = snapshot.Join(snapshotArea, fmt.Sprintf("%s-g%d", mc.id, mc.rec.Generation)), true
	op.cleanup.Push("record", func(context.Context) error {
		return m.update(
			mc,
			surviveHost,
			func(in *record) { in.State, in.Before, in.Next, in.Base = before, "", "", base },
		)
	})
	err := m.update(
		mc,
		surviveProcess,
		func(in *record) { in.State, in.Before, in.Next = hibernating, before, snap.Ref },
	)
	if err != nil {
		return err
	}
	if err := op.done("intent"); err != nil {
		return err
	}
	if err := m.saveHibernation(ctx, op, mc, &snap); err != nil {
		return err
	}
	return m.update(mc, surviveProcess, func(in *record) {
		in.State, in.Before, in.Next, in.Base, in.Slot, in.MAC = hibernated, "", "", snap.Ref, -1, ""
	})
}

// saveHibernation captures a stopped machine and stores the image, with clones of its disks. Meanwhile the record,
// which names the image, is made durable: once the image is committed the machine is hibernated whatever happens to
// the host.
func (m *Manager) saveHibernation(ctx context.Context, op *operation, mc *machine, snap *snapshot.Snapshot) error {
	draft, err := m.deps.Store.Draft()
	if err != nil {
		return err
	}
	op.cleanup.Push("discard draft", func(context.Context) error { return draft.Discard() })
	capture, err := mc.vm.Capture(ctx)
	if err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	op.cleanup.Push("free capture", func(context.Context) error { return capture.Close() })
	if err := op.done("capture"); err != nil {
		return err
	}
	var disk errgroup.Group
	disk.Go(func() error {
		return errors.Join(m.cloneIntoDraft(mc, draft), durable.Keep(filepath.Join(mc.dir, recordFile)))
	})
	err = m.save(ctx, op, capture, draft, snap)
	if err := errors.Join(err, disk.Wait()); err != nil {
		return err
	}
	if ctx.Err() != nil { // the machine can still continue
		return context.Cause(ctx)
	}
	if err := m.commit(op, draft, snap); err != nil {
		return err
	}
	return capture.Close()
}
