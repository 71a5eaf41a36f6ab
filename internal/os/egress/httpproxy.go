package egress

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"
)

const maxRequestHeader = 64 << 10

// serveHTTP passes on the requests of a connection that began with first, each by itself: the host of every
// one is asked for, not of the first alone.
func (c *conn) serveHTTP(first []byte) {
	ended := make(chan struct{})
	end := sync.OnceFunc(func() { c.cancel(nil); close(ended) })
	l := &oneConn{ctx: c.ctx, conn: &prefixed{Conn: c.client, rest: io.MultiReader(bytes.NewReader(first), c.client)}}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return c.proxy.cfg.Dial(ctx, c.to)
		},
		DisableCompression:  true,
		MaxIdleConnsPerHost: 1,
		IdleConnTimeout:     time.Minute,
	}
	defer transport.CloseIdleConnections()
	server := &http.Server{
		Handler:           c.handler(transport, end),
		ReadHeaderTimeout: helloLimit,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    maxRequestHeader,
		ErrorLog:          slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		BaseContext:       func(net.Listener) context.Context { return c.ctx },
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateClosed { // its last handler has returned; an upgraded one ends with its handler
				end()
			}
		},
	}
	_ = server.Serve(l) // ends with the connection's context
	_ = server.Close()
	<-ended
}

// handler checks each request and passes it to the server that the guest connected to. It calls end when a
// request that took the whole connection, as WebSockets do, is over.
func (c *conn) handler(transport http.RoundTripper, end func()) http.Handler {
	target := &url.URL{Scheme: "http", Host: c.to.String()}
	proxy := &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = target.Scheme, target.Host
			r.Out.Host = r.In.Host
			for k, v := range r.In.Header { // what the guest says of forwarding is the guest's
				if strings.HasPrefix(k, "X-Forwarded-") || k == "Forwarded" {
					r.Out.Header[k] = v
				}
			}
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, err := hostName(r)
		if err != nil || r.Method == http.MethodConnect || !c.allowed(KindHTTP, name) {
			w.Header().Set("Connection", "close")
			http.Error(w, "The egress policy does not allow this request.", http.StatusForbidden)
			return
		}
		t := &taken{ResponseWriter: w}
		proxy.ServeHTTP(t, r)
		if t.over {
			end()
		}
	})
}

// taken notes whether the connection was taken over.
type taken struct {
	http.ResponseWriter
	over bool
}

// Unwrap lets http.ResponseController find what the writer can.
func (t *taken) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// Hijack gives the connection away.
func (t *taken) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(t.ResponseWriter).Hijack()
	t.over = err == nil
	return c, rw, err
}

// hostName is the host that a request is for, as policies spell it; "" for an address or none.
func hostName(r *http.Request) (string, error) {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if host == "" {
		return "", nil
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return "", nil
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if !validName(name) {
		return "", errors.New("host is no name")
	}
	return name, nil
}

// prefixed is a connection of which something was read already.
type prefixed struct {
	net.Conn
	rest io.Reader
}

// Read gives what was read already, then the rest.
func (p *prefixed) Read(b []byte) (int, error) { return p.rest.Read(b) }

// oneConn is a listener that gives one connection and ends with a context.
type oneConn struct {
	ctx  context.Context // of the connection
	mu   sync.Mutex
	conn net.Conn // +checklocks:mu; nil once given
}

// Accept gives the connection once, then waits for the end.
func (l *oneConn) Accept() (net.Conn, error) {
	l.mu.Lock()
	c := l.conn
	l.conn = nil
	l.mu.Unlock()
	if c != nil {
		return c, nil
	}
	<-l.ctx.Done()
	return nil, net.ErrClosed
}

// Close does nothing: the connection's owner closes it.
func (l *oneConn) Close() error { return nil }

// Addr is the connection's local address, of no use to anybody.
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }
