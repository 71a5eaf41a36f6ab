package app

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/app/appenv"
	"github.com/pandastack/pandastack/internal/control/app/applog"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/sandbox/keyed"
	"github.com/pandastack/pandastack/internal/control/store"
)

// DefaultPort is the port of apps for which neither their user nor the build names one.
const DefaultPort = 3000

// Config configures a Service. Zero durations and numbers mean the default.
type Config struct {
	Suffix string        // domain of the host names, <name>.<suffix>
	Scheme string        // of the URLs of apps; "http"
	Port   string        // of the URLs of apps; "": that of the scheme
	URL    string        // base of the API, for the remotes of git push
	Idle   time.Duration // until an app whose creator names no time sleeps; 5 min
	Keep   int           // ended deployments that are kept for rollbacks; 5
	// Own are host names of the server that no app may have.
	Own []string
	// DatabaseAddress is where machines reach databases, "192.168.241.1:5432"; "": where all clients do.
	DatabaseAddress string
	// Template is that of the machines of apps whose creators name none, for users.
	Template string
	// Rehearse restores the program of a deployment once before its capture, and lets it answer requests. Machines of
	// the capture are then ready sooner if their monitors keep translated code.
	Rehearse bool

	Interval       time.Duration // between looks at all apps; 2 s
	Concurrency    int           // deployments under way at once; 2
	StartTimeout   time.Duration // until an app must take requests, if it names no time; 1 min
	ReleaseTimeout time.Duration // limit of a release command; 15 min
	DrainTimeout   time.Duration // that requests get to finish after a cut-over; 30 s
	WakeTimeout    time.Duration // limit of a wake; 1 min
	Backoff        time.Duration // before the first restart after a crash, doubled for each further one; 1 s
	MaxBackoff     time.Duration // 5 min
	SurplusGrace   time.Duration // how long replicas beyond what the load needs are kept; 1 min
	MaxAttempts    int           // at a deployment, by processes that end in one; 3
	ForeignGrace   time.Duration // how long an operation of another process on a shared store is left alone; 10 min
}

func (c Config) withDefaults() Config {
	c.Scheme = cmp.Or(c.Scheme, "http")
	c.Idle = cmp.Or(c.Idle, 5*time.Minute)
	c.Keep = cmp.Or(c.Keep, 5)
	c.Interval = cmp.Or(c.Interval, 2*time.Second)
	c.Concurrency = cmp.Or(c.Concurrency, 2)
	c.StartTimeout = cmp.Or(c.StartTimeout, time.Minute)
	c.ReleaseTimeout = cmp.Or(c.ReleaseTimeout, 15*time.Minute)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 30*time.Second)
	c.WakeTimeout = cmp.Or(c.WakeTimeout, time.Minute)
	c.Backoff = cmp.Or(c.Backoff, time.Second)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, 5*time.Minute)
	c.SurplusGrace = cmp.Or(c.SurplusGrace, time.Minute)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 3)
	c.ForeignGrace = cmp.Or(c.ForeignGrace, 10*time.Minute)
	return c
}

// Sandboxes are the methods of *sandbox.Service that apps need.
type Sandboxes interface {
	Create(ctx context.Context, p auth.Principal, req api.CreateRequest) (api.Sandbox, error)
	Get(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error)
	List(ctx context.Context, p auth.Principal, f api.SandboxFilter) (sandbox.Page, error)
	GuestAndSandbox(ctx context.Context, p auth.Principal, id api.SandboxID) (guestapi.Guest, api.Sandbox, error)
	Hibernate(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error)
	Wake(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error)
	Resume(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error)
	Delete(ctx context.Context, p auth.Principal, id api.SandboxID) error
	TakeSnapshot(ctx context.Context, p auth.Principal, id api.SandboxID, req api.SnapshotRequest) (api.Snapshot, error)
	Snapshots(ctx context.Context, p auth.Principal, f api.SnapshotFilter) (sandbox.SnapshotPage, error)
	DeleteSnapshot(ctx context.Context, p auth.Principal, id api.SnapshotID) error
}

// Volumes are the methods of *volume.Service that apps need.
type Volumes interface {
	Delete(ctx context.Context, p auth.Principal, name string, withSnapshots bool) error
}

// Databases are the methods of *database.Service that apps need.
type Databases interface {
	Connection(ctx context.Context, p auth.Principal, id api.DatabaseID) (api.DatabaseConnection, error)
}

// Templates finds templates by the names that users call them.
type Templates interface {
	Resolve(ctx context.Context, p auth.Principal, name string) (api.Template, error)
}

// Deps are the components that a Service works with. All but Databases, HasUpload and Forget are required.
type Deps struct {
	Store     *store.DB
	Sandboxes Sandboxes
	Volumes   Volumes
	Databases Databases // nil: the server has none
	Templates Templates
	Builder   Builder
	Quotas    *quota.Quotas
	Log       *slog.Logger
	// HasUpload returns nil if an app has an upload; nil: there are no uploads.
	HasUpload func(ctx context.Context, app api.AppID, upload string) error
	// DropFiles removes the files of a deployment that are served without a machine. There may be none. nil: there are
	// no such files.
	DropFiles func(ctx context.Context, id api.DeploymentID) error
	// Forget are called when an app is deleted, before its machines, snapshots and volumes are removed.
	Forget []func(ctx context.Context, app api.AppID) error
}

