// Package envd serves the agent services of E2B's protocol for one sandbox per request.
//
// The services are processes, files, watchers and signed file URLs. They run on the host, over guestapi; the guest
// runs no HTTP server for them. The package owns the translation and nothing else: the caller has found the sandbox,
// its state and its token, and passes them as a Target. All requests may run at once. The protocol is that of npm
// e2b 2.51.0 and of the published descriptors.
package envd

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"connectrpc.com/connect"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/ingress/bodyrate"
	"github.com/pandastack/pandastack/internal/ingress/e2b/envd/proto/filesystem/filesystemconnect"
	"github.com/pandastack/pandastack/internal/ingress/e2b/envd/proto/process/processconnect"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// Version is the agent version that clients see.
//
// It promises metadata of files (0.6.2), entries in file events (0.6.3) and watching of network mounts (0.6.4), which
// are watched like any other directory.
const Version = "0.6.4"

// Port is the port of the agent in the host names that clients use.
const Port = 49983

// filesPath is the path of file URLs, which may be signed.
const filesPath = "/files"

// maxMessage bounds one message of a client, in bytes.
const maxMessage = 4 << 20

// Target is a running sandbox.
type Target struct {
	ID          string
	Workspace   string
	Generation  uint64 // of its machine: handles of an earlier generation are invalid
	Guest       guestapi.Guest
	AccessToken string // that callers must send; "": not required
	User        string // default user of the sandbox, by name
	Env         map[string]string
}

type targetKey struct{}

func targetOf(ctx context.Context) Target {
	t, _ := ctx.Value(targetKey{}).(Target)
	return t
}

// Budgets bound what a Server holds, by workspace and sandbox. Nil pools bound nothing.
type Budgets struct {
	Memory   *budget.Pool // bytes that are buffered
	Watchers *budget.Pool // watchers that clients poll
}

// Server serves the agent's paths. Create one with New and keep it.
//
// It holds the process streams that take input, and the watchers that clients poll.
type Server struct {
	mux      *http.ServeMux
	patterns []string // of mux
	budgets  Budgets

	mu       sync.Mutex
	running  map[processKey]guestapi.Process // started by a stream that is still open; guarded by mu
	watchers map[string]*polledWatcher       // by id; guarded by mu
}

// New returns a server without any state.
func New(budgets Budgets) *Server {
	s := &Server{
		mux:      http.NewServeMux(),
		budgets:  budgets,
		running:  map[processKey]guestapi.Process{},
		watchers: map[string]*polledWatcher{},
	}
	opts := []connect.HandlerOption{connect.WithReadMaxBytes(maxMessage)}
	path, h := processconnect.NewProcessHandler(&processes{s}, opts...)
	s.handle(path, s.requireToken(h))
	path, h = filesystemconnect.NewFilesystemHandler(&filesystem{s}, opts...)
	s.handle(path, s.requireToken(h))
	s.handle("GET /health", http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
	))
	s.handle("GET /metrics", s.requireToken(http.HandlerFunc(s.metrics)))
	s.handle("GET /envs", s.requireToken(http.HandlerFunc(s.envs)))
	s.handle("GET "+filesPath, http.HandlerFunc(s.download))
	s.handle("POST "+filesPath, http.HandlerFunc(s.upload))
	s.handle("POST /files/compose", s.requireToken(http.HandlerFunc(s.compose)))
	s.handle("/", http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { fail(w, http.StatusNotFound, "not found") },
	))
	return s
}

func (s *Server) handle(pattern string, h http.Handler) {
	s.patterns = append(s.patterns, pattern)
	s.mux.Handle(pattern, h)
}

// Patterns returns the patterns of net/http that are served. One that ends in a slash and is not "/" has a service
// whose procedures are below it.
func (s *Server) Patterns() []string { return slices.Clone(s.patterns) }

// Pattern returns the pattern of a request. For a call of a procedure it is the path, which may be that of none.
func (s *Server) Pattern(r *http.Request) string {
	_, pattern := s.mux.Handler(r)
	if len(pattern) > 1 && strings.HasSuffix(pattern, "/") {
		return r.URL.Path
	}
	return pattern
}

