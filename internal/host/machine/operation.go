package machine

import (
	"context"
	"errors"
	"fmt"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/lib/cleanup"
	"github.com/pandastack/pandastack/internal/lib/obs"
)

// operation is one operation under way: its way back, and where its time went.
type operation struct {
	m         *Manager
	op        string
	cleanup   cleanup.Stack
	phases    *obs.Phases
	abandoned bool // abandoned: nothing more may be done or undone
	owned     []*machine
}

func (m *Manager) begin(op string) *operation { return &operation{m: m, op: op, phases: obs.Start()} }

// done ends a step. A test may fail the operation here.
func (p *operation) done(step string) error {
	p.phases.Done(step)
	if p.m.cfg.OnStep == nil {
		return nil
	}
	if err := p.m.cfg.OnStep(p.op, step); err != nil {
		p.abandoned = p.abandoned || errors.Is(err, ErrAbandon)
		return fmt.Errorf("%s: after step %s: %w", p.op, step, err)
	}
	return nil
}

// lock makes the operation the owner of a machine until its end.
func (p *operation) lock(ctx context.Context, id hostapi.MachineID) (*machine, error) {
	mc, err := p.m.lock(ctx, id)
	if err == nil {
		p.owned = append(p.owned, mc)
	}
	return mc, err
}

// end settles the operation: undone when err is not nil, unless it was abandoned. Then it leaves the
// machines it owned.
func (p *operation) end(ctx context.Context, err error) error {
	if p.abandoned {
		p.cleanup.Forget()
	} else {
		err = p.cleanup.Settle(ctx, err)
	}
	for _, mc := range p.owned {
		<-mc.busy
	}
	p.owned = nil
	return err
}

// logPhases notes on a machine, and in the log, where the time of an operation went.
func (p *operation) logPhases(mc *machine, boot bool) {
	total := p.phases.Total()
	mc.set(func() {
		mc.phases = p.phases.List()
		if boot {
			mc.boot = total
		}
	})
	p.m.log.Info("machine "+p.op, "machine", mc.id, "took", total, p.phases.Attr())
}