// Service implements every verb on apps. Make it with New.
type Service struct {
	*appenv.Variables

	cfg      Config
	deps     Deps
	db       *store.DB
	boxes    Sandboxes
	quotas   *quota.Quotas
	log      *slog.Logger
	logs     *applog.Logs
	instance string // this process, as the owner of operations
	began    time.Time

	locks   keyed.Locks
	slots   *semaphore.Weighted // of deployments under way
	poked   chan struct{}
	routing routes

	mu    sync.Mutex
	edge  Edge // nil: none
	live  map[api.AppID]*live
	watch []func(context.Context, store.App, store.Deployment)
}

// New returns a service. It touches neither store nor host.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Store == nil || deps.Sandboxes == nil || deps.Volumes == nil || deps.Templates == nil ||
		deps.Builder == nil || deps.Quotas == nil || deps.Log == nil {
		return nil, errors.New("app: a required dependency is missing")
	}
	if cfg.Suffix == "" {
		return nil, errors.New("app: Suffix is empty: set the domain of the apps")
	}
	cfg = cfg.withDefaults()
	s := &Service{
		cfg: cfg, deps: deps, db: deps.Store, boxes: deps.Sandboxes, quotas: deps.Quotas, log: deps.Log,
		logs: applog.New(deps.Store), instance: strings.ToLower(rand.Text()), began: time.Now(),
		slots: semaphore.NewWeighted(int64(cfg.Concurrency)), poked: make(chan struct{}, 1),
		routing: newRoutes(), live: map[api.AppID]*live{},
	}
	s.Variables = appenv.New(deps.Store, s.find)
	return s, nil
}

// SetEdge sets the edge that serves requests, before Run. Without one, apps have no requests.
func (s *Service) SetEdge(e Edge) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.edge = e
}

// Watch adds a function that is called after each change of the state of a deployment. It must return soon.
func (s *Service) Watch(call func(ctx context.Context, app store.App, d store.Deployment)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watch = append(s.watch, call)
}

// noEdge is the edge of apps without requests.
type noEdge struct{}

func (noEdge) Drain(context.Context, api.AppID, api.DeploymentID) {}
func (noEdge) InFlight(api.AppID) int                             { return 0 }
func (noEdge) LastUse(api.AppID) time.Time                        { return time.Time{} }
func (noEdge) Stats(api.AppID) api.AppStats                       { return api.AppStats{} }

func (s *Service) requests() Edge {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.edge == nil {
		return noEdge{}
	}
	return s.edge
}

// changed reports a change of a deployment's state, of routes and of replicas.
func (s *Service) changed(ctx context.Context, row *store.App, d *store.Deployment) {
	s.routing.changed()
	s.poke()
	if d == nil {
		return
	}
	s.mu.Lock()
	calls := s.watch
	s.mu.Unlock()
	for _, call := range calls {
		call(ctx, *row, *d)
	}
}

// owner returns the owner of what belongs to an app.
func owner(row *store.App) hostapi.Owner { return hostapi.Owner{Kind: OwnerKind, ID: row.ID} }

// as returns the principal that uses what belongs to an app.
func as(row *store.App) auth.Principal {
	return auth.Principal{Workspace: api.Workspace(row.Workspace), Owner: owner(row)}
}

func notFound(app string) error {
	return api.Errorf(api.NotFound, "app %.60q not found: list them at /v1/apps", app)
}

// find reads an app of the caller's workspace that is not being deleted, by id or name.
func (s *Service) find(ctx context.Context, p auth.Principal, app string) (store.App, error) {
	if p.Workspace == "" {
		return store.App{}, api.Errorf(api.Unauthenticated, "the caller has no workspace")
	}
	if err := s.quotas.CheckActive(ctx, p.Workspace); err != nil {
		return store.App{}, err
	}
	var row store.App
	var err error
	if api.AppID(app).Valid() {
		row, err = s.db.Read().App(ctx, app)
	} else {
		row, err = s.db.Read().AppByName(ctx, app)
	}
	if errors.Is(err, store.ErrNotFound) ||
		err == nil && (row.Workspace != string(p.Workspace) || row.State == store.AppDeleting) {
		return store.App{}, notFound(app)
	}
	return row, err
}

// lock takes the lock of an app of the caller's workspace and reads it under the lock.
func (s *Service) lock(
	ctx context.Context,
	p auth.Principal,
	app string,
) (row store.App, op context.Context, release func(), err error) {
	if row, err = s.find(ctx, p, app); err != nil {
		return row, nil, nil, err
	}
	op, release, err = s.locks.Acquire(ctx, row.ID)
	if err != nil {
		return row, nil, nil, err
	}
	if row, err = s.find(op, p, row.ID); err != nil {
		release()
		return row, nil, nil, err
	}
	return row, op, release, nil
}

// detached returns a context for work that must be finished although the caller has left.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(
		context.WithoutCancel(ctx), 2*time.Minute, errors.New("finishing an operation took too long"))
}

// settingsOf reads the settings of an app.
func settingsOf(row *store.App) (appspec.Settings, error) {
	return appspec.Decode[appspec.Settings](row.Settings)
}
