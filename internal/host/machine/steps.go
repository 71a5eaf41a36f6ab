package machine

import (
	"context"
	"errors"
	"fmt"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/lib/cleanup"
	"github.com/pandastack/pandastack/internal/lib/obs"
)

// plan is one operation under way: its way back, and where its time went.
type plan struct {
	m    *Manager
	op   string
	back cleanup.Stack
	ph   *obs.Phases
	quit bool // abandoned: nothing more may be done or undone
	mine []*machine
}

func (m *Manager) begin(op string) *plan { return &plan{m: m, op: op, ph: obs.Start()} }

// did ends a step. A test may fail the operation here.
func (p *plan) did(step string) error {
	p.ph.Done(step)
	if p.m.cfg.OnStep == nil {
		return nil
	}
	if err := p.m.cfg.OnStep(p.op, step); err != nil {
		p.quit = p.quit || errors.Is(err, ErrAbandon)
		return fmt.Errorf("%s: after step %s: %w", p.op, step, err)
	}
	return nil
}

// enter makes the operation the owner of a machine until its end.
func (p *plan) enter(ctx context.Context, id hostapi.MachineID) (*machine, error) {
	mc, err := p.m.enter(ctx, id)
	if err == nil {
		p.mine = append(p.mine, mc)
	}
	return mc, err
}

// end settles the operation: undone when err is not nil, unless it was abandoned. Then it leaves the
// machines it owned.
func (p *plan) end(ctx context.Context, err error) error {
	if p.quit {
		p.back.Forget()
	} else {
		err = p.back.Settle(ctx, err)
	}
	for _, mc := range p.mine {
		<-mc.busy
	}
	p.mine = nil
	return err
}

// told notes on a machine, and in the log, where the time of an operation went.
func (p *plan) told(mc *machine, boot bool) {
	total := p.ph.Total()
	mc.set(func() {
		mc.phases = p.ph.List()
		if boot {
			mc.boot = total
		}
	})
	p.m.log.Info("machine "+p.op, "machine", mc.id, "took", total, p.ph.Attr())
}
