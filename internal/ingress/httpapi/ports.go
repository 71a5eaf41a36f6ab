package httpapi

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
)

const (
	proxyPattern   = sandboxPath + "/proxy/{port}/{path...}"
	previewPattern = "/v1/p/{token}/{path...}"
)

func listPorts(rq *request) ([]api.Port, error) {
	ports, err := onSandbox(rq, rq.s.deps.Sandboxes.Ports)
	if err != nil {
		return nil, err
	}
	id, _ := rq.sandbox() // it was parsed just now
	out := make([]api.Port, 0, len(ports))
	for _, p := range ports {
		p.ProxyURL = proxyURL(id, p.Port)
		out = append(out, p)
	}
	return out, nil
}

func proxyURL(id api.SandboxID, port int) string {
	return sandboxesPath + "/" + string(id) + "/proxy/" + strconv.Itoa(port) + "/"
}

func declarePort(rq *request, req api.PortRequest) (api.Port, error) {
	p, err := onSandboxWith(rq, req, rq.s.deps.Sandboxes.DeclarePort)
	if err != nil {
		return api.Port{}, err
	}
	id, _ := rq.sandbox() // it was parsed just now
	p.ProxyURL = proxyURL(id, p.Port)
	return p, nil
}

// port returns the port in the path.
func (rq *request) port() (uint16, error) {
	text := rq.r.PathValue("port")
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 65535 {
		return 0, api.Errorf(api.Invalid, "port: %q is no port: use 1 to 65535", truncate(text)).With("field", "port")
	}
	return uint16(n), nil
}

func removePort(rq *request) error {
	port, err := rq.port()
	if err != nil {
		return err
	}
	id, err := rq.sandbox()
	if err != nil {
		return err
	}
	return rq.s.deps.Sandboxes.RemovePort(rq.r.Context(), rq.p, id, int(port))
}

// splitForwardPath returns the route of a path that forwards to programs, its values, and the rest of the path.
//
// These routes are found before the multiplexer, which would redirect paths such as //x that a program may mean.
func splitForwardPath(escaped string) (pattern string, values map[string]string, rest string) {
	if after, ok := strings.CutPrefix(escaped, "/v1/p/"); ok {
		token, rest, _ := strings.Cut(after, "/")
		return previewPattern, map[string]string{"token": token}, "/" + rest
	}
	after, ok := strings.CutPrefix(escaped, sandboxesPath+"/")
	if !ok {
		return "", nil, ""
	}
	id, after, _ := strings.Cut(after, "/")
	if after, ok = strings.CutPrefix(after, "proxy/"); !ok {
		return "", nil, ""
	}
	port, rest, _ := strings.Cut(after, "/")
	return proxyPattern, map[string]string{"sandbox": id, "port": port}, "/" + rest
}

// serveForwarded serves a request that is forwarded to a program, and reports whether it is one.
func (s *Server) serveForwarded(w http.ResponseWriter, r *http.Request) bool {
	pattern, values, _ := splitForwardPath(r.URL.EscapedPath())
	if pattern == "" {
		return false
	}
	for name, value := range values {
		r.SetPathValue(name, value)
	}
	r.Pattern = pattern
	s.raw[pattern].ServeHTTP(w, r)
	return true
}

func proxyPort(rq *request) error {
	port, err := rq.port()
	if err != nil {
		return err
	}
	id, err := rq.sandbox()
	if err != nil {
		return err
	}
	return forward(rq, rq.p, id, port)
}

