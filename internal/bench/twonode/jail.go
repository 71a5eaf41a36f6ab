package twonode

import (
	"context"
	"errors"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/bench"
	"github.com/pandastack/pandastack/internal/lib/config"
)

// jailCost measures creates on a node with jailed monitors and on one without, in turns.
func (p *Pair) jailCost(ctx context.Context, s *bench.Sheet) (err error) {
	// Without warm monitors: with them, the jail is set up before the create.
	in, err := p.start(ctx, "a", nil, func(c *config.Node) { c.Sandbox.WarmMonitors = 0 })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.stop()) }()
	out, err := p.start(ctx, "b", nil, func(c *config.Node) { c.Sandbox.WarmMonitors, c.VMM.DisableJail = 0, true })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.stop()) }()
	jailed := s.Series("jail_create", "create, request to response, without warm monitors", "ms", nil)
	free := s.Series("jail_create_without", "the same without jails", "ms", nil)
	n := s.Times(40)
	for i := range n + 1 {
		for to, node := range map[*bench.Series]*runningNode{jailed: in, free: out} {
			took, err := node.create(ctx, p.Template)
			if err != nil {
				return err
			}
			if i > 0 { // the first one is not measured: caches are cold
				s.Add(to, took)
			}
		}
	}
	cost := s.Series(
		"jail_cost",
		"difference of the p50 of jail_create and jail_create_without",
		"ms",
		&bench.Target{P50: 5},
	)
	s.Add(cost, jailed.P50-free.P50)
	return nil
}

// create creates a sandbox and deletes it. It returns how many milliseconds the create took.
func (n *runningNode) create(ctx context.Context, template string) (float64, error) {
	began := time.Now()
	sb, err := n.Sandboxes.Create(ctx, api.CreateRequest{Template: template})
	if err != nil {
		return 0, err
	}
	took := ms(began)
	return took, n.Sandboxes.Delete(ctx, sb.ID)
}
