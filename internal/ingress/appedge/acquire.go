package appedge

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/ingress/access"
)

// Why a request gets no replica.
var (
	errHeld   = errors.New("no replica was ready in time")
	errAsleep = errors.New("the app sleeps, and this request does not wake it")
)

// limitError is the error of a wake that would be one too many.
type limitError struct{ retry time.Duration }

func (e *limitError) Error() string { return fmt.Sprintf("too many wakes: retry in %s", e.retry) }

// maxOpens bounds how many replicas a request tries to open.
const maxOpens = 4

// target is a replica that was opened for a request.
type target struct {
	use     *use
	guest   guestapi.Guest
	sandbox api.Sandbox
}

// acquire returns an opened replica for a request. It waits for one until ctx ends, whose cause it then returns.
//
// The caller ends the use. cancel ends the request.
func (a *app) acquire(
	ctx context.Context,
	r *http.Request,
	rt Route,
	avoid *replica,
	cancel context.CancelCauseFunc,
) (target, error) {
	var failed error
	for range maxOpens {
		u, err := a.await(ctx, r, rt, avoid, cancel)
		if err != nil {
			return target{}, errors.Join(err, failed)
		}
		guest, sandbox, err := a.edge.cfg.Apps.Open(ctx, a.id, u.replica.sandbox)
		if err == nil {
			return target{u, guest, sandbox}, nil
		}
		u.end()
		if ctx.Err() != nil {
			return target{}, context.Cause(ctx)
		}
		failed = err
		a.broke(u.replica)
	}
	return target{}, failed
}

// broke notes that a replica does not work, until replicas were read again.
func (a *app) broke(r *replica) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r.broken = true
}

// await returns a use of a replica that is ready. If none is, it has one woken and waits.
func (a *app) await(
	ctx context.Context,
	r *http.Request,
	rt Route,
	avoid *replica,
	cancel context.CancelCauseFunc,
) (*use, error) {
	for {
		u, c, err := a.next(r, rt, avoid, cancel)
		if u != nil || err != nil {
			return u, err
		}
		select {
		case <-c.done:
			if c.err != nil {
				return nil, c.err
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// next returns a use of a replica, or the call to wait for.
func (a *app) next(r *http.Request, rt Route, avoid *replica, cancel context.CancelCauseFunc) (*use, *call, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.follow(rt)
	switch {
	case a.call != nil:
		return nil, a.call, nil
	case a.isStale():
		return nil, a.begin(func(context.Context) error { return nil }), nil
	}
	if best := a.pick(avoid); best != nil {
		if a.route.Concurrency > 0 && best.inFlight >= a.route.Concurrency {
			a.grow()
		}
		return a.take(best, cancel), nil, nil
	}
	if err := a.mayWake(r); err != nil {
		return nil, nil, err
	}
	return nil, a.begin(a.wake), nil
}

// mayWake returns why a request cannot wake the app now. The caller holds mu.
func (a *app) mayWake(r *http.Request) error {
	if isQuiet(r, a.edge.cfg.Quiet) {
		return errAsleep
	}
	if wait := time.Until(a.wakeAfter); wait > 0 {
		return &limitError{wait}
	}
	if ok, retry := a.edge.fromWakes.Take(access.NetworkOf(r)); !ok {
		return &limitError{retry}
	}
	if ok, retry := a.edge.appWakes.Take(string(a.id)); !ok {
		return &limitError{retry}
	}
	return nil
}

// begin starts work, after which the replicas are read, for all requests to wait for. The caller holds mu.
func (a *app) begin(work func(ctx context.Context) error) *call {
	c := &call{done: make(chan struct{})}
	started := a.edge.start(func() {
		err := work(a.edge.ctx)
		if err == nil {
			err = a.look(a.edge.ctx)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.call, c.err = nil, err
		close(c.done)
	})
	if !started {
		c.err = context.Cause(a.edge.ctx)
		close(c.done)
		return c
	}
	a.call = c
	return c
}

// lookTimeout bounds reading the replicas of an app.
const lookTimeout = 10 * time.Second

// look reads the replicas.
func (a *app) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, lookTimeout, errors.New("the replicas were not read in time"))
	defer cancel()
	a.mu.Lock()
	version := a.version
	a.changed = a.edge.cfg.Apps.Changed()
	a.mu.Unlock()
	all, err := a.edge.cfg.Apps.Replicas(ctx, a.id)
	if err != nil {
		return fmt.Errorf("read the replicas of %s: %w", a.id, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.setReplicas(all, version)
	return nil
}

// maxWakeDelay bounds the delay after wakes that failed.
const maxWakeDelay = 30 * time.Second

// wake makes a replica ready.
func (a *app) wake(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, a.edge.cfg.WakeTimeout, errors.New("the wake took too long"))
	defer cancel()
	began := time.Now()
	err := a.edge.cfg.Apps.Wake(ctx, a.id, 1)
	a.edge.metrics.wake(time.Since(began), err)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stats.wakes++
	if err != nil {
		a.wakeAfter = time.Now().Add(min(time.Second<<min(a.failures, 5), maxWakeDelay))
		a.failures++
		a.edge.cfg.Log.Warn("an app could not be woken", "app", a.id, "err", err)
		return fmt.Errorf("wake: %w", err)
	}
	a.failures, a.wakeAfter = 0, time.Time{}
	return nil
}

// growDelay is the time between attempts to get another replica, of which the earlier one failed.
const growDelay = 5 * time.Second

// grow asks for another replica, for which no request waits. The caller holds mu.
func (a *app) grow() {
	want := len(a.replicas) + 1
	if a.growing || want > a.route.Max || time.Now().Before(a.growAfter) {
		return
	}
	a.growing = a.edge.start(func() {
		ctx, cancel := context.WithTimeoutCause(a.edge.ctx, a.edge.cfg.WakeTimeout,
			errors.New("another replica was not ready in time"))
		defer cancel()
		err := a.edge.cfg.Apps.Wake(ctx, a.id, want)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.growing = false
		if err != nil {
			a.growAfter = time.Now().Add(growDelay)
			a.edge.cfg.Log.Warn("an app did not get another replica", "app", a.id, "err", err)
			return
		}
		a.setStale()
	})
}
