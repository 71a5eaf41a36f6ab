package node

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/app"
	"github.com/pandastack/pandastack/internal/control/app/domain"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/ingress/acme"
	"github.com/pandastack/pandastack/internal/ingress/appedge"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
)

// Times of the edge of apps that are no settings.
const (
	appWakeTimeout = 90 * time.Second
	appDrainGrace  = 5 * time.Second
	appDrainLimit  = 30 * time.Second
)

// customDomains creates the service for custom domains of apps, and what issues their certificates.
func (n *node) customDomains(ctx context.Context, a *apps, db *store.DB) error {
	own, set := append(n.ownHosts(), "localhost"), n.Config.ACME
	a.domains = domain.New(domain.Config{Suffix: a.suffix, Reserved: own, Certificates: set.Directory != ""},
		db, a.service, net.DefaultResolver, n.Log)
	if set.Directory == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(n.secure.Addr().String())
	if err != nil {
		return err
	}
	cfg := acme.Config{
		Directory: set.Directory, Email: set.Email, KeyID: set.KeyID, Host: host, Fallback: n.cert.Get,
		HTTPPort: portOf(n.plain), TLSPort: portOf(n.secure), Names: set.Hosts(),
	}
	if set.MACKey != "" {
		key, err := os.ReadFile(set.MACKey)
		if err != nil {
			return fmt.Errorf("acme.mac_key: %w", err)
		}
		cfg.MACKey = strings.TrimSpace(string(key))
	}
	if set.CA != "" {
		data, err := os.ReadFile(set.CA)
		if err != nil {
			return fmt.Errorf("acme.ca: %w", err)
		}
		if cfg.Roots = x509.NewCertPool(); !cfg.Roots.AppendCertsFromPEM(data) {
			return fmt.Errorf("acme.ca: %s has no certificate", set.CA)
		}
	}
	n.acme, err = acme.New(ctx, cfg, acme.NewStorage(db, 0), a.domains, n.Log)
	return err
}

// ownHosts returns the host names of this server that are no app's.
func (n *node) ownHosts() []string {
	own := []string{strings.ToLower(n.Config.Preview.Domain), strings.ToLower(n.databaseSuffix())}
	if u, err := url.Parse(n.Config.PublicURL); err == nil {
		own = append(own, strings.ToLower(u.Hostname()))
	}
	return own
}

// portOf returns the port of a listener.
func portOf(l net.Listener) int {
	if a, ok := l.Addr().(*net.TCPAddr); ok {
		return a.Port
	}
	return 0
}

// appEdge is the edge of apps.
type appEdge struct {
	*appedge.Edge
	apps *edgeApps
}

// appEdge creates the edge of apps.
func (n *node) appEdge(ctx context.Context, a *apps, ports *proxy.Proxy, registry *prometheus.Registry) error {
	set, limits := n.Config.Apps, n.Config.RateLimit
	found := &edgeApps{apps: *a, own: n.ownHosts(), unknown: map[string]time.Time{}}
	cfg := appedge.Config{
		Apps: found, Proxy: ports,
		Limits: access.NewPortLimits(access.PortConfig{PortRate: limits.Port, AddressRate: limits.PortAddress}),
		Hold:   set.Hold, WakeTimeout: appWakeTimeout, Response: set.ResponseTimeout, MaxBody: int64(set.BodyMiB) << 20,
		DrainGrace: appDrainGrace, DrainLimit: appDrainLimit, Quiet: set.Quiet(),
		AppWakes: set.Wakes, NetworkWakes: set.NetworkWakes, Log: n.Log,
	}
	if set.HSTS > 0 {
		cfg.HSTS = "max-age=" + strconv.Itoa(int(set.HSTS.Seconds()))
	}
	if u, err := url.Parse(n.Config.PublicURL); err == nil && u.Scheme == "https" && set.HTTPSRedirect {
		if cfg.TLSPort, err = strconv.Atoi(cmp.Or(u.Port(), "443")); err != nil {
			return fmt.Errorf("public_url: %w", err)
		}
	}
	a.edge = &appEdge{appedge.New(ctx, cfg), found}
	a.service.SetEdge(a.edge)
	return registry.Register(a.edge)
}

// middleware serves the host names of apps.
func (a apps) middleware(n *node, next http.Handler) http.Handler {
	served := a.edge.Middleware(next)
	if n.acme != nil {
		return n.acme.HTTPChallenge(served)
	}
	return served
}

