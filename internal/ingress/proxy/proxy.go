// Package proxy forwards HTTP requests to ports inside sandboxes.
//
// A Resolver finds the route of a request: which port of which running sandbox it is for. The route says who may reach
// the port and carries the connection to the guest. The Proxy then forwards HTTP/1.1, HTTP/2, WebSockets, server-sent
// events and gRPC over it. The package also has the certificates that a node serves names of sandboxes with.
//
// The package owns addresses, error pages, previews and connections to guests. The sandbox service decides whether a
// sandbox exists and wakes it. Rules of other protocols (E2B's tokens and headers, services on reserved ports) come in
// as Policy, Addresser and Service.
//
// Invariants. A request is counted by the limiter before anything else is done for it, and looks its sandbox up once.
// Connections are pooled by sandbox, generation and port, so that none outlives a restore. A private sandbox is woken
// by nothing that may not reach it.
//
// All requests may run at once.
package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/ingress/bodyrate"
)

// Config configures a Proxy.
type Config struct {
	Resolver    Resolver // nil: Middleware passes everything on
	Limits      Limiter  // of the requests that Middleware serves; nil: there are none
	HideHeaders []string // that programs never see: addresses and credentials of other protocols
	// IsKey reports whether a text has the form of a key of the API. Programs never see one in a header or a query.
	// nil: no text has.
	IsKey func(text string) bool
	Log   *slog.Logger
}

// Proxy forwards requests to ports of sandboxes. Make one with New.
type Proxy struct {
	cfg   Config
	proxy *httputil.ReverseProxy
	plain *http.Transport
	h2c   *http.Transport
	tls   *http.Transport
}

// New returns a proxy. It starts nothing.
func New(cfg Config) *Proxy {
	p := &Proxy{cfg: cfg}
	p.plain, p.h2c, p.tls = newTransport(), newTransport(), newTransport()
	p.plain.Protocols.SetHTTP1(true)
	p.h2c.Protocols.SetUnencryptedHTTP2(true)
	p.tls.Protocols.SetHTTP1(true)
	p.tls.Protocols.SetHTTP2(true)
	// The connection to a guest crosses no network, and no authority vouches for the names that guests use.
	p.tls.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	p.proxy = &httputil.ReverseProxy{
		Rewrite:        p.rewrite,
		ModifyResponse: isolate,
		Transport:      p,
		FlushInterval:  -1, // flush every write: the response may be a stream of events
		ErrorHandler:   p.handleError,
		ErrorLog:       slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	return p
}

// Limits of idle connections: to one port of one sandbox, to all, and how long they are kept. maxResponseHeader bounds
// the headers of a program's response, in bytes.
const (
	maxResponseHeader = 256 << 10

	maxIdlePerPort = 8
	maxIdle        = 1024
	idleTimeout    = 60 * time.Second
)

func newTransport() *http.Transport {
	return &http.Transport{
		DialContext:            dial,
		MaxIdleConns:           maxIdle,
		MaxIdleConnsPerHost:    maxIdlePerPort,
		IdleConnTimeout:        idleTimeout,
		DisableCompression:     true, // bodies pass as they are
		MaxResponseHeaderBytes: maxResponseHeader,
		Protocols:              new(http.Protocols),
	}
}

// Close closes idle connections to guests.
func (p *Proxy) Close() {
	p.plain.CloseIdleConnections()
	p.h2c.CloseIdleConnections()
	p.tls.CloseIdleConnections()
}

// Middleware serves requests that the resolver has a route for and passes all others to next.
func (p *Proxy) Middleware(next http.Handler) http.Handler {
	if p.cfg.Resolver == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a, err := p.cfg.Resolver.Address(r)
		switch {
		case errors.Is(err, ErrNoRoute):
			next.ServeHTTP(w, r)
			return
		case err != nil:
			writeError(w, r, http.StatusBadRequest, errorBody{Message: err.Error()})
			return
		}
		if p.cfg.Limits != nil {
			if err := p.cfg.Limits.Admit(w, r, a.Sandbox, a.Port); err != nil {
				writeRefusal(w, r, a, err)
				return
			}
		}
		rt, err := p.cfg.Resolver.Open(r, a)
		switch {
		case err == nil:
			p.serve(w, r, rt)
		case isRefusal(err):
			writeRefusal(w, r, a, err)
		default:
			if !errors.Is(err, ErrNotFound) {
				p.cfg.Log.Error("sandbox could not be opened for a request", "sandbox", a.Sandbox, "err", err)
			}
			b := errorBody{Sandbox: a.Sandbox, Message: "The sandbox was not found", ErrorCode: api.NotFound}
			if !errors.Is(err, ErrNotFound) {
				b.ErrorCode = api.Unavailable
			}
			writeError(w, r, http.StatusBadGateway, b)
		}
	})
}

