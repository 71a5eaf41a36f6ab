package appedge

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
)

// ErrNoApp is the error of a host name that is not an app's.
var ErrNoApp = errors.New("the host name is not that of an app")

// Route says where the requests for a host name go.
type Route struct {
	App         api.AppID
	Name        string
	Deployment  api.DeploymentID // "": none is live
	Generation  int64            // grows with every change of the deployment
	Port        uint16           // of the program in replicas
	Max         int              // replicas at most; 0: the app is stopped
	Concurrency int              // requests under way in a replica before another is asked for; 0: no limit
	Redirect    string           // host that clients are to use in its place; "": none
	OwnSite     bool             // the host is a custom domain
	Files       Files            // of the deployment, served without a replica; nil: none
	NoProgram   bool             // Files are all there is
}

// Files are the static files of a deployment.
type Files interface {
	// ServeFile serves a request and reports true, or reports false if a program is to answer it.
	ServeFile(w http.ResponseWriter, r *http.Request) bool
}

// Replica is a machine that serves a deployment.
type Replica struct {
	Sandbox    api.SandboxID
	Deployment api.DeploymentID
	Ready      bool // it takes requests
}

// Apps is what the edge needs of the service for apps. All methods may run at once.
type Apps interface {
	// Route returns the route of a host name, which is in lower case and has no port. The error wraps ErrNoApp if the
	// host is no app's.
	Route(ctx context.Context, host string) (Route, error)
	// Replicas returns the replicas of an app.
	Replicas(ctx context.Context, app api.AppID) ([]Replica, error)
	// Wake returns when want replicas of the live deployment, or as many as there may be, are ready.
	Wake(ctx context.Context, app api.AppID, want int) error
	// Open returns the guest of a replica that is ready.
	Open(ctx context.Context, app api.AppID, sandbox api.SandboxID) (guestapi.Guest, api.Sandbox, error)
	// Changed returns a channel that is closed with the next change of any app's replicas. A replica that stops to be
	// ready is changed before InFlight is asked whether it may be stopped.
	Changed() <-chan struct{}
}

// Config configures an Edge. Apps, Proxy and Log are required.
type Config struct {
	Apps  Apps
	Proxy *proxy.Proxy
	// Limits bounds the requests to one app, whose id it gets, and of one client; nil: there are no limits.
	Limits proxy.Limiter

	Hold        time.Duration // that a request waits for a replica
	WakeTimeout time.Duration // of one wake
	Response    time.Duration // until a program must have begun its response
	MaxBody     int64         // bytes of a request's body; 0: no limit
	DrainGrace  time.Duration // until WebSockets of a replaced deployment are closed
	DrainLimit  time.Duration // until everything of it is ended

	// Quiet are texts in the User-Agent of clients that wake nothing, in lower case.
	Quiet []string
	// Wakes of one app, and wakes that one network causes, in a minute; 0: no limit.
	AppWakes, NetworkWakes int

	TLSPort int    // to which requests that did not come over TLS are redirected; 0: they are served
	HSTS    string // value of Strict-Transport-Security over TLS; "": the header is the app's affair

	Log *slog.Logger
}

// Edge serves requests for apps. Make one with New, and run Run while it serves.
type Edge struct {
	cfg                 Config
	appWakes, fromWakes *access.Buckets
	metrics             *metrics
	background          sync.WaitGroup // calls of the service for apps that outlive their requests
	ctx                 context.Context
	stop                context.CancelCauseFunc

	mu   sync.Mutex
	apps map[api.AppID]*app // guarded by mu

	startMu sync.Mutex // taken last
	stopped bool       // guarded by startMu
}

// New returns an edge. It starts nothing. The end of ctx does not end the calls that the edge makes.
func New(ctx context.Context, cfg Config) *Edge {
	e := &Edge{
		cfg:       cfg,
		appWakes:  access.NewBuckets(float64(cfg.AppWakes)/60, cfg.AppWakes),
		fromWakes: access.NewBuckets(float64(cfg.NetworkWakes)/60, cfg.NetworkWakes),
		apps:      map[api.AppID]*app{},
	}
	e.metrics = newMetrics(e)
	e.ctx, e.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	return e
}

// forgetAfter is for how long the edge knows an app without requests.
const forgetAfter = 24 * time.Hour

// Run forgets apps without requests until ctx ends. It then cancels the wakes that are under way and waits for them.
func (e *Edge) Run(ctx context.Context) error {
	defer e.background.Wait()
	defer e.end()
	sweep := time.NewTicker(forgetAfter / 24)
	defer sweep.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-sweep.C:
			e.forget(now)
		}
	}
}

// end lets no further call of the service begin and cancels those under way.
func (e *Edge) end() {
	e.startMu.Lock()
	defer e.startMu.Unlock()
	e.stopped = true
	e.stop(errors.New("the node is stopping"))
}

// start runs a call in the background, unless the edge has stopped.
func (e *Edge) start(call func()) bool {
	e.startMu.Lock()
	defer e.startMu.Unlock()
	if e.stopped {
		return false
	}
	e.background.Go(call)
	return true
}

// forget drops apps without requests.
func (e *Edge) forget(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, a := range e.apps {
		if a.unusedSince(now.Add(-forgetAfter)) {
			delete(e.apps, id)
		}
	}
}

// begin returns the state of an app and counts a request, which keeps it.
func (e *Edge) begin(id api.AppID) *app {
	e.mu.Lock()
	defer e.mu.Unlock()
	a := e.apps[id]
	if a == nil {
		a = newApp(e, id)
		e.apps[id] = a
	}
	a.enter()
	return a
}

// known returns the state of an app, nil if the edge has seen no request for it.
func (e *Edge) known(id api.AppID) *app {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.apps[id]
}

// Middleware serves requests for apps and passes all others to next.
func (e *Edge) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := proxy.Hostname(r.Host)
		if host == "" || proxy.IsIP(host) {
			next.ServeHTTP(w, r)
			return
		}
		rt, err := e.cfg.Apps.Route(r.Context(), host)
		switch {
		case errors.Is(err, ErrNoApp):
			next.ServeHTTP(w, r)
		case err != nil:
			if r.Context().Err() == nil && api.CodeOf(err) != api.WorkspaceSuspended {
				e.cfg.Log.Error("the app of a host name could not be found", "err", err)
			}
			refuse(w, r, http.StatusServiceUnavailable, unavailable("The app cannot be reached now"))
		case e.redirects(w, r, rt):
		default:
			e.serve(w, r, rt, request{})
		}
	})
}

// ForwardApp serves a request of the API that is for an app. prefix is what precedes the app's own path in the URL; r
// has the app's path and no key. fail sends an error in the form of the API.
func (e *Edge) ForwardApp(w http.ResponseWriter, r *http.Request, rt Route, prefix string, fail Fail) {
	e.serve(w, r, rt, request{shared: true, prefix: prefix, fail: fail})
}

// redirects sends a client to the host or to the protocol that it is to use. It reports whether it did.
func (e *Edge) redirects(w http.ResponseWriter, r *http.Request, rt Route) bool {
	secure := isTLS(r)
	upgrade := !secure && e.cfg.TLSPort != 0
	if rt.Redirect == "" && !upgrade {
		if secure && e.cfg.HSTS != "" {
			w.Header().Set("Strict-Transport-Security", e.cfg.HSTS)
		}
		return false
	}
	to := *r.URL
	to.Scheme, to.Host, to.User = "http", r.Host, nil
	if secure || upgrade {
		to.Scheme = "https"
	}
	_, port, err := net.SplitHostPort(r.Host)
	if upgrade {
		port = strconv.Itoa(e.cfg.TLSPort)
	}
	if upgrade || rt.Redirect != "" {
		to.Host = cmp.Or(rt.Redirect, proxy.Hostname(r.Host))
		if (err == nil || upgrade) && port != "443" {
			to.Host = net.JoinHostPort(to.Host, port)
		}
	}
	http.Redirect(w, r, to.String(), http.StatusPermanentRedirect)
	return true
}

// isTLS reports whether the client speaks TLS, to this node or to a trusted proxy in front of it.
func isTLS(r *http.Request) bool { return r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" }
