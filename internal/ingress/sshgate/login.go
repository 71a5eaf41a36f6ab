package sshgate

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/audit"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sshkey"
)

// version is what the gate calls itself. It has no number, which would tell attackers what to try.
const version = "SSH-2.0-PandaStack"

// connectionOf is the key under which the permissions of a client have its connection.
type connectionOf struct{}

// login is a connection that has not authenticated yet.
type login struct {
	gate *Gate
	peer netip.Addr
	user string // that was tried last
	keys bool   // a public key was offered
}

// errDenied is the error of every login that fails, so that it reveals nothing about sandboxes and keys.
var errDenied = errors.New("permission denied")

// config returns the configuration of a server for one connection.
func (l *login) config(ctx context.Context) *ssh.ServerConfig {
	supported := ssh.SupportedAlgorithms()
	cfg := &ssh.ServerConfig{
		Config: ssh.Config{
			KeyExchanges: supported.KeyExchanges, Ciphers: supported.Ciphers, MACs: supported.MACs,
		},
		PublicKeyAuthAlgorithms: supported.PublicKeyAuths,
		MaxAuthTries:            l.gate.limits.Attempts,
		ServerVersion:           version,
		PublicKeyCallback: func(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			l.user, l.keys = meta.User(), true
			c, err := l.find(ctx, meta.User(), key)
			if err != nil {
				return nil, errDenied
			}
			return &ssh.Permissions{ExtraData: map[any]any{connectionOf{}: c}}, nil
		},
	}
	for _, key := range l.gate.cfg.HostKeys {
		cfg.AddHostKey(key)
	}
	return cfg
}

// find returns the connection of a client that has a public key. The client has not proved it yet.
func (l *login) find(ctx context.Context, name string, key ssh.PublicKey) (*connection, error) {
	id, user, err := parseName(name)
	if err != nil {
		return nil, err
	}
	all, err := l.gate.cfg.Keys.Find(ctx, key)
	if err != nil {
		return nil, err
	}
	for _, one := range all {
		p, err := l.gate.cfg.Principals.OfKey(ctx, one.KeyPrefix, l.peer)
		if err != nil || p.Workspace != one.Workspace || !usable(p) {
			continue
		}
		if _, err := l.gate.cfg.Sandboxes.Get(ctx, p, id); err == nil {
			return &connection{gate: l.gate, peer: l.peer, sandbox: id, user: user, credential: one, principal: p}, nil
		}
	}
	return nil, errDenied
}

// parseName returns the sandbox and the user of a login name: ID or ID+USER.
func parseName(name string) (id api.SandboxID, user string, err error) {
	first, user, named := strings.Cut(name, "+")
	if id, err = api.ParseSandboxID(first); err != nil {
		return "", "", err
	}
	if named && (user == "" || len(user) > guestapi.MaxName || user != guestapi.Printable(user)) {
		return "", "", errDenied
	}
	return id, user, nil
}

// usable reports whether a caller may do anything over SSH.
func usable(p auth.Principal) bool {
	return p.Scopes.Has(api.ScopeExec) || p.Scopes.Has(api.ScopeFiles) || p.Scopes.Has(api.ScopePorts)
}

// failed records a login that failed. Connections that offer no key are port scanners, and clients that only look at
// the host key.
func (l *login) failed(ctx context.Context) {
	if !l.keys {
		return
	}
	l.gate.cfg.Guard.FailedConnection(l.peer)
	target := ""
	if id, _, err := parseName(l.user); err == nil {
		target = string(id)
	}
	l.gate.cfg.Audit.Record(ctx, audit.Entry{
		At: time.Now(), Action: "ssh login", Target: target, Outcome: string(api.Unauthenticated),
		Remote: l.peer.String(),
	})
}

// connection is a client that has authenticated.
type connection struct {
	gate       *Gate
	peer       netip.Addr
	sandbox    api.SandboxID
	user       string // of the sandbox; "": its default
	credential sshkey.Credential
	principal  auth.Principal // when it logged in

	mu       sync.Mutex
	channels int // guarded by mu
}

// record writes an entry into the audit log.
func (c *connection) record(ctx context.Context, action string, began time.Time, err error) {
	e := audit.Entry{
		At: began, Principal: c.principal, Action: action, Target: string(c.sandbox), Outcome: "ok",
		Remote: c.peer.String(), Took: time.Since(began),
	}
	if err != nil {
		e.Outcome = string(api.AsError(err).Code)
		c.gate.cfg.Audit.Record(ctx, e)
		return
	}
	if strings.HasPrefix(action, forwardAction) { // programs repeat these
		e.Took = 0
		c.gate.cfg.Audit.RecordUse(ctx, e)
		return
	}
	c.gate.cfg.Audit.Record(ctx, e)
}

// current returns the caller as its key allows now.
func (c *connection) current(ctx context.Context) (auth.Principal, error) {
	now, err := c.gate.cfg.Keys.Current(ctx, c.credential.ID)
	if err != nil {
		return auth.Principal{}, err
	}
	p, err := c.gate.cfg.Principals.OfKey(ctx, now.KeyPrefix, c.peer)
	if err != nil {
		return auth.Principal{}, err
	}
	if p.Workspace != c.credential.Workspace || !usable(p) {
		return auth.Principal{}, api.Errorf(api.Forbidden, "the key %s may not use sandboxes over SSH", p.KeyPrefix)
	}
	return p, nil
}

// admit returns the caller if it has a scope now.
func (c *connection) admit(ctx context.Context, scope api.Scope) (auth.Principal, error) {
	p, err := c.current(ctx)
	if err != nil {
		return p, err
	}
	if !p.Scopes.Has(scope) {
		return p, api.Errorf(api.Forbidden, "this needs the scope %s, which the key %s lacks", scope, p.KeyPrefix)
	}
	return p, nil
}

// enter returns the guest of the sandbox for a caller with a scope, and wakes the sandbox if it sleeps.
func (c *connection) enter(ctx context.Context, scope api.Scope) (guestapi.Guest, api.Sandbox, error) {
	p, err := c.admit(ctx, scope)
	if err != nil {
		return nil, api.Sandbox{}, err
	}
	g, box, err := c.gate.cfg.Sandboxes.GuestAndSandbox(ctx, p, c.sandbox)
	if err == nil && c.user != "" {
		box.User = c.user
	}
	return g, box, err
}
