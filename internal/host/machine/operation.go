package machine

import (
	"context"
	"errors"
	"fmt"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/lib/cleanup"
	"github.com/pandastack/pandastack/internal/lib/obs"
)

// operation is one call that changes machines: its cleanups, its phases and the machines that it owns.
type operation struct {
	m         *Manager
	name      string
	cleanup   cleanup.Stack
	phases    *obs.Phases
	abandoned bool // nothing more may be done or undone
	owned     []*machine
	releases  []func() // of the contexts that lock returned
}

func (m *Manager) begin(name string) *operation {
	return &operation{m: m, name: name, phases: obs.Start()}
}

// done ends a step. Config.OnStep can fail the operation here.
func (op *operation) done(step string) error {
	op.phases.Done(step)
	if op.m.cfg.OnStep == nil {
		return nil
	}
	if err := op.m.cfg.OnStep(op.name, step); err != nil {
		op.abandoned = op.abandoned || errors.Is(err, ErrAbandon)
		return fmt.Errorf("%s: after step %s: %w", op.name, step, err)
	}
	return nil
}

// lock makes the operation the owner of a machine until the operation ends. The context that it returns ends with ctx,
// and as soon as the machine is to be destroyed.
func (op *operation) lock(ctx context.Context, id hostapi.MachineID) (context.Context, *machine, error) {
	mc, err := op.m.lock(ctx, id)
	if err != nil {
		return ctx, nil, err
	}
	op.owned = append(op.owned, mc)
	ctx, release := mc.untilDoomed(ctx)
	op.releases = append(op.releases, release)
	return ctx, mc, nil
}

// end ends the operation and gives up the machines that it owned. If err is not nil and the operation was not
// abandoned, its cleanups run first.
func (op *operation) end(ctx context.Context, err error) error {
	if op.abandoned {
		op.cleanup.Forget()
	} else {
		err = op.cleanup.Settle(ctx, err)
	}
	if len(op.releases) > 0 { // lock was called
		for _, mc := range op.owned {
			err = mc.wrapDoomed(err)
		}
	}
	for _, release := range op.releases {
		release()
	}
	for _, mc := range op.owned {
		mc.unlock()
	}
	op.owned, op.releases = nil, nil
	return err
}

// logPhases stores the phases of the operation in a machine and logs them. If the operation started the machine, its
// total is the machine's boot time.
func (op *operation) logPhases(mc *machine, started bool) {
	total := op.phases.Total()
	mc.set(func() {
		mc.phases = op.phases.List()
		if started {
			mc.boot = total
		}
	})
	op.m.log.Info("machine "+op.name, "machine", mc.id, "took", total, op.phases.Attr())
}
