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

// serveHTTP proxies the requests of a connection whose first bytes are first. It checks the host of every request,
// not of the first alone.
func (c *conn) serveHTTP(first []byte) {
	ended := make(chan struct{})
	end := sync.OnceFunc(func() { c.cancel(nil); close(ended) })
	l := &oneConn{ctx: c.ctx, conn: &prefixed{Conn: c.client, rest: io.MultiReader(bytes.NewReader(first), c.client)}}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return c.dial(ctx)
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
			if s == http.StateClosed { // its last handler has returned; an upgraded connection ends with its handler
				end()
			}
		},
	}
	_ = server.Serve(l) // ends with the connection's context
	_ = server.Close()
	<-ended
}

// handler checks each request and proxies it to the server that the guest connected to. It calls end after a request
// that took over the connection, as WebSockets do.
func (c *conn) handler(transport http.RoundTripper, end func()) http.Handler {
	target := &url.URL{Scheme: "http", Host: c.to.String()}
	proxy := &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = target.Scheme, target.Host
			r.Out.Host = r.In.Host
			for k, v := range r.In.Header { // keep the guest's own forwarding headers
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
		if !strings.EqualFold(strings.Join(r.Header.Values("Upgrade"), ","), "websocket") {
			r.Header.Del("Upgrade") // the hosts of requests in another protocol, such as h2c, would not be seen
		}
		t := &hijackTracker{ResponseWriter: w}
		proxy.ServeHTTP(t, r)
		if t.over {
			end()
		}
	})
}

// hijackTracker records whether the connection was taken over.
type hijackTracker struct {
	http.ResponseWriter
	over bool
}

// Unwrap lets http.ResponseController find the writer's abilities.
func (t *hijackTracker) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// Hijack takes over the connection.
func (t *hijackTracker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(t.ResponseWriter).Hijack()
	t.over = err == nil
	return c, rw, err
}

// hostName returns the host of a request, as policies spell it; "" for an address or none.
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
		return "", errors.New("host is not a valid name")
	}
	return name, nil
}

// prefixed is a connection whose first bytes were read already.
type prefixed struct {
	net.Conn
	rest io.Reader
}

// Read returns the bytes that were read already, then the rest.
func (p *prefixed) Read(b []byte) (int, error) { return p.rest.Read(b) }

// oneConn is a listener that accepts one connection and ends with a context.
type oneConn struct {
	ctx  context.Context // of the connection
	mu   sync.Mutex
	conn net.Conn // nil once accepted
}

// Accept returns the connection once, then waits for the end.
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

// Addr returns a placeholder; its value is not used.
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }
