package sandbox

import (
	"context"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/sandbox/relief"
	"github.com/pandastack/pandastack/internal/control/store"
)

// RelieveMemory hibernates idle sandboxes that may be, if the host is short of memory. So does Run.
func (s *Service) RelieveMemory(ctx context.Context) error {
	return relief.Once(ctx, s.host, reliefSource{s})
}

type reliefSource struct{ *Service } // implements relief.Sandboxes

func (s reliefSource) Candidates(ctx context.Context) (out []relief.Candidate, err error) {
	all, err := s.loadAll(ctx, store.SandboxQuery{States: []string{string(api.Running)}, OwnedBy: new("")})
	for i := range all {
		if r := &all[i]; r.Persistent && s.cfg.IdleHibernate > 0 || r.OnEnd == api.TimeoutHibernate {
			out = append(out, relief.Candidate{ID: r.ID, Idle: s.idle(r)})
		}
	}
	return out, err
}

func (s reliefSource) HibernateIdle(ctx context.Context, id api.SandboxID) error {
	return s.ifIdle(ctx, id, func(ctx context.Context, r *record) error {
		if r.State == api.Running && (relief.Candidate{Idle: s.idle(r)}).MayHibernate() {
			return s.runTransition(ctx, r, hibernate)
		}
		return nil
	})
}
