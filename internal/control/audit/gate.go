package audit

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// The bounds of a gate.
const (
	burst          = 20   // seconds of a rate that can be used up at once
	refusedShare   = 10   // refused calls have this part of a rate
	maxNames       = 4096 // names that a table of a gate holds; it begins again when it is full
	useInterval    = time.Minute
	reportInterval = time.Minute // how often the log says how many entries were dropped
)

// gate decides which entries are recorded.
type gate struct {
	rate    int // entries a second of one workspace; 0: unlimited
	dropped atomic.Uint64

	mu       sync.Mutex
	buckets  map[string]*rate.Limiter
	uses     map[Entry]time.Time   // last entries of calls that repeat
	missing  map[api.Workspace]int // entries that were dropped and not reported yet
	reported time.Time             // last report
}

func newGate(perSecond int) *gate {
	return &gate{
		rate:    perSecond,
		buckets: map[string]*rate.Limiter{},
		uses:    map[Entry]time.Time{},
		missing: map[api.Workspace]int{},
	}
}

// admits reports whether an entry is recorded. Callers without a workspace share the rate of one, and each of their
// addresses has a part of it.
func (g *gate) admits(e Entry) bool {
	if g.rate == 0 {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	workspace := e.Principal.Workspace
	share, name := 1, "workspace "+string(workspace)
	if e.Outcome != "ok" {
		share, name = refusedShare, "refused of "+string(workspace)
	}
	ok := workspace != "" || g.take("address "+e.Remote, refusedShare*refusedShare)
	if ok = ok && g.take(name, share); !ok {
		g.dropped.Add(1)
		if _, known := g.missing[workspace]; known || len(g.missing) < maxNames {
			g.missing[workspace]++
		}
	}
	return ok
}

// take takes a token of a part of the rate. The caller holds mu.
func (g *gate) take(name string, share int) bool {
	b, ok := g.buckets[name]
	if !ok {
		if len(g.buckets) >= maxNames {
			clear(g.buckets)
		}
		b = rate.NewLimiter(rate.Limit(g.rate)/rate.Limit(share), max(1, g.rate*burst/share))
		g.buckets[name] = b
	}
	return b.Allow()
}

// isNew reports whether no entry like e was recorded within the last interval.
func (g *gate) isNew(e Entry) bool {
	at := e.At
	e.At, e.Took, e.Request = time.Time{}, 0, ""
	g.mu.Lock()
	defer g.mu.Unlock()
	if last, ok := g.uses[e]; ok && at.Sub(last) < useInterval {
		return false
	}
	if len(g.uses) >= maxNames {
		clear(g.uses)
	}
	g.uses[e] = at
	return true
}

// takeMissing returns the entries that were dropped since the last report, if that was not after a time.
func (g *gate) takeMissing(notAfter time.Time) map[api.Workspace]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.missing) == 0 || !notAfter.IsZero() && g.reported.After(notAfter) {
		return nil
	}
	missing := g.missing
	g.missing, g.reported = map[api.Workspace]int{}, time.Now()
	return missing
}

// ActionDropped is the action of an entry about entries that were dropped; the target is their number.
const ActionDropped = "audit.dropped"

// reportDropped adds entries that say how many were dropped, unless that was done after a time.
func (l *Log) reportDropped(ctx context.Context, notAfter time.Time) {
	for workspace, n := range l.gate.takeMissing(notAfter) {
		l.enqueue(ctx, Entry{
			At: time.Now(), Principal: auth.Principal{Workspace: workspace}, Action: ActionDropped,
			Target: strconv.Itoa(n), Outcome: string(api.RateLimited),
		})
	}
}
