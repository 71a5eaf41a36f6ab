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
	mc, err := p.enter(ctx, id)
	if err != nil {
		return err
	}
	if err := mc.need("stop", running, hibernated); err != nil {
		return err
	}
	if m.cfg.Kernel == nil {
		return fmt.Errorf("stop machine %s: no kernel is configured to boot it again: %w", id, hostapi.ErrUnsupported)
	}
	if mc.in.State == hibernated {
		return m.forgetMemory(ctx, p, mc)
	}
	if err := m.whole(ctx, p, mc); err != nil {
		return err
	}
	old := mc.in.Base
	if err := m.shut(ctx, p, mc); err != nil {
		return fmt.Errorf("stop machine %s: %w", id, noSpace(err))
	}
	return m.rested(ctx, p, mc, old, "stopped")
}

// shut halts a running machine with its disks whole and records, durably, that it rests without memory.
func (m *Manager) shut(ctx context.Context, p *plan, mc *machine) error {
	base := mc.in.Base
	if err := m.halt(ctx, p, mc, true); err != nil {
		return err
	}
	p.back.Push("go on", func(ctx context.Context) error { return m.goOn(ctx, mc) })
	if err := mc.syncDisks(); err != nil {
		return err
	}
	p.back.Push("record", func(context.Context) error {
		return m.record(mc, ofHost, func(in *intent) { in.State, in.Before, in.Next, in.Base = running, "", "", base })
	})
	if err := m.record(mc, ofProcess, func(in *intent) { in.State, in.Before, in.Next = hibernating, running, "" }); err != nil {
		return err
	}
	if err := p.did("intent"); err != nil {
		return err
	}
	return m.record(mc, ofHost, func(in *intent) {
		in.State, in.Before, in.Next, in.Base, in.Slot, in.MAC = hibernated, "", "", "", -1, ""
	})
}

// forgetMemory leaves a hibernated machine its disks alone.
func (m *Manager) forgetMemory(ctx context.Context, p *plan, mc *machine) error {
	if err := m.stripped(ctx, p, mc); err != nil {
		return err
	}
	old := mc.in.Base
	if old == "" {
		return nil
	}
	if err := m.record(mc, ofHost, func(in *intent) { in.Base = "" }); err != nil {
		return err
	}
	p.back.Forget()
	err := p.did("forgotten")
	if p.quit {
		return err
	}
	return errors.Join(err, m.deps.Store.Release(old))
}
