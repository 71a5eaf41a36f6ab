package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// Sandboxes are the methods of *sandbox.Service that finding a sandbox for a request takes.
type Sandboxes interface {
	OpenForIngress(
		ctx context.Context,
		id api.SandboxID,
		admit func(auth.Principal, api.Sandbox) error,
	) (guestapi.Guest, api.Sandbox, error)
	SetLifecycle(
		ctx context.Context,
		p auth.Principal,
		id api.SandboxID,
		patch api.LifecyclePatch,
	) (api.Lifecycle, error)
}

// SandboxConfig configures a SandboxResolver.
type SandboxConfig struct {
	Addressers []Addresser        // asked in order; none: AddressOfHost alone
	Services   map[uint16]Service // by port
	Policy     Policy             // nil: no rules but our own
	PreviewKey []byte             // signs previews, which open private ports; empty: no preview does
	Previews   Previews           // nil: no preview was revoked
	// Opened is called for each request that opens a private port by a preview in its URL, not for requests with the
	// cookie that a browser got for it; may be nil.
	Opened func(r *http.Request, v Preview)
}

// SandboxResolver resolves requests for ports of sandboxes.
type SandboxResolver struct {
	sandboxes Sandboxes
	cfg       SandboxConfig
}

// NewSandboxResolver returns a resolver over the given sandboxes.
func NewSandboxResolver(sandboxes Sandboxes, cfg SandboxConfig) *SandboxResolver {
	if cfg.Policy == nil {
		cfg.Policy = noPolicy{}
	}
	if len(cfg.Addressers) == 0 {
		cfg.Addressers = []Addresser{AddressOfHost}
	}
	return &SandboxResolver{sandboxes: sandboxes, cfg: cfg}
}

// errAsleep is why a request did not wake a sandbox.
var errAsleep = errors.New("the sandbox sleeps, and this request does not wake it")

// Open implements Resolver. A sandbox is woken only by a request that may reach the port.
func (s *SandboxResolver) Open(r *http.Request, a Address) (rt Route, err error) {
	id := api.SandboxID(a.Sandbox)
	rt = Route{
		Address: a,
		Service: s.cfg.Services[a.Port],
		access: access{
			policy: s.cfg.Policy, previewKey: s.cfg.PreviewKey, previews: s.cfg.Previews, opened: s.cfg.Opened,
		},
	}
	if host, ok, err := AddressOfHost(r); !ok || err != nil || host != a {
		rt.Shared = true
	}
	var owner auth.Principal
	wakes := false
	admit := func(p auth.Principal, b api.Sandbox) error {
		owner, rt.Sandbox = p, b
		wakes = b.Status != api.Running
		if wakes && !s.cfg.Policy.WakesOnRequest(b) {
			return api.Wrap(api.NotFound, errAsleep, errAsleep.Error())
		}
		if wakes {
			return rt.checkWake(r)
		}
		return nil
	}
	rt.Guest, rt.Sandbox, err = s.sandboxes.OpenForIngress(r.Context(), id, admit)
	if err == nil && wakes {
		err = s.limit(r.Context(), owner, rt.Sandbox)
	}
	if err != nil {
		return Route{}, notFound(err)
	}
	return rt, nil
}

// Address implements Resolver.
func (s *SandboxResolver) Address(r *http.Request) (Address, error) {
	for _, of := range s.cfg.Addressers {
		if a, ok, err := of(r); ok {
			return a, err
		}
	}
	return Address{}, ErrNoRoute
}

// limit gives a sandbox that a request has just woken an end, if it has none and its policy wants one.
func (s *SandboxResolver) limit(ctx context.Context, owner auth.Principal, b api.Sandbox) error {
	seconds := s.cfg.Policy.ResumeTimeout(b)
	if b.ExpiresAt != nil || seconds <= 0 {
		return nil
	}
	_, err := s.sandboxes.SetLifecycle(ctx, owner, b.ID, api.LifecyclePatch{TimeoutSeconds: &seconds})
	return err
}

// notFound makes ErrNotFound of the codes that mean so to a client of a port.
func notFound(err error) error {
	switch api.CodeOf(err) {
	case api.NotFound, api.Gone, api.WrongState:
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	default:
		return err
	}
}
