package machine

import (
	"context"
	"errors"
	"fmt"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// Stop ends the monitor of a running machine after its guest has written its file systems out.
// The memory is lost; Wake boots from the disks. A hibernated machine loses its memory too. If Stop fails, the
// machine continues as it was.
func (m *Manager) Stop(ctx context.Context, id hostapi.MachineID) (err error) {
	op := m.begin("stop")
	defer func() { err = op.end(ctx, err) }()
	ctx, mc, err := op.lock(ctx, id)
	if err != nil {
		return err
	}
	if err := mc.requireState("stop", running, hibernated); err != nil {
		return err
	}
	if m.cfg.Kernel == nil {
		return fmt.Errorf("stop machine %s: no kernel is configured to boot it again: %w", id, hostapi.ErrUnsupported)
	}
	if mc.rec.State == hibernated {
		return m.forgetMemory(ctx, op, mc)
	}
	if err := m.waitLocal(ctx, op, mc); err != nil {
		return err
	}
	old := mc.rec.Base
	if err := m.shutDown(ctx, op, mc); err != nil {
		return fmt.Errorf("stop machine %s: %w", id, wrapNoSpace(err))
	}
	return m.releaseAtRest(ctx, op, mc, old, "stopped")
}

// shutDown stops a running machine with complete disks and records, durably, that it is at rest without memory.
func (m *Manager) shutDown(ctx context.Context, op *operation, mc *machine) error {
	base := mc.rec.Base
	if err := m.quiesce(ctx, op, mc, true); err != nil {
		return err
	}
	op.cleanup.Push("resume", func(ctx context.Context) error { return m.resume(ctx, mc) })
	if err := m.syncDisks(mc); err != nil {
		return err
	}
	op.cleanup.Push("record", func(context.Context) error {
		return m.update(
			mc,
			surviveHost,
			func(in *record) { in.State, in.Before, in.Next, in.Base = running, "", "", base },
		)
	})
	err := m.update(mc, surviveProcess, func(in *record) { in.State, in.Before, in.Next = hibernating, running, "" })
	if err != nil {
		return err
	}
	if err := op.done("intent"); err != nil {
		return err
	}
	return m.update(mc, surviveHost, func(in *record) {
		in.State, in.Before, in.Next, in.Base, in.Slot, in.MAC = hibernated, "", "", "", -1, ""
	})
}

// forgetMemory removes the image that a machine hibernates in. The machine keeps the disks of that moment.
func (m *Manager) forgetMemory(ctx context.Context, op *operation, mc *machine) error {
	if err := m.releaseLeftovers(ctx, op, mc); err != nil {
		return err
	}
	old := mc.rec.Base
	if old == "" {
		return nil
	}
	snap, err := m.hibernationImage(mc, old)
	if err == nil {
		err = m.restoreDisks(mc, snap)
	}
	if err == nil {
		err = m.syncDisks(mc)
	}
	if err == nil {
		err = op.done("restore")
	}
	if err != nil {
		return m.failWithoutImage(ctx, op, mc, err)
	}
	if err := m.update(mc, surviveHost, func(in *record) { in.Base = "" }); err != nil {
		return err
	}
	op.cleanup.Forget()
	err = op.done("forget")
	if op.abandoned {
		return err
	}
	return errors.Join(err, m.deps.Store.Release(old))
}
