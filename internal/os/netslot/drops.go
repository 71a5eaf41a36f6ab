package netslot

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/pandastack/pandastack/internal/os/egress"
	"github.com/pandastack/pandastack/internal/os/nft"
)

// dropInterval is how often the counters of refused packets are read.
const dropInterval = 5 * time.Second

// watchDrops reports how many packets of guests the kernel refused, until ctx ends. The rules in the kernel reply to
// such packets; a dropLog reports their destinations, for a limited number a second.
func (p *Pool) watchDrops(ctx context.Context) error {
	seen := map[*Slot]uint64{}
	tick := time.NewTicker(dropInterval)
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

// reportDrops compares the counters of the slots in use with those seen last, and returns the new ones.
func (p *Pool) reportDrops(ctx context.Context, seen map[*Slot]uint64) map[*Slot]uint64 {
	now := map[*Slot]uint64{}
	for s, owner := range p.taken() {
		n, err := s.droppedPackets()
		if err != nil { // the slot is being released, or was made before the counter existed
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

// dropLog reports the destinations of packets of one slot that the kernel refused.
type dropLog struct {
	log  *nft.Log
	done chan struct{} // closed when its goroutine has ended
}

// openDropLog opens the log in the namespace of the calling thread, which is that of a slot.
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
					p.cfg.Logger.Warn("log of refused packets ended", "slot", index, "err", err)
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

// taken returns the slots in use and their owners.
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

func (s *Slot) droppedPackets() (n uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		return 0, ErrReleased
	}
	err = s.withKernel(func(k *kernel) error {
		for _, chain := range []string{chainRefuse, chainExcess} {
			more, err := k.rules.Counted(slotTable, chain)
			if err != nil {
				return err
			}
			n += more
		}
		return nil
	})
	return n, err
}
