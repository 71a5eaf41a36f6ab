package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Bounds of the proxy.
const (
	maxConns   = 512              // of one guest at once; more are refused
	helloLimit = 15 * time.Second // for a web client to say what it wants
	dialLimit  = 30 * time.Second
)

// ProxyConfig says how a proxy works.
type ProxyConfig struct {
	Guard *Enforcer
	// Original tells where the guest wanted to connect, before the connection was turned to the proxy.
	Original func(net.Conn) (netip.AddrPort, error)
	// Dial connects to where the guest wanted, from the guest's place in the network.
	Dial func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
}

// Proxy looks into one guest's connections, and passes on those that the guard allows. It owns its listener,
// connections and goroutines.
type Proxy struct {
	cfg      ProxyConfig
	listener net.Listener
	cancel   context.CancelCauseFunc
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns map[*conn]bool // +checklocks:mu
}

// ServeProxy starts a proxy on a listener, until Close.
func ServeProxy(ctx context.Context, l net.Listener, cfg ProxyConfig) *Proxy {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	p := &Proxy{cfg: cfg, listener: l, cancel: cancel, conns: map[*conn]bool{}}
	p.wg.Go(func() { p.accept(ctx) })
	return p
}

// Close ends the proxy with all its connections, and waits for that.
func (p *Proxy) Close() error {
	p.cancel(errors.New("proxy closed"))
	err := p.listener.Close()
	p.wg.Wait()
	return err
}

// Recheck ends the connections that the guard's rules do not allow any more.
func (p *Proxy) Recheck() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if kind, name := c.claim(); kind != "" && !p.cfg.Guard.StillAllowed(kind, name, c.to) {
			c.cancel(errors.New("not allowed any more"))
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
			continue // the client went away meanwhile, or descriptors are short
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
	if len(p.conns) >= maxConns {
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
}

// conn is one connection of the guest.
type conn struct {
	proxy  *Proxy
	client net.Conn
	to     netip.AddrPort
	ctx    context.Context // of the connection: ends it
	cancel context.CancelCauseFunc

	mu         sync.Mutex
	kind, name string // what was allowed; kind "": nothing yet
}

func (c *conn) claim() (kind, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kind, c.name
}

// allowed asks the guard, and keeps what was claimed for later rules.
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
	if mustName(c.to.Port()) {
		c.serveWeb()
		return
	}
	c.serveOther()
}

// serveWeb passes on a connection to a port of the web: nothing is dialled before the client said what it wants.
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
	server, err := c.dial()
	if err != nil {
		return
	}
	defer server.Close()
	if _, err := server.Write(first); err != nil {
		return
	}
	c.splice(server)
}

// serveOther passes on a connection to any other port. The server may be the one that speaks first; what the
// client sends first is looked into whenever it comes.
func (c *conn) serveOther() {
	if !c.proxy.cfg.Guard.mayConnect(c.to) {
		c.allowed(KindTCP, "") // for the log
		return
	}
	server, err := c.dial()
	if err != nil {
		return
	}
	defer server.Close()
	back := c.answers(server)
	first, found := peek(c.client)
	if found.err != nil {
		return
	}
	if found.kind == KindHTTP {
		if server.SetReadDeadline(time.Unix(1, 0)) != nil || <-back > 0 {
			return // no web server: those do not speak first
		}
		_ = server.Close() // dialled again, request by request
		c.serveHTTP(first)
		return
	}
	if !c.allowed(found.kind, found.name) {
		return
	}
	if _, err := server.Write(first); err != nil {
		return
	}
	c.forward(server, back)
}

// splice passes on what both sides say, until both have ended.
func (c *conn) splice(server net.Conn) { c.forward(server, c.answers(server)) }

// answers passes on what the server says, in a goroutine that then sends how many bytes there were.
func (c *conn) answers(server net.Conn) <-chan int64 {
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

// forward passes on what the client says, and returns when the answers have ended as well.
func (c *conn) forward(server net.Conn, back <-chan int64) {
	if _, err := io.Copy(server, c.client); err != nil {
		return
	}
	closeWrite(server)
	select {
	case <-back:
	case <-c.ctx.Done():
	}
}

// closeWrite tells the other end that nothing more comes; if that fails, the connection is gone already.
func closeWrite(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// dial connects to where the guest wanted; the connection ends with c.
func (c *conn) dial() (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(c.ctx, dialLimit, errors.New("server did not answer"))
	defer cancel()
	server, err := c.proxy.cfg.Dial(ctx, c.to)
	if err == nil {
		context.AfterFunc(c.ctx, func() { _ = server.Close() })
	}
	return server, err
}
