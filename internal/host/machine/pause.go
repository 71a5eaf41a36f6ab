package machine

import (
	"context"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// Pause stops a running machine: its workload, then its processors. A paused machine stays so.
func (m *Manager) Pause(ctx context.Context, id hostapi.MachineID) (err error) {
	op := m.begin("pause")
	defer func() { err = op.end(ctx, err) }()
	ctx, mc, err := op.lock(ctx, id)
	if err != nil {
		return err
	}
	if err := mc.requireState("pause", running, paused); err != nil || mc.rec.State == paused {
		return err
	}
	if err := m.quiesce(ctx, op, mc, false); err != nil {
		return err
	}
	op.cleanup.Push("resume", func(ctx context.Context) error { return m.resume(ctx, mc) })
	if err := m.update(mc, surviveProcess, func(in *record) { in.State = paused }); err != nil {
		return err
	}
	op.logPhases(mc, false)
	return nil
}

// Resume lets a paused machine continue. A running machine is left as it is. One that waits for disk space continues
// if there is some; otherwise Resume returns ErrNoSpace.
func (m *Manager) Resume(ctx context.Context, id hostapi.MachineID) (err error) {
	op := m.begin("resume")
	defer func() { err = op.end(ctx, err) }()
	ctx, mc, err := op.lock(ctx, id)
	if err != nil {
		return err
	}
	if w := mc.waiting(); w != nil {
		return m.resumeWaiting(ctx, mc, w)
	}
	if err := mc.requireState("resume", running, paused); err != nil || mc.rec.State == running {
		return err
	}
	if err := m.resume(ctx, mc); err != nil {
		return err
	}
	if err := op.done("resume"); err != nil {
		return err
	}
	if err := m.update(mc, surviveProcess, func(in *record) { in.State = running }); err != nil {
		return err
	}
	op.logPhases(mc, false)
	return nil
}
