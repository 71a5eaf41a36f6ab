// Package proxy is the door to ports inside sandboxes: it finds out from host name or headers which port
// of which sandbox a request is for, lets in who may, and forwards HTTP/1.1, HTTP/2, WebSockets, server-
// sent events and gRPC to it.
//
// It owns addresses, answers and connections to guests. What a sandbox is, whether it runs, and waking
// it, belongs to the Sandboxes it is given. Connections are kept by sandbox, generation and port, so none
// outlives a restore. Everything may run at once.
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

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// Target is a sandbox that runs now, as one request sees it.
type Target struct {
	ID           string
	Generation   uint64
	Guest        guestapi.Guest
	AccessToken  string            // of the agent's port
	TrafficToken string            // of all other ports; "": they are public
	PreviewKey   []byte            // signs previews, which open a private port; nil: none does
	MaskHost     string            // Host that programs inside see, with ${PORT}; "": localhost:${PORT}
	TLSPorts     []int             // on which programs inside speak TLS
	User         string            // default user
	Env          map[string]string // of the sandbox
}

// ErrNotFound says that a sandbox is not there, or that it is at rest and requests do not wake it.
var ErrNotFound = errors.New("the sandbox was not found")

// Sandboxes finds sandboxes. Open wakes one that may be woken by a request and answers when it runs; many
// requests that wait for one sandbox wake it once. A private one at rest is woken only if wakes, which is asked
// about a target without a guest, says so. ErrNotFound for one that is not to be had.
type Sandboxes interface {
	Open(ctx context.Context, id string, wakes func(Target) bool) (Target, error)
}

// Service answers a port by itself, on the host, instead of a program in the guest. It lets in whom it likes;
// Target.Admit has the rule for ports.
type Service func(w http.ResponseWriter, r *http.Request, t Target)

// Proxy forwards requests. Make one with New.
type Proxy struct {
	sandboxes Sandboxes
	services  map[uint16]Service
	log       *slog.Logger
	proxy     *httputil.ReverseProxy
	plain     *http.Transport
	h2c       *http.Transport
	secure    *http.Transport
}

// New makes an edge. services are the ports answered on the host.
func New(sandboxes Sandboxes, services map[uint16]Service, log *slog.Logger) *Proxy {
	e := &Proxy{sandboxes: sandboxes, services: services, log: log}
	e.plain, e.h2c, e.secure = e.transport(), e.transport(), e.transport()
	e.plain.Protocols.SetHTTP1(true)
	e.h2c.Protocols.SetUnencryptedHTTP2(true)
	e.secure.Protocols.SetHTTP1(true)
	e.secure.Protocols.SetHTTP2(true)
	// There is no network on the way to a guest, and nobody vouches for what a guest calls itself.
	e.secure.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	e.proxy = &httputil.ReverseProxy{
		Rewrite:       e.rewrite,
		Transport:     e,
		FlushInterval: -1, // every write at once: what is forwarded may be a stream of events
		ErrorHandler:  e.handleError,
		ErrorLog:      slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return e
}

// Limits of connections to one port of one sandbox, and of those in all.
const (
	maxIdlePerPort = 8
	maxIdle        = 1024
	idleTimeout    = 60 * time.Second
)

func (e *Proxy) transport() *http.Transport {
	return &http.Transport{
		DialContext:         e.dial,
		MaxIdleConns:        maxIdle,
		MaxIdleConnsPerHost: maxIdlePerPort,
		IdleConnTimeout:     idleTimeout,
		DisableCompression:  true, // bodies pass as they are
		Protocols:           new(http.Protocols),
	}
}

// Close drops idle connections to guests.
func (e *Proxy) Close() {
	e.plain.CloseIdleConnections()
	e.h2c.CloseIdleConnections()
	e.secure.CloseIdleConnections()
}

// Middleware answers requests that are for a sandbox and passes all others to next.
func (e *Proxy) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, ours, err := AddressOf(r)
		switch {
		case !ours:
			next.ServeHTTP(w, r)
		case err != nil:
			writeError(w, r, http.StatusBadRequest, errorBody{Message: err.Error()})
		default:
			e.serve(w, r, p)
		}
	})
}

