// Package accept serves the connections of a listener, each in a goroutine of its own, and names their clients for
// limits.
package accept

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Bounds of the pause after an error, such as a shortage of file descriptors.
const (
	minPause = time.Millisecond
	maxPause = time.Second
)

// Server serves connections with Handle.
type Server struct {
	// Handle serves one connection until ctx ends. The connection is closed when it returns.
	Handle func(ctx context.Context, conn net.Conn)
	// Drain, if it is set, is called when no more connections are accepted, with a context that has not ended. Serve
	// waits for it and then for all calls of Handle.
	Drain func(ctx context.Context)
	Log   *slog.Logger
}

// Serve accepts connections until ctx ends, and closes the listener.
//
// It returns when all connections are closed; the error is nil if ctx ended. Errors other than that of a listener that
// is closed are logged, and Serve continues after a pause.
func (s Server) Serve(ctx context.Context, listener net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() }) // ends Accept
	defer stop()
	serving, end := context.WithCancel(ctx)
	defer end()
	var connections sync.WaitGroup
	err := s.accept(serving, listener, &connections)
	end()
	_ = listener.Close() // of an error that is returned, or again
	if s.Drain != nil {
		s.Drain(context.WithoutCancel(ctx))
	}
	connections.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (s Server) accept(ctx context.Context, listener net.Listener, connections *sync.WaitGroup) error {
	for pause := time.Duration(0); ; {
		conn, err := listener.Accept()
		switch {
		case err == nil:
			pause = 0
			connections.Go(func() {
				defer conn.Close()
				s.Handle(ctx, conn)
			})
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default: // out of file descriptors, or a client that went away before it was accepted
			pause = min(max(2*pause, minPause), maxPause)
			s.Log.Warn("accept a connection", "address", listener.Addr(), "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	}
}

// Address returns the IP address of a connection, from "192.0.2.1:1234", or the zero one.
func Address(remote string) netip.Addr {
	a, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	return a.Addr().Unmap().WithZone("")
}

// Network returns the name under which an address is limited.
//
// For IPv6 it is that of the network of 64 bits, since a client has all its addresses.
func Network(a netip.Addr) string {
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.String()
		}
	}
	return a.String()
}
