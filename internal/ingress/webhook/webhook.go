// Package webhook takes the deliveries of the programs that host the repositories of apps:
// POST /v1/webhooks/apps/<app>, and makes their secrets: POST /v1/apps/<app>/webhook.
//
// A delivery needs no key: it is signed with the secret of the app. Bodies are bounded, and a forged delivery is
// recorded and counts as a failed authentication of its address.
package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/hook"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/access"
)

// maxBody bounds a delivery, and maxAtOnce how many are in memory.
const (
	maxBody   = 8 << 20
	maxAtOnce = 8
)

// Hooks are the methods of *hook.Service that this server uses.
type Hooks interface {
	Deliver(ctx context.Context, app api.AppID, h http.Header, body []byte) (hook.Result, error)
	Webhook(ctx context.Context, p auth.Principal, app string) (api.AppWebhook, error)
}

// Server takes deliveries. Make one with New.
type Server struct {
	hooks Hooks
	guard *access.Guard
	log   *slog.Logger
	mux   *http.ServeMux
	slots *semaphore.Weighted // of deliveries in memory
}

// The operations, as patterns of net/http.
const (
	deliver   = "POST /v1/webhooks/apps/{app}"
	newSecret = "POST /v1/apps/{app}/webhook"
)

// New returns a server.
func New(hooks Hooks, guard *access.Guard, log *slog.Logger) (*Server, error) {
	if hooks == nil || guard == nil || log == nil {
		return nil, errors.New("webhook: hooks, guard and log are required")
	}
	s := &Server{hooks: hooks, guard: guard, log: log, mux: http.NewServeMux(),
		slots: semaphore.NewWeighted(maxAtOnce)}
	for pattern, handle := range map[string]func(*call) (any, int, error){
		deliver: s.deliver, newSecret: s.makeSecret,
	} {
		s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, pattern, handle) })
	}
	return s, nil
}

// Middleware serves the operations of this package, and hands other requests to next.
func (s *Server) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/") {
			if _, pattern := s.mux.Handler(r); pattern != "" {
				s.mux.ServeHTTP(w, r)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// call is one request.
type call struct {
	w     http.ResponseWriter
	r     *http.Request
	app   string
	token string
	p     auth.Principal
}

func (s *Server) serve(
	w http.ResponseWriter,
	r *http.Request,
	pattern string,
	handle func(*call) (any, int, error),
) {
	began, id := time.Now(), api.NewRequestID()
	w.Header().Set("X-Request-Id", string(id))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json")
	c := &call{w: w, r: r, app: r.PathValue("app")}
	out, status, err := handle(c)
	if err != nil {
		e := *api.AsError(err)
		e.RequestID = id
		if e.Code == api.Internal {
			s.log.ErrorContext(r.Context(), "webhook failed", "err", err, "request", id)
		}
		if e.Retryable && w.Header().Get("Retry-After") == "" {
			w.Header().Set("Retry-After", "1")
		}
		out, status = &e, e.Code.Info().Status
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(out) // the client may be gone
	s.guard.Record(r, access.Call{
		Face: access.Webhooks, Pattern: pattern, Principal: c.p, Token: c.token, Target: c.app, Status: status,
		Request: string(id), Began: began,
	})
}

// deliver takes a delivery.
func (s *Server) deliver(c *call) (any, int, error) {
	c.p.KeyPrefix = hook.Actor
	if err := s.guard.AdmitAddress(c.w, c.r); err != nil {
		return nil, 0, err
	}
	if !s.slots.TryAcquire(1) {
		return nil, 0, api.Errorf(api.RateLimited, "%d deliveries are being read: send it again", maxAtOnce)
	}
	defer s.slots.Release(1)
	body, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxBody))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return nil, 0, api.Errorf(api.TooLarge, "the delivery is larger than %d MiB", maxBody>>20)
	}
	if err != nil {
		return nil, 0, api.Wrap(api.Invalid, err, "the delivery broke off")
	}
	out, err := s.hooks.Deliver(c.r.Context(), api.AppID(c.app), c.r.Header, body)
	if api.CodeOf(err) == api.Unauthenticated {
		s.guard.Failed(c.r)
	}
	if err != nil {
		return nil, 0, err
	}
	if out.Deployment != "" {
		return out, http.StatusAccepted, nil
	}
	return out, http.StatusOK, nil
}

// makeSecret makes the secret of an app.
func (s *Server) makeSecret(c *call) (any, int, error) {
	need, _ := access.NeedOf(access.Webhooks, newSecret)
	scheme, token, ok := strings.Cut(c.r.Header.Get("Authorization"), " ")
	if ok && strings.EqualFold(scheme, "Bearer") {
		c.token = strings.TrimSpace(token)
	}
	var err error
	if c.p, err = s.guard.Admit(c.w, c.r, c.token, need); err != nil {
		return nil, 0, err
	}
	out, err := s.hooks.Webhook(c.r.Context(), c.p, c.app)
	return out, http.StatusCreated, err
}
