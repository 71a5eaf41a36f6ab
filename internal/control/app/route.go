package app

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/store"
)

// routeAge is how long a route is used without a look at the store: for changes by other processes.
const routeAge = time.Second

// maxRoutes is how many routes are remembered.
const maxRoutes = 10_000

// routes remembers routes by host name until something changes.
type routes struct {
	mu     *sync.Mutex
	known  map[string]knownRoute
	change chan struct{} // closed and replaced with every change
}

type knownRoute struct {
	route Route
	at    time.Time
}

func newRoutes() routes {
	return routes{mu: &sync.Mutex{}, known: map[string]knownRoute{}, change: make(chan struct{})}
}

func (r *routes) changed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.known)
	close(r.change)
	r.change = make(chan struct{})
}

// Changed returns a channel that is closed at the next change of any route or replica. Call it before you read them.
func (s *Service) Changed() <-chan struct{} {
	s.routing.mu.Lock()
	defer s.routing.mu.Unlock()
	return s.routing.change
}

// Route returns where requests for a host name without a port go. The error for an unknown name is not_found.
func (s *Service) Route(ctx context.Context, host string) (Route, error) {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	r := &s.routing
	r.mu.Lock()
	known, ok := r.known[host]
	change := r.change
	r.mu.Unlock()
	if ok && time.Since(known.at) < routeAge {
		return known.route, nil
	}
	route, err := s.readRoute(ctx, host)
	if err != nil {
		return Route{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if change == r.change { // nothing has changed while it was read
		if len(r.known) >= maxRoutes {
			clear(r.known)
		}
		r.known[host] = knownRoute{route: route, at: time.Now()}
	}
	return route, nil
}

func (s *Service) readRoute(ctx context.Context, host string) (Route, error) {
	row, domain, err := s.appOf(ctx, host)
	if err != nil {
		return Route{}, err
	}
	if err := s.quotas.CheckActive(ctx, api.Workspace(row.Workspace)); err != nil {
		return Route{}, err
	}
	set, err := settingsOf(&row)
	if err != nil {
		return Route{}, api.AsError(err)
	}
	out := Route{
		App: api.AppID(row.ID), Workspace: api.Workspace(row.Workspace), Name: row.Name, Generation: row.Generation,
		Deployment: api.DeploymentID(row.Deployment), Scale: set.Scale, Domain: domain, Error: row.Error,
	}
	if set.AutoHibernate && set.Scale.Min == 0 {
		out.Idle = time.Duration(set.IdleSeconds) * time.Second
	}
	if row.Deployment == "" {
		return out, nil
	}
	d, err := s.db.Read().Deployment(ctx, row.Deployment)
	if err != nil {
		return Route{}, api.AsError(err)
	}
	made, err := decode(&d)
	if err != nil {
		return Route{}, api.AsError(err)
	}
	out.Port, out.Static, out.Machine = made.port(), made.result.Static, made.hasProgram()
	return out, nil
}

// appOf finds the app of a host name. Domain is the name if it is a custom domain.
func (s *Service) appOf(ctx context.Context, host string) (row store.App, domain string, err error) {
	missing := api.Errorf(api.NotFound, "there is no app at %.100s", host)
	if name, ok := strings.CutSuffix(host, "."+s.cfg.Suffix); ok && !strings.Contains(name, ".") {
		row, err = s.db.Read().AppByName(ctx, name)
	} else {
		var d store.AppDomain
		if d, err = s.db.Read().AppDomain(ctx, host); err == nil {
			if d.State != string(api.DomainVerified) && d.State != string(api.DomainActive) {
				return row, "", missing
			}
			row, err = s.db.Read().App(ctx, d.App)
		}
		domain = host
	}
	if errors.Is(err, store.ErrNotFound) || err == nil && row.State == store.AppDeleting {
		return row, "", missing
	}
	if err != nil {
		return row, "", api.AsError(err)
	}
	return row, domain, nil
}

// deployed is a deployment with what its row has in JSON.
type deployed struct {
	set    appspec.Settings
	source appspec.Source
	result appspec.Result
}

func decode(d *store.Deployment) (out deployed, err error) {
	if out.set, err = appspec.Decode[appspec.Settings](d.Settings); err != nil {
		return out, err
	}
	if out.source, err = appspec.Decode[appspec.Source](d.Source); err != nil {
		return out, err
	}
	out.result, err = appspec.Decode[appspec.Result](d.Result)
	return out, err
}

// port returns the port that the program listens on.
func (d *deployed) port() uint16 { return uint16(cmp.Or(d.set.Port, d.result.Port, DefaultPort)) }

// hasProgram reports whether a deployment needs machines: not if it is files alone.
func (d *deployed) hasProgram() bool { return d.command() != "" }

// command returns the start command.
func (d *deployed) command() string { return d.result.Start }

// Replicas returns the replicas of an app that exist or are being made.
func (s *Service) Replicas(ctx context.Context, app api.AppID) ([]ReplicaView, error) {
	rows, err := s.db.Read().Replicas(ctx, string(app))
	if err != nil {
		return nil, api.AsError(err)
	}
	out := make([]ReplicaView, 0, len(rows))
	for _, r := range rows {
		if r.State != store.ReplicaDeleting {
			out = append(out, ReplicaView{Sandbox: api.SandboxID(r.Sandbox), State: r.State,
				Deployment: api.DeploymentID(r.Deployment)})
		}
	}
	return out, nil
}

// Open returns the guest of a replica.
func (s *Service) Open(
	ctx context.Context,
	app api.AppID,
	sandbox api.SandboxID,
) (guestapi.Guest, api.Sandbox, error) {
	l, err := s.known(ctx, app)
	if err != nil {
		return nil, api.Sandbox{}, err
	}
	return s.boxes.GuestAndSandbox(ctx, l.as, sandbox)
}

// known returns what is known of an app. Its row is read once: an app keeps its workspace.
func (s *Service) known(ctx context.Context, app api.AppID) (*live, error) {
	s.mu.Lock()
	l := s.live[app]
	s.mu.Unlock()
	if l != nil {
		return l, nil
	}
	row, err := s.db.Read().App(ctx, string(app))
	if errors.Is(err, store.ErrNotFound) {
		return nil, notFound(string(app))
	}
	if err != nil {
		return nil, api.AsError(err)
	}
	return s.of(&row), nil
}