// ForwardApp implements appapi.Edge.
func (e *appEdge) ForwardApp(w http.ResponseWriter, r *http.Request, a api.App, prefix string, fail appedge.Fail) {
	rt, err := e.apps.Route(r.Context(), a.Name+"."+e.apps.suffix)
	if err != nil {
		fail(w, r, api.Wrap(api.Unavailable, err, "the app cannot be reached now"))
		return
	}
	e.Edge.ForwardApp(w, r, rt, prefix, fail)
}

// edgeApps implements appedge.Apps.
type edgeApps struct {
	apps
	own []string // host names of the server, which no app has

	mu      sync.Mutex
	unknown map[string]time.Time // names that are no app's, and since when that is known; guarded by mu
	changed <-chan struct{}      // closed when unknown holds no more; guarded by mu
}

// Names that are no app's are looked up again after a while. maxUnknown bounds how many are remembered.
const (
	unknownAge = time.Second
	maxUnknown = 10_000
)

// Route implements appedge.Apps. Names of ports of sandboxes are never an app's.
func (e *edgeApps) Route(ctx context.Context, host string) (appedge.Route, error) {
	if a, ok, err := proxy.AddressOfHost(&http.Request{Host: host}); ok && err == nil &&
		strings.HasPrefix(a.Sandbox, "sbx") || !strings.Contains(host, ".") || slices.Contains(e.own, host) ||
		e.isUnknown(host) {
		return appedge.Route{}, appedge.ErrNoApp
	}
	changed := e.service.Changed()
	found, err := e.service.Route(ctx, host)
	if api.CodeOf(err) == api.NotFound {
		found, err = e.redirect(ctx, host)
	}
	if api.CodeOf(err) == api.NotFound {
		e.setUnknown(host, changed)
		return appedge.Route{}, errors.Join(appedge.ErrNoApp, err)
	}
	if err != nil {
		return appedge.Route{}, err
	}
	out := appedge.Route{
		App: found.App, Name: found.Name, Deployment: found.Deployment, Generation: found.Generation, Port: found.Port,
		Max: found.Scale.Max, Concurrency: found.Scale.Concurrency, Redirect: found.Redirect,
		OwnSite: found.Domain != "", NoProgram: !found.Machine,
	}
	if s := found.Static; s != nil && s.Files != "" {
		set, err := e.files.Open(ctx, s.Files)
		if err != nil {
			return appedge.Route{}, fmt.Errorf("files of %s: %w", found.App, err)
		}
		out.Files = appedge.Site{Set: set, SPA: s.SPA, NotFound: s.NotFound, Program: found.Machine}
	}
	return out, nil
}

// redirect returns the route of a name whose requests are sent to a custom domain.
func (e *edgeApps) redirect(ctx context.Context, host string) (app.Route, error) {
	to, err := e.domains.RedirectOf(ctx, host)
	if err != nil {
		return app.Route{}, err
	}
	found, err := e.service.Route(ctx, to)
	found.Redirect = to
	return found, err
}

func (e *edgeApps) isUnknown(host string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case <-e.changed:
		clear(e.unknown)
	default:
	}
	at, ok := e.unknown[host]
	return ok && time.Since(at) < unknownAge
}

// setUnknown remembers a name that was looked up after changed was read.
func (e *edgeApps) setUnknown(host string, changed <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.changed != changed || len(e.unknown) >= maxUnknown {
		clear(e.unknown)
	}
	e.unknown[host], e.changed = time.Now(), changed
}

// Replicas implements appedge.Apps.
func (e *edgeApps) Replicas(ctx context.Context, id api.AppID) ([]appedge.Replica, error) {
	found, err := e.service.Replicas(ctx, id)
	if err != nil {
		return nil, err
	}
	all := make([]appedge.Replica, 0, len(found))
	for _, r := range found {
		all = append(all, appedge.Replica{
			Sandbox: r.Sandbox, Deployment: r.Deployment, Ready: r.State == app.ReplicaReady,
		})
	}
	return all, nil
}

// Wake implements appedge.Apps.
func (e *edgeApps) Wake(ctx context.Context, id api.AppID, want int) error {
	return e.service.Wake(ctx, id, want)
}

// Open implements appedge.Apps.
func (e *edgeApps) Open(ctx context.Context, id api.AppID, box api.SandboxID) (guestapi.Guest, api.Sandbox, error) {
	return e.service.Open(ctx, id, box)
}

// Changed implements appedge.Apps.
func (e *edgeApps) Changed() <-chan struct{} { return e.service.Changed() }
