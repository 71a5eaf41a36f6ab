package machine

import (
	"context"
	"errors"
	"fmt"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// Stop puts a running machine to rest without its memory: the guest writes its file systems out, and its monitor
// ends. Wake boots from its disks anew. A hibernated machine forgets its memory; one without is fine. When it fails
// the machine goes on as it was.
func (m *Manager) Stop(ctx context.Context, id hostapi.MachineID) (err error) {
	p := m.begin("stop")
	defer func() { err = p.end(ctx, err) }()
	mc, err := p.lock(ctx, id)
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
		return m.forgetMemory(ctx, p, mc)
	}
	if err := m.waitLocal(ctx, p, mc); err != nil {
		return err
	}
	old := mc.rec.Base
	if err := m.shutDown(ctx, p, mc); err != nil {
		return fmt.Errorf("stop machine %s: %w", id, wrapNoSpace(err))
	}
	return m.releaseAtRest(ctx, p, mc, old, "stopped")
}

// shutDown halts a running machine with its disks whole and records, durably, that it rests without memory.
func (m *Manager) shutDown(ctx context.Context, p *operation, mc *machine) error {
	base := mc.rec.Base
	if err := m.quiesce(ctx, p, mc, true); err != nil {
		return err
	}
	p.cleanup.Push("go on", func(ctx context.Context) error { return m.resume(ctx, mc) })
	if err := mc.syncDisks(); err != nil {
		return err
	}
	p.cleanup.Push("record", func(context.Context) error {
		return m.update(mc, surviveHost, func(in *record) { in.State, in.Before, in.Next, in.Base = running, "", "", base })
	})
	if err := m.update(mc, surviveProcess, func(in *record) { in.State, in.Before, in.Next = hibernating, running, "" }); err != nil {
		return err
	}
	if err := p.done("intent"); err != nil {
		return err
	}
	return m.update(mc, surviveHost, func(in *record) {
		in.State, in.Before, in.Next, in.Base, in.Slot, in.MAC = hibernated, "", "", "", -1, ""
	})
}

// forgetMemory leaves a hibernated machine its disks alone.
func (m *Manager) forgetMemory(ctx context.Context, p *operation, mc *machine) error {
	if err := m.releaseLeftovers(ctx, p, mc); err != nil {
		return err
	}
	old := mc.rec.Base
	if old == "" {
		return nil
	}
	if err := m.update(mc, surviveHost, func(in *record) { in.Base = "" }); err != nil {
		return err
	}
	p.cleanup.Forget()
	err := p.done("forgotten")
	if p.abandoned {
		return err
	}
	return errors.Join(err, m.deps.Store.Release(old))
}
