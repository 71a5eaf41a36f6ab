package database

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/database/server"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Errors of endpoints.
var (
	ErrNoEndpoint = errors.New("there is no such database")
	ErrNoRole     = errors.New("there is no such role")
	ErrBadToken   = errors.New("the broker token is wrong")
)

// Endpoint is a database that clients can connect to.
type Endpoint struct {
	service  *Service
	row      store.Database
	networks []netip.Prefix
	running  bool

	mu      sync.Mutex
	replica string // the last that DialReplica has chosen; guarded by mu
}

// Endpoint returns the database with an id, whatever its workspace, or ErrNoEndpoint.
func (s *Service) Endpoint(ctx context.Context, id string) (*Endpoint, error) {
	if !api.DatabaseID(id).Valid() {
		return nil, ErrNoEndpoint
	}
	row, err := s.db.Read().Database(ctx, id)
	if errors.Is(err, store.ErrNotFound) || err == nil && row.State != store.DatabaseReady &&
		row.State != store.DatabaseRestoring {
		return nil, ErrNoEndpoint
	}
	if err != nil {
		return nil, err
	}
	if err := s.quotas.CheckActive(ctx, api.Workspace(row.Workspace)); err != nil {
		return nil, err
	}
	e := &Endpoint{service: s, row: row, running: row.State == store.DatabaseReady && s.runs(ctx, &row)}
	if row.Networks == "" {
		return e, nil
	}
	var texts []string
	if err := json.Unmarshal([]byte(row.Networks), &texts); err != nil {
		return nil, fmt.Errorf("networks of database %s: %w", row.ID, err)
	}
	for _, text := range texts {
		n, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("networks of database %s: %w", row.ID, err)
		}
		e.networks = append(e.networks, n)
	}
	return e, nil
}

// Workspace returns the workspace that the database belongs to.
func (e *Endpoint) Workspace() api.Workspace { return api.Workspace(e.row.Workspace) }

// Networks returns where clients may connect from; none: everywhere.
func (e *Endpoint) Networks() []netip.Prefix { return e.networks }

// Running reports whether the database accepted connections a moment ago.
func (e *Endpoint) Running() bool { return e.running }

// Touch records that the database is being used.
func (e *Endpoint) Touch() { e.service.of(e.id()).touch() }

func (e *Endpoint) id() api.DatabaseID { return api.DatabaseID(e.row.ID) }

// Acquire returns when the database accepts connections, and wakes it for that. Until release is called, it is in use.
func (e *Endpoint) Acquire(ctx context.Context) (release func(), err error) {
	return e.service.acquire(ctx, e.id())
}

// Verifier returns the SCRAM verifier of a role that may log in, or ErrNoRole. Of a database that runs it is that of
// its server, otherwise what the server had when it was suspended.
func (e *Endpoint) Verifier(ctx context.Context, role string) (string, error) {
	if e.running {
		verifier, err := e.service.askVerifier(ctx, &e.row, role)
		if err == nil || errors.Is(err, ErrNoRole) {
			return verifier, err
		}
		// The server cannot be asked: it still has the last word when the session logs in.
		e.service.log.Debug("the verifier of a role is not known", "database", e.row.ID, "err", err)
	}
	if role == RoleName {
		return e.row.Verifier, nil
	}
	r, err := e.service.db.Read().DatabaseRole(ctx, e.row.ID, role)
	if errors.Is(err, store.ErrNotFound) {
		return "", ErrNoRole
	}
	return r.Verifier, err
}

// askTimeout bounds the time in which a server says which verifier a role has.
const askTimeout = 5 * time.Second

// askVerifier asks the server of a database that runs.
func (s *Service) askVerifier(ctx context.Context, row *store.Database, role string) (verifier string, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	found := false
	err = s.ask(ctx, row, func(conn *pgx.Conn) error {
		r, ok, err := server.FindRole(ctx, conn, role)
		verifier, found = r.Verifier, ok
		return err
	})
	if err == nil && !found {
		err = ErrNoRole
	}
	return verifier, err
}

// ask calls f with a connection to the server of a database that runs, which is kept for the next call.
func (s *Service) ask(ctx context.Context, row *store.Database, f func(*pgx.Conn) error) error {
	l := s.of(api.DatabaseID(row.ID))
	l.asking.Lock()
	defer l.asking.Unlock()
	if l.admin == nil || l.admin.IsClosed() {
		v, err := s.serverOf(ctx, row)
		if err != nil {
			return err
		}
		if l.admin, err = v.SQL(ctx, server.Maintained); err != nil {
			l.admin = nil
			return err
		}
	}
	err := f(l.admin)
	if err != nil {
		server.Close(ctx, l.admin)
		l.admin = nil
	}
	return err
}

// setAdmin makes a connection the one with which the server is asked.
func (l *live) setAdmin(ctx context.Context, conn *pgx.Conn) {
	l.closeAdmin(ctx)
	l.asking.Lock()
	defer l.asking.Unlock()
	l.admin = conn
}

// closeAdmin closes the connection with which the server is asked.
func (l *live) closeAdmin(ctx context.Context) {
	l.asking.Lock()
	defer l.asking.Unlock()
	if l.admin != nil {
		server.Close(ctx, l.admin)
		l.admin = nil
	}
}

// closeAll closes the connections to all servers.
func (s *Service) closeAll(ctx context.Context) {
	s.mu.Lock()
	all := s.live
	s.live = map[api.DatabaseID]*live{}
	s.mu.Unlock()
	for _, l := range all {
		l.closeAdmin(ctx)
	}
}

// Dial connects to a port of the server of a database that runs. A server that has ended is started again.
func (e *Endpoint) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	v, err := e.service.serverOf(ctx, &e.row)
	if err != nil {
		return nil, err
	}
	c, err := v.guest.DialPort(ctx, port)
	if !errors.Is(err, guestapi.ErrRefused) {
		return c, err
	}
	op, release, err := e.service.locks.Acquire(ctx, e.row.ID)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := server.Start(op, v.guest); err != nil {
		return nil, err
	}
	return v.guest.DialPort(op, port)
}

// Keys returns the keys of RoleName for the holder of the broker token, or ErrBadToken.
func (e *Endpoint) Keys(token string) (server.Keys, error) {
	if subtle.ConstantTimeCompare([]byte(token), []byte(e.row.BrokerToken)) != 1 {
		return server.Keys{}, ErrBadToken
	}
	keys, ok, err := server.CheckPassword(e.row.Verifier, e.row.Password)
	if err != nil {
		return server.Keys{}, err
	}
	if !ok {
		return server.Keys{}, api.Errorf(api.WrongState, "the password of %s was changed by SQL: reset the credentials",
			RoleName)
	}
	return keys, nil
}
