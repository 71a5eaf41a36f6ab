// Package e2b serves E2B's protocol: the control API, and agent and code interpreter on ports of sandboxes.
//
// It joins the packages control, envd and interpreter with package proxy: it adds E2B's rules to those of ports (access
// and traffic tokens, sandboxes that requests do not wake, addresses in headers). The generic proxy knows none of them.
// All requests may run at once.
package e2b

import (
	"crypto/subtle"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/metricshistory"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/volume"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/ingress/e2b/control"
	"github.com/pandastack/pandastack/internal/ingress/e2b/envd"
	"github.com/pandastack/pandastack/internal/ingress/e2b/interpreter"
	"github.com/pandastack/pandastack/internal/ingress/e2b/lenient"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
	"github.com/pandastack/pandastack/internal/ingress/repl"
)

// Headers of requests to ports of sandboxes.
const (
	TrafficHeader = "e2b-traffic-access-token" // the token that opens the ports of a private sandbox
	accessHeader  = "X-Access-Token"           // the token of the agent
	sandboxHeader = "E2b-Sandbox-Id"           // with portHeader the address of a request to a shared host
	portHeader    = "E2b-Sandbox-Port"
)

// HiddenHeaders returns the headers that programs in sandboxes must not see.
func HiddenHeaders() []string { return []string{TrafficHeader, sandboxHeader, portHeader} }

// Config configures a Protocol. Domain, Secret, Builds, Volumes and History are as in control.Config.
type Config struct {
	Domain  string
	Secret  []byte
	Builds  control.Builds
	Volumes *volume.Service
	History *metricshistory.History
	Guard   *access.Guard // may be shared with other APIs; nil: one without limits on rates, which records nothing
	Budgets envd.Budgets  // zero: there are no bounds
	Log     *slog.Logger  // names unknown fields of requests; nil: they are not logged
}

// Protocol serves E2B's protocol. Make one with New.
type Protocol struct {
	guard       *access.Guard
	control     *control.Server
	agent       *envd.Server
	interpreter *interpreter.Server
}

// New returns a Protocol. runner runs code cells and may be shared with other APIs.
func New(
	cfg Config,
	sandboxes *sandbox.Service,
	templates control.Templates,
	keys access.Keys,
	runner *repl.Runner,
) (*Protocol, error) {
	if cfg.Guard == nil {
		cfg.Guard = access.New(access.Config{}, keys, nil)
	}
	bodies := &lenient.Decoder{Log: cfg.Log}
	c, err := control.New(control.Config{
		Domain:       cfg.Domain,
		AgentVersion: envd.Version,
		Secret:       cfg.Secret,
		Builds:       cfg.Builds,
		Volumes:      cfg.Volumes,
		Memory:       cfg.Budgets.Memory,
		History:      cfg.History,
		Guard:        cfg.Guard,
		Bodies:       bodies,
	}, sandboxes, templates)
	if err != nil {
		return nil, err
	}
	return &Protocol{
		guard:       cfg.Guard,
		control:     c,
		agent:       envd.New(cfg.Budgets),
		interpreter: interpreter.New(runner, cfg.Budgets.Memory, bodies),
	}, nil
}

// Close ends watchers of files and streams of input.
func (p *Protocol) Close() { p.agent.Close() }

// Middleware serves the paths of the control API and passes all other requests to next.
func (p *Protocol) Middleware(next http.Handler) http.Handler { return p.control.Middleware(next) }

// SandboxConfig returns the rules of this protocol for a proxy.SandboxResolver.
//
// previewKey is as in proxy.SandboxConfig.
func (p *Protocol) SandboxConfig(previewKey []byte) proxy.SandboxConfig {
	return proxy.SandboxConfig{
		Addressers: []proxy.Addresser{AddressOfHeaders, proxy.AddressOfHost},
		Services:   map[uint16]proxy.Service{envd.Port: agentService{p}, interpreter.Port: interpreterService{p}},
		Policy:     p,
		PreviewKey: previewKey,
	}
}

// AddressOfHeaders is the proxy.Addresser of the headers E2b-Sandbox-Id and E2b-Sandbox-Port.
//
// They count only on hosts that name no sandbox themselves: localhost, IP addresses and names that begin with
// "sandbox.".
func AddressOfHeaders(r *http.Request) (proxy.Address, bool, error) {
	id, port := r.Header.Get(sandboxHeader), r.Header.Get(portHeader)
	if id == "" || port == "" || !isSharedHost(proxy.Hostname(r.Host)) {
		return proxy.Address{}, false, nil
	}
	a, err := proxy.ParseAddress(port, id)
	return a, true, err
}

func isSharedHost(host string) bool {
	return host == "localhost" || proxy.IsIP(host) || strings.HasPrefix(host, "sandbox.")
}

// TrafficToken implements proxy.Policy.
func (p *Protocol) TrafficToken(id api.SandboxID) (header, token string) {
	return TrafficHeader, p.control.TrafficToken(id)
}

// Secrets implements proxy.Policy.
func (p *Protocol) Secrets(id api.SandboxID) []string {
	return []string{p.control.AccessToken(id), p.control.TrafficToken(id)}
}

// keyForm is the form of a key, in which clients of this protocol may write it with another prefix.
var keyForm = regexp.MustCompile(`^(pds|e2b)_[0-9a-f]{32}$`)

// IsKey reports whether a text has the form of a key of the API.
func IsKey(text string) bool { return keyForm.MatchString(text) }

