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
)

// Limits of a connection to the API. Bodies and answers have none: files and streams take their time.
const (
	headerLimit = 20 * time.Second
	idleLimit   = 3 * time.Minute
)

// listen takes the address of the API.
func (n *node) listen(ctx context.Context) (net.Listener, error) {
	return n.listenAt(ctx, n.Config.Listen, "--listen")
}

func (n *node) listenAt(ctx context.Context, address, flag string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf(
			"address %s is in use by another program; stop it, or choose another with %s",
			address,
			flag,
		)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	n.back.Push("close listener", func(context.Context) error {
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	return l, nil
}

// url is where programs on this machine reach the API.
func (n *node) url(l net.Listener) string { return "http://" + local(l) }

// local is the address of a listener for programs on this machine.
func local(l net.Listener) string {
	host, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return l.Addr().String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// maxStreams is how many requests one HTTP/2 connection carries at once: clients put all their long commands
// on one.
const maxStreams = 2000

// serve answers requests, over TLS if secure is not nil, until the node stops: then no new one is taken, streams are ended, and the rest
// may finish.
func (n *node) serve(ctx context.Context, l net.Listener, handler http.Handler, secure *tls.Config) {
	base, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: headerLimit, IdleTimeout: idleLimit,
		BaseContext: func(net.Listener) context.Context { return base },
		ErrorLog:    slog.NewLogLogger(n.Log.Handler(), slog.LevelDebug), // what clients do wrong
		TLSConfig:   secure, Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(secure != nil)
	server.Protocols.SetUnencryptedHTTP2(secure == nil)
	answer := server.Serve
	if secure != nil {
		answer = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := answer(l); !errors.Is(err, http.ErrServerClosed) {
			n.fail(fmt.Errorf("serve the API: %w", err))
		}
	}()
	n.back.Push("stop the API", func(ctx context.Context) error {
		grace, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		err := server.Shutdown(grace)
		cut(errors.New("the node is stopping"))
		if err != nil { // streams and what they carry
			err = server.Shutdown(ctx)
		}
		<-done
		return errors.Join(err, server.Close())
	})
}
