package httpapi

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/execstream"
)

// request is one authorized call of a route.
type request struct {
	s *Server
	w http.ResponseWriter
	r *http.Request
	p auth.Principal // zero on public routes

	action, target string // for the audit log, in place of the route's and those of the path

	release func() // ends the use of what the request has opened; nil: nothing

	memory *execstream.Memory // pays for what the request buffers, until it ends; also in the context of r
}

// openMemory opens the account that pays for what the request buffers.
func (rq *request) openMemory() *execstream.Memory {
	owners := []string{string(rq.p.Workspace)}
	if id := rq.r.PathValue("sandbox"); id != "" {
		owners = append(owners, id)
	}
	rq.memory = rq.s.deps.Memory.Open(owners...)
	rq.r = rq.r.WithContext(execstream.WithMemory(rq.r.Context(), rq.memory))
	return rq.memory
}

// finish ends the use of what the request has opened.
func (rq *request) finish() {
	if rq.release != nil {
		rq.release()
	}
}

// pay takes memory for the request, in bytes. subject is what the memory is for.
func (rq *request) pay(bytes int64, subject string) error {
	return hosterror.OfGuest(rq.memory.Take(bytes), subject)
}

func (rq *request) id() api.RequestID {
	id, _ := rq.r.Context().Value(requestKey{}).(api.RequestID)
	return id
}

// sandbox returns the sandbox's id in the path.
func (rq *request) sandbox() (api.SandboxID, error) {
	return api.ParseSandboxID(rq.r.PathValue("sandbox"))
}

// guest returns the guest of the sandbox in the path, and wakes the sandbox if it is hibernated.
func (rq *request) guest() (guestapi.Guest, error) {
	id, err := rq.sandbox()
	if err != nil {
		return nil, err
	}
	return rq.s.deps.Sandboxes.Guest(rq.r.Context(), rq.p, id)
}

// enter is guest that also returns the sandbox, which has the defaults of commands.
func (rq *request) enter() (guestapi.Guest, api.Sandbox, error) {
	id, err := rq.sandbox()
	if err != nil {
		return nil, api.Sandbox{}, err
	}
	return rq.s.deps.Sandboxes.GuestAndSandbox(rq.r.Context(), rq.p, id)
}

// intParam returns a whole number of the query, or fallback if there is none.
func (rq *request) intParam(name string, low, high, fallback int64) (int64, error) {
	text := rq.r.URL.Query().Get(name)
	if text == "" {
		return fallback, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low || n > high {
		return 0, api.Errorf(api.Invalid, "%s: %q is not a number from %d to %d", name, truncate(text), low, high).
			With("field", name)
	}
	return n, nil
}

// boolParam reports whether a parameter of the query is 1 or true.
func (rq *request) boolParam(name string) bool {
	v := rq.r.URL.Query().Get(name)
	return v == "1" || v == "true"
}

func (rq *request) upgrade() bool {
	return strings.EqualFold(rq.r.Header.Get("Upgrade"), "websocket")
}

func truncate(s string) string {
	if len(s) > 60 {
		return s[:60] + "..."
	}
	return s
}

// authorize checks that the key of a request may call the route now.
func (s *Server) authorize(rq *request, rt route) (err error) {
	switch {
	case rt.checksBrokerToken() || rt.need == access.Function:
		return s.guard.AdmitAddress(rq.w, rq.r)
	case !rt.isPublic():
		rq.p, err = s.guard.Admit(rq.w, rq.r, bearer(rq.r), rt.need)
	}
	return err
}

// bearer returns the key of a request. It is in the header or, for WebSocket and EventSource of browsers, which cannot
// set headers, in the query as access_token or in the subprotocol bearer.<key>.
func bearer(r *http.Request) string {
	if scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(token)
	}
	if !takesQueryKey(r) {
		return ""
	}
	for _, list := range r.Header.Values("Sec-Websocket-Protocol") {
		for p := range strings.SplitSeq(list, ",") {
			if token, ok := strings.CutPrefix(strings.TrimSpace(p), "bearer."); ok {
				return token
			}
		}
	}
	return r.URL.Query().Get("access_token")
}

// takesQueryKey reports whether a browser makes this kind of request without headers of the page's own. No other
// request may carry a key in its URL, since URLs end up in logs.
func takesQueryKey(r *http.Request) bool {
	return r.Method == http.MethodGet && (strings.EqualFold(r.Header.Get("Upgrade"), "websocket") ||
		strings.Contains(r.Header.Get("Accept"), "text/event-stream"))
}

// writeError sends an error. Faults of the server are logged with the request's id.
func (s *Server) writeError(w http.ResponseWriter, r *http.Request, err error) {
	e := *api.AsError(err)
	e.RequestID, _ = r.Context().Value(requestKey{}).(api.RequestID)
	if e.Code == api.Internal {
		cause := error(&e)
		if e.Unwrap() != nil {
			cause = e.Unwrap()
		}
		s.deps.Log.ErrorContext(r.Context(), "request failed", "err", cause, "route", r.Pattern)
	}
	m := e.Code.Info()
	if m.Code == api.Unauthenticated {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if e.Retryable && w.Header().Get("Retry-After") == "" {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, m.Status, &e)
}

// writeJSON writes v as JSON. Responses that may be large are not held in memory a second time.
func writeJSON(w http.ResponseWriter, status int, v any) {
	switch v.(type) {
	case api.ExecResult, api.ReplResult, api.DirListing, *api.Error:
		execstream.StreamJSON(w, status, v)
		return
	}
	b, err := json.Marshal(v)
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(execstream.EncodingFailed)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)+1))
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // the client may have closed the connection
}

// baseURL returns the address at which clients reach this server, without a trailing slash.
func (rq *request) baseURL() string {
	if rq.s.cfg.PublicURL != "" {
		return strings.TrimRight(rq.s.cfg.PublicURL, "/")
	}
	scheme := "http"
	if rq.r.TLS != nil || rq.r.Header.Get("X-Forwarded-Proto") == "https" {
		scheme = "https"
	}
	return (&url.URL{Scheme: scheme, Host: rq.r.Host}).String()
}
