package appedge

import (
	"context"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
)

// InFlight returns how many requests of an app are under way or wait for a replica. WebSockets count.
func (e *Edge) InFlight(id api.AppID) int {
	a := e.known(id)
	if a == nil {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.requests
}

// LastUse returns when a request of an app last began, ended, sent or received something. It is the zero time if the
// edge has seen no request lately.
func (e *Edge) LastUse(id api.AppID) time.Time {
	a := e.known(id)
	if a == nil {
		return time.Time{}
	}
	return time.Unix(0, a.last.Load())
}

// Drain returns when no request of a deployment is under way, or when ctx ends. WebSockets are closed after a grace,
// and whatever is left after a limit is ended.
func (e *Edge) Drain(ctx context.Context, id api.AppID, old api.DeploymentID) {
	a := e.known(id)
	if a == nil {
		return
	}
	grace := time.NewTimer(e.cfg.DrainGrace)
	defer grace.Stop()
	limit := time.NewTimer(e.cfg.DrainLimit)
	defer limit.Stop()
	var closing sync.WaitGroup
	defer closing.Wait()
	for {
		ended := a.waitFor(old)
		if ended == nil {
			return
		}
		select {
		case <-ended:
		case <-grace.C:
			for _, s := range a.leaveSockets(old) {
				closing.Go(s.goAway)
			}
			defer a.forget(old)
		case <-limit.C:
			a.cancel(old)
		case <-ctx.Done():
			a.cancel(old)
			return
		}
	}
}

// waitFor returns a channel that is closed when a request ends, nil if none of a deployment is under way.
func (a *app) waitFor(deployment api.DeploymentID) <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	for u := range a.uses {
		if u.deployment == deployment {
			if a.ended == nil {
				a.ended = make(chan struct{})
			}
			return a.ended
		}
	}
	return nil
}

// leaveSockets returns the WebSockets of a deployment. Those that open later are closed when they do, until forget.
func (a *app) leaveSockets(deployment api.DeploymentID) (all []*socket) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone[deployment] = true
	for u := range a.uses {
		if u.deployment == deployment && u.socket != nil {
			all = append(all, u.socket)
		}
	}
	return all
}

func (a *app) forget(deployment api.DeploymentID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.gone, deployment)
}

// cancel ends the requests of a deployment.
func (a *app) cancel(deployment api.DeploymentID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for u := range a.uses {
		if u.deployment == deployment {
			u.cancel(errReplaced)
		}
	}
}
