//go:build e2e

package databases

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/internal/ingress/pgedge"
	"github.com/pandastack/pandastack/internal/lib/scram"
	"github.com/pandastack/pandastack/test/pglab"
)

// The role that tests log in as, which has a database of its name.
const (
	owner    = "pandastack"
	password = "correct horse battery staple"
)

// database is a real server as an endpoint of the edge. It sleeps while it is stopped.
type database struct {
	*pglab.Server
	verifier string // of owner

	mu       sync.Mutex
	sleeping bool // guarded by mu, as are the fields below
	settings pgedge.Settings
	wakes    int
	uses     int
}

var _ pgedge.Endpoint = (*database)(nil)

func newDatabase(t testing.TB) *database {
	t.Helper()
	v, _, err := scram.NewVerifier(password, []byte("salt of the lab."), scram.DefaultIterations)
	if err != nil {
		t.Fatal(err)
	}
	d := &database{
		Server:   pglab.New(t, "fsync=off", "max_connections=100", "wal_level=logical"),
		verifier: v.String(),
	}
	d.Exec("CREATE ROLE " + owner + " LOGIN REPLICATION CREATEDB CREATEROLE PASSWORD '" + d.verifier + "'")
	d.Exec("CREATE DATABASE " + owner + " OWNER " + owner)
	return d
}

// sleep stops the server.
func (d *database) sleep() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Kill()
	d.sleeping = true
}

// counts returns how often the server was woken, and how many uses were not released.
func (d *database) counts() (wakes, uses int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.wakes, d.uses
}

// Settings implements pgedge.Endpoint.
func (d *database) Settings() pgedge.Settings {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.settings
	s.Running = !d.sleeping
	return s
}

// Role implements pgedge.Endpoint: the verifier of owner is known, and that of no other role.
func (d *database) Role(_ context.Context, name string) (pgedge.Role, error) {
	if name != owner {
		return pgedge.Role{PassThrough: true}, nil
	}
	return pgedge.Role{Verifier: d.verifier}, nil
}

// Acquire implements pgedge.Endpoint.
func (d *database) Acquire(context.Context) (func(), error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sleeping {
		if err := d.TryStart(); err != nil {
			return nil, err
		}
		d.sleeping = false
		d.wakes++
	}
	d.uses++
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.uses--
	}, nil
}

// Dial implements pgedge.Endpoint.
func (d *database) Dial(ctx context.Context, target pgedge.Target) (net.Conn, error) {
	if target == pgedge.ReadOnly {
		return nil, pgedge.ErrNoTarget
	}
	return d.Server.Dial(ctx)
}

// Touch implements pgedge.Endpoint.
func (d *database) Touch() {}
