package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/volume"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/apimetrics"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/appapi"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/bootstats"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/databaseapi"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/execstream"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/functionapi"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/scheduleapi"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/services"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/sshapi"
	"github.com/pandastack/pandastack/internal/ingress/repl"
	"github.com/pandastack/pandastack/internal/lib/obs"
)

// Config is the configuration that the assembly passes.
type Config struct {
	Version   string // of the program
	Commit    string
	PublicURL string // "https://api.example.com"; "": derived from each request
	// PreviewKey signs preview addresses. It has at least 32 bytes and survives restarts. Empty: there are no previews.
	PreviewKey []byte
	// PreviewDomain is the domain of host names of previews, and may have a port; "": the host of each request.
	PreviewDomain string
}

// Deps are the components that a Server calls. Sandboxes, Templates, Keys and Log are required.
type Deps struct {
	Sandboxes    services.Sandboxes
	Templates    services.Templates
	Builds       services.Builds     // nil: templates cannot be built
	Workspaces   services.Workspaces // nil: workspaces cannot be managed
	Keys         services.Keys
	Volumes      *volume.Service        // nil: there are no volumes
	Databases    databaseapi.API        // empty: there are no databases
	Apps         appapi.API             // empty: there are no apps
	Functions    functionapi.API        // empty: there are no functions
	Schedules    scheduleapi.API        // empty: there are no schedules
	SSH          sshapi.API             // empty: there is no SSH gateway
	Proxy        services.Forwarder     // forwards to ports; nil: the port proxy is unsupported
	Cells        *repl.Runner           // runs cells of code and may be shared with other APIs; nil: one of its own
	Previews     services.Previews      // records previews; nil: they are neither listed nor revoked
	Metrics      *prometheus.Registry   // served at /metrics; nil: one of its own
	UsageHistory services.UsageHistory  // measurements of sandboxes; nil: unsupported
	Audit        access.AuditLog        // records calls; nil: nothing is recorded
	Guard        *access.Guard          // may be shared with other APIs; nil: one without limits on rates
	Memory       *execstream.MemoryPool // pays for what requests buffer, by workspace and sandbox; nil: no bounds
	Log          *slog.Logger
}

// Server serves /v1. Make one with New.
type Server struct {
	cfg  Config
	deps Deps
	mux  *http.ServeMux
	raw  map[string]http.Handler // of the patterns that forward to programs
	spec []byte
	met  *apimetrics.Metrics

	guard *access.Guard
	boots *bootstats.Recorder
}

// New returns a server. It starts nothing. A missing component or a duplicate route is an error.
func New(cfg Config, deps Deps) (*Server, error) {
	if deps.Sandboxes == nil || deps.Templates == nil || deps.Keys == nil || deps.Log == nil {
		return nil, errors.New("httpapi: sandboxes, templates, keys and a log are required")
	}
	if n := len(cfg.PreviewKey); n > 0 && n < 32 {
		return nil, errors.New("httpapi: the preview key must have at least 32 bytes")
	}
	if deps.Cells == nil {
		deps.Cells = &repl.Runner{}
	}
	if deps.Guard == nil {
		deps.Guard = access.New(access.Config{}, deps.Keys, auditOrNil(deps.Audit))
	}
	if deps.Metrics == nil {
		deps.Metrics = prometheus.NewRegistry()
	}
	s := &Server{
		cfg:   cfg,
		deps:  deps,
		mux:   http.NewServeMux(),
		raw:   map[string]http.Handler{},
		guard: deps.Guard,
		boots: bootstats.New(time.Now()),
	}
	var err error
	if s.met, err = apimetrics.New(deps.Metrics); err != nil {
		return nil, err
	}
	if s.spec, err = Spec(cfg.Version); err != nil {
		return nil, err
	}
	for _, rt := range routes() {
		if rt.need == "" {
			return nil, fmt.Errorf("httpapi: %s is not in the table of operations", rt.muxPattern())
		}
		if forwards(rt.pattern) {
			s.raw[rt.pattern] = s.serve(rt)
			continue
		}
		s.mux.Handle(rt.muxPattern(), s.serve(rt))
	}
	return s, nil
}

// auditOrNil makes a nil interface of a nil interface.
func auditOrNil(log access.AuditLog) access.Audit {
	if log == nil {
		return nil
	}
	return log
}

// ServeHTTP gives the request an id, handles CORS preflights, and calls the route.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := requestID(r)
	h := w.Header()
	h.Set("X-Request-Id", string(id))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Expose-Headers", exposedHeaders)
	if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
		h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
		h.Set("Access-Control-Allow-Headers", allowHeaders(r))
		h.Set("Access-Control-Max-Age", "86400")
		w.WriteHeader(http.StatusNoContent)
		return
	}
	r = r.WithContext(obs.WithRequest(context.WithValue(r.Context(), requestKey{}, id), string(id)))
	if s.serveForwarded(w, r) {
		return
	}
	handler, pattern := s.mux.Handler(r)
	if pattern == "" || r.URL.Path != cleanPath(r.URL.Path) {
		s.noRoute(w, r, handler)
		return
	}
	s.mux.ServeHTTP(w, r)
}

const exposedHeaders = "X-Request-Id, X-Next-Cursor, Retry-After, Content-Range, " +
	"RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset"

type requestKey struct{}

// requestID returns the client's request id if it is well-formed, else a new one.
func requestID(r *http.Request) api.RequestID {
	s := r.Header.Get("X-Request-Id")
	if s == "" || len(s) > 64 {
		return api.NewRequestID()
	}
	for _, c := range s {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return api.NewRequestID()
		}
	}
	return api.RequestID(s)
}

func allowHeaders(r *http.Request) string {
	if want := r.Header.Get("Access-Control-Request-Headers"); want != "" && len(want) < 1024 {
		return want
	}
	return "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, Range, X-Request-Id"
}

// cleanPath returns the path that the multiplexer would redirect to. This server returns not_found instead.
func cleanPath(p string) string {
	c := path.Clean("/" + p)
	if strings.HasSuffix(p, "/") && c != "/" {
		c += "/"
	}
	return c
}

// noRoute sends the error for an unknown path, or for a method that the path does not have.
func (s *Server) noRoute(w http.ResponseWriter, r *http.Request, handler http.Handler) {
	probe := &discardWriter{h: http.Header{}}
	if r.URL.Path == cleanPath(r.URL.Path) {
		handler.ServeHTTP(probe, r)
	}
	if probe.status == http.StatusMethodNotAllowed {
		allow := probe.h.Get("Allow")
		w.Header().Set("Allow", allow)
		s.writeError(w, r, api.Errorf(api.NotAllowed, "%s is not possible on %s: use %s", r.Method, r.URL.Path, allow))
		return
	}
	s.writeError(w, r, api.Errorf(api.NotFound, "no such path: %s; /openapi.json lists all", r.URL.Path))
}

// discardWriter is a ResponseWriter that keeps the status and drops the body.
type discardWriter struct {
	h      http.Header
	status int
}

func (p *discardWriter) Header() http.Header         { return p.h }
func (p *discardWriter) WriteHeader(status int)      { p.status = status }
func (p *discardWriter) Write(b []byte) (int, error) { return len(b), nil }

// serve wraps a route's handler with access, errors, panics, metrics and the audit log.
func (s *Server) serve(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		sw := &statusWriter{ResponseWriter: w}
		rq := &request{s: s, w: sw, r: r}
		recorded := false
		sw.upgraded = func() { // a shell is recorded when it opens, not when it ends
			recorded = true
			s.recordAudit(rq, rt, http.StatusSwitchingProtocols, began)
		}
		defer func() {
			if fault := recover(); fault != nil &&
				fault != http.ErrAbortHandler { //nolint:errorlint // a sentinel of net/http, never wrapped
				s.deps.Log.ErrorContext(
					r.Context(),
					"handler panicked",
					"route",
					rt.pattern,
					"err",
					fault,
				)
				s.finishWithError(
					sw,
					r,
					api.Errorf(api.Internal, "internal error; the server's log has it under this request id"),
				)
			} else if fault != nil {
				panic(http.ErrAbortHandler)
			}
			s.met.Observe(rt.pattern, r.Method, sw.code(), time.Since(began))
			if !recorded {
				s.recordAudit(rq, rt, sw.code(), began)
			}
		}()
		err := s.authorize(rq, rt)
		leave := func() {}
		if err == nil {
			leave, err = s.guard.Enter(sw, r, access.V1, rt.muxPattern(), rq.p.Workspace)
		}
		if err == nil {
			defer leave()
			err = rt.checkQuery(r.URL.Query())
		}
		if err == nil {
			defer rq.openMemory().Close()
			defer rq.finish()
			err = rt.handle(rq)
		}
		if err != nil {
			s.finishWithError(sw, r, err)
		}
	})
}

// finishWithError sends an error unless the response has begun.
func (s *Server) finishWithError(w *statusWriter, r *http.Request, err error) {
	if w.status != 0 {
		s.deps.Log.WarnContext(r.Context(), "response broke off", "err", err)
		return
	}
	s.writeError(w, r, err)
}

// statusWriter remembers whether a response has begun, and its status.
type statusWriter struct {
	http.ResponseWriter
	status   int
	upgraded func() // called when the connection changes its protocol
}

func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 && status >= 200 || status == http.StatusSwitchingProtocols {
		w.status = status
	}
	if status == http.StatusSwitchingProtocols && w.upgraded != nil {
		w.upgraded()
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController find other methods of the wrapped writer.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *statusWriter) code() int {
	if w.status == 0 {
		return http.StatusOK
	}
	return w.status
}
