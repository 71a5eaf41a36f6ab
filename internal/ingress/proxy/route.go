package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// Errors of a Resolver.
var (
	ErrNoRoute  = errors.New("the request names nothing that this resolver knows")
	ErrNotFound = errors.New("the sandbox was not found")
)

// Resolver finds the route of a request. All requests may resolve at once.
type Resolver interface {
	// Address returns the port that r names. The error wraps ErrNoRoute if r is for no target of the resolver, and
	// ErrMalformed if r names its target wrongly.
	Address(r *http.Request) (Address, error)
	// Open returns the route to the port that Address returned for r. It wakes a sandbox if r may wake it; many
	// requests that wait for one sandbox wake it once.
	//
	// The error wraps ErrNotFound if the target does not exist, or sleeps and requests do not wake it. It has the code
	// forbidden if r lacks what other requests wake it with.
	Open(r *http.Request, a Address) (Route, error)
}

// Limiter bounds the requests to ports; *access.PortLimits does.
type Limiter interface {
	// Admit returns an error with the code rate_limited if the client of r, or all clients of the port together, made
	// too many requests lately. It then has set the headers that say when to retry.
	Admit(w http.ResponseWriter, r *http.Request, sandbox string, port uint16) error
}

// Route is a port of a running sandbox, as one request found it.
//
// Address, Sandbox and Guest are required. Without the other fields, which a resolver of this package sets, CheckAccess
// refuses every request for a private sandbox.
type Route struct {
	Address Address
	Sandbox api.Sandbox    // its Generation is the one that Guest belongs to
	Guest   guestapi.Guest // connections to ports are dialled through it
	Service Service        // serves the port on this host; nil: a program in the guest does

	// Shared says that the origin of the URL also serves the API or other sandboxes. Responses then set no state of a
	// browser that another response of the origin could meet.
	Shared bool
	// Prefix is what precedes the program's own path in the path of a shared URL; "": nothing.
	Prefix string
	// PublicHost says that the program sees the host name that the client asked for, in place of localhost.
	PublicHost bool
	// OwnSite says that the whole site of the host belongs to the program: its cookies may be for the domain.
	OwnSite bool
	// Again returns another route for a request that reached no program, since none accepted a connection, and false
	// if there is none. It is called once; nil: there is none.
	Again func(ctx context.Context, err error) (Route, bool)
	// Fail sends an error in the form of the API that forwards the request; nil: in the form of ports.
	Fail func(w http.ResponseWriter, r *http.Request, err *api.Error)

	access access
}

// pool returns the name under which connections to the port are pooled.
func (rt Route) pool() string {
	return fmt.Sprintf("%s.%d:%d", rt.Address.Sandbox, rt.Sandbox.Generation, rt.Address.Port)
}

// Service serves a port on this host, in the place of a program in the guest.
type Service interface {
	// MayWake reports whether r carries a credential of the service's own that lets r wake the sandbox b, and whether
	// the service needs one. Without need, a request that may reach the port of b may wake it.
	//
	// The service checks the credential again when it serves the request.
	MayWake(r *http.Request, b api.Sandbox) (ok, needed bool)
	// ServeRoute serves r. The service authorizes r; Route.CheckAccess has the rule for ports.
	ServeRoute(w http.ResponseWriter, r *http.Request, rt Route)
}

// Policy is what another protocol adds to the rules of sandboxes that were made through it.
type Policy interface {
	// TrafficToken returns the token that opens all ports of a private sandbox, and the header that carries it.
	TrafficToken(id api.SandboxID) (header, token string)
	// WakesOnRequest reports whether a request to a port wakes the sandbox.
	WakesOnRequest(b api.Sandbox) bool
	// Secrets returns the sandbox's tokens, which programs in it must not see in headers.
	Secrets(id api.SandboxID) []string
	// ResumeTimeout returns for how many seconds a sandbox without an end runs once a request has woken it; 0: no end.
	ResumeTimeout(b api.Sandbox) int64
}

// noPolicy adds nothing: every sandbox wakes, and no token opens private ports.
type noPolicy struct{}

// TrafficToken implements Policy.
func (noPolicy) TrafficToken(api.SandboxID) (header, token string) { return "", "" }

// Secrets implements Policy.
func (noPolicy) Secrets(api.SandboxID) []string { return nil }

// WakesOnRequest implements Policy.
func (noPolicy) WakesOnRequest(api.Sandbox) bool { return true }

// ResumeTimeout implements Policy.
func (noPolicy) ResumeTimeout(api.Sandbox) int64 { return 0 }

// Previews knows which signed previews were revoked.
type Previews interface {
	// IsRevoked reports whether a preview was revoked, or that cannot be known.
	IsRevoked(ctx context.Context, id string) bool
	// Use returns a context that ends when the preview expires or is revoked, or false if it was revoked before.
	Use(ctx context.Context, id string, expires time.Time) (context.Context, bool)
}

// isPrivate reports whether the ports of a sandbox need a credential.
func isPrivate(b api.Sandbox) bool { return b.Network != nil && b.Network.PrivatePorts }

// routeKey is the key of a request's route in its context, where the transport's dialer finds it.
type routeKey struct{}

func routeOf(ctx context.Context) (Route, bool) {
	rt, ok := ctx.Value(routeKey{}).(Route)
	return rt, ok
}
