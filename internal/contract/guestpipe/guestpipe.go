// Package guestpipe is the host's end of hostapi.Host.DialGuest: it serves a guest over a byte stream.
//
// The stream carries the guest protocol, as package guestlink speaks it. Only what users of a guest need is
// served: Freeze, Thaw, Restore and volumes belong to the host.
package guestpipe

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/guest/server"
)

// New returns a channel to g whose other end is in this process.
//
// A caller in this process may use Guest instead of the stream, which costs nothing until its first use. Of ctx, only
// the values are used.
func New(ctx context.Context, g guestapi.Guest, generation uint64) hostapi.GuestConn {
	return hostapi.GuestConn{Conn: &conn{guest: g, ctx: context.WithoutCancel(ctx)}, Generation: generation}
}

// Serve serves g over conn until conn ends, or g does if it has a Done channel. It closes conn.
func Serve(ctx context.Context, conn net.Conn, g guestapi.Guest) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if ending, ok := g.(interface{ Done() <-chan struct{} }); ok {
		go func() {
			select {
			case <-ending.Done():
				cancel(guestapi.ErrLost)
			case <-ctx.Done():
			}
		}()
	}
	defer conn.Close()
	return server.Serve(ctx, conn, users{g})
}

// users is a guest without what only the host may do.
type users struct{ guestapi.Guest }

var errHostOnly = fmt.Errorf("%w: only the host of a machine may do this", guestapi.ErrInvalid)

// Freeze implements guestapi.Guest.
func (users) Freeze(context.Context, bool) error { return errHostOnly }

// Thaw implements guestapi.Guest.
func (users) Thaw(context.Context) error { return errHostOnly }

// Restore implements guestapi.Backend.
func (users) Restore(context.Context, guestapi.Identity) error { return errHostOnly }

// Volume implements guestapi.Backend.
func (users) Volume(context.Context, guestapi.VolumeRequest) (guestapi.VolumeReport, error) {
	return guestapi.VolumeReport{}, errHostOnly
}

// conn is the caller's end. It makes the stream when it is first used.
type conn struct {
	net.Conn // the stream, guarded by mu; nil until used
	guest    guestapi.Guest
	ctx      context.Context // of serving

	mu     sync.Mutex
	closed bool
	served chan struct{} // closed when serving has ended; nil: it has not begun
}

// Guest implements hostapi.LocalGuest.
func (c *conn) Guest() guestapi.Guest { return c.guest }

// open returns the stream.
func (c *conn) open() (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, net.ErrClosed
	}
	if c.Conn == nil {
		ours, theirs := net.Pipe()
		c.Conn, c.served = ours, make(chan struct{})
		go func() {
			defer close(c.served)
			_ = Serve(c.ctx, theirs, c.guest) // the caller's end sees that the stream has ended
		}()
	}
	return c.Conn, nil
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	stream, err := c.open()
	if err != nil {
		return 0, err
	}
	return stream.Read(b)
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	stream, err := c.open()
	if err != nil {
		return 0, err
	}
	return stream.Write(b)
}

// Close implements net.Conn. It returns when serving has ended.
func (c *conn) Close() error {
	c.mu.Lock()
	c.closed = true
	stream, served := c.Conn, c.served
	c.mu.Unlock()
	if stream == nil {
		return nil
	}
	err := stream.Close()
	<-served
	return err
}
