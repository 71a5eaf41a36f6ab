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
// Invariants. A request looks its sandbox up once. Connections are pooled by sandbox, generation and port, so that none
// outlives a restore. A private sandbox is woken by nothing that may not reach it.
//
// All requests may run at once.
package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
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
)

// Config configures a Proxy.
type Config struct {
	Resolver    Resolver // nil: Middleware passes everything on
	HideHeaders []string // that programs never see: addresses and credentials of other protocols
	Log         *slog.Logger
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
		Rewrite:       p.rewrite,
		Transport:     p,
		FlushInterval: -1, // flush every write: the response may be a stream of events
		ErrorHandler:  p.handleError,
		ErrorLog:      slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	return p
}

// Limits of idle connections: to one port of one sandbox, to all, and how long they are kept.
const (
	maxIdlePerPort = 8
	maxIdle        = 1024
	idleTimeout    = 60 * time.Second
)

func newTransport() *http.Transport {
	return &http.Transport{
		DialContext:         dial,
		MaxIdleConns:        maxIdle,
		MaxIdleConnsPerHost: maxIdlePerPort,
		IdleConnTimeout:     idleTimeout,
		DisableCompression:  true, // bodies pass as they are
		Protocols:           new(http.Protocols),
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
		rt, err := p.cfg.Resolver.Resolve(r)
		switch {
		case err == nil:
			p.serve(w, r, rt)
		case errors.Is(err, ErrNoRoute):
			next.ServeHTTP(w, r)
		case errors.Is(err, ErrMalformed):
			writeError(w, r, http.StatusBadRequest, errorBody{Message: err.Error()})
		default:
			if !errors.Is(err, ErrNotFound) {
				p.cfg.Log.Error("sandbox could not be opened for a request", "sandbox", rt.Address.Sandbox, "err", err)
			}
			b := errorBody{Sandbox: rt.Address.Sandbox, Message: "The sandbox was not found"}
			writeError(w, r, http.StatusBadGateway, b)
		}
	})
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
	pr.Out.URL.Scheme = "http"
	if slices.Contains(network.TLSPorts, int(rt.Address.Port)) {
		pr.Out.URL.Scheme = "https"
	}
	pr.Out.URL.Host = fmt.Sprintf("%s.%d:%s", rt.Address.Sandbox, rt.Sandbox.Generation, port) // the key of the pool
	host := network.PortHost
	if host == "" {
		host = "localhost:" + api.PortVariable
	}
	pr.Out.Host = strings.ReplaceAll(host, api.PortVariable, port)
	if o, err := url.Parse(pr.In.Header.Get("Origin")); err == nil && o.Host != "" &&
		strings.EqualFold(o.Host, pr.In.Host) {
		pr.Out.Header.Set("Origin", pr.Out.URL.Scheme+"://"+pr.Out.Host)
	}
	for _, name := range p.cfg.HideHeaders {
		pr.Out.Header.Del(name)
	}
}

// RoundTrip implements http.RoundTripper for requests that were rewritten. gRPC needs HTTP/2 up to the program inside.
func (p *Proxy) RoundTrip(r *http.Request) (*http.Response, error) {
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
	return rt.Guest.DialPort(ctx, rt.Address.Port)
}

func (p *Proxy) handleError(w http.ResponseWriter, r *http.Request, err error) {
	rt, _ := routeOf(r.Context()) // only Forward makes requests that can fail here
	b := errorBody{Sandbox: rt.Address.Sandbox, Port: int(rt.Address.Port)}
	switch {
	case errors.Is(err, guestapi.ErrRefused), errors.Is(err, guestapi.ErrNotFound):
		b.Message = "The sandbox is running but port is not open"
	case errors.Is(r.Context().Err(), context.Canceled):
		return // the client has closed the connection
	default:
		p.cfg.Log.Debug("request was not forwarded", "sandbox", rt.Address.Sandbox, "err", err)
		b.Message = "The sandbox did not answer on this port"
	}
	writeError(w, r, http.StatusBadGateway, b)
}
