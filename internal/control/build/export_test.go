package build

import (
	"context"

	"github.com/pandastack/pandastack/api"
)

// CollectGarbage collects garbage twice: resources that have no owner the first time are removed the second time, as if
// the grace period had passed.
func (s *Service) CollectGarbage(ctx context.Context) {
	s.collectGarbage(ctx)
	s.mu.Lock()
	for id, first := range s.orphans {
		s.orphans[id] = first.Add(-s.cfg.OrphanGrace)
	}
	s.mu.Unlock()
	s.collectGarbage(ctx)
}

// WaitIdle waits until no attempt of a build runs in this process.
func (s *Service) WaitIdle(id api.BuildID) {
	s.mu.Lock()
	a := s.active[string(id)]
	s.mu.Unlock()
	if a != nil {
		<-a.done
	}
}
