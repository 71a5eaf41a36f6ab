package functionedge

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
)

// Target is a function as the edge needs it.
type Target struct {
	Function  api.FunctionID
	Workspace api.Workspace
	Auth      api.FunctionAuth
	Secret    string // signs requests
	MaxBody   int64  // bytes of a request's body
}

// Fail sends an error in the form of the API.
type Fail = func(w http.ResponseWriter, r *http.Request, err *api.Error)

// Functions is what the edge needs of the service for functions. All methods may run at once.
type Functions interface {
	// Target returns a function. The error has the code not_found if there is none that takes requests.
	Target(ctx context.Context, fn api.FunctionID) (Target, error)
	// Named returns the id of the function with a name in the workspace of p, or the error not_found.
	Named(ctx context.Context, p auth.Principal, name string) (api.FunctionID, error)
	// Serve sends a request to a version of a function, and the response to w. alias is "" for the live version. It
	// calls fail for an error before the response has begun.
	Serve(w http.ResponseWriter, r *http.Request, fn api.FunctionID, alias string, fail Fail)
}

// Guard admits the holders of keys; *access.Guard does.
type Guard interface {
	Admit(w http.ResponseWriter, r *http.Request, token string, need access.Need) (auth.Principal, error)
	Failed(r *http.Request)
}

// Config configures an Edge. Functions, Guard, Suffix and Log are required.
type Config struct {
	Functions Functions
	Guard     Guard
	// Limits bounds the requests to one function, and of one client; nil: there are no limits.
	Limits proxy.Limiter
	Suffix string                 // domain of the host names
	IsKey  func(text string) bool // reports whether a text is a key of the API; nil: none is
	Log    *slog.Logger
}

// Edge serves requests for functions. Make one with New.
type Edge struct {
	cfg Config
	now func() time.Time
}

// New returns an edge.
func New(cfg Config) *Edge {
	if cfg.IsKey == nil {
		cfg.IsKey = func(string) bool { return false }
	}
	return &Edge{cfg: cfg, now: time.Now}
}

// SplitHost returns the function and the alias that a host name below suffix names. ok is false if it names none.
func SplitHost(host, suffix string) (fn api.FunctionID, alias string, ok bool) {
	label, ok := strings.CutSuffix(host, "."+suffix)
	if !ok {
		return "", "", false
	}
	if label, ok = strings.CutPrefix(label, "fn-"); !ok {
		return "", "", false
	}
	label, alias, named := strings.Cut(label, "--")
	if fn = api.FunctionID(label); !fn.Valid() || named && !api.ValidFunctionName(alias) {
		return "", "", false
	}
	return fn, alias, true
}

// Middleware serves requests for functions and passes all others to next.
func (e *Edge) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fn, alias, ok := SplitHost(proxy.Hostname(r.Host), e.cfg.Suffix)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		_, _ = e.serve(w, r, request{function: fn, alias: alias, fail: refuse}) // for the audit log of the API
	})
}

// ForwardFunction serves a request of the API that is for a function. prefix is what precedes the handler's own path in
// the URL; r has the handler's path.
//
// fn is an id, or a name in the workspace of the key that the request must then have. It returns the caller and the
// function, as far as they are known: the caller of a function that needs no key is its workspace.
func (e *Edge) ForwardFunction(
	w http.ResponseWriter,
	r *http.Request,
	fn, prefix string,
	fail Fail,
) (auth.Principal, api.FunctionID) {
	how := request{shared: true, prefix: prefix, fail: fail}
	if id := api.FunctionID(fn); id.Valid() {
		how.function = id
		return e.serve(w, r, how)
	}
	p, err := e.admit(w, r, "functions that are named by their names need a key: ")
	if err != nil {
		fail(w, r, api.AsError(err))
		return p, ""
	}
	how.caller = &p
	if how.function, err = e.cfg.Functions.Named(r.Context(), p, fn); err != nil {
		fail(w, r, api.AsError(err))
		return p, ""
	}
	return e.serve(w, r, how)
}

// request is how one request is served.
type request struct {
	function api.FunctionID
	caller   *auth.Principal // whose key was checked; nil: none was
	alias    string
	shared   bool   // the origin of the URL is that of the API
	prefix   string // of the URL, before the handler's path
	fail     Fail
}