// isRefusal reports whether the workspace of a sandbox is suspended or may not have the sandbox running, or the request
// may not wake it.
func isRefusal(err error) bool {
	code := api.CodeOf(err)
	return code == api.WorkspaceSuspended || code == api.QuotaExceeded || code == api.Forbidden
}

// writeRefusal sends a refusal with its own code.
func writeRefusal(w http.ResponseWriter, r *http.Request, a Address, err error) {
	e := api.AsError(err)
	writeError(w, r, e.Code.Info().Status, errorBody{Sandbox: a.Sandbox, Message: e.Message, ErrorCode: e.Code})
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, rt Route) {
	if rt.Service != nil {
		rt.Service.ServeRoute(w, r, rt)
		return
	}
	if r, ok := rt.CheckAccess(w, r); ok {
		p.Forward(w, r, rt)
	}
}

// Forward passes a request to a port of a sandbox. The caller has authorized it.
//
// r.URL has the path that the program inside shall see.
func (p *Proxy) Forward(w http.ResponseWriter, r *http.Request, rt Route) {
	if status, why := isForbidden(r, rt); why != "" {
		p.fail(w, r, rt, status, api.Errorf(api.CodeOfStatus(status), "%s", why))
		return
	}
	if r.ContentLength < 0 { // it may be a stream, whose pace is the program's affair
		bodyrate.Exempt(r)
	}
	p.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), routeKey{}, rt)))
}

// rewrite addresses the guest. Development servers (Vite, Next) serve only requests for localhost, in the Host and in
// the Origin of upgrades, so both say localhost; X-Forwarded-Host has the host that the client asked for.
func (p *Proxy) rewrite(pr *httputil.ProxyRequest) {
	rt, _ := routeOf(pr.In.Context()) // a request without a route fails in dial
	network := rt.Sandbox.Network
	if network == nil {
		network = &api.Network{}
	}
	port := strconv.Itoa(int(rt.Address.Port))
	pr.SetXForwarded()
	if isTLS(pr.In) { // of a trusted proxy, which ends TLS for this node
		pr.Out.Header.Set("X-Forwarded-Proto", "https")
	}
	pr.Out.URL.Scheme = "http"
	if slices.Contains(network.TLSPorts, int(rt.Address.Port)) {
		pr.Out.URL.Scheme = "https"
	}
	pr.Out.URL.Host = rt.pool()
	host := network.PortHost
	if host == "" {
		host = "localhost:" + api.PortVariable
	}
	pr.Out.Host = strings.ReplaceAll(host, api.PortVariable, port)
	if rt.PublicHost {
		pr.Out.Host = pr.In.Host
	}
	if o, err := url.Parse(pr.In.Header.Get("Origin")); err == nil && o.Host != "" && !rt.PublicHost &&
		strings.EqualFold(o.Host, pr.In.Host) {
		pr.Out.Header.Set("Origin", pr.Out.URL.Scheme+"://"+pr.Out.Host)
	}
	pr.Out.Header.Del("X-Forwarded-Prefix")
	if rt.Prefix != "" {
		pr.Out.Header.Set("X-Forwarded-Prefix", rt.Prefix)
	}
	// Other protocols than WebSocket would carry requests past the rules for paths and headers.
	if up := pr.Out.Header.Get("Upgrade"); up != "" && !strings.EqualFold(up, "websocket") {
		pr.Out.Header.Del("Upgrade")
		pr.Out.Header.Del("Connection")
	}
	pr.Out.Header.Del("Http2-Settings")
	if rt.Shared && rt.Prefix == "" {
		pr.Out.Header.Del("Cookie")
	}
	p.dropCredentials(pr.Out, rt)
}

