package machine

import (
	"context"
	"errors"
	"fmt"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
)

// Wake restores a hibernated machine, or boots a stopped or failed one from its disks.
// A running machine is left as it is. Until the image that the machine hibernated in is marked used, a failure leaves
// the machine hibernated and it can be woken again. After that its memory is lost: the machine is failed and keeps
// its disks.
func (m *Manager) Wake(ctx context.Context, id hostapi.MachineID) (_ View, err error) {
	op := m.begin("wake")
	defer func() { err = op.end(ctx, err) }()
	mc, err := op.lock(ctx, id)
	if err != nil {
		return View{}, err
	}
	if err := mc.requireState("wake", running, hibernated, failed); err != nil {
		return View{}, err
	}
	if mc.rec.State == running {
		return mc.view(), nil
	}
	image := mc.rec.Base
	if mc.rec.State == failed { // its disks may still need the snapshot that it began on
		image = ""
	}
	plan, err := planStart(
		startRequest{op: opWake, image: image, haveMiB: mc.rec.DiskMiB, kernel: m.cfg.Kernel != nil},
		m.deps.Driver.Capabilities(),
	)
	if err != nil {
		return View{}, err
	}
	l := m.newLaunch(op, plan)
	l.mc = mc
	if err := m.wake(ctx, l); err != nil {
		return View{}, fmt.Errorf("wake machine %s: %w", id, wrapNoSpace(err))
	}
	op.logPhases(mc, true)
	return mc.view(), nil
}

// wake runs a launch of a machine at rest. When it fails, the record says hibernated again or, if the memory is
// lost, failed.
func (m *Manager) wake(ctx context.Context, l *launch) (err error) {
	mc, before := l.mc, l.mc.rec.State
	if l.plan.image != "" {
		if l.snap, err = m.hibernationImage(l.plan.image); err != nil {
			return err
		}
		// The machine holds its image until it has failed, and the monitor needs it until it is killed.
		l.op.cleanup.Push("release image", func(context.Context) error {
			if !l.consumed {
				return nil
			}
			return m.deps.Store.Release(l.plan.image)
		})
	}
	err = l.run(ctx, stepPublish)
	if err == nil || l.op.abandoned || mc.rec.State == before {
		return err
	}
	return errors.Join(err, m.update(mc, surviveHost, func(in *record) {
		in.State, in.Slot, in.MAC = hibernated, -1, ""
		if l.consumed {
			in.State, in.Base, in.Reason = failed, "", "wake: "+err.Error()
		}
	}))
}

// hibernationImage returns the image that a machine hibernated in, if it can be restored.
func (m *Manager) hibernationImage(ref snapshot.Ref) (snapshot.Snapshot, error) {
	snap, err := m.deps.Store.Get(ref)
	if err != nil {
		return snapshot.Snapshot{}, wrapStoreError(err)
	}
	if snap.Consumed() {
		return snapshot.Snapshot{}, fmt.Errorf("%s was restored before: its memory is older than the disk", ref)
	}
	return snap, snapshot.Check(snap)
}