// serve returns the caller, as far as it is known, and the function.
func (e *Edge) serve(w http.ResponseWriter, r *http.Request, how request) (p auth.Principal, fn api.FunctionID) {
	if how.caller != nil {
		p = *how.caller
	}
	fn = how.function
	if e.cfg.Limits != nil {
		if err := e.cfg.Limits.Admit(w, r, string(how.function), 0); err != nil {
			how.fail(w, r, api.AsError(err))
			return p, fn
		}
	}
	t, err := e.cfg.Functions.Target(r.Context(), how.function)
	if err != nil {
		if r.Context().Err() == nil && api.CodeOf(err) == api.Internal {
			e.cfg.Log.Error("a function could not be found", "function", how.function, "err", err)
		}
		how.fail(w, r, api.AsError(err))
		return p, fn
	}
	if why := impossible(r, how); why != nil {
		how.fail(w, r, why)
		return p, fn
	}
	if t.MaxBody > 0 && r.ContentLength > t.MaxBody {
		how.fail(w, r, tooLarge(t.MaxBody))
		return p, fn
	}
	out := r.Clone(r.Context())
	if t.MaxBody > 0 && r.Body != nil && r.Body != http.NoBody {
		out.Body = http.MaxBytesReader(w, r.Body, t.MaxBody)
	}
	if how.caller != nil && p.Workspace == t.Workspace {
		out.Header.Del("Authorization")
	} else if p, err = e.authorize(w, out, t); err != nil {
		how.fail(w, r, api.AsError(err))
		return p, fn
	}
	e.clean(out, how)
	isolated := &writer{ResponseWriter: w, shared: how.shared, prefix: how.prefix}
	fail := func(_ http.ResponseWriter, r *http.Request, err *api.Error) { how.fail(w, r, err) }
	e.cfg.Functions.Serve(isolated, out, t.Function, how.alias, fail)
	return p, fn
}

// impossible returns why a request cannot be sent to a function, or nil.
func impossible(r *http.Request, how request) *api.Error {
	switch {
	case r.Method == http.MethodConnect:
		return api.Errorf(api.NotAllowed, "CONNECT is not possible: send the request itself")
	case r.Header.Get("Upgrade") != "":
		return api.Errorf(api.Unsupported, "a function serves no WebSockets: deploy an app, which does")
	case how.shared && r.Header.Get("Service-Worker") != "":
		return api.Errorf(api.Forbidden, "service workers need the function's own host name")
	case !strings.HasPrefix(r.URL.Path, "/"):
		return api.Errorf(api.Invalid, "the target of the request is not a path")
	}
	return nil
}

func tooLarge(limit int64) *api.Error {
	return api.Errorf(api.TooLarge, "the body has more than %d bytes: send less, or raise settings.max_payload_bytes",
		limit)
}

// clean removes from a request what the platform and its clients' proxies put there, and adds what is known.
func (e *Edge) clean(r *http.Request, how request) {
	access.ClientHeaders(r)
	for name := range r.Header {
		plain := http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
		if strings.HasPrefix(plain, "Pandastack-") || plain == signatureHeader {
			delete(r.Header, name)
		}
	}
	proxy.DropKeys(r, e.cfg.IsKey)
	proto := r.Header.Get("X-Forwarded-Proto")
	if proto == "" {
		proto = "http"
		if r.TLS != nil {
			proto = "https"
		}
	}
	r.Header.Set("X-Forwarded-Proto", proto)
	r.Header.Set("X-Forwarded-Host", r.Host)
	if from := r.Header.Get("X-Real-Ip"); from != "" {
		r.Header.Set("X-Forwarded-For", from)
	}
	if how.prefix != "" {
		r.Header.Set("X-Forwarded-Prefix", how.prefix)
	}
}

// writer isolates the response of a handler.
type writer struct {
	http.ResponseWriter
	shared bool
	prefix string
	begun  bool
}

// WriteHeader implements http.ResponseWriter. Informational responses stay here: their headers are not isolated.
func (w *writer) WriteHeader(status int) {
	if status < http.StatusOK || w.begun {
		return
	}
	w.begun = true
	proxy.Isolate(w.Header(), w.shared, w.prefix)
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *writer) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.ResponseWriter.Write(b)
}

// FlushError sends what was written.
func (w *writer) FlushError() error {
	w.WriteHeader(http.StatusOK)
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Unwrap lets http.ResponseController find other methods of the wrapped writer.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// refuse sends an error to a client of a function's host name.
func refuse(w http.ResponseWriter, r *http.Request, err *api.Error) {
	e := *err
	e.RequestID = api.NewRequestID()
	if e.Code == api.Internal {
		e.Message = "internal error"
	}
	h := w.Header()
	if e.Code == api.Unauthenticated {
		h.Set("WWW-Authenticate", "Bearer")
	}
	if e.Retryable && h.Get("Retry-After") == "" {
		h.Set("Retry-After", "1")
	}
	body, failed := json.Marshal(&e)
	if failed != nil {
		body = []byte(`{"error":"internal error","code":"internal"}`)
	}
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(body)+1))
	w.WriteHeader(statusOf(&e))
	if r.Method != http.MethodHead {
		_, _ = w.Write(append(body, '\n')) // the client may have disconnected
	}
}

// statusOf returns the HTTP status of an error. What a function failed to do has a status of its own.
func statusOf(err *api.Error) int {
	switch err.Code {
	case api.Timeout:
		return http.StatusGatewayTimeout
	case api.Unreachable:
		return http.StatusBadGateway
	default:
		return err.Code.Info().Status
	}
}
