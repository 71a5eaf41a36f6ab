package appedge

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
)

// Fail sends an error in the form of the API that forwards a request.
type Fail = func(w http.ResponseWriter, r *http.Request, err *api.Error)

// request is how one request is forwarded.
type request struct {
	shared bool   // the origin of the URL is that of the API
	prefix string // of the URL, before the app's path
	fail   Fail   // nil: errors have the form of the edge
}

// Causes of the end of a request.
var (
	errSlow     = errors.New("the app did not begin its response in time")
	errReplaced = errors.New("the deployment was replaced")
	errEnded    = errors.New("the request has ended")
)

// serve serves a request for an app.
func (e *Edge) serve(w http.ResponseWriter, r *http.Request, rt Route, how request) {
	a := e.begin(rt.App)
	defer a.leave()
	began := time.Now()
	rec := &recorder{ResponseWriter: w, app: a, began: began}
	defer func() { a.record(rec) }()
	if how.fail == nil {
		how.fail = func(w http.ResponseWriter, r *http.Request, err *api.Error) {
			refuse(w, r, statusOf(err), err)
		}
	}
	if e.cfg.Limits != nil {
		if err := e.cfg.Limits.Admit(rec, r, string(rt.App), rt.Port); err != nil {
			how.fail(rec, r, api.AsError(err))
			return
		}
	}
	switch {
	case rt.Deployment == "":
		how.fail(rec, r, unavailable("This app has no deployment that is live yet"))
	case rt.Files != nil && rt.Files.ServeFile(rec, r):
	case rt.NoProgram:
		how.fail(rec, r, api.Errorf(api.NotFound, "The page was not found"))
	case rt.Max == 0:
		how.fail(rec, r, unavailable("This app is stopped"))
	case e.cfg.MaxBody > 0 && r.ContentLength > e.cfg.MaxBody:
		how.fail(rec, r, tooLarge(e.cfg.MaxBody))
	default:
		e.forward(rec, r, a, rt, how)
	}
}

// forward forwards a request to a replica.
func (e *Edge) forward(w *recorder, r *http.Request, a *app, rt Route, how request) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(errEnded)
	held, release := context.WithTimeoutCause(ctx, e.cfg.Hold, errHeld)
	first, err := a.acquire(held, r, rt, nil, cancel)
	release()
	if err != nil {
		if r.Context().Err() == nil {
			how.fail(w, r, e.waitError(w, a, err))
		}
		return
	}
	uses := &uses{current: first.use}
	defer uses.end()
	w.uses = uses
	w.limit = newLimit(e.cfg.Response, func() { cancel(errSlow) })
	defer w.limit.stop()
	out := r.WithContext(ctx)
	out.Header = r.Header.Clone()
	access.ClientHeaders(out)
	if r.Body != nil && r.Body != http.NoBody {
		out.Body = limitedBody{r.Body, w.limit}
		if e.cfg.MaxBody > 0 {
			out.Body = http.MaxBytesReader(w, out.Body, e.cfg.MaxBody)
		}
	}
	route := e.route(rt, first, how)
	route.Again = func(ctx context.Context, err error) (proxy.Route, bool) {
		a.markStale()
		held, release := context.WithTimeoutCause(ctx, e.cfg.Hold, errHeld)
		defer release()
		next, failed := a.acquire(held, r, rt, uses.replica(), cancel)
		if failed != nil {
			return proxy.Route{}, false
		}
		uses.replace(next.use)
		again := e.route(rt, next, how)
		again.Fail = route.Fail
		return again, true
	}
	route.Fail = func(_ http.ResponseWriter, r *http.Request, err *api.Error) {
		how.fail(w, r, e.programError(w, rt, context.Cause(ctx), err))
	}
	e.cfg.Proxy.Forward(w, out, route)
}

// route returns the route to a replica.
func (e *Edge) route(rt Route, t target, how request) proxy.Route {
	t.use.app.mu.Lock()
	port := t.use.app.route.Port // of the deployment that the replica serves
	t.use.app.mu.Unlock()
	return proxy.Route{
		Address: proxy.Address{Sandbox: string(t.sandbox.ID), Port: port}, Sandbox: t.sandbox, Guest: t.guest,
		PublicHost: !how.shared, OwnSite: rt.OwnSite && !how.shared, Shared: how.shared, Prefix: how.prefix,
	}
}

// uses is what a request uses: one replica, and another one if the first does not accept it.
type uses struct {
	mu      sync.Mutex
	current *use
}

func (u *uses) replica() *replica {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.current.replica
}

func (u *uses) replace(by *use) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.current.end()
	u.current = by
}

func (u *uses) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.current.end()
}

// hold keeps the socket of a WebSocket, which ends when the deployment is replaced.
func (u *uses) hold(s *socket) {
	u.mu.Lock()
	defer u.mu.Unlock()
	a := u.current.app
	a.mu.Lock()
	defer a.mu.Unlock()
	u.current.socket = s
	if a.gone[u.current.deployment] {
		s.goAway() // which waits for nothing, since nothing was sent
	}
}

// isQuiet reports whether a request wakes nothing: it is a probe, comes from a robot, or loads ahead of a visit.
func isQuiet(r *http.Request, agents []string) bool {
	if r.Method == http.MethodHead || r.Method == http.MethodTrace {
		return true
	}
	for _, name := range []string{"Sec-Purpose", "Purpose", "X-Moz"} {
		if strings.Contains(strings.ToLower(r.Header.Get(name)), "prefetch") {
			return true
		}
	}
	agent := strings.ToLower(r.UserAgent())
	for _, text := range agents {
		if strings.Contains(agent, text) {
			return true
		}
	}
	return false
}
