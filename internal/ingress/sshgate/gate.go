package sshgate

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/audit"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sshkey"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// Limits bound what clients can use of a gate. Zero fields have the value of DefaultLimits.
type Limits struct {
	Login      time.Duration // from the connection to the proof of the key
	Attempts   int           // public keys that a connection may offer
	PerSandbox int           // connections to one sandbox
	Channels   int           // of one connection
	Files      int           // open files of one sftp session
	Start      time.Duration // of a program, including the time that a sleeping sandbox needs to wake
	Recheck    time.Duration // how often a connection's key is checked
}

// DefaultLimits are the limits of a gate of one node.
func DefaultLimits() Limits {
	return Limits{
		Login: 20 * time.Second, Attempts: 12, PerSandbox: 64, Channels: 64,
		Files: 128, Start: time.Minute, Recheck: 30 * time.Second,
	}
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	for _, n := range []struct{ v, d *int }{
		{&l.Attempts, &d.Attempts},
		{&l.PerSandbox, &d.PerSandbox},
		{&l.Channels, &d.Channels},
		{&l.Files, &d.Files},
	} {
		if *n.v <= 0 {
			*n.v = *n.d
		}
	}
	for _, n := range []struct{ v, d *time.Duration }{{&l.Login, &d.Login}, {&l.Start, &d.Start},
		{&l.Recheck, &d.Recheck}} {
		if *n.v <= 0 {
			*n.v = *n.d
		}
	}
	return l
}

// Sandboxes are the methods of the service for sandboxes that a gate uses.
type Sandboxes interface {
	Get(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error)
	GuestAndSandbox(
		ctx context.Context,
		p auth.Principal,
		id api.SandboxID,
	) (guestapi.Guest, api.Sandbox, error)
}

// Keys finds what public keys stand for; *sshkey.Keys does.
type Keys interface {
	Find(ctx context.Context, key ssh.PublicKey) ([]sshkey.Credential, error)
	Current(ctx context.Context, id api.SSHKeyID) (sshkey.Credential, error)
	Used(ctx context.Context, id api.SSHKeyID) error
}

// Principals returns who an API key is; *auth.Keys does.
type Principals interface {
	OfKey(ctx context.Context, prefix string, from netip.Addr) (auth.Principal, error)
}

// Guard bounds what addresses do before they authenticate; *access.Guard does.
type Guard interface {
	AdmitConnection(from netip.Addr) error
	FailedConnection(from netip.Addr)
}

// Audit records calls; *audit.Log does.
type Audit interface {
	Record(ctx context.Context, e audit.Entry)
	RecordUse(ctx context.Context, e audit.Entry)
}

// Config configures a Gate. All fields but Limits and Buffers are required.
type Config struct {
	HostKeys   []ssh.Signer
	Sandboxes  Sandboxes
	Keys       Keys
	Principals Principals
	Guard      Guard
	Audit      Audit
	HalfOpen   *budget.Pool // of connections that have not authenticated; its level is the address
	Buffers    *budget.Pool // pays for what channels buffer; its levels are workspace and sandbox. Nil: no bound
	Limits     Limits
	Log        *slog.Logger
}

// Gate is an SSH gateway. Make one with New.
type Gate struct {
	cfg    Config
	limits Limits

	mu   sync.Mutex
	open map[api.SandboxID]int // connections; guarded by mu
}

// New returns a gate. It does not listen: see Serve.
func New(cfg Config) (*Gate, error) {
	if len(cfg.HostKeys) == 0 || cfg.Sandboxes == nil || cfg.Keys == nil || cfg.Principals == nil ||
		cfg.Guard == nil || cfg.Audit == nil || cfg.HalfOpen == nil || cfg.Log == nil {
		return nil, errors.New("sshgate: all fields of Config but Buffers and Limits are required")
	}
	return &Gate{cfg: cfg, limits: cfg.Limits.withDefaults(), open: map[api.SandboxID]int{}}, nil
}

// Serve accepts connections until ctx ends, and closes the listener and all connections.
//
// It returns when all have ended; the error is nil if ctx ended.
func (g *Gate) Serve(ctx context.Context, listener net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() }) // ends Accept
	defer stop()
	serving, end := context.WithCancel(ctx)
	var connections sync.WaitGroup
	err := g.accept(serving, listener, &connections)
	end()
	_ = listener.Close() // of an error that is returned, or again
	connections.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// accept accepts connections and serves each in a goroutine of its own.
func (g *Gate) accept(ctx context.Context, listener net.Listener, connections *sync.WaitGroup) error {
	for pause := time.Duration(0); ; {
		conn, err := listener.Accept()
		switch {
		case err == nil:
			pause = 0
			connections.Go(func() { g.handle(ctx, conn) })
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default: // out of file descriptors, or a client that went away before it was accepted
			pause = min(max(2*pause, time.Millisecond), time.Second)
			g.cfg.Log.Warn("accept an SSH connection", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	}
}

// handle serves one connection and closes it.
func (g *Gate) handle(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends reads and writes
	defer stop()
	peer := addressOf(conn)
	if err := g.cfg.Guard.AdmitConnection(peer); err != nil {
		return
	}
	half := g.cfg.HalfOpen.Open(networkOf(peer))
	defer half.Close()
	if half.Take(1) != nil {
		return
	}
	if conn.SetDeadline(time.Now().Add(g.limits.Login)) != nil {
		return
	}
	starting, cancel := context.WithTimeout(ctx, g.limits.Login)
	defer cancel()
	l := &login{gate: g, peer: peer}
	secure, channels, requests, err := ssh.NewServerConn(conn, l.config(starting))
	if err != nil {
		l.failed(ctx)
		return
	}
	half.Close()
	defer secure.Close()
	c, ok := secure.Permissions.ExtraData[connectionOf{}].(*connection)
	if !ok || conn.SetDeadline(time.Time{}) != nil {
		return
	}
	c.serve(ctx, secure, channels, requests)
}

// enter counts a connection to a sandbox.
func (g *Gate) enter(id api.SandboxID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open[id] >= g.limits.PerSandbox {
		return false
	}
	g.open[id]++
	return true
}

func (g *Gate) leave(id api.SandboxID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open[id]--; g.open[id] == 0 {
		delete(g.open, id)
	}
}

func addressOf(conn net.Conn) netip.Addr {
	from, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return netip.Addr{}
	}
	return from.Addr().Unmap().WithZone("")
}

// networkOf returns the name under which an address is limited: for IPv6 the network of 64 bits, since a client has
// all its addresses.
func networkOf(a netip.Addr) string {
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.String()
		}
	}
	return a.String()
}
