package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/pandastack/pandastack/internal/lib/budget"
)

// Limits of the proxy.
const (
	// MaxConns is the number of connections of one guest at once; more are refused.
	MaxConns = 512
	// MaxDials is the number of connections that may be dialled at once for one guest; more wait.
	MaxDials = 64

	helloLimit = 15 * time.Second // for a web client to send its request
	dialLimit  = 30 * time.Second // with the wait for other dials
)

// ProxyConfig configures a proxy.
type ProxyConfig struct {
	Guard *Enforcer
	// Original returns the destination of a connection before it was redirected to the proxy.
	Original func(net.Conn) (netip.AddrPort, error)
	// Dial connects to the destination from the guest's network namespace.
	Dial func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	// Conns and Dials pay for connections and dials out of what all guests of the host share. A connection or dial that
	// they refuse fails. The proxy closes them. nil: only the limits of one guest hold.
	Conns, Dials *budget.Account
	// Rate limits the new connections to servers a second. A dial waits for it. nil: no limit.
	Rate *rate.Limiter
}

// Proxy inspects one guest's connections, and passes on those that the enforcer allows. It owns its listener,
// connections and goroutines.
type Proxy struct {
	cfg      ProxyConfig
	listener net.Listener
	cancel   context.CancelCauseFunc
	wg       sync.WaitGroup
	dials    *semaphore.Weighted

	mu    sync.Mutex
	conns map[*conn]bool // +checklocks:mu
}

// ServeProxy starts a proxy on a listener, until Close.
func ServeProxy(ctx context.Context, l net.Listener, cfg ProxyConfig) *Proxy {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	p := &Proxy{
		cfg: cfg, listener: l, cancel: cancel, dials: semaphore.NewWeighted(MaxDials), conns: map[*conn]bool{},
	}
	p.wg.Go(func() { p.accept(ctx) })
	return p
}

// Close ends the proxy with all its connections, and waits for them.
func (p *Proxy) Close() error {
	p.cancel(errors.New("proxy closed"))
	err := p.listener.Close()
	p.wg.Wait()
	p.cfg.Conns.Close()
	p.cfg.Dials.Close()
	return err
}

// Recheck ends the connections that the rules no longer allow.
func (p *Proxy) Recheck() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if kind, name := c.claim(); kind != "" && !p.cfg.Guard.StillAllowed(kind, name, c.to) {
			c.cancel(errors.New("no longer allowed by the egress policy"))
		}
	}
}

func (p *Proxy) accept(ctx context.Context) {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			continue // the client disconnected, or file descriptors are short
		}
		c := p.admit(ctx, client)
		if c == nil {
			_ = client.Close() // refused
			continue
		}
		p.wg.Go(func() {
			defer p.forget(c)
			c.serve()
		})
	}
}

func (p *Proxy) admit(ctx context.Context, client net.Conn) *conn {
	to, err := p.cfg.Original(client)
	if err != nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.conns) >= MaxConns || p.cfg.Conns.Take(1) != nil {
		return nil
	}
	c := &conn{proxy: p, client: client, to: to}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	p.conns[c] = true
	return c
}

func (p *Proxy) forget(c *conn) {
	c.cancel(nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	p.cfg.Conns.Give(1)
}

// conn is one connection of the guest.
type conn struct {
	proxy  *Proxy
	client net.Conn
	to     netip.AddrPort
	ctx    context.Context // of the connection: its end ends the connection
	cancel context.CancelCauseFunc

	mu         sync.Mutex
	kind, name string // as allowed; kind "": not yet
}

func (c *conn) claim() (kind, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kind, c.name
}

// allowed asks the enforcer, and records the claim for later rules.
func (c *conn) allowed(kind, name string) bool {
	if !c.proxy.cfg.Guard.AllowConn(kind, name, c.to) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kind, c.name = kind, name
	return true
}

func (c *conn) serve() {
	defer c.client.Close()
	stop := context.AfterFunc(c.ctx, func() { _ = c.client.Close() })
	defer stop()
	if isWebPort(c.to.Port()) {
		c.serveWeb()
		return
	}
	c.serveOther()
}

// serveWeb proxies a connection to a port of the web: it dials nothing before the client named its server.
func (c *conn) serveWeb() {
	if c.client.SetReadDeadline(time.Now().Add(helloLimit)) != nil {
		return
	}
	first, found := peek(c.client)
	if found.err != nil || c.client.SetReadDeadline(time.Time{}) != nil {
		return
	}
	if found.kind == KindHTTP {
		c.serveHTTP(first)
		return
	}
	if !c.allowed(found.kind, found.name) {
		return
	}
	server, err := c.connect()
	if err != nil {
		return
	}
	defer server.Close()
	if _, err := server.Write(first); err != nil {
		return
	}
	c.splice(server)
}

// serveOther proxies a connection to any other port. The server may speak first; the client's first bytes are
// inspected whenever they come.
func (c *conn) serveOther() {
	if !c.proxy.cfg.Guard.mayConnect(c.to) {
		c.allowed(KindTCP, "") // for the log
		return
	}
	server, err := c.connect()
	if err != nil {
		return
	}
	defer server.Close()
	back := c.copyBack(server)
	first, found := peek(c.client)
	if found.err != nil {
		return
	}
	if found.kind == KindHTTP {
		if server.SetReadDeadline(time.Unix(1, 0)) != nil || <-back > 0 {
			return // not a web server: those do not speak first
		}
		_ = server.Close() // dialled again for each request
		c.serveHTTP(first)
		return
	}
	if !c.allowed(found.kind, found.name) {
		return
	}
	if _, err := server.Write(first); err != nil {
		return
	}
	c.copyBoth(server, back)
}

// splice copies in both directions, until both have ended.
func (c *conn) splice(server net.Conn) { c.copyBoth(server, c.copyBack(server)) }

// copyBack copies the server's data to the client, in a goroutine that then sends the number of bytes.
func (c *conn) copyBack(server net.Conn) <-chan int64 {
	back := make(chan int64, 1)
	c.proxy.wg.Go(func() {
		n, err := io.Copy(c.client, server)
		if err == nil {
			closeWrite(c.client)
		}
		back <- n
	})
	return back
}

// copyBoth copies the client's data to the server, and returns when the other direction has ended as well.
func (c *conn) copyBoth(server net.Conn, back <-chan int64) {
	if _, err := io.Copy(server, c.client); err != nil {
		return
	}
	closeWrite(server)
	select {
	case <-back:
	case <-c.ctx.Done():
	}
}

// closeWrite ends the direction towards c. An error means that the connection is broken already.
func closeWrite(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// connect connects to the destination; the connection ends with c.
func (c *conn) connect() (net.Conn, error) {
	server, err := c.dial(c.ctx)
	if err == nil {
		context.AfterFunc(c.ctx, func() { _ = server.Close() })
	}
	return server, err
}

// dial connects to the destination, within the limits of the guest and of the host.
func (c *conn) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, dialLimit,
		errors.New("server did not accept the connection in time"))
	defer cancel()
	stop := context.AfterFunc(c.ctx, cancel)
	defer stop()
	p := c.proxy
	if err := p.dials.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer p.dials.Release(1)
	if err := p.cfg.Dials.Take(1); err != nil {
		return nil, err
	}
	defer p.cfg.Dials.Give(1)
	if p.cfg.Rate != nil {
		if err := p.cfg.Rate.Wait(ctx); err != nil {
			return nil, err
		}
	}
	return p.cfg.Dial(ctx, c.to)
}
