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
)

// request is one call of a route, let in.
type request struct {
	s *Server
	w http.ResponseWriter
	r *http.Request
	p auth.Principal // zero on public routes
}

func (rq *request) id() api.RequestID {
	id, _ := rq.r.Context().Value(requestKey{}).(api.RequestID)
	return id
}

// sandbox reads the sandbox's id of the path.
func (rq *request) sandbox() (api.SandboxID, error) {
	return api.ParseSandboxID(rq.r.PathValue("sandbox"))
}

// guest opens the sandbox of the path; a hibernated one is woken by it.
func (rq *request) guest() (guestapi.Guest, error) {
	id, err := rq.sandbox()
	if err != nil {
		return nil, err
	}
	return rq.s.deps.Sandboxes.Guest(rq.r.Context(), rq.p, id)
}

// enter is guest, and the sandbox's own defaults beside it.
func (rq *request) enter() (guestapi.Guest, api.Sandbox, error) {
	id, err := rq.sandbox()
	if err != nil {
		return nil, api.Sandbox{}, err
	}
	return rq.s.deps.Sandboxes.GuestAndSandbox(rq.r.Context(), rq.p, id)
}

// intParam reads a whole number of the query, or fallback.
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

// boolParam reads a yes or no of the query: 1 and true are yes.
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

// authorize checks the key of a request against the route's access.
func (s *Server) authorize(rq *request, rt route) error {
	if rt.access == public {
		return nil
	}
	token := bearer(rq.r)
	if token == "" {
		return api.Errorf(api.Unauthenticated, "no key: send the header Authorization: Bearer pds_...")
	}
	p, err := s.deps.Keys.Authenticate(rq.r.Context(), token)
	if err != nil {
		return err
	}
	if rt.access == admin && !p.Admin {
		return api.Errorf(api.Forbidden, "this needs an admin's key; the key %s is not one", p.KeyPrefix)
	}
	rq.p = p
	return nil
}

// bearer finds the key of a request: in its header, or, for browsers' WebSocket and EventSource, which
// can send none, in the query as access_token or in the subprotocol bearer.<key>.
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

// takesQueryKey tells whether a request is one that a browser makes without headers of the page's own.
// All others must not carry keys in addresses, which end up in logs.
func takesQueryKey(r *http.Request) bool {
	return r.Method == http.MethodGet && (strings.EqualFold(r.Header.Get("Upgrade"), "websocket") ||
		strings.Contains(r.Header.Get("Accept"), "text/event-stream"))
}

// writeError sends an error as the answer. What is our fault goes to the log with the request's id.
func (s *Server) writeError(w http.ResponseWriter, r *http.Request, err error) {
	e := *api.AsError(err)
	e.RequestID, _ = r.Context().Value(requestKey{}).(api.RequestID)
	if e.Code == api.Internal {
		cause := error(&e)
		if e.Unwrap() != nil {
			cause = e.Unwrap()
		}
		s.deps.Log.ErrorContext(r.Context(), "request failed", "err", cause, "route", r.Pattern, "request", e.RequestID)
	}
	m := e.Code.Info()
	if m.Code == api.Unauthenticated {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if e.Retryable {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, m.Status, &e)
}

// writeJSON writes v as JSON.
func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(
			`{"error":"the answer could not be encoded","code":"internal","retryable":false}`,
		)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)+1))
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // a client that is gone needs no answer
}

// baseURL is the address clients reach this server at, without a trailing slash.
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
