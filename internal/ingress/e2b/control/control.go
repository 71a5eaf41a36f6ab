// Package control serves the control API of E2B's protocol, over the services that /v1 serves too.
//
// It owns the names, shapes and status codes of that protocol (npm e2b 2.51.0 and older clients of the 2.x and 1.x
// lines) and translates. The sandbox service does the work. A known field that this server cannot honour
// is refused by its name. Unknown fields are refused where they may decide access, and else logged (package lenient).
// Package envd serves processes and files.
//
// A Server has no state of its own but the measurements of package metricshistory. All requests may run at once.
package control

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/metricshistory"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/volume"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/ingress/e2b/lenient"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// Templates are the methods of *template.Service that this API uses.
type Templates interface {
	List(ctx context.Context, p auth.Principal) ([]api.Template, error)
	Get(ctx context.Context, p auth.Principal, name string) (api.Template, error)
	Delete(ctx context.Context, p auth.Principal, name string) error
	Tag(ctx context.Context, p auth.Principal, name string, req api.TagRequest) (api.Template, error)
	Untag(ctx context.Context, p auth.Principal, name, tag string) error
}

// Config configures a Server.
type Config struct {
	Domain       string          // clients build names of sandboxes with it: <port>-<id>.<domain>
	AgentVersion string          // version of the agent services that clients will find
	Secret       []byte          // of this installation, at least 32 bytes: tokens are derived from it
	Builds       Builds          // nil: templates cannot be built
	Volumes      *volume.Service // nil: there are no volumes
	Memory       *budget.Pool    // pays for what requests for files of volumes buffer; nil: there is no bound
	// Guard admits callers and records what they do. Required.
	Guard *access.Guard
	// History keeps measurements; its owner runs it. nil: one of the server's own, which is not run.
	History *metricshistory.History
	// Bodies decodes bodies of requests; nil: one that logs nothing.
	Bodies *lenient.Decoder
}

// Server serves the control API.
type Server struct {
	cfg       Config
	sandboxes *sandbox.Service
	templates Templates
	mux       *http.ServeMux
	started   time.Time
	patterns  []string // patterns of mux
	history   *metricshistory.History
	bodies    *lenient.Decoder
}

// New returns a server. A secret that is too short is an error.
func New(cfg Config, sandboxes *sandbox.Service, templates Templates) (*Server, error) {
	if len(cfg.Secret) < 32 {
		return nil, fmt.Errorf("e2bapi: the secret has %d bytes, at least 32 are needed", len(cfg.Secret))
	}
	s := &Server{
		cfg:       cfg,
		sandboxes: sandboxes,
		templates: templates,
		mux:       http.NewServeMux(),
		started:   time.Now().UTC(),
		history:   cmp.Or(cfg.History, metricshistory.New(sandboxes)),
		bodies:    cmp.Or(cfg.Bodies, &lenient.Decoder{}),
	}
	return s, s.routes()
}

// Routes returns the patterns of net/http that this API serves, sorted.
func (s *Server) Routes() []string { return slices.Sorted(slices.Values(s.patterns)) }

// handle adds a route, which must be in the table of operations.
func (s *Server) handle(pattern string, h http.HandlerFunc) error {
	if _, ok := access.NeedOf(access.E2B, pattern); !ok {
		return fmt.Errorf("e2bapi: %s is not in the table of operations", pattern)
	}
	s.patterns = append(s.patterns, pattern)
	s.mux.HandleFunc(pattern, h)
	return nil
}

// handler serves a request of an authenticated caller. It returns status and body; a nil body is none.
type handler func(r *http.Request, p auth.Principal) (int, any, error)

// Middleware serves the paths of this API and passes all other requests to next.
func (s *Server) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := s.mux.Handler(r); pattern == "" {
			next.ServeHTTP(w, r)
			return
		}
		s.mux.ServeHTTP(w, r)
	})
}

// keyOf returns the key of a request.
//
// Clients send keys as X-API-Key or as a bearer token. Old clients insist on the form e2b_<hex>, which stands for our
// key with the same digits.
func keyOf(r *http.Request) string {
	token := r.Header.Get("X-API-Key")
	if token == "" {
		token, _ = strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	}
	if digits, ok := strings.CutPrefix(token, "e2b_"); ok {
		token = "pds_" + digits
	}
	return token
}

// targetOf returns what a request acts on, for the audit log.
func targetOf(pattern string, r *http.Request) string {
	if strings.Contains(pattern, "/sandboxes/{id}") {
		return string(sandboxID(r))
	}
	return r.PathValue("id")
}

