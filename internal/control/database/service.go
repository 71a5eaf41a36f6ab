package database

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/database/backup"
	"github.com/pandastack/pandastack/internal/control/database/replica"
	"github.com/pandastack/pandastack/internal/control/database/server"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/sandbox/keyed"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/volume"
)

// OwnerKind is the kind of owner that the sandboxes and volumes of databases have.
const OwnerKind = "database"

// Names of what every database has.
const (
	RoleName     = "pandastack" // of the role that owns it
	DatabaseName = "pandastack"
)

// Config configures a Service. Zero durations and numbers mean the default.
type Config struct {
	Suffix        string        // domain of the host names, <id>.<suffix>
	Port          int           // of connection URLs; 5432
	URL           string        // base of the API, for the URL of the query broker
	Template      string        // of databases whose creator names none; "postgres-16"
	Idle          time.Duration // until a database whose creator names none is suspended; 5 min
	StorageMaxMiB int           // of a database whose creator names none; 32768
	FixedMemory   bool          // the monitor cannot add memory to a template's: larger sizes are refused

	Interval        time.Duration // between looks at all databases; 5 s
	FlushTimeout    time.Duration // that the log gets to reach the archive when a database is suspended; 1 min
	MeasureInterval time.Duration // between measurements of the storage of a database; 30 s
	Concurrency     int           // databases that are worked on at once; 8
	StartTimeout    time.Duration // until a server accepts connections after a boot; 2 min
	EndTimeout      time.Duration // that sessions get to end when a database is suspended; 10 s
	ReplicaLag      time.Duration // behind the primary that a read replica may be that gets connections; 10 s
	ReplicaTimeout  time.Duration // until a read replica that does not work is replaced; 2 min
	ForeignGrace    time.Duration // how long an operation of another process on a shared store is left alone; 10 min
}

// Sandboxes are the methods of *sandbox.Service that databases need.
type Sandboxes interface {
	Create(ctx context.Context, p auth.Principal, req api.CreateRequest) (api.Sandbox, error)
	Get(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error)
	List(ctx context.Context, p auth.Principal, f api.SandboxFilter) (sandbox.Page, error)
	Guest(ctx context.Context, p auth.Principal, id api.SandboxID) (guestapi.Guest, error)
	Hibernate(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error)
	Wake(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error)
	Resume(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error)
	Fork(
		ctx context.Context,
		p auth.Principal,
		id api.SandboxID,
		req api.ForkRequest,
	) (api.ForkResponse, error)
	SetOwner(ctx context.Context, p auth.Principal, id api.SandboxID, to hostapi.Owner) error
	Delete(ctx context.Context, p auth.Principal, id api.SandboxID) error
}

// Volumes are the methods of *volume.Service that databases need.
type Volumes interface {
	Get(ctx context.Context, p auth.Principal, name string) (api.Volume, error)
	CreateFor(
		ctx context.Context,
		p auth.Principal,
		owner hostapi.Owner,
		req api.CreateVolumeRequest,
		disk volume.Disk,
	) (api.Volume, error)
	Keep(ctx context.Context, p auth.Principal, owner hostapi.Owner, box api.SandboxID) (api.Volume, error)
	Update(ctx context.Context, p auth.Principal, name string, req api.VolumePatch) (api.Volume, error)
	Delete(ctx context.Context, p auth.Principal, name string, withSnapshots bool) error
}

// Templates finds templates by the names that users call them.
type Templates interface {
	Resolve(ctx context.Context, p auth.Principal, name string) (api.Template, error)
}

// Copy makes roles and databases of one server in a new one.
type Copy func(ctx context.Context, from, to server.Guest, what server.Part) error

// Deps are the components that a Service works with. All but Backups and Copy are required.
type Deps struct {
	Backups     Backups             // nil: the log of a database is only on its volume
	Replication replica.Replication // standby.Replication
	Store       *store.DB
	Sandboxes   Sandboxes
	Volumes     Volumes
	Templates   Templates
	Quotas      *quota.Quotas
	Log         *slog.Logger
	Copy        Copy // nil: server.Copy
}

// Service implements every verb on databases. Make it with New.
type Service struct {
	cfg       Config
	db        *store.DB
	boxes     Sandboxes
	volumes   Volumes
	templates Templates
	quotas    *quota.Quotas
	backups   Backups // may be nil
	replicas  *replica.Set
	adoptions *backup.Adoptions
	log       *slog.Logger
	copy      Copy
	instance  string // this process, as the owner of operations
	began     time.Time

	locks keyed.Locks
	poked chan struct{}

	mu     sync.Mutex
	live   map[api.DatabaseID]*live
	before []func(ctx context.Context, id api.DatabaseID)
}

