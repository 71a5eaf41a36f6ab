package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/pandastack/pandastack/internal/ingress/proxy"
	"github.com/pandastack/pandastack/internal/lib/accept"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// Time limits of a connection to the API. Responses have none: they can be large files or long-lived streams. Package
// bodyrate bounds how slowly requests come.
const (
	headerLimit = 20 * time.Second
	idleLimit   = 3 * time.Minute
)

// listen listens on the address of the API.
func (n *node) listen(ctx context.Context) (net.Listener, error) {
	return n.listenAt(ctx, n.Config.Listen, "--listen")
}

// listenAt listens on an address until the node stops. flag is the option that sets the address, for errors.
func (n *node) listenAt(ctx context.Context, address, flag string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf(
			"address %s is in use by another program; stop that program, or choose another address with %s",
			address,
			flag,
		)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	n.undo.Push("close listener", func(context.Context) error {
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	return limitedListener{l, n.shares.connections}, nil
}

// url returns the URL of the API for programs on this host.
func (n *node) url(l net.Listener) string { return "http://" + localAddress(l) }

// localAddress returns the address of a listener for programs on this host.
func localAddress(l net.Listener) string {
	host, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return l.Addr().String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// maxHeader bounds the headers of a request, in bytes. The handler refuses requests with fewer already, in the form of
// other errors; this bound is for what must not be read.
const maxHeader = 4 * proxy.MaxHeader

// maxStreams is the number of concurrent requests on one HTTP/2 connection. Clients run all their long commands over
// a single connection. The server counts streams that a client resets until their handlers have ended.
const maxStreams = 2000

// serve serves requests until the node stops, over TLS if secure is not nil. On stop it accepts no new requests, ends
// streams, and lets other requests finish.
func (n *node) serve(ctx context.Context, l net.Listener, handler http.Handler, secure *tls.Config) {
	base, endStreams := context.WithCancelCause(context.WithoutCancel(ctx))
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: headerLimit, IdleTimeout: idleLimit, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return base },
		ErrorLog:    slog.NewLogLogger(n.Log.Handler(), slog.LevelDebug), // errors of clients
		TLSConfig:   secure, Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(secure != nil)
	server.Protocols.SetUnencryptedHTTP2(secure == nil)
	serve := server.Serve
	if secure != nil {
		serve = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := serve(l); !errors.Is(err, http.ErrServerClosed) {
			n.fail(fmt.Errorf("serve the API: %w", err))
		}
	}()
	n.undo.Push("stop the API", func(ctx context.Context) error {
		grace, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		err := server.Shutdown(grace)
		endStreams(errors.New("the node is stopping"))
		if err != nil { // streams were open: wait again now that they end
			err = server.Shutdown(ctx)
		}
		<-done
		return errors.Join(err, server.Close())
	})
}

// limitedListener accepts connections as long as their address has a share of them left, and closes all others.
type limitedListener struct {
	net.Listener
	places *budget.Pool
}

func (l limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		tcp, ok := c.(*net.TCPConn)
		if !ok {
			return c, nil
		}
		place := l.places.Open(accept.Network(accept.Address(c.RemoteAddr().String())))
		if place.Take(1) == nil {
			return &limitedConn{tcp, place}, nil
		}
		place.Close()
		_ = c.Close() // the client is over its share, and learns no more
	}
}

// limitedConn returns its place when it is closed.
type limitedConn struct {
	*net.TCPConn
	place *budget.Account
}

func (c *limitedConn) Close() error {
	c.place.Close()
	return c.TCPConn.Close()
}