// RoundTrip implements http.RoundTripper for requests that were rewritten.
func (p *Proxy) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.WithContext(routeOnly{r.Context()})
	rt, _ := routeOf(r.Context())
	if rt.Again == nil {
		return p.send(r)
	}
	body := r.Body
	if body != nil { // a transport closes the body of a request that it could not send
		r.Body = unclosed{body}
	}
	res, err := p.send(r)
	if _, unsent := errors.AsType[*dialError](err); !unsent || r.Context().Err() != nil {
		return res, err
	}
	next, ok := rt.Again(r.Context(), err)
	if !ok {
		return res, err
	}
	again := r.WithContext(routeOnly{context.WithValue(r.Context(), routeKey{}, next)})
	u := *r.URL
	u.Host = next.pool()
	again.URL = &u
	return p.send(again)
}

// unclosed is a body that its reader does not close: ReverseProxy does, when it has the response.
type unclosed struct{ io.Reader }

// Close implements io.Closer.
func (unclosed) Close() error { return nil }

// send sends a request over the transport for its protocol. gRPC needs HTTP/2 up to the program inside.
func (p *Proxy) send(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme == "https" {
		return p.tls.RoundTrip(r)
	}
	if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		return p.h2c.RoundTrip(r)
	}
	return p.plain.RoundTrip(r)
}

// dialTimeout bounds how long a port may take to accept a connection.
const dialTimeout = 10 * time.Second

// dial connects to the port of the route in ctx, which is the context of the request that the transport wants the
// connection for. The guest of the route belongs to one generation: after a restore it returns guestapi.ErrLost, so
// that no connection of the pool named by addr reaches another generation.
func dial(ctx context.Context, _, addr string) (net.Conn, error) {
	rt, ok := routeOf(ctx)
	if !ok {
		return nil, fmt.Errorf("%s: the request has no route", addr)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout, errors.New("the port did not accept in time"))
	defer cancel()
	c, err := rt.Guest.DialPort(ctx, rt.Address.Port)
	if err != nil {
		return nil, &dialError{err}
	}
	return c, nil
}

// dialError is why a request has no connection. Nothing of the request was sent.
type dialError struct{ error }

// Unwrap returns the cause.
func (e *dialError) Unwrap() error { return e.error }

func (p *Proxy) handleError(w http.ResponseWriter, r *http.Request, err error) {
	rt, _ := routeOf(r.Context()) // only Forward makes requests that can fail here
	cause := context.Cause(r.Context())
	if slow, ok := errors.AsType[*api.Error](err); ok && slow.Code == api.RequestTimeout {
		p.fail(w, r, rt, slow.Code.Info().Status, api.Wrap(slow.Code, err, slow.Message))
		return
	}
	if ended := notFound(err); errors.Is(ended, ErrNotFound) {
		p.fail(w, r, rt, http.StatusBadGateway, api.Wrap(api.CodeOf(err), err, api.AsError(err).Message))
		return
	}
	switch {
	case errors.Is(err, guestapi.ErrRefused), errors.Is(err, guestapi.ErrNotFound):
		p.fail(w, r, rt, http.StatusBadGateway,
			api.Wrap(api.Unreachable, err, "The sandbox is running but port is not open"))
	case errors.Is(err, guestapi.ErrBusy):
		w.Header().Set("Retry-After", "1")
		p.fail(w, r, rt, api.QuotaExceeded.Info().Status, api.Wrap(api.QuotaExceeded, err, err.Error()))
	case errors.Is(cause, context.Canceled):
		return // the client has closed the connection
	case cause != nil: // the preview has ended, or the node is stopping
		p.fail(w, r, rt, http.StatusBadGateway, api.Errorf(api.Unreachable, "The request was ended: %v", cause))
	default:
		p.cfg.Log.Debug("request was not forwarded", "sandbox", rt.Address.Sandbox, "err", err)
		p.fail(w, r, rt, http.StatusBadGateway,
			api.Wrap(api.Unreachable, err, "The sandbox did not answer on this port"))
	}
}

// fail sends an error of a request to a port, in the form of the API that forwards the request.
func (p *Proxy) fail(w http.ResponseWriter, r *http.Request, rt Route, status int, err *api.Error) {
	if rt.Fail != nil {
		rt.Fail(w, r, err.With("sandbox_id", rt.Address.Sandbox).With("port", int(rt.Address.Port)))
		return
	}
	writeError(w, r, status, errorBody{
		Sandbox: rt.Address.Sandbox, Port: int(rt.Address.Port), Message: err.Message, ErrorCode: err.Code,
	})
}
