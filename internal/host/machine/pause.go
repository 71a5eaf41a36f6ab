package machine

import (
	"context"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// Pause stops a running machine: its workload, then its processors. A paused machine is fine.
func (m *Manager) Pause(ctx context.Context, id hostapi.MachineID) (err error) {
	p := m.begin("pause")
	defer func() { err = p.end(ctx, err) }()
	mc, err := p.lock(ctx, id)
	if err != nil {
		return err
	}
	if err := mc.requireState("pause", running, paused); err != nil || mc.rec.State == paused {
		return err
	}
	if err := m.quiesce(ctx, p, mc, false); err != nil {
		return err
	}
	p.cleanup.Push("go on", func(ctx context.Context) error { return m.resume(ctx, mc) })
	if err := m.update(mc, surviveProcess, func(in *record) { in.State = paused }); err != nil {
		return err
	}
	p.logPhases(mc, false)
	return nil
}

// Resume lets a paused machine go on. A running machine is fine.
func (m *Manager) Resume(ctx context.Context, id hostapi.MachineID) (err error) {
	p := m.begin("resume")
	defer func() { err = p.end(ctx, err) }()
	mc, err := p.lock(ctx, id)
	if err != nil {
		return err
	}
	if err := mc.requireState("resume", running, paused); err != nil || mc.rec.State == running {
		return err
	}
	if err := m.resume(ctx, mc); err != nil {
		return err
	}
	if err := p.done("resume"); err != nil {
		return err
	}
	if err := m.update(mc, surviveProcess, func(in *record) { in.State = running }); err != nil {
		return err
	}
	p.logPhases(mc, false)
	return nil
}
