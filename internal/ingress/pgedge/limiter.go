package pgedge

import (
	"container/list"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/lib/accept"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// Limits bound what clients can use of the edge. Zero fields have the value of DefaultLimits.
type Limits struct {
	HalfOpen            int // connections that have not authenticated
	HalfOpenPerAddress  int // of one address
	SessionsPerEndpoint int // unless Settings.MaxSessions is set

	StartupTimeout time.Duration // from the connection to the proof of the password
	WakeTimeout    time.Duration // from there to the session, including the time that a sleeping database needs
	DrainTimeout   time.Duration // that sessions get to end a transaction when Serve ends

	// FreeFailures is how many logins of an address at one endpoint may fail without a pause. Each further failure
	// doubles the pause, from one second to MaxPause. All endpoints together get ten times as many.
	FreeFailures int
	MaxPause     time.Duration
}

// DefaultLimits are the limits of an edge of one node.
func DefaultLimits() Limits {
	return Limits{
		HalfOpen: 1024, HalfOpenPerAddress: 64, SessionsPerEndpoint: 500,
		StartupTimeout: 15 * time.Second, WakeTimeout: time.Minute, DrainTimeout: 30 * time.Second,
		FreeFailures: 5, MaxPause: time.Minute,
	}
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	for _, n := range []struct{ v, d *int }{
		{&l.HalfOpen, &d.HalfOpen},
		{&l.HalfOpenPerAddress, &d.HalfOpenPerAddress},
		{&l.SessionsPerEndpoint, &d.SessionsPerEndpoint},
		{&l.FreeFailures, &d.FreeFailures},
	} {
		if *n.v <= 0 {
			*n.v = *n.d
		}
	}
	for _, n := range []struct{ v, d *time.Duration }{
		{&l.StartupTimeout, &d.StartupTimeout},
		{&l.WakeTimeout, &d.WakeTimeout},
		{&l.DrainTimeout, &d.DrainTimeout},
		{&l.MaxPause, &d.MaxPause},
	} {
		if *n.v <= 0 {
			*n.v = *n.d
		}
	}
	return l
}

// allEndpoints is how many times more failures an address has free at all endpoints together.
const allEndpoints = 10

// Limiter bounds connections that have not authenticated, and pauses addresses whose logins fail.
//
// The edges of all protocols share one.
type Limiter struct {
	limits   Limits
	halfOpen *budget.Pool
	failures *failures
}

// NewLimiter returns a limiter.
func NewLimiter(limits Limits) *Limiter {
	limits = limits.withDefaults()
	return &Limiter{
		limits: limits,
		halfOpen: budget.New(budget.Config{
			Name:   "database connections that have not authenticated",
			Total:  int64(limits.HalfOpen),
			Levels: []budget.Level{{Name: "address", Max: int64(limits.HalfOpenPerAddress)}},
		}),
		failures: newFailures(),
	}
}

// Pool returns the budget of connections that have not authenticated, for metrics.
func (l *Limiter) Pool() *budget.Pool { return l.halfOpen }

// Enter counts a connection that has not authenticated. The caller closes the account when it has.
func (l *Limiter) Enter(client netip.Addr) (*budget.Account, error) {
	a := l.halfOpen.Open(accept.Network(client))
	if err := a.Take(1); err != nil {
		a.Close()
		return nil, &Error{
			Code: codeTooMany, Message: "too many connections that have not logged in, from this address or in all",
			Hint: "Wait a few seconds and connect again.",
		}
	}
	return a, nil
}

// Check returns an error while an address has to wait before its next login at an endpoint.
func (l *Limiter) Check(client netip.Addr, endpoint string) error {
	now := time.Now()
	wait := max(l.failures.wait(accept.Network(client), now, l.limits.FreeFailures*allEndpoints, l.limits.MaxPause),
		l.failures.wait(accept.Network(client)+" "+endpoint, now, l.limits.FreeFailures, l.limits.MaxPause))
	if wait <= 0 {
		return nil
	}
	return &Error{
		Code: codeNotNow, Message: "too many failed logins from this address",
		Hint: fmt.Sprintf("Check user and password, and try again in %d seconds.", int(wait/time.Second)+1),
	}
}

// Failed records a login that failed.
func (l *Limiter) Failed(client netip.Addr, endpoint string) {
	now := time.Now()
	l.failures.add(accept.Network(client), now)
	l.failures.add(accept.Network(client)+" "+endpoint, now)
}

// Succeeded forgets the failures of an address at an endpoint.
func (l *Limiter) Succeeded(client netip.Addr, endpoint string) {
	l.failures.forget(accept.Network(client) + " " + endpoint)
}

const (
	maxFailures    = 8192             // entries; the least recent are dropped
	failuresExpire = 15 * time.Minute // after the last failure
	maxDoublings   = 20               // of a pause of one second
)

// failures counts failed logins by name.
type failures struct {
	mu      sync.Mutex
	entries map[string]*list.Element // of order
	order   *list.List               // of *failure, the most recent first
}

type failure struct {
	name  string
	count int
	last  time.Time
}

func newFailures() *failures {
	return &failures{entries: map[string]*list.Element{}, order: list.New()}
}

func (f *failures) add(name string, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, ok := f.entries[name]
	if !ok {
		for f.order.Len() >= maxFailures {
			f.remove(f.order.Back())
		}
		e = f.order.PushFront(&failure{name: name})
		f.entries[name] = e
	}
	f.order.MoveToFront(e)
	one := e.Value.(*failure) //nolint:forcetypeassert // the list has nothing else
	if now.Sub(one.last) > failuresExpire {
		one.count = 0
	}
	one.count++
	one.last = now
}

// wait returns how long a name has to wait if free failures cost nothing.
func (f *failures) wait(name string, now time.Time, free int, most time.Duration) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, ok := f.entries[name]
	if !ok {
		return 0
	}
	one := e.Value.(*failure) //nolint:forcetypeassert // the list has nothing else
	if one.count < free || now.Sub(one.last) > failuresExpire {
		return 0
	}
	pause := min(time.Second<<min(one.count-free, maxDoublings), most)
	return one.last.Add(pause).Sub(now)
}

func (f *failures) forget(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e, ok := f.entries[name]; ok {
		f.remove(e)
	}
}

// remove removes an entry. The caller holds mu.
func (f *failures) remove(e *list.Element) {
	one := f.order.Remove(e).(*failure) //nolint:forcetypeassert // the list has nothing else
	delete(f.entries, one.name)
}
