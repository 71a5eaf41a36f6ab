package netslot

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/pandastack/pandastack/internal/lib/filelock"
	"github.com/pandastack/pandastack/internal/os/egress"
)

// ErrFull means that all slots are in use.
var ErrFull = errors.New("no network slot is free")

// ErrNoSlot means that no slot with this index can be adopted.
var ErrNoSlot = errors.New("no such network slot")

// ErrReleased means that a slot is used after its release.
var ErrReleased = errors.New("network slot was given back")

// ErrInUse means that another process has a pool of the same prefix open on this host.
var ErrInUse = errors.New("another process has these network slots open")

// state is the state of a slot.
type state int

const (
	building state = iota // one goroutine makes, renews or removes it
	ready                 // may be acquired
	taken                 // belongs to an owner
	used                  // released, not yet renewed: its tap was held
	found                 // left by an earlier process, neither adopted nor swept
)

type entry struct {
	slot  *Slot
	state state
	owner string
	turn  uint64 // of ready slots, the lowest is acquired first
}

// Pool manages the slots of a host.
type Pool struct {
	cfg       Config // Range is set by Open and does not change after
	host      *os.File
	closed    []netip.Prefix
	mtu       int
	flows     *flows         // the host's
	lock      *filelock.Lock // marks the pool as open for other processes
	rangeLock *filelock.Lock // reserves the range; nil before it is chosen
	nudge     chan struct{}  // one token: Run has work

	resolver *egress.Resolver
	service  *Service // nil: none
	shares   shares
	entering *semaphore.Weighted // of dials that are in a namespace

	mu    sync.Mutex
	slots map[int]*entry // +checklocks:mu
	open  bool           // +checklocks:mu
	turns uint64         // +checklocks:mu
}

// New validates the configuration. It does not touch the host.
func New(c Config) (*Pool, error) {
	c, err := c.complete()
	if err != nil {
		return nil, fmt.Errorf("network slots: %w", err)
	}
	p := &Pool{cfg: c, nudge: make(chan struct{}, 1), slots: map[int]*entry{}, shares: newShares(),
		entering: semaphore.NewWeighted(maxEntering)}
	p.resolver = p.newResolver()
	if c.ServicePort != 0 {
		p.service = newService(c.ServicePort)
	}
	return p, nil
}

// Range returns the range of the slots' addresses; valid after Open.
func (p *Pool) Range() netip.Prefix { return p.cfg.Range }

// Acquire returns a slot for owner, a word for logs. It returns a prepared slot at once; without one it prepares a
// slot in the call. The error is ErrFull if all slots are in use.
func (p *Pool) Acquire(ctx context.Context, owner string) (*Slot, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if s := p.takeReady(owner); s != nil {
		p.wake()
		return s, nil
	}
	index, err := p.claim()
	if err != nil {
		return nil, err
	}
	s, err := p.build(ctx, index)
	p.finishBuild(index, s, taken, owner)
	return s, err
}

// takeReady returns the slot that has been ready for the longest time, nil if none is: the kernel brings up the link
// of a slot a little after its renewal.
func (p *Pool) takeReady(owner string) *Slot {
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

// claim reserves the lowest unused index.
func (p *Pool) claim() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.open {
		return 0, errors.New("network slots: the pool is not open")
	}
	for i := range min(p.cfg.Slots, capacity(p.cfg.Range)) {
		if p.slots[i] == nil {
			p.slots[i] = &entry{state: building}
			return i, nil
		}
	}
	return 0, ErrFull
}

// finishBuild ends the preparation of a slot. If s is nil, its index is free again.
func (p *Pool) finishBuild(index int, s *Slot, to state, owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s == nil {
		delete(p.slots, index)
		return
	}
	p.turns++
	p.slots[index] = &entry{slot: s, state: to, owner: owner, turn: p.turns}
}

// changeState changes the state of slot number index from from to to, if it is in from.
func (p *Pool) changeState(index int, from, to state) (*Slot, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.slots[index]
	if e == nil || e.state != from {
		return nil, false
	}
	e.state = to
	return e.slot, true
}

// Adopt gives owner a slot that an earlier process had acquired and whose machine is still running.
//
// Its Tap is nil. Its rules in the kernel are unchanged. If they were not those of an open slot, the resolver refuses
// all names until SetPolicy or SetEgress is called. The error is ErrNoSlot if Open did not find the slot, or if it
// was adopted already.
func (p *Pool) Adopt(ctx context.Context, owner string, index int) (*Slot, error) {
	s, ok := p.changeState(index, found, building)
	if !ok {
		return nil, fmt.Errorf("adopt slot %d: %w", index, ErrNoSlot)
	}
	err := s.inside(func() error { return p.rates().set(false) }) // the earlier process may have set others
	if err == nil {
		err = s.withKernel(func(k *kernel) error {
			return k.rules.Update(slotTable, nil, flowChains(p.connections(), p.cfg.Decided != nil))
		})
	}
	if err == nil {
		err = s.resume(ctx)
	}
	if err != nil {
		p.finishBuild(index, s, found, "")
		return nil, fmt.Errorf("adopt slot %d: %w", index, err)
	}
	p.finishBuild(index, s, taken, owner)
	return s, nil
}

// Release takes a slot back; the caller no longer owns it, whatever the result.
//
// The monitor process must have ended. Otherwise the error is a *BusyError, and the pool renews the slot itself once
// the tap is free. Releasing a slot twice is not an error.
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
	s.released = true
	s.mu.Unlock()
	return p.putBack(ctx, s)
}

// putBack renews a slot in state building, or removes it if enough slots are ready.
func (p *Pool) putBack(ctx context.Context, s *Slot) error {
	defer p.wake()
	if p.count(ready) >= 2*p.cfg.Ready {
		return p.remove(s)
	}
	err := p.renew(ctx, s)
	var busy *BusyError
	switch {
	case err == nil:
		// The former owner keeps a pointer to the old value; the next owner gets a new one.
		p.finishBuild(s.Index, s.successor(), ready, "")
	case errors.As(err, &busy):
		p.finishBuild(s.Index, s, used, "")
	default: // part of it was damaged: Run builds a new slot
		err = errors.Join(err, p.remove(s))
	}
	return err
}

// remove removes a slot in state building and frees its index. If removal fails, the index stays in use.
func (p *Pool) remove(s *Slot) error {
	if err := p.destroyNamespace(s); err != nil {
		p.finishBuild(s.Index, s, used, "")
		return fmt.Errorf("remove slot %d: %w", s.Index, err)
	}
	p.finishBuild(s.Index, nil, building, "")
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

// inState lists the indexes of slots in a state, lowest first.
func (p *Pool) inState(st state) []int {
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
