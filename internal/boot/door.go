package boot

import (
	"context"
	"errors"
	"fmt"
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
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", n.Config.Listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("address %s is in use by another program; stop it, or choose another with --listen", n.Config.Listen)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", n.Config.Listen, err)
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
func (n *node) url(l net.Listener) string {
	host, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return "http://" + l.Addr().String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port)
}

// serve answers requests until the node stops: then no new one is taken, streams are ended, and the rest
// may finish.
func (n *node) serve(ctx context.Context, l net.Listener, handler http.Handler) {
	base, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: headerLimit, IdleTimeout: idleLimit,
		BaseContext: func(net.Listener) context.Context { return base },
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
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
