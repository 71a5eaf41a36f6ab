package machine

import (
	"context"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// Pause stops a running machine: its workload, then its processors. A paused machine is fine.
func (m *Manager) Pause(ctx context.Context, id hostapi.MachineID) (err error) {
	p := m.begin("pause")
	defer func() { err = p.end(ctx, err) }()
	mc, err := p.enter(ctx, id)
	if err != nil {
		return err
	}
	if err := mc.need("pause", running, paused); err != nil || mc.in.State == paused {
		return err
	}
	if err := m.halt(ctx, p, mc, false); err != nil {
		return err
	}
	p.back.Push("go on", func(ctx context.Context) error { return m.goOn(ctx, mc) })
	if err := m.record(mc, ofProcess, func(in *intent) { in.State = paused }); err != nil {
		return err
	}
	p.told(mc, false)
	return nil
}

// Resume lets a paused machine go on. A running machine is fine.
func (m *Manager) Resume(ctx context.Context, id hostapi.MachineID) (err error) {
	p := m.begin("resume")
	defer func() { err = p.end(ctx, err) }()
	mc, err := p.enter(ctx, id)
	if err != nil {
		return err
	}
	if err := mc.need("resume", running, paused); err != nil || mc.in.State == running {
		return err
	}
	if err := m.goOn(ctx, mc); err != nil {
		return err
	}
	if err := p.did("resume"); err != nil {
		return err
	}
	if err := m.record(mc, ofProcess, func(in *intent) { in.State = running }); err != nil {
		return err
	}
	p.told(mc, false)
	return nil
}
