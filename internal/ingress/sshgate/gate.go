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
	"github.com/pandastack/pandastack/internal/lib/accept"
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
	return accept.Server{Handle: g.handle, Log: g.cfg.Log.With("server", "ssh")}.Serve(ctx, listener)
}

// handle serves one connection.
func (g *Gate) handle(ctx context.Context, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends reads and writes
	defer stop()
	peer := accept.Address(conn.RemoteAddr().String())
	if err := g.cfg.Guard.AdmitConnection(peer); err != nil {
		return
	}
	half := g.cfg.HalfOpen.Open(accept.Network(peer))
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
