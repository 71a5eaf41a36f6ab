package netslot

import (
	"context"
	"time"

	"github.com/pandastack/pandastack/internal/egress"
)

// lookRefused is how often the counters of what the kernel refused are read.
const lookRefused = 5 * time.Second

// watchRefused tells how many packets of guests the kernel refused, until ctx ends. The rules answer such
// packets by themselves; this process sees their number alone.
func (p *Pool) watchRefused(ctx context.Context) error {
	seen := map[*Slot]uint64{}
	tick := time.NewTicker(lookRefused)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			seen = p.tellRefused(ctx, seen)
		}
	}
}

// tellRefused compares the counters of the slots in use with what was seen last, and gives what is seen now.
func (p *Pool) tellRefused(ctx context.Context, seen map[*Slot]uint64) map[*Slot]uint64 {
	now := map[*Slot]uint64{}
	for s, owner := range p.taken() {
		n, err := s.refused()
		if err != nil { // it is being given back, or was made before there was a counter
			p.cfg.Logger.DebugContext(ctx, "refused packets not counted", "slot", s.Index, "err", err)
			continue
		}
		now[s] = n
		if n > seen[s] {
			p.cfg.Decided(owner, s.Index, egress.Decision{Kind: egress.KindPackets, Packets: n - seen[s]})
		}
	}
	return now
}

// taken gives the slots in use and their owners.
func (p *Pool) taken() map[*Slot]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[*Slot]string{}
	for _, e := range p.slots {
		if e.state == taken && e.slot != nil {
			all[e.slot] = e.owner
		}
	}
	return all
}

func (s *Slot) refused() (n uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.given {
		return 0, ErrGiven
	}
	err = s.rulesFrom(func(k *kernel) error {
		n, err = k.rules.Counted(slotTable, chainRefuse)
		return err
	})
	return n, err
}
