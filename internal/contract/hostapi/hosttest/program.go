package hosttest

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"sync"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// Program is a program in guests that a test provides. It must return when ctx ends. The result is its exit code.
//
// A program that listens on a port is part of the memory of its machine: in a machine that is restored or woken it is
// started again, before anything else happens there, without standard input.
type Program func(ctx context.Context, e *Exec) int

// Exec is one process of a Program.
type Exec struct {
	Args  []string // without the name
	Stdin io.Reader
	Files guestapi.FileSystem
	p     *process
}

// AddProgram makes guests that start from now on have a program with a name, in any directory.
func (h *Host) AddProgram(name string, run Program) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.programs = maps.Clone(h.programs)
	if h.programs == nil {
		h.programs = map[string]Program{}
	}
	h.programs[name] = run
}

// Print adds to an output of the process.
func (e *Exec) Print(to guestapi.Stream, text string) { e.p.print(to, text) }

// Listen returns a listener for connections to a port of the guest. It ends with the process.
func (e *Exec) Listen(port uint16) (net.Listener, error) {
	g := e.p.g
	l := &listener{ended: e.p.ctx.Done(), conns: make(chan net.Conn)}
	g.pmu.Lock()
	defer g.pmu.Unlock()
	if g.ports[port] != nil {
		return nil, fmt.Errorf("port %d: %w", port, guestapi.ErrExists)
	}
	g.ports[port] = l.serve
	if !e.p.serves {
		e.p.serves = true
		close(e.p.serving)
	}
	context.AfterFunc(e.p.ctx, func() {
		g.pmu.Lock()
		defer g.pmu.Unlock()
		delete(g.ports, port)
	})
	return l, nil
}

// listener implements net.Listener for a port of a guest.
type listener struct {
	ended <-chan struct{}
	conns chan net.Conn
}

// serve hands over a connection and returns when it is closed.
func (l *listener) serve(c net.Conn) {
	one := &accepted{Conn: c, closed: make(chan struct{})}
	select {
	case l.conns <- one:
		<-one.closed
	case <-l.ended:
	}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener: a listener ends with its process.
func (l *listener) Close() error { return nil }

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

type accepted struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

// Close implements net.Conn.
func (c *accepted) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