// authenticated admits the caller before the route is called, and records the call.
func (s *Server) authenticated(pattern string, rt route) http.HandlerFunc {
	refuse := writeError
	if isContent(pattern) {
		refuse = writeContentError
	}
	return func(w http.ResponseWriter, r *http.Request) {
		call := access.Call{
			Face: access.E2B, Pattern: pattern, Token: keyOf(r), Target: targetOf(pattern, r), Began: time.Now(),
		}
		w = access.Watch(w, func(status int) {
			call.Status = status
			s.cfg.Guard.Record(r, call)
		})
		p, err := s.admit(w, r, pattern, call.Token)
		call.Principal = p
		if err != nil {
			refuse(w, err)
			return
		}
		leave, err := s.cfg.Guard.Enter(w, r, access.E2B, pattern, p.Workspace)
		if err != nil {
			refuse(w, err)
			return
		}
		defer leave()
		if err := rt.checkQuery(r.URL.Query()); err != nil {
			refuse(w, err)
			return
		}
		status, body, err := rt.handle(r, p)
		if err != nil {
			refuse(w, err)
			return
		}
		switch b := body.(type) {
		case paged:
			b.headers(w.Header())
			body = b.items
		case *download:
			b.send(w)
			return
		}
		if body == nil {
			w.WriteHeader(status)
			return
		}
		writeJSON(w, status, body)
	}
}

// admit admits the caller with a key. Requests for the content of a volume may have its token in place of a key.
func (s *Server) admit(w http.ResponseWriter, r *http.Request, pattern, token string) (auth.Principal, error) {
	need, _ := access.NeedOf(access.E2B, pattern) // handle refuses a route without one
	if strings.HasPrefix(token, volumeTokenPrefix) && isContent(pattern) {
		key, err := s.keyOfVolumeToken(token, r.PathValue("id"))
		return s.cfg.Guard.AdmitFor(w, r, key, err, need)
	}
	return s.cfg.Guard.Admit(w, r, token, need)
}

// isContent reports whether a pattern is one of the content of volumes.
func isContent(pattern string) bool { return strings.Contains(pattern, " /volumecontent/") }

// paged is a list whose cursor goes into a header.
type paged struct {
	items   any
	next    string
	running int // -1: not known
}

func (p paged) headers(h http.Header) {
	if p.next != "" {
		h.Set("X-Next-Token", p.next)
	}
	if p.running >= 0 {
		h.Set("X-Total-Running", fmt.Sprint(p.running))
	}
}

// AccessToken returns the token of a sandbox's agent.
//
// It is derived from the id and the installation's secret: nothing is stored, and it is valid as long as the sandbox
// exists.
func (s *Server) AccessToken(id api.SandboxID) string { return s.token("agent", id) }

// TrafficToken returns the token that opens the ports of a private sandbox.
func (s *Server) TrafficToken(id api.SandboxID) string { return s.token("traffic", id) }

func (s *Server) token(kind string, id api.SandboxID) string {
	mac := hmac.New(sha256.New, s.cfg.Secret)
	mac.Write([]byte(kind + ":" + string(id))) // a hash never returns an error
	return hex.EncodeToString(mac.Sum(nil)[:24])
}

// maxBody bounds the body of a request, in bytes.
const maxBody = 1 << 20

// decode reads the body into v. No body is an empty object. An unknown field is refused by its name if it may decide
// access; any other is logged.
func (s *Server) decode(r *http.Request, v any) error {
	data, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if slow, ok := errors.AsType[*api.Error](err); ok {
		return slow
	}
	if err != nil {
		return api.Wrap(api.Invalid, err, "the body could not be read")
	}
	if len(data) > maxBody {
		return api.Errorf(api.TooLarge, "the body is larger than %d bytes", maxBody)
	}
	if len(strings.TrimSpace(string(data))) == 0 {
		return nil
	}
	err = s.bodies.Decode(r.Pattern, data, v)
	if _, ok := errors.AsType[*lenient.UnknownError](err); ok {
		return api.Errorf(api.Invalid, "%v", err)
	}
	if err != nil {
		text := strings.TrimPrefix(err.Error(), "json: ")
		return api.Errorf(api.Invalid, "the body is not what is expected here: %s", text)
	}
	return nil
}

func unsupported(what string) handler {
	return func(*http.Request, auth.Principal) (int, any, error) {
		return 0, nil, api.Errorf(api.Unsupported, "%s are not supported by this server", what)
	}
}

// writeError sends an error in the protocol's shape. Retry-After must be a whole number: with anything else clients do
// not retry.
func writeError(w http.ResponseWriter, err error) {
	writeErrorAs(w, err, func(status int) any { return status })
}

// writeContentError is writeError for the content of volumes, whose errors have their status as text.
func writeContentError(w http.ResponseWriter, err error) {
	writeErrorAs(w, err, func(status int) any { return strconv.Itoa(status) })
}

func writeErrorAs(w http.ResponseWriter, err error, code func(status int) any) {
	e := api.AsError(err)
	status := e.Code.Info().Status
	if e.Code == api.WrongState {
		status = http.StatusConflict
	}
	if status == http.StatusTooManyRequests && w.Header().Get("Retry-After") == "" {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, status, map[string]any{"code": code(status), "message": e.Message, "error_code": string(e.Code)})
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// The client may have closed the connection.
	_ = json.NewEncoder(w).Encode(body)
}

func isCode(err error, code api.Code) bool {
	var e *api.Error
	return errors.As(err, &e) && e.Code == code
}