// Serve serves one request for the given sandbox.
func (s *Server) Serve(w http.ResponseWriter, r *http.Request, t Target) {
	if allowCORS(w, r) {
		return
	}
	if isStream(r.Header.Get("Content-Type")) {
		bodyrate.Exempt(r)
	}
	memory := s.budgets.Memory.Open(t.Workspace, t.ID)
	defer memory.Close()
	ctx := budget.NewContext(context.WithValue(r.Context(), targetKey{}, t), memory)
	r = r.WithContext(ctx)
	if isMessage(r) {
		r.Body = paidBody{memory.Reader(r.Body, bodyCost), r.Body}
	}
	s.mux.ServeHTTP(w, r)
}

// isMessage reports whether the body of a request is read as a whole: files and streams are not.
func isMessage(r *http.Request) bool {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	return r.URL.Path != "/files" && (kind == "application/json" || kind == "application/proto")
}

// bodyCost is how much memory a byte of a message of a client takes while it is decoded and used.
const bodyCost = 3

// paidBody is a body whose bytes are paid while they are read.
type paidBody struct {
	io.Reader
	io.Closer
}

// isStream reports whether a body is a stream of messages, as clients use for the input of processes.
func isStream(contentType string) bool {
	return strings.HasPrefix(contentType, "application/connect+") || strings.HasPrefix(contentType, "application/grpc")
}

// allowCORS lets pages of any origin call the agent, since the access token protects it and not the origin. It
// responds to a preflight request and returns true then.
func allowCORS(w http.ResponseWriter, r *http.Request) bool {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	if r.Method != http.MethodOptions {
		h.Set("Access-Control-Expose-Headers", "*")
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
	h.Set("Access-Control-Allow-Headers", r.Header.Get("Access-Control-Request-Headers"))
	h.Set("Access-Control-Max-Age", "7200")
	w.WriteHeader(http.StatusNoContent)
	return true
}

// requireToken refuses requests without the sandbox's access token.
func (s *Server) requireToken(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !hasToken(r) {
			fail(w, http.StatusUnauthorized, "invalid or missing access token: send it as X-Access-Token")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func hasToken(r *http.Request) bool { return showsToken(r, targetOf(r.Context()).AccessToken) }

// showsToken reports whether r has the given access token, or the token is "" and not required.
func showsToken(r *http.Request, want string) bool {
	return want == "" || subtle.ConstantTimeCompare([]byte(r.Header.Get("X-Access-Token")), []byte(want)) == 1
}

// requestUser returns the user of a request: the name of its basic authentication, whose password is ignored, or ""
// for the sandbox's default user.
func requestUser(h http.Header) string {
	r := http.Request{Header: h}
	name, _, _ := r.BasicAuth()
	return name
}

func fail(w http.ResponseWriter, status int, message string) {
	reply(w, status, map[string]any{"code": status, "message": message})
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// An error means that the client is gone.
	_ = json.NewEncoder(w).Encode(body)
}

func (s *Server) envs(w http.ResponseWriter, r *http.Request) {
	env := targetOf(r.Context()).Env
	if env == nil {
		env = map[string]string{}
	}
	reply(w, http.StatusOK, env)
}

func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	st, err := targetOf(r.Context()).Guest.Stats(r.Context())
	if err != nil {
		failWith(w, err)
		return
	}
	used := 0.0
	if st.Uptime > 0 && st.CPUs > 0 {
		used = 100 * st.CPUBusy.Seconds() / st.Uptime.Seconds() / float64(st.CPUs)
	}
	reply(w, http.StatusOK, map[string]any{
		"ts": st.Time.Unix(), "cpu_count": st.CPUs, "cpu_used_pct": used,
		"mem_total": st.MemTotal, "mem_used": st.MemTotal - st.MemAvailable, "mem_cache": st.MemCached,
		"disk_used": st.DiskUsed, "disk_total": st.DiskTotal,
	})
}