func (e *Proxy) serve(w http.ResponseWriter, r *http.Request, p Address) {
	t, err := e.sandboxes.Open(r.Context(), p.Sandbox, func(t Target) bool { return e.mayWake(r, t, p.Port) })
	if err != nil {
		if !errors.Is(err, ErrNotFound) {
			e.log.Error("sandbox could not be opened for a request", "sandbox", p.Sandbox, "err", err)
		}
		writeError(w, r, http.StatusBadGateway, errorBody{Sandbox: p.Sandbox, Message: "The sandbox was not found"})
		return
	}
	if svc := e.services[p.Port]; svc != nil {
		svc(w, r, t)
		return
	}
	if r, ok := t.Admit(w, r, p.Port); ok {
		e.Forward(w, r, t, p.Port)
	}
}

// mayWake tells whether a request may wake a private sandbox: whether it has what opens its port, or, of a port
// that is answered here, a token of its own or a signature, whose check comes later.
func (e *Proxy) mayWake(r *http.Request, t Target, port uint16) bool {
	if t.passOf(r, port) != passNone {
		return true
	}
	if e.services[port] == nil || t.AccessToken == "" {
		return false
	}
	return equal(r.Header.Get("X-Access-Token"), t.AccessToken) || r.URL.Query().Has("signature")
}

type forward struct {
	target Target
	port   uint16
}

type forwardKey struct{}

// Forward passes a request to a port of a sandbox. The caller has let it in, and r.URL holds the path
// that the program inside shall see.
func (e *Proxy) Forward(w http.ResponseWriter, r *http.Request, t Target, port uint16) {
	e.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), forwardKey{}, forward{t, port})))
}

// rewrite addresses the guest. Development servers (Vite, Next) answer only for localhost, in the Host
// and in the Origin of upgrades, so both say so; what the client asked for is in X-Forwarded-Host.
func (e *Proxy) rewrite(pr *httputil.ProxyRequest) {
	f, _ := pr.In.Context().Value(forwardKey{}).(forward)
	pr.SetXForwarded()
	pr.Out.URL.Scheme = "http"
	if slices.Contains(f.target.TLSPorts, int(f.port)) {
		pr.Out.URL.Scheme = "https"
	}
	pr.Out.URL.Host = fmt.Sprintf("%s.%d:%d", f.target.ID, f.target.Generation, f.port)
	mask := f.target.MaskHost
	if mask == "" {
		mask = "localhost:${PORT}"
	}
	pr.Out.Host = strings.ReplaceAll(mask, "${PORT}", strconv.Itoa(int(f.port)))
	if o, err := url.Parse(pr.In.Header.Get("Origin")); err == nil && o.Host != "" &&
		strings.EqualFold(o.Host, pr.In.Host) {
		pr.Out.Header.Set("Origin", pr.Out.URL.Scheme+"://"+pr.Out.Host)
	}
	pr.Out.Header.Del(TrafficHeader)
	pr.Out.Header.Del("E2b-Sandbox-Id")
	pr.Out.Header.Del("E2b-Sandbox-Port")
}

// RoundTrip sends a request that the proxy has rewritten; gRPC needs HTTP/2 to the program inside.
func (e *Proxy) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme == "https" {
		return e.secure.RoundTrip(r)
	}
	if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		return e.h2c.RoundTrip(r)
	}
	return e.plain.RoundTrip(r)
}

// dialTimeout bounds how long a port may take to accept.
const dialTimeout = 10 * time.Second

// dial connects to the guest that the address names; the sandbox is asked for again, because the request
// that a connection is made for may have found an earlier generation.
func (e *Proxy) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, err
	}
	id, generation, _ := strings.Cut(host, ".")
	t, err := e.sandboxes.Open(ctx, id, func(Target) bool { return true }) // the request was let in
	if err != nil {
		return nil, err
	}
	if strconv.FormatUint(t.Generation, 10) != generation {
		return nil, fmt.Errorf("%w: it was restored in the meantime", guestapi.ErrLost)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout, errors.New("the port did not accept in time"))
	defer cancel()
	return t.Guest.DialPort(ctx, uint16(port))
}

func (e *Proxy) handleError(w http.ResponseWriter, r *http.Request, err error) {
	f, _ := r.Context().Value(forwardKey{}).(forward)
	b := errorBody{Sandbox: f.target.ID, Port: int(f.port)}
	switch {
	case errors.Is(err, guestapi.ErrRefused), errors.Is(err, guestapi.ErrNotFound):
		b.Message = "The sandbox is running but port is not open"
	case errors.Is(err, ErrNotFound):
		b.Port, b.Message = 0, "The sandbox was not found"
	case errors.Is(r.Context().Err(), context.Canceled):
		return // the client has gone
	default:
		e.log.Debug("request was not forwarded", "sandbox", f.target.ID, "err", err)
		b.Message = "The sandbox did not answer on this port"
	}
	writeError(w, r, http.StatusBadGateway, b)
}
