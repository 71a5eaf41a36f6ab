// Package gate joins what is reached through host names (ports of sandboxes, E2B's agent and code
// interpreter) and E2B's control API with the services behind them.
//
// It decides who is let in to which sandbox and whether a request wakes it; forwarding is the edge's, protocols are envd's, interpreter's and e2bapi's. All
// requests may run at once.
package gate

import (
	"context"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/metricshistory"
	"github.com/pandastack/pandastack/internal/ingress/e2b/control"
	"github.com/pandastack/pandastack/internal/ingress/e2b/envd"
	"github.com/pandastack/pandastack/internal/ingress/e2b/interpreter"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
	"github.com/pandastack/pandastack/internal/ingress/repl"
)

// Sandboxes is what the gate needs of the sandbox service.
type Sandboxes interface {
	control.Sandboxes
	OpenForIngress(ctx context.Context, id api.SandboxID, admit func(auth.Principal, api.Sandbox) error) (guestapi.Guest, error)
}

// Config of a Gate. Domain, Secret and History are as in control.Config.
type Config struct {
	Domain     string
	Secret     []byte
	Builds     control.Builds // nil: templates cannot be built
	PreviewKey []byte         // signs preview addresses, which open private ports; nil: none does
	History    *metricshistory.History
}

// Gate answers host names of sandboxes and the paths of E2B's control API.
type Gate struct {
	sandboxes   Sandboxes
	control     *control.Server
	agent       *envd.Server
	interpreter *interpreter.Server
	edge        *proxy.Proxy
	previewKey  []byte
}

// New makes a gate. runner runs code cells and may be shared with other faces.
func New(
	cfg Config,
	sandboxes Sandboxes,
	templates control.Templates,
	keys control.Keys,
	runner *repl.Runner,
	log *slog.Logger,
) (*Gate, error) {
	control, err := control.New(
		control.Config{
			Domain:       cfg.Domain,
			AgentVersion: envd.Version,
			Secret:       cfg.Secret,
			Builds:       cfg.Builds,
			History:      cfg.History,
		},
		sandboxes,
		templates,
		keys,
	)
	if err != nil {
		return nil, err
	}
	g := &Gate{
		sandboxes:   sandboxes,
		control:     control,
		agent:       envd.New(),
		interpreter: interpreter.New(runner),
		previewKey:  cfg.PreviewKey,
	}
	g.edge = proxy.New(g, map[uint16]proxy.Service{envd.Port: g.serveAgent, interpreter.Port: g.serveInterpreter}, log)
	return g, nil
}

// Middleware answers what is the gate's and passes all other requests to next.
func (g *Gate) Middleware(next http.Handler) http.Handler {
	return g.edge.Middleware(g.control.Middleware(next))
}

// Edge forwards to ports of sandboxes, for faces that address them in another way.
func (g *Gate) Edge() *proxy.Proxy { return g.edge }

// Close ends watchers and idle connections.
func (g *Gate) Close() {
	g.agent.Close()
	g.edge.Close()
}

// Open implements proxy.Sandboxes. A sandbox at rest is woken by the request, unless it
// was made through E2B's API without asking for that: its clients connect to it first. A private one is woken
// by those only who may reach its ports.
func (g *Gate) Open(ctx context.Context, id string, wakes func(proxy.Target) bool) (proxy.Target, error) {
	sid := api.SandboxID(id)
	t := proxy.Target{ID: id, PreviewKey: g.previewKey}
	var p auth.Principal
	var b api.Sandbox
	guest, err := g.sandboxes.OpenForIngress(ctx, sid, func(as auth.Principal, is api.Sandbox) error {
		p, b = as, is
		if !control.IsAgentPublic(b.Metadata) {
			t.AccessToken = g.control.AccessToken(sid)
		}
		if n := b.Network; n != nil {
			t.MaskHost, t.TLSPorts = n.PortHost, n.TLSPorts
			if n.PrivatePorts {
				t.TrafficToken = g.control.TrafficToken(sid)
			}
		}
		if b.Status != api.Running && (!control.WakesOnRequest(b.Metadata) || t.TrafficToken != "" && !wakes(t)) {
			return api.Errorf(api.NotFound, "sandbox %.60q rests, and this does not wake it", id)
		}
		return nil
	})
	if err != nil {
		return proxy.Target{}, notFound(err)
	}
	if b.Status != api.Running { // it was woken: it has another generation now
		if b, err = g.woken(ctx, p, sid); err != nil {
			return proxy.Target{}, notFound(err)
		}
	}
	t.Generation, t.Guest, t.User = b.Generation, guest, b.User
	return t, nil
}

// woken reads a sandbox that a request has woken, and gives it an end if the protocol that it was made through has
// one for that and nobody else gave it one.
func (g *Gate) woken(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error) {
	b, err := g.sandboxes.Get(ctx, p, id)
	if err != nil || b.ExpiresAt != nil {
		return b, err
	}
	if seconds := control.ResumeTimeout(b.Metadata); seconds > 0 {
		_, err = g.sandboxes.SetLifecycle(ctx, p, id, api.LifecyclePatch{TimeoutSeconds: &seconds})
	}
	return b, err
}

func notFound(err error) error {
	switch api.CodeOf(err) {
	case api.NotFound, api.Gone, api.WrongState:
		return fmt.Errorf("%w: %w", proxy.ErrNotFound, err)
	default:
		return err
	}
}

// serveAgent asks for the agent's own token; an agent that has none is a port as any other.
func (g *Gate) serveAgent(w http.ResponseWriter, r *http.Request, t proxy.Target) {
	if t.AccessToken == "" {
		var ok bool
		if r, ok = t.Admit(w, r, envd.Port); !ok {
			return
		}
	}
	g.agent.Serve(w, r, envd.Target{
		ID: t.ID, Generation: t.Generation, Guest: t.Guest, AccessToken: t.AccessToken, User: t.User, Env: t.Env,
	})
}

// serveInterpreter runs code, which is as much as the agent can do: it asks for the same token. Published
// clients show no token when they list, make and end contexts; that reads nothing and runs nothing, so the
// rule for ports does.
func (g *Gate) serveInterpreter(w http.ResponseWriter, r *http.Request, t proxy.Target) {
	r, ok := t.Admit(w, r, interpreter.Port)
	if !ok {
		return
	}
	got := r.Header.Get("X-Access-Token")
	wrong := got != "" || !interpreter.IsContextPath(r.URL.Path)
	if t.AccessToken != "" && wrong && subtle.ConstantTimeCompare([]byte(got), []byte(t.AccessToken)) != 1 {
		http.Error(w, "invalid or missing access token: send it as X-Access-Token", http.StatusUnauthorized)
		return
	}
	g.interpreter.Serve(w, r, interpreter.Target{ID: t.ID, Guest: t.Guest})
}
