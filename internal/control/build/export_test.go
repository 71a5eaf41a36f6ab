package build

import (
	"context"

	"github.com/pandastack/pandastack/api"
)

// CollectGarbage looks for what is to be removed, twice: what nobody owned at the first look counts as seen long ago at
// the second.
func (s *Service) CollectGarbage(ctx context.Context) {
	s.collectGarbage(ctx)
	s.mu.Lock()
	for id, first := range s.orphans {
		s.orphans[id] = first.Add(-s.cfg.OrphanGrace)
	}
	s.mu.Unlock()
	s.collectGarbage(ctx)
}

// WaitIdle waits until nothing of a build runs any more.
func (s *Service) WaitIdle(id api.BuildID) {
	s.mu.Lock()
	a := s.active[string(id)]
	s.mu.Unlock()
	if a != nil {
		<-a.done
	}
}
