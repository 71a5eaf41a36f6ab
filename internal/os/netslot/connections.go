package netslot

import (
	"fmt"

	"golang.org/x/time/rate"

	"github.com/pandastack/pandastack/internal/os/nft"
)

const (
	// burstSeconds is the burst of new connections, in seconds' worth of their rate.
	burstSeconds = 5
	// maxFlows bounds limits of connections.
	maxFlows = 1_000_000
)

// connections limits the connections that a guest opens; 0: no limit.
type connections struct{ open, perSecond int }

// connections returns the limits of every slot.
func (p *Pool) connections() connections { return connections{p.cfg.Connections, p.cfg.NewConnections} }

// SetConnections limits the connections that the guest opens, until the slot is released: those at once, and those a
// second. 0, or more than the pool's limit, selects the pool's limit. The connections that exist are not counted. The
// error is ErrReleased if the slot was released.
func (s *Slot) SetConnections(open, perSecond int) error {
	if open < 0 || perSecond < 0 || max(open, perSecond) > maxFlows {
		return fmt.Errorf("slot %d: connections %d and new connections %d must be from 0 to %d",
			s.Index, open, perSecond, maxFlows)
	}
	all := s.pool.connections()
	most := connections{
		open:      int(tighter(int64(open), int64(all.open))),
		perSecond: int(tighter(int64(perSecond), int64(all.perSecond))),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		return fmt.Errorf("slot %d: %w", s.Index, ErrReleased)
	}
	s.dialRate.SetLimit(most.limit())
	s.dialRate.SetBurst(most.perSecond * burstSeconds)
	return s.withKernel(func(k *kernel) error {
		return k.rules.Update(slotTable, nil, []nft.Chain{flowChain(most)})
	})
}

// limiter returns a limiter for connections that are opened on behalf of the guest.
func (c connections) limiter() *rate.Limiter {
	return rate.NewLimiter(c.limit(), c.perSecond*burstSeconds)
}

func (c connections) limit() rate.Limit {
	if c.perSecond == 0 {
		return rate.Inf
	}
	return rate.Limit(c.perSecond)
}
