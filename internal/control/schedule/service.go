package schedule

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/job"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
)

// OwnerKind is the kind of owner of the sandboxes that runs make.
const OwnerKind = "schedule"

// Bounds of the work of a Service.
const (
	batch    = 100              // schedules whose runs are added in one transaction
	maxSleep = 5 * time.Second  // between looks at the store
	lateness = 30 * time.Second // moments that are noticed later than this were missed
	keepRuns = 100              // ended runs of a schedule that are kept
	maxWait  = 1000             // runs of a schedule that wait for another one
)

// Config configures a Service. Zero fields mean the default.
type Config struct {
	Concurrency  int            // runs at a time; 16
	PerWorkspace int            // of those of one workspace; 4
	Networks     []netip.Prefix // that requests may go to although they are not public
}

// Sandboxes are the methods of *sandbox.Service that runs need.
type Sandboxes interface {
	Create(ctx context.Context, p auth.Principal, req api.CreateRequest) (api.Sandbox, error)
	Get(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error)
	Guest(ctx context.Context, p auth.Principal, id api.SandboxID) (guestapi.Guest, error)
	Delete(ctx context.Context, p auth.Principal, id api.SandboxID) error
}

// Apps are the methods of *app.Service that runs of commands need.
type Apps interface {
	Get(ctx context.Context, p auth.Principal, app string) (api.App, error)
	// RunCommand makes a machine of the live deployment, and returns the command with where it runs. End removes it.
	RunCommand(
		ctx context.Context,
		p auth.Principal,
		app string,
		req api.AppRunRequest,
	) (g guestapi.Guest, command api.ExecRequest, end func(), err error)
}

// Templates finds templates by the names that users call them.
type Templates interface {
	Resolve(ctx context.Context, p auth.Principal, name string) (api.Template, error)
}

// Deps are the components that a Service works with; all but Functions and Apps are required.
type Deps struct {
	Store     *store.DB
	Jobs      *job.Queue // runs the runs; New registers their worker
	Sandboxes Sandboxes
	Templates Templates
	Quotas    *quota.Quotas
	Functions Functions // nil: functions cannot be targets; New observes its runs
	Apps      Apps      // nil: apps cannot be targets
	Log       *slog.Logger
}

// Service implements every verb on schedules. Make it with New.
type Service struct {
	db        *store.DB
	jobs      *job.Queue
	boxes     Sandboxes
	templates Templates
	quotas    *quota.Quotas
	functions Functions // nil: there are none
	apps      Apps      // nil: there are none
	requests  *sender
	log       *slog.Logger
	poked     chan struct{}
}

// New returns a service and registers its worker with the job queue. It does not touch the store.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Store == nil || deps.Jobs == nil || deps.Sandboxes == nil || deps.Templates == nil ||
		deps.Quotas == nil || deps.Log == nil {
		return nil, errors.New("schedule: all dependencies are required")
	}
	s := &Service{
		db: deps.Store, jobs: deps.Jobs, boxes: deps.Sandboxes, templates: deps.Templates, quotas: deps.Quotas,
		functions: deps.Functions, apps: deps.Apps,
		requests: newSender(cfg.Networks), log: deps.Log, poked: make(chan struct{}, 1),
	}
	deps.Jobs.Register(job.Worker{
		Kind: jobKind, Run: s.run, Changed: s.jobChanged,
		Concurrency: cmp.Or(cfg.Concurrency, 16), PerWorkspace: cmp.Or(cfg.PerWorkspace, 4),
		MaxAttempts: 1, Backoff: 10 * time.Second, Retention: time.Hour,
	})
	if s.functions != nil {
		s.functions.Observe(s.functionChanged)
	}
	return s, nil
}

// notify makes those that run runs look for new ones.
func (s *Service) notify() {
	s.jobs.Notify()
	if s.functions != nil {
		s.functions.Notify()
	}
}

// poke makes Run look at the store now.
func (s *Service) poke() {
	select {
	case s.poked <- struct{}{}:
	default: // one is enough
	}
}

// Run adds the runs of schedules when they are due, until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	defer s.requests.close()
	for ctx.Err() == nil {
		sleep := maxSleep
		next, err := s.addDue(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			s.log.Warn("runs of schedules could not be added; it is tried again", "err", err)
		case !next.IsZero():
			sleep = min(max(time.Until(next), 0), maxSleep)
		}
		timer := time.NewTimer(sleep)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-s.poked:
		}
		timer.Stop()
	}
	return nil
}

func notFound(id string) error {
	return api.Errorf(api.NotFound, "schedule %.60s not found: list them at /v1/schedules", id)
}

// find reads a schedule of the caller's workspace.
func (s *Service) find(ctx context.Context, p auth.Principal, id api.ScheduleID) (store.Schedule, error) {
	if p.Workspace == "" {
		return store.Schedule{}, api.Errorf(api.Unauthenticated, "the caller has no workspace")
	}
	if err := s.quotas.CheckActive(ctx, p.Workspace); err != nil {
		return store.Schedule{}, err
	}
	row, err := s.db.Read().Schedule(ctx, string(id))
	if errors.Is(err, store.ErrNotFound) || err == nil && row.Workspace != string(p.Workspace) {
		return store.Schedule{}, notFound(string(id))
	}
	return row, err
}