// WakesOnRequest implements proxy.Policy. Clients of this protocol connect to a sandbox that sleeps, unless they made
// it to resume by itself.
func (*Protocol) WakesOnRequest(b api.Sandbox) bool { return control.WakesOnRequest(b) }

// ResumeTimeout implements proxy.Policy.
func (*Protocol) ResumeTimeout(b api.Sandbox) int64 { return control.ResumeTimeout(b.Metadata) }

// accessToken returns the token of a sandbox's agent, "" if the agent needs none.
func (p *Protocol) accessToken(b api.Sandbox) string {
	if control.IsAgentPublic(b.Metadata) {
		return ""
	}
	return p.control.AccessToken(b.ID)
}

func showsToken(r *http.Request, want string) bool {
	return subtle.ConstantTimeCompare([]byte(r.Header.Get(accessHeader)), []byte(want)) == 1
}

func showsTraffic(r *http.Request, want string) bool {
	return subtle.ConstantTimeCompare([]byte(r.Header.Get(TrafficHeader)), []byte(want)) == 1
}

// agentService serves the port of the agent.
type agentService struct{ *Protocol }

// MayWake implements proxy.Service. The credential is the agent's token or a signature by it.
func (s agentService) MayWake(r *http.Request, b api.Sandbox) (ok, needed bool) {
	token := s.accessToken(b)
	return showsToken(r, token) || envd.IsSigned(r, token), token != ""
}

// record returns a writer that records a call of a service when the response begins.
func (p *Protocol) record(
	w http.ResponseWriter,
	r *http.Request,
	rt proxy.Route,
	face access.Face,
	pattern string,
) http.ResponseWriter {
	if _, ok := access.NeedOf(face, pattern); !ok {
		pattern = "" // it is not found
	}
	call := access.Call{
		Face: face, Pattern: pattern, Target: rt.Address.Sandbox, Began: time.Now(),
		Action:    string(face) + " " + pattern,
		Principal: auth.Principal{Workspace: rt.Sandbox.Workspace, KeyPrefix: "sandbox token"},
	}
	return access.Watch(w, func(status int) {
		call.Status = status
		if status == http.StatusUnauthorized {
			p.guard.Failed(r)
			call.Principal.KeyPrefix = ""
		}
		p.guard.Record(r, call)
	})
}

// enter waits until an operation of a service may begin. If it is refused, enter responds and returns false.
func (p *Protocol) enter(
	w http.ResponseWriter,
	r *http.Request,
	rt proxy.Route,
	face access.Face,
	pattern string,
) (leave func(), ok bool) {
	leave, err := p.guard.Enter(w, r, face, pattern, rt.Sandbox.Workspace)
	if err == nil {
		return leave, true
	}
	if rpc := connect.NewErrorWriter(); rpc.IsSupported(r) {
		// The client is gone if this fails.
		_ = rpc.Write(w, r, connect.NewError(connect.CodeResourceExhausted, err))
		return nil, false
	}
	e := api.AsError(err)
	http.Error(w, e.Message, e.Code.Info().Status)
	return nil, false
}

// ServeRoute implements proxy.Service. The agent checks its own token; one without a token is a port like any other.
func (s agentService) ServeRoute(w http.ResponseWriter, r *http.Request, rt proxy.Route) {
	pattern := s.agent.Pattern(r)
	w = s.record(w, r, rt, access.Agent, pattern)
	leave, ok := s.enter(w, r, rt, access.Agent, pattern)
	if !ok {
		return
	}
	defer leave()
	token := s.accessToken(rt.Sandbox)
	if token == "" {
		var ok bool
		if r, ok = rt.CheckAccess(w, r); !ok {
			return
		}
	}
	s.agent.Serve(w, r, envd.Target{
		ID:          rt.Address.Sandbox,
		Workspace:   string(rt.Sandbox.Workspace),
		Generation:  rt.Sandbox.Generation,
		Guest:       rt.Guest,
		AccessToken: token,
		User:        rt.Sandbox.User,
	})
}

// interpreterService serves the port of the code interpreter.
type interpreterService struct{ *Protocol }

// MayWake implements proxy.Service. The credential is the agent's token or the token for traffic: see ServeRoute.
func (s interpreterService) MayWake(r *http.Request, b api.Sandbox) (ok, needed bool) {
	token := s.accessToken(b)
	return showsToken(r, token) || showsTraffic(r, s.control.TrafficToken(b.ID)), token != ""
}

// ServeRoute implements proxy.Service. Running code needs the agent's token, since code can do as much as the agent.
//
// To list, create and delete contexts, published clients in JavaScript show the token for traffic only.
func (s interpreterService) ServeRoute(w http.ResponseWriter, r *http.Request, rt proxy.Route) {
	pattern := s.interpreter.Pattern(r)
	need, _ := access.NeedOf(access.Interpreter, pattern)
	w = s.record(w, r, rt, access.Interpreter, pattern)
	leave, ok := s.enter(w, r, rt, access.Interpreter, pattern)
	if !ok {
		return
	}
	defer leave()
	mayManage := need == access.Traffic && showsTraffic(r, s.control.TrafficToken(rt.Sandbox.ID))
	if r, ok = rt.CheckAccess(w, r); !ok {
		return
	}
	token := s.accessToken(rt.Sandbox)
	if token != "" && !mayManage && !showsToken(r, token) {
		http.Error(w, "invalid or missing access token: send it as X-Access-Token", http.StatusUnauthorized)
		return
	}
	s.interpreter.Serve(w, r, interpreter.Target{
		ID:        rt.Address.Sandbox,
		Workspace: string(rt.Sandbox.Workspace),
		Guest:     rt.Guest,
	})
}
