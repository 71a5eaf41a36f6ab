// Package replica keeps the read replicas of databases.
//
// A replica is a server of a database: a sandbox and a volume that the Owner makes, filled and connected to the primary
// by package standby. Its row is in state creating until it has the primary's data, then ready; one that does not work
// is failed, and Keep makes another. Replicas sleep and run with their primary.
//
// Keep, Sleep, Promote and Remove are called with the lock of the database. Seed, which takes as long as there is data,
// is not: what needs a replica to be left alone calls StopSeeds first.
package replica

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/database/backup"
	"github.com/pandastack/pandastack/internal/control/database/standby"
	"github.com/pandastack/pandastack/internal/control/sandbox/keyed"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Replication makes servers follow others. standby.Replication implements it.
type Replication interface {
	// Seed makes a server a standby, and returns when that accepts connections. It may be repeated.
	Seed(ctx context.Context, p standby.Pair) error
	// Carry carries a connection of a standby to its primary until that or ctx ends.
	Carry(ctx context.Context, p standby.Pair) error
}

// Sandboxes are the methods of *sandbox.Service that replicas need.
type Sandboxes interface {
	Get(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error)
	Guest(ctx context.Context, p auth.Principal, id api.SandboxID) (guestapi.Guest, error)
	Hibernate(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error)
	Wake(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error)
	Resume(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error)
	Delete(ctx context.Context, p auth.Principal, id api.SandboxID) error
}

// Volumes are the methods of *volume.Service that replicas need.
type Volumes interface {
	Delete(ctx context.Context, p auth.Principal, name string, withSnapshots bool) error
}

// Backups are the methods of *backup.Keeper that replicas need.
type Backups interface {
	// Complete gives a standby the end of the log of a database.
	Complete(ctx context.Context, req backup.CompleteRequest) (backup.Position, error)
}

// Owner is the service that the databases belong to.
type Owner interface {
	// As returns the principal that uses what belongs to a database.
	As(row *store.Database) auth.Principal
	// Runs reports whether the primary of a database runs.
	Runs(ctx context.Context, row *store.Database) bool
	// Dial returns a function that connects to the socket of the primary, if that runs.
	Dial(row store.Database) func(context.Context) (net.Conn, error)
	// Ask calls f with a connection to the primary.
	Ask(ctx context.Context, row *store.Database, f func(*pgx.Conn) error) error
	// Enter counts a user of a database until leave is called. It wakes nothing.
	Enter(ctx context.Context, row *store.Database) (leave func(), err error)
	// MakeMachine makes a machine with a volume for a server of a database.
	MakeMachine(ctx context.Context, row *store.Database) (store.DatabaseMember, error)
	// MatchStorage gives a server as much storage as the primary has.
	MatchStorage(ctx context.Context, row *store.Database, m *store.DatabaseMember) error
	// Sweep removes the machines and volumes of a database that belong to none of the servers.
	Sweep(ctx context.Context, row *store.Database, keep ...store.DatabaseMember) error
	// ServerError is the error of a server on which a statement or a program failed.
	ServerError(err error) error
	// Poke makes the owner call Keep and Seed soon.
	Poke()
}

// Config configures a Set.
type Config struct {
	Lag          time.Duration // behind the primary that a replica may be that gets connections
	Timeout      time.Duration // until a replica that does not work is replaced
	StartTimeout time.Duration // until a server accepts connections after a boot
}

// Deps are the components that a Set works with. Without Backups nothing is promoted.
type Deps struct {
	Store       *store.DB
	Sandboxes   Sandboxes
	Volumes     Volumes
	Backups     Backups
	Replication Replication
	Owner       Owner
	Log         *slog.Logger
}

// Set keeps the replicas of all databases. Make it with New.
type Set struct {
	cfg         Config
	db          *store.DB
	boxes       Sandboxes
	volumes     Volumes
	backups     Backups
	replication Replication
	owner       Owner
	log         *slog.Logger

	locks keyed.Locks // of replicas that are filled

	mu  sync.Mutex
	all map[string]*state // by the id of the database
}

// askTimeout bounds the time in which a server replies.
const askTimeout = 5 * time.Second

// New returns a Set.
func New(cfg Config, deps Deps) *Set {
	return &Set{
		cfg: cfg, db: deps.Store, boxes: deps.Sandboxes, volumes: deps.Volumes, backups: deps.Backups,
		replication: deps.Replication, owner: deps.Owner, log: deps.Log, all: map[string]*state{},
	}
}

// state is what this process knows of the replicas of a database.
type state struct {
	mu      sync.Mutex
	tidied  bool           // nothing is left of operations that were cut
	lags    map[string]lag // by the id of the replica
	due     time.Time      // when one may be made, after a failure
	failure string         // the last failure
	turn    int            // of the last connection to a replica
}

func (s *Set) of(id string) *state {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.all[id]
	if l == nil {
		l = &state{}
		s.all[id] = l
	}
	return l
}

// Forget drops what is known of a database that was removed.
func (s *Set) Forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, id)
}
