// Package webhook takes the deliveries of the programs that host the repositories of apps:
// POST /v1/webhooks/apps/<app>.
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
}

// Server takes deliveries. Make one with New.
type Server struct {
	hooks Hooks
	guard *access.Guard
	log   *slog.Logger
	mux   *http.ServeMux
	slots *semaphore.Weighted // of deliveries in memory
}

// pattern is the operation, as a pattern of net/http.
const pattern = "POST /v1/webhooks/apps/{app}"

// New returns a server.
func New(hooks Hooks, guard *access.Guard, log *slog.Logger) (*Server, error) {
	if hooks == nil || guard == nil || log == nil {
		return nil, errors.New("webhook: hooks, guard and log are required")
	}
	s := &Server{hooks: hooks, guard: guard, log: log, mux: http.NewServeMux(),
		slots: semaphore.NewWeighted(maxAtOnce)}
	s.mux.HandleFunc(pattern, s.serve)
	return s, nil
}

// Middleware serves deliveries, and hands other requests to next.
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

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	began, id := time.Now(), api.NewRequestID()
	w.Header().Set("X-Request-Id", string(id))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json")
	var out any
	status := http.StatusOK
	taken, err := s.deliver(w, r)
	if out = taken; taken.Deployment != "" {
		status = http.StatusAccepted
	}
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
		Face: access.Webhooks, Pattern: pattern, Principal: auth.Principal{KeyPrefix: hook.Actor},
		Target: r.PathValue("app"), Status: status, Request: string(id), Began: began,
	})
}

// deliver takes a delivery.
func (s *Server) deliver(w http.ResponseWriter, r *http.Request) (hook.Result, error) {
	if err := s.guard.AdmitAddress(w, r); err != nil {
		return hook.Result{}, err
	}
	if !s.slots.TryAcquire(1) {
		return hook.Result{}, api.Errorf(api.RateLimited, "%d deliveries are being read: send it again", maxAtOnce)
	}
	defer s.slots.Release(1)
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return hook.Result{}, api.Errorf(api.TooLarge, "the delivery is larger than %d MiB", maxBody>>20)
	}
	if err != nil {
		return hook.Result{}, api.Wrap(api.Invalid, err, "the delivery broke off")
	}
	out, err := s.hooks.Deliver(r.Context(), api.AppID(r.PathValue("app")), r.Header, body)
	if api.CodeOf(err) == api.Unauthenticated {
		s.guard.Failed(r)
	}
	return out, err
}