// New returns a service. It touches neither store nor host.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Store == nil || deps.Sandboxes == nil || deps.Volumes == nil || deps.Templates == nil ||
		deps.Quotas == nil || deps.Log == nil || deps.Replication == nil {
		return nil, errors.New("database: all dependencies are required")
	}
	if cfg.Suffix == "" {
		return nil, errors.New("database: Suffix is empty: set the domain of the databases")
	}
	cfg.Port = cmp.Or(cfg.Port, 5432)
	cfg.Template = cmp.Or(cfg.Template, "postgres-16")
	cfg.Idle = cmp.Or(cfg.Idle, 5*time.Minute)
	cfg.StorageMaxMiB = cmp.Or(cfg.StorageMaxMiB, 32<<10)
	cfg.Interval = cmp.Or(cfg.Interval, 5*time.Second)
	cfg.MeasureInterval = cmp.Or(cfg.MeasureInterval, 30*time.Second)
	cfg.Concurrency = cmp.Or(cfg.Concurrency, 8)
	cfg.StartTimeout = cmp.Or(cfg.StartTimeout, 2*time.Minute)
	cfg.EndTimeout = cmp.Or(cfg.EndTimeout, 10*time.Second)
	cfg.FlushTimeout = cmp.Or(cfg.FlushTimeout, time.Minute)
	cfg.ReplicaLag = cmp.Or(cfg.ReplicaLag, 10*time.Second)
	cfg.ReplicaTimeout = cmp.Or(cfg.ReplicaTimeout, 2*time.Minute)
	cfg.ForeignGrace = cmp.Or(cfg.ForeignGrace, 10*time.Minute)
	if deps.Copy == nil {
		deps.Copy = server.Copy
	}
	s := &Service{
		copy: deps.Copy,
		cfg:  cfg, db: deps.Store, boxes: deps.Sandboxes, volumes: deps.Volumes, templates: deps.Templates,
		quotas: deps.Quotas, backups: deps.Backups, log: deps.Log, instance: strings.ToLower(rand.Text()),
		began: time.Now(),
		poked: make(chan struct{}, 1), live: map[api.DatabaseID]*live{},
	}
	s.adoptions = backup.NewAdoptions(deps.Store, deps.Backups, cfg.Interval)
	s.replicas = replica.New(replica.Config{
		Lag: cfg.ReplicaLag, Timeout: cfg.ReplicaTimeout, StartTimeout: cfg.StartTimeout,
	}, replica.Deps{
		Store: deps.Store, Sandboxes: deps.Sandboxes, Volumes: deps.Volumes, Backups: deps.Backups,
		Replication: deps.Replication, Owner: replicaOwner{s}, Log: deps.Log,
	})
	return s, nil
}

// BeforeSuspend adds a function that is called before a database is suspended or deleted. It ends the sessions that the
// caller has with the database, within the time of the context.
func (s *Service) BeforeSuspend(call func(ctx context.Context, id api.DatabaseID)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = append(s.before, call)
}

// as returns the principal that uses what belongs to a database.
func as(row *store.Database) auth.Principal {
	return auth.Principal{Workspace: api.Workspace(row.Workspace), Owner: owner(row)}
}

func owner(row *store.Database) hostapi.Owner { return hostapi.Owner{Kind: OwnerKind, ID: row.ID} }

func notFound(id api.DatabaseID) error {
	return api.Errorf(api.NotFound, "database %.60s not found: list them at /v1/databases", string(id))
}

// find reads a database of the caller's workspace that is not being deleted.
func (s *Service) find(ctx context.Context, p auth.Principal, id api.DatabaseID) (store.Database, error) {
	if p.Workspace == "" {
		return store.Database{}, api.Errorf(api.Unauthenticated, "the caller has no workspace")
	}
	if err := s.quotas.CheckActive(ctx, p.Workspace); err != nil {
		return store.Database{}, err
	}
	row, err := s.db.Read().Database(ctx, string(id))
	if errors.Is(err, store.ErrNotFound) ||
		err == nil && (row.Workspace != string(p.Workspace) || row.State == store.DatabaseDeleting) {
		return store.Database{}, notFound(id)
	}
	return row, err
}

// lock takes the lock of a database of the caller's workspace and reads it under the lock.
func (s *Service) lock(
	ctx context.Context,
	p auth.Principal,
	id api.DatabaseID,
) (row store.Database, op context.Context, release func(), err error) {
	if row, err = s.find(ctx, p, id); err != nil {
		return row, nil, nil, err
	}
	op, release, err = s.locks.Acquire(ctx, string(id))
	if err != nil {
		return row, nil, nil, err
	}
	if row, err = s.find(op, p, id); err != nil {
		release()
		return row, nil, nil, err
	}
	return row, op, release, nil
}

// ready refuses what needs a database that is ready.
func ready(row *store.Database) error {
	switch row.State {
	case store.DatabaseReady:
		return nil
	case store.DatabaseFailed:
		return api.Errorf(api.WrongState, "database %s failed: %s: delete it", row.ID,
			api.ShownReason(row.Error, false))
	case store.DatabaseRestoring:
		return api.Errorf(api.Unavailable, "database %s is being restored: try again when its status is running",
			row.ID)
	}
	return api.Errorf(api.Unavailable, "database %s is being made: try again when its status is running", row.ID)
}

// primary reads the server of a database that takes writes.
func (s *Service) primary(ctx context.Context, id string) (store.DatabaseMember, error) {
	all, err := s.db.Read().DatabaseMembers(ctx, id)
	if err != nil {
		return store.DatabaseMember{}, err
	}
	for _, m := range all {
		if m.Role == store.MemberPrimary {
			return m, nil
		}
	}
	return store.DatabaseMember{}, api.Errorf(api.Unavailable, "database %s has no server", id)
}

// detached returns a context for work that must be finished although the caller has left.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(
		context.WithoutCancel(ctx), 2*time.Minute, errors.New("finishing an operation took too long"))
}
