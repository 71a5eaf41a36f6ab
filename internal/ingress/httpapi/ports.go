package httpapi

import (
	"cmp"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/appapi"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/execstream"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/functionapi"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
	"github.com/pandastack/pandastack/internal/lib/wstunnel"
)

// forwards reports whether the requests of a pattern are forwarded to programs.
func forwards(pattern string) bool {
	switch pattern {
	case proxyPattern, previewPattern, appapi.ProxyPattern, functionapi.InvokePattern, functionapi.ProxyPattern:
		return true
	}
	return false
}

const (
	proxyPattern   = sandboxPath + "/proxy/{port}/{path...}"
	previewPattern = "/v1/p/{token}/{path...}"
	previewPrefix  = "/v1/p/"
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

// connectPort carries a connection to a port in a WebSocket. It connects first, so that a failure is an HTTP error.
func connectPort(rq *request) error {
	port, err := rq.port()
	if err == nil {
		err = socketOnly(rq)
	}
	if err != nil {
		return err
	}
	rq.action = "port " + strconv.Itoa(int(port))
	g, err := rq.guest()
	if err != nil {
		return err
	}
	conn, err := g.DialPort(rq.r.Context(), port)
	if err != nil {
		return hosterror.OfGuest(err, "port "+strconv.Itoa(int(port)))
	}
	defer conn.Close()
	socket, err := execstream.Accept(rq.w, rq.r)
	if err != nil {
		return err
	}
	wstunnel.Relay(rq.r.Context(), socket, conn)
	return nil
}

// splitForwardPath returns the route of a path that forwards to programs, its values, and the rest of the path.
//
// These routes are found before the multiplexer, which would redirect paths such as //x that a program may mean.
func splitForwardPath(escaped string) (pattern string, values map[string]string, rest string) {
	if after, ok := strings.CutPrefix(escaped, previewPrefix); ok {
		token, rest, _ := strings.Cut(after, "/")
		return previewPattern, map[string]string{"token": token}, "/" + rest
	}
	if after, ok := strings.CutPrefix(escaped, appapi.Path+"/"); ok {
		app, after, _ := strings.Cut(after, "/")
		if rest, ok := strings.CutPrefix(after, "proxy/"); ok {
			return appapi.ProxyPattern, map[string]string{"app": app}, "/" + rest
		}
		return "", nil, ""
	}
	if after, ok := strings.CutPrefix(escaped, functionapi.Path+"/"); ok {
		return splitFunctionPath(after)
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

// splitFunctionPath is splitForwardPath for what follows the path of all functions.
func splitFunctionPath(escaped string) (pattern string, values map[string]string, rest string) {
	fn, after, _ := strings.Cut(escaped, "/")
	values = map[string]string{"function": fn}
	if after == "http-invoke" {
		return functionapi.InvokePattern, values, ""
	}
	if rest, ok := strings.CutPrefix(after, "http-invoke/"); ok {
		return functionapi.ProxyPattern, values, "/" + rest
	}
	return "", nil, ""
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

// proxyPort forwards a request to a port of a sandbox, and wakes the sandbox if needed. The program gets the path below
// the route's own, without the caller's key.
func proxyPort(rq *request) error {
	port, err := rq.port()
	if err != nil {
		return err
	}
	id, err := rq.sandbox()
	if err != nil {
		return err
	}
	rq.action = "port " + strconv.Itoa(int(port))
	if rq.s.deps.Proxy == nil {
		return api.Errorf(api.Unsupported, "this server forwards to no ports")
	}
	g, box, err := rq.s.deps.Sandboxes.GuestAndSandbox(rq.r.Context(), rq.p, id)
	if err != nil {
		return err
	}
	r, prefix, err := rq.inner()
	if err != nil {
		return err
	}
	rq.s.deps.Proxy.Forward(rq.w, r, proxy.Route{
		Address: proxy.Address{Sandbox: string(id), Port: port},
		Sandbox: box,
		Guest:   g,
		Shared:  true,
		Prefix:  prefix,
		Fail:    func(w http.ResponseWriter, r *http.Request, err *api.Error) { rq.s.writeError(w, r, err) },
	})
	return nil
}

// inner returns a request that is forwarded as the program gets it, and what precedes its path.
func (rq *request) inner() (*http.Request, string, error) {
	r := rq.r.Clone(rq.r.Context())
	_, _, rest := splitForwardPath(rq.r.URL.EscapedPath())
	inner, err := url.ParseRequestURI(cmp.Or(rest, "/"))
	if err != nil {
		return nil, "", api.Errorf(api.Invalid, "the path that is forwarded is no path: %w", err)
	}
	r.URL.Path, r.URL.RawPath = inner.Path, inner.RawPath
	r.URL.RawQuery = proxy.RemoveParam(rq.r.URL.RawQuery, "access_token")
	r.Header.Del("Authorization")
	if list := r.Header.Values("Sec-Websocket-Protocol"); len(list) > 0 {
		r.Header["Sec-Websocket-Protocol"] = withoutBearer(list)
	}
	return r, strings.TrimSuffix(rq.r.URL.EscapedPath(), rest), nil
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
