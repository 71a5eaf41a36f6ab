package build

import (
	"context"

	"github.com/pandastack/pandastack/api"
)

// Sweep looks for what is to be removed, twice: what nobody owned at the first look counts as seen long ago at
// the second.
func (s *Service) Sweep(ctx context.Context) {
	s.sweep(ctx)
	s.mu.Lock()
	for id, first := range s.orphans {
		s.orphans[id] = first.Add(-s.cfg.Grace)
	}
	s.mu.Unlock()
	s.sweep(ctx)
}

// Settle waits until nothing of a build runs any more.
func (s *Service) Settle(id api.BuildID) {
	s.mu.Lock()
	a := s.active[string(id)]
	s.mu.Unlock()
	if a != nil {
		<-a.done
	}
}