// forward forwards a request to a port of a sandbox, and wakes the sandbox if needed. The program gets the path below
// the route's own, without the caller's key.
func forward(rq *request, p auth.Principal, id api.SandboxID, port uint16) error {
	if rq.s.deps.Proxy == nil {
		return api.Errorf(api.Unsupported, "this server forwards to no ports")
	}
	g, box, err := rq.s.deps.Sandboxes.GuestAndSandbox(rq.r.Context(), p, id)
	if err != nil {
		return err
	}
	r := rq.r.Clone(rq.r.Context())
	_, _, rest := splitForwardPath(rq.r.URL.EscapedPath())
	inner, err := url.ParseRequestURI(rest)
	if err != nil {
		return api.Errorf(api.Invalid, "the path behind the port is no path: %w", err)
	}
	r.URL.Path, r.URL.RawPath = inner.Path, inner.RawPath
	r.URL.RawQuery = withoutKey(rq.r.URL.RawQuery)
	r.Header.Del("Authorization")
	r.Header.Set("X-Forwarded-Prefix", strings.TrimSuffix(rq.r.URL.EscapedPath(), rest))
	if list := r.Header.Values("Sec-Websocket-Protocol"); len(list) > 0 {
		r.Header["Sec-Websocket-Protocol"] = withoutBearer(list)
	}
	rq.s.deps.Proxy.Forward(rq.w, r, proxy.Route{
		Address: proxy.Address{Sandbox: string(id), Port: port},
		Sandbox: box,
		Guest:   g,
	})
	return nil
}

// withoutKey removes the key from a query and keeps the rest, order included.
func withoutKey(query string) string {
	if !strings.Contains(query, "access_token=") {
		return query
	}
	var kept []string
	for part := range strings.SplitSeq(query, "&") {
		if !strings.HasPrefix(part, "access_token=") {
			kept = append(kept, part)
		}
	}
	return strings.Join(kept, "&")
}

func withoutBearer(list []string) []string {
	var kept []string
	for p := range strings.SplitSeq(strings.Join(list, ","), ",") {
		if p = strings.TrimSpace(p); p != "" && !strings.HasPrefix(p, "bearer.") {
			kept = append(kept, p)
		}
	}
	return kept
}

func makePreview(rq *request, req api.PreviewRequest) (api.Preview, error) {
	if len(rq.s.cfg.PreviewKey) == 0 {
		return api.Preview{}, api.Errorf(api.Unsupported, "this server signs no preview addresses")
	}
	box, err := onSandbox(rq, rq.s.deps.Sandboxes.Get)
	if err != nil {
		return api.Preview{}, err
	}
	expires := time.Now().Add(time.Duration(req.TTLSeconds) * time.Second).UTC().Truncate(time.Second)
	token := proxy.SignPreview(rq.s.cfg.PreviewKey, proxy.Preview{
		Sandbox: string(box.ID), Port: req.Port, Expires: expires, Workspace: string(rq.p.Workspace), Paths: req.Paths})
	return api.Preview{
		URL: rq.baseURL() + "/v1/p/" + token + "/", Token: token, SandboxID: box.ID,
		Port: req.Port, Paths: req.Paths, ExpiresAt: expires,
	}, nil
}

func previewPort(rq *request) error {
	v, err := openPreview(rq.s.cfg.PreviewKey, rq.r.PathValue("token"))
	if err != nil {
		return err
	}
	_, _, rest := splitForwardPath(rq.r.URL.EscapedPath())
	inner, err := url.ParseRequestURI(rest)
	if err != nil {
		return api.Errorf(api.Invalid, "the path behind the token is no path: %w", err)
	}
	if !v.Allows(inner.Path) {
		return api.Errorf(api.Forbidden, "this preview address does not cover %s", truncate(inner.Path))
	}
	p := auth.Principal{Workspace: api.Workspace(v.Workspace)}
	return forward(rq, p, api.SandboxID(v.Sandbox), uint16(v.Port))
}

func openPreview(key []byte, token string) (proxy.Preview, error) {
	v, err := proxy.OpenPreview(key, token, time.Now())
	switch {
	case errors.Is(err, proxy.ErrExpired):
		return v, api.Errorf(api.Gone, "this preview address has expired: make a new one")
	case err != nil:
		return v, api.Errorf(api.Unauthenticated, "this preview address does not hold: make a new one")
	}
	return v, nil
}
