// Package budget shares a bounded number of units, such as bytes of memory or open streams, between owners.
//
// A Pool has a total and levels of owners, such as workspace and sandbox; an Account holds units for one owner at each
// level, usually for one request. Nothing waits: units that are not there are an *Error, so that holders cannot block
// each other. The caller returns units as it frees what they stand for, and Close returns the rest.
//
// # Fair shares
//
// An owner may hold at most what is free at its level besides (dynamic thresholds, after Choudhury and Hahne): one
// owner alone gets half of the whole, two get a third each, n get 1/(n+1) each, and as much is always left for the next
// one. So no owner, and no number of owners, can take everything from a newcomer. A Level may bound its owners further.
//
// All methods may be called concurrently. A nil *Pool opens nil accounts, and a nil *Account refuses nothing.
package budget

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Level is one level of owners.
type Level struct {
	Name string // of one owner, for errors: "workspace"
	Max  int64  // that one owner may hold; 0: only its fair share bounds it
}

// Config configures a Pool.
type Config struct {
	Name    string  // for errors and metrics: "buffered bytes"
	Total   int64   // of all owners
	Levels  []Level // from the top: an owner belongs to one owner of the level above
	Account Level   // what one account is called, and may hold
}

// Pool is a number of units that owners share. Make one with New.
type Pool struct {
	cfg Config

	mu      sync.Mutex
	root    *owner           // guarded by mu, with everything below it
	refused map[string]int64 // how often, by level; guarded by mu
}

// owner is a holder of units at one level. Owners without accounts do not exist.
type owner struct {
	parent   *owner // nil: the root
	level    int    // index in Config.Levels; -1: the root
	name     string
	limit    int64 // that its children share
	used     int64
	accounts int // of it and of the owners below it
	children map[string]*owner
}

// New returns a pool.
func New(cfg Config) *Pool {
	return &Pool{
		cfg:     cfg,
		root:    &owner{level: -1, limit: cfg.Total, children: map[string]*owner{}},
		refused: map[string]int64{},
	}
}

// Total returns the number of units of the pool, 0 if p is nil.
func (p *Pool) Total() int64 {
	if p == nil {
		return 0
	}
	return p.cfg.Total
}

// Used returns how many units all accounts hold.
func (p *Pool) Used() int64 {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.root.used
}

// Open opens an account without units. The caller closes it.
//
// owners names its owner at each level, from the top; lower levels may be left out.
func (p *Pool) Open(owners ...string) *Account {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.root
	at.accounts++
	for i, name := range owners[:min(len(owners), len(p.cfg.Levels))] {
		next := at.children[name]
		if next == nil {
			next = &owner{parent: at, level: i, name: name, limit: at.limit / 2, children: map[string]*owner{}}
			if most := p.cfg.Levels[i].Max; most > 0 {
				next.limit = min(next.limit, most)
			}
			at.children[name] = next
		}
		next.accounts++
		at = next
	}
	return &Account{pool: p, owner: at}
}

// Account holds units of a Pool.
type Account struct {
	pool  *Pool
	owner *owner // guarded by pool.mu, as are the fields below; nil: closed
	held  int64
}

// ErrClosed is the error of taking units for an account that was closed.
var ErrClosed = errors.New("account is closed")

// Error reports units that an account did not get.
type Error struct {
	Pool    string // name of the pool
	Level   string // name of the level whose bound was met
	Owner   string // who met it; "" for an account
	Used    int64  // by that owner
	Allowed int64  // to that owner now
	Wanted  int64
	// Never is set if the owner could not get as much even if all others held nothing.
	Never bool
}

// Error implements error.
func (e *Error) Error() string {
	if e.Never {
		return fmt.Sprintf("%s: this %s needs %d, and may hold at most %d",
			e.Pool, e.Level, e.Used+e.Wanted, e.Allowed)
	}
	return fmt.Sprintf("%s: this %s holds %d of the %d that it may hold now, and %d more are needed: retry later",
		e.Pool, e.Level, e.Used, e.Allowed, e.Wanted)
}

// Take takes n more units, all or none. The error is an *Error, or ErrClosed.
func (a *Account) Take(n int64) error {
	if a == nil || n == 0 {
		return nil
	}
	if n < 0 {
		return fmt.Errorf("budget %s: take %d", a.pool.cfg.Name, n)
	}
	p := a.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.owner == nil {
		return ErrClosed
	}
	if err := a.check(n); err != nil {
		p.refused[err.Level]++
		return err
	}
	a.add(n)
	return nil
}

// check returns why n more units are too many, or nil.
func (a *Account) check(n int64) *Error {
	cfg := &a.pool.cfg
	if most := cfg.Account.Max; most > 0 && n > most-a.held {
		return &Error{
			Pool: cfg.Name, Level: cfg.Account.Name, Used: a.held, Allowed: most, Wanted: n, Never: true,
		}
	}
	for o := a.owner; o.parent != nil; o = o.parent {
		// An owner may hold as much as is free besides: used+n <= parent.limit-parent.used-n.
		allowed := min(o.limit, (o.parent.limit-o.parent.used+o.used)/2)
		if n > allowed-o.used {
			return &Error{
				Pool: cfg.Name, Level: cfg.Levels[o.level].Name, Owner: o.name,
				Used: o.used, Allowed: max(allowed, 0), Wanted: n, Never: n > o.limit,
			}
		}
	}
	if root := a.pool.root; n > root.limit-root.used {
		return &Error{
			Pool: cfg.Name, Level: "node", Used: root.used, Allowed: root.limit, Wanted: n, Never: n > root.limit,
		}
	}
	return nil
}

func (a *Account) add(n int64) {
	a.held += n
	for o := a.owner; o != nil; o = o.parent {
		o.used += n
	}
}

// Give returns n units, or all that are held if those are fewer.
func (a *Account) Give(n int64) {
	if a == nil || n <= 0 {
		return
	}
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	if a.owner != nil {
		a.add(-min(n, a.held))
	}
}

// Held returns how many units the account holds.
func (a *Account) Held() int64 {
	if a == nil {
		return 0
	}
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	return a.held
}

// Close returns all units. Taking more is ErrClosed afterwards. It may be called again.
func (a *Account) Close() {
	if a == nil {
		return
	}
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	if a.owner == nil {
		return
	}
	a.add(-a.held)
	for o := a.owner; o != nil; o = o.parent {
		if o.accounts--; o.accounts == 0 && o.parent != nil {
			delete(o.parent.children, o.name)
		}
	}
	a.owner = nil
}

type contextKey struct{}

// NewContext returns a context that carries an account, which pays for what is done with the context.
func NewContext(ctx context.Context, a *Account) context.Context {
	return context.WithValue(ctx, contextKey{}, a)
}

// FromContext returns the account that ctx carries, nil if there is none.
func FromContext(ctx context.Context) *Account {
	a, _ := ctx.Value(contextKey{}).(*Account)
	return a
}
