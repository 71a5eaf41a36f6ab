package netslot

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/pandastack/pandastack/internal/os/egress"
	"github.com/pandastack/pandastack/internal/os/nft"
)

// lookRefused is how often the counters of what the kernel refused are read.
const lookRefused = 5 * time.Second

// watchDrops tells how many packets of guests the kernel refused, until ctx ends. The rules answer such
// packets by themselves; where they were to go is told by a teller, of at most so many a second.
func (p *Pool) watchDrops(ctx context.Context) error {
	seen := map[*Slot]uint64{}
	tick := time.NewTicker(lookRefused)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			seen = p.reportDrops(ctx, seen)
		}
	}
}

// reportDrops compares the counters of the slots in use with what was seen last, and gives what is seen now.
func (p *Pool) reportDrops(ctx context.Context, seen map[*Slot]uint64) map[*Slot]uint64 {
	now := map[*Slot]uint64{}
	for s, owner := range p.taken() {
		n, err := s.dropReport()
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

// dropLog tells where packets of one slot were to go that the kernel refused.
type dropLog struct {
	log  *nft.Log
	done chan struct{} // closed when its goroutine has ended
}

// openDropLog listens in the namespace of the calling thread, which is that of a slot.
func (p *Pool) openDropLog(index int) (*dropLog, error) {
	log, err := nft.OpenLog(logGroup)
	if err != nil {
		return nil, err
	}
	t := &dropLog{log: log, done: make(chan struct{})}
	go func() {
		defer close(t.done)
		for {
			all, err := t.log.Next()
			if err != nil {
				if !errors.Is(err, os.ErrClosed) {
					p.cfg.Logger.Warn("refused packets are not told any more", "slot", index, "err", err)
				}
				return
			}
			for _, l := range all {
				p.cfg.Decided(
					p.ownerOf(index),
					index,
					egress.Decision{Kind: egress.KindRefused, Address: l.To, Protocol: l.Protocol},
				)
			}
		}
	}()
	return t, nil
}

func (t *dropLog) close() error {
	err := t.log.Close()
	<-t.done
	return err
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

func (s *Slot) dropReport() (n uint64, err error) {
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
