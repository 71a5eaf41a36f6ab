package appedge

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pandastack/pandastack/api"
)

// app is what the edge knows of an app: its replicas, what is under way, and its figures.
type app struct {
	edge *Edge
	id   api.AppID

	last atomic.Int64 // when a request last began, ended, or sent or received something; nanoseconds

	mu        sync.Mutex
	route     Route                     // of the largest generation
	replicas  []*replica                // of its deployment, as they were read last
	stale     bool                      // they must be read again
	version   int64                     // counts the times that stale was set
	call      *call                     // reading of replicas, or a wake, that requests wait for; nil: none
	growing   bool                      // another replica was asked for
	growAfter time.Time                 // when another may be asked for
	failures  int                       // wakes that failed in a row
	wakeAfter time.Time                 // when the next may begin
	requests  int                       // that were begun and have not ended, those that wait included
	uses      map[*use]struct{}         // of replicas
	ended     chan struct{}             // closed when a use ends; nil: no caller waits
	gone      map[api.DeploymentID]bool // whose WebSockets are closed when they open
	changed   <-chan struct{}           // closed when replicas that were read may have changed
	stats     stats
}

// replica is a replica of the live deployment that is ready.
type replica struct {
	sandbox  api.SandboxID
	inFlight int  // requests under way; guarded by app.mu
	broken   bool // it could not be opened since replicas were read; guarded by app.mu
}

// use is a request at a replica.
type use struct {
	app        *app
	replica    *replica
	deployment api.DeploymentID
	cancel     context.CancelCauseFunc
	socket     *socket // of a WebSocket; nil: it is none; guarded by app.mu
}

// call is a call of the service for apps that requests wait for.
type call struct {
	done chan struct{} // closed when it has returned
	err  error         // set before done is closed
}

func newApp(e *Edge, id api.AppID) *app {
	return &app{
		edge: e, id: id, stale: true, uses: map[*use]struct{}{}, gone: map[api.DeploymentID]bool{},
		stats: newStats(time.Now()),
	}
}

// enter counts a request.
func (a *app) enter() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests++
	a.touch()
}

// leave ends a request that enter counted.
func (a *app) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests--
	a.touch()
}

// touch notes that the app is in use.
func (a *app) touch() { a.last.Store(time.Now().UnixNano()) }

func (a *app) unusedSince(t time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.requests == 0 && a.last.Load() < t.UnixNano()
}

func (a *app) markStale() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.setStale()
}

func (a *app) setStale() {
	a.stale = true
	a.version++
}

// follow takes over the route of a request unless a later one is known. The caller holds mu.
func (a *app) follow(rt Route) {
	if rt.Generation < a.route.Generation {
		return
	}
	old := a.route
	a.route = rt
	if rt.Generation == old.Generation && rt.Deployment == old.Deployment {
		return
	}
	if rt.Deployment != old.Deployment {
		a.replicas = nil
	}
	a.failures, a.wakeAfter, a.growAfter = 0, time.Time{}, time.Time{}
	a.setStale()
}

// pick returns the replica with the fewest requests under way, nil if none is ready. The caller holds mu.
//
// A replica other than avoid is preferred.
func (a *app) pick(avoid *replica) *replica {
	var best *replica
	for _, r := range a.replicas {
		switch {
		case r.broken:
		case best == nil, best == avoid, r != avoid && r.inFlight < best.inFlight:
			best = r
		}
	}
	return best
}

// take begins the use of a replica. The caller holds mu.
func (a *app) take(r *replica, cancel context.CancelCauseFunc) *use {
	u := &use{app: a, replica: r, deployment: a.route.Deployment, cancel: cancel}
	r.inFlight++
	a.uses[u] = struct{}{}
	return u
}

// end ends a use. It may be called again.
func (u *use) end() {
	a := u.app
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.uses[u]; !ok {
		return
	}
	delete(a.uses, u)
	u.replica.inFlight--
	if a.ended != nil {
		close(a.ended)
		a.ended = nil
	}
}

// setReplicas takes over what was read while the version was read at first. The caller holds mu.
func (a *app) setReplicas(all []Replica, version int64) {
	old := map[api.SandboxID]*replica{}
	for _, r := range a.replicas {
		old[r.sandbox] = r
	}
	a.replicas = nil
	for _, found := range all {
		if !found.Ready || found.Deployment != a.route.Deployment {
			continue
		}
		r := old[found.Sandbox]
		if r == nil {
			r = &replica{sandbox: found.Sandbox}
			for u := range a.uses { // it was absent from an earlier reading
				if u.replica.sandbox == found.Sandbox {
					r = u.replica
				}
			}
		}
		r.broken = false
		a.replicas = append(a.replicas, r)
	}
	a.stale = a.version != version
}

// isStale reports whether the replicas must be read again. The caller holds mu.
func (a *app) isStale() bool {
	select {
	case <-a.changed:
		return true
	default:
		return a.stale
	}
}
