package netslot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/pandastack/pandastack/internal/os/egress"
)

// ErrFull says that all slots are taken.
var ErrFull = errors.New("no network slot is free")

// ErrNoSlot says that there is no such slot to adopt.
var ErrNoSlot = errors.New("no such network slot")

// ErrGiven says that a slot is used by one who has given it back.
var ErrGiven = errors.New("network slot was given back")

// ErrInUse says that another process has a pool of the same prefix open on this host.
var ErrInUse = errors.New("another process has these network slots open")

// state is where a slot is in its life.
type state int

const (
	building state = iota // one goroutine makes, renews or removes it
	ready                 // may be taken
	taken                 // belongs to an owner
	used                  // given back, not yet renewed: its tap was held
	found                 // left by an earlier process, neither adopted nor swept
)

type entry struct {
	slot  *Slot
	state state
	owner string
	turn  uint64 // of those ready, the lowest is taken first
}

// Pool hands out slots.
type Pool struct {
	cfg       Config // Range is set by Open, and does not change after
	host      *os.File
	closed    []netip.Prefix
	mtu       int
	flows     *flows        // the host's
	lock      net.Listener  // says to other processes that the pool is open
	rangeLock net.Listener  // keeps the range; nil before it is chosen
	nudge     chan struct{} // one token: Run has something to look at

	resolver *egress.Resolver

	mu    sync.Mutex
	slots map[int]*entry // +checklocks:mu
	open  bool           // +checklocks:mu
	turns uint64         // +checklocks:mu
}

// New checks the configuration. It does not touch the host.
func New(c Config) (*Pool, error) {
	c, err := c.complete()
	if err != nil {
		return nil, fmt.Errorf("network slots: %w", err)
	}
	p := &Pool{cfg: c, nudge: make(chan struct{}, 1), slots: map[int]*entry{}}
	p.resolver = p.newResolver()
	return p, nil
}

// Range is where the slots' addresses lie; valid after Open.
func (p *Pool) Range() netip.Prefix { return p.cfg.Range }

// Acquire gives a slot to owner, a word for logs. A prepared one is given at once; without one it is prepared
// in the call. ErrFull: all are taken.
func (p *Pool) Acquire(ctx context.Context, owner string) (*Slot, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if s := p.pick(owner); s != nil {
		p.wake()
		return s, nil
	}
	index, err := p.claim()
	if err != nil {
		return nil, err
	}
	s, err := p.build(ctx, index)
	p.settle(index, s, taken, owner)
	return s, err
}

// pick takes the slot that is ready for the longest time, nil if there is none: the kernel brings up the link
// of one that was just renewed a little later.
func (p *Pool) pick(owner string) *Slot {
	p.mu.Lock()
	defer p.mu.Unlock()
	best := -1
	for i, e := range p.slots {
		if e.state == ready && (best < 0 || e.turn < p.slots[best].turn) {
			best = i
		}
	}
	if best < 0 || !p.open {
		return nil
	}
	e := p.slots[best]
	e.state, e.owner = taken, owner
	return e.slot
}

// claim reserves the lowest index that nothing has.
func (p *Pool) claim() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.open {
		return 0, errors.New("network slots: the pool is not open")
	}
	for i := range min(p.cfg.Slots, room(p.cfg.Range)) {
		if p.slots[i] == nil {
			p.slots[i] = &entry{state: building}
			return i, nil
		}
	}
	return 0, ErrFull
}

// settle ends the building of a slot: with s nil its index is free again.
func (p *Pool) settle(index int, s *Slot, to state, owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s == nil {
		delete(p.slots, index)
		return
	}
	p.turns++
	p.slots[index] = &entry{slot: s, state: to, owner: owner, turn: p.turns}
}

// move takes slot number index from one state to another, if it is in the first.
func (p *Pool) move(index int, from, to state) (*Slot, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.slots[index]
	if e == nil || e.state != from {
		return nil, false
	}
	e.state = to
	return e.slot, true
}

// Adopt gives owner a slot that an earlier process had taken and whose machine lives on. Tap is nil. Its
// rules in the kernel are as they were. Where they were not those of an open slot, no name is answered until
// SetPolicy or SetEgress is called again. ErrNoSlot: Open has not found it, or it is adopted already.
func (p *Pool) Adopt(ctx context.Context, owner string, index int) (*Slot, error) {
	s, ok := p.move(index, found, building)
	if !ok {
		return nil, fmt.Errorf("adopt slot %d: %w", index, ErrNoSlot)
	}
	err := s.inside(func() error { return p.rates().set(false) }) // those of the earlier process may have been others
	if err == nil {
		err = s.resume(ctx)
	}
	if err != nil {
		p.settle(index, s, found, "")
		return nil, fmt.Errorf("adopt slot %d: %w", index, err)
	}
	p.settle(index, s, taken, owner)
	return s, nil
}

// Release takes a slot back. The monitor process must have ended: otherwise the answer is a *BusyError, and
// the pool renews the slot by itself once the tap is free; the caller owns it no longer in any case. A slot
// that was given back already is no error.
func (p *Pool) Release(ctx context.Context, s *Slot) error {
	if s == nil {
		return nil
	}
	p.mu.Lock()
	e := p.slots[s.Index]
	mine := e != nil && e.slot == s && e.state == taken
	if mine {
		e.state, e.owner = building, ""
	}
	p.mu.Unlock()
	if !mine {
		return nil
	}
	s.mu.Lock()
	s.given = true
	s.mu.Unlock()
	return p.putBack(ctx, s)
}

// putBack renews a slot in state building, or removes it when enough are ready.
func (p *Pool) putBack(ctx context.Context, s *Slot) error {
	defer p.wake()
	if p.count(ready) >= 2*p.cfg.Ready {
		return p.remove(s)
	}
	err := p.renew(ctx, s)
	var busy *BusyError
	switch {
	case err == nil:
		// Whoever had the slot keeps a pointer to it; the next owner gets another one.
		p.settle(s.Index, s.isClean(), ready, "")
	case errors.As(err, &busy):
		p.settle(s.Index, s, used, "")
	default: // something of it was damaged: a new one will be built
		err = errors.Join(err, p.remove(s))
	}
	return err
}

// remove demolishes a slot in state building and frees its index. What could not be removed keeps the index.
func (p *Pool) remove(s *Slot) error {
	if err := p.destroyNamespace(s); err != nil {
		p.settle(s.Index, s, used, "")
		return fmt.Errorf("remove slot %d: %w", s.Index, err)
	}
	p.settle(s.Index, nil, building, "")
	return nil
}

func (p *Pool) count(st state) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.slots {
		if e.state == st {
			n++
		}
	}
	return n
}

// in lists the indexes in a state, lowest first.
func (p *Pool) in(st state) []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []int
	for i, e := range p.slots {
		if e.state == st {
			list = append(list, i)
		}
	}
	slices.Sort(list)
	return list
}

func (p *Pool) wake() {
	select {
	case p.nudge <- struct{}{}:
	default:
	}
}
