package machine

import (
	"context"
	"fmt"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// SetEgress changes the egress policy of a machine, in any state.
// It changes the record first, durably, then the machine's network slot, if it has one. If the process ends between
// the two, the next one applies the policy that is recorded. After an error both are as before.
func (m *Manager) SetEgress(ctx context.Context, id hostapi.MachineID, policy hostapi.Egress) (err error) {
	if err := m.deps.Network.CheckEgress(policy); err != nil {
		return fmt.Errorf("set the egress policy of machine %s: %w", id, err)
	}
	op := m.begin("egress")
	defer func() { err = op.end(ctx, err) }()
	ctx, mc, err := op.lock(ctx, id)
	if err != nil {
		return err
	}
	err = mc.requireState("set the egress policy of", running, paused, hibernating, hibernated, waking, failed)
	if err != nil {
		return err
	}
	before := mc.rec.Egress
	op.cleanup.Push("record", func(context.Context) error {
		return m.update(mc, surviveHost, func(in *record) { in.Egress = before })
	})
	if err := m.update(mc, surviveHost, func(in *record) { in.Egress = policy }); err != nil {
		return err
	}
	if err := op.done("record"); err != nil {
		return err
	}
	if mc.slot != nil {
		if err := m.applyNewEgress(ctx, op, mc, before, policy); err != nil {
			return fmt.Errorf("set the egress policy of machine %s: %w", id, err)
		}
	}
	op.cleanup.Forget()
	op.logPhases(mc, false)
	return nil
}

// applyNewEgress applies a policy to a machine's slot.
func (m *Manager) applyNewEgress(ctx context.Context, op *operation, mc *machine, before, policy hostapi.Egress) error {
	if err := mc.slot.SetEgress(ctx, policy); err != nil {
		return err
	}
	op.cleanup.Push(
		"set the previous egress policy",
		func(ctx context.Context) error { return mc.slot.SetEgress(ctx, before) },
	)
	return op.done("apply")
}
