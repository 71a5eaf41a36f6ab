package sandbox

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/guestdial"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/sandbox/activity"
	"github.com/pandastack/pandastack/internal/control/sandbox/eventlog"
	"github.com/pandastack/pandastack/internal/control/sandbox/keyed"
	"github.com/pandastack/pandastack/internal/control/sandbox/silence"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/lib/config"
)

// Config holds the settings of a Service. Defaults returns a configuration that works.
type Config struct {
	DefaultTemplate      string
	DefaultTTL           time.Duration // idle time until deletion if a request names none; 0: never
	HibernatedTTL        time.Duration // until a hibernated sandbox that is not persistent is deleted; 0: never
	IdleHibernate        time.Duration // idle time until a persistent sandbox is hibernated; 0: never
	MaxFork              int           // children of one fork
	TombstoneRetention   time.Duration // how long a tombstone is kept, with its logs and events
	IdempotencyRetention time.Duration // how long an idempotency key is known
	AuditRetention       time.Duration
	MaxEvents            int           // of one sandbox
	ReapInterval         time.Duration // between searches for sandboxes that are due
	FlushInterval        time.Duration // between writes of last uses
	ReconcileInterval    time.Duration // between comparisons of store and host
	OrphanGrace          time.Duration // how long a machine or snapshot without a record is left alone
	ForeignOwnerGrace    time.Duration // how long an operation of another process on a shared store is left alone
}

// Defaults returns the configuration of a node without settings of its own.
func Defaults() Config {
	set := config.Default().Sandbox
	return Config{
		DefaultTemplate: set.Template, DefaultTTL: set.TTL, IdleHibernate: set.IdleHibernate,
		MaxFork: 16, TombstoneRetention: set.TombstoneRetention,
		IdempotencyRetention: 24 * time.Hour, AuditRetention: 30 * 24 * time.Hour,
		MaxEvents: 1000, ReapInterval: time.Second, FlushInterval: 5 * time.Second, ReconcileInterval: 30 * time.Second,
		OrphanGrace: time.Minute, ForeignOwnerGrace: 10 * time.Minute,
	}
}

// Templates finds templates by the names that users call them.
type Templates interface {
	// Resolve returns a template that a caller may use, by name or alias; not_found as *api.Error.
	Resolve(ctx context.Context, p auth.Principal, name string) (api.Template, error)
}

// Volumes makes volumes free for a sandbox that is about to be created; *helper.Helpers does.
type Volumes interface {
	// Yield ends uses of volumes that wait for more work. A volume that is in use stays so.
	Yield(ctx context.Context, workspace api.Workspace, owner hostapi.Owner, volumes []api.VolumeMount) error
}

// Deps are the components that a Service works with. All but Quotas, Volumes, Budgets and Observe are required.
type Deps struct {
	Store     *store.DB
	Host      hostapi.Host
	Templates Templates
	Quotas    *quota.Quotas // nil: the default quotas
	Volumes   Volumes       // nil: nothing but sandboxes uses volumes
	Log       *slog.Logger
	Budgets   activity.Budgets // of everything that is open to guests; zero: there are no bounds
	// Observe is called at the end of every verb with its name, its error code ("" for success) and its
	// duration. It must not block.
	Observe func(verb string, code api.Code, took time.Duration)
}

// Service implements every verb on sandboxes. See the package comment.
type Service struct {
	cfg       Config
	db        *store.DB
	host      hostapi.Host
	guests    *guestdial.Dialer
	templates Templates
	quotas    *quota.Quotas
	volumes   Volumes
	log       *slog.Logger
	observe   func(verb string, code api.Code, took time.Duration)
	instance  string // this process, as the owner of operations
	budgets   activity.Budgets

	locks    keyed.Locks
	activity activity.Tracker
	events   eventlog.Log
	silent   silence.Table // what the host says of guests that do not answer

	suspensions *quota.Enforcer

	capacityMu sync.Mutex
	capacity   hostapi.Capacity
	capacityAt time.Time
}

// New returns a service. It touches neither store nor host.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Store == nil || deps.Host == nil || deps.Templates == nil || deps.Log == nil {
		return nil, errors.New("sandbox: store, host, templates and log are required")
	}
	if cfg.ReapInterval <= 0 || cfg.FlushInterval <= 0 || cfg.ReconcileInterval <= 0 || cfg.MaxFork <= 0 ||
		cfg.MaxEvents <= 0 {
		return nil, errors.New("sandbox: the intervals, MaxFork and MaxEvents must be above zero: start from Defaults")
	}
	s := &Service{cfg: cfg, db: deps.Store, host: deps.Host, guests: guestdial.New(deps.Host),
		templates: deps.Templates, quotas: deps.Quotas, volumes: deps.Volumes, log: deps.Log, observe: deps.Observe,
		instance: strings.ToLower(rand.Text()), budgets: deps.Budgets,
		events: eventlog.Log{DB: deps.Store, Keep: cfg.MaxEvents}}
	if s.quotas == nil {
		s.quotas = quota.New(quota.Config{}, s.db)
	}
	s.suspensions = quota.NewEnforcer(s.quotas, suspendable{s}, cfg.ReconcileInterval, deps.Log)
	if s.observe == nil {
		s.observe = func(string, api.Code, time.Duration) {}
	}
	return s, nil
}

// finishVerb is deferred at the top of a verb. It makes every error an *api.Error and calls Observe.
func (s *Service) finishVerb(verb string, began time.Time, err *error) {
	var code api.Code
	if *err != nil {
		e := api.AsError(*err)
		code, *err = e.Code, e
		why := errors.Unwrap(e)
		if why == nil {
			why = e
		}
		switch code {
		case api.Internal:
			s.log.Error("verb failed", "verb", verb, "err", why)
		case api.NoCapacity, api.NoSpace: // the numbers are for the operator, not for the caller
			s.log.Warn("not enough room", "verb", verb, "err", why)
		}
	}
	s.observe(verb, code, time.Since(began))
}

// errNoWorkspace refuses a caller whose key belongs to no workspace.
func errNoWorkspace() error { return api.Errorf(api.Unauthenticated, "the caller has no workspace") }

// load reads a sandbox; store.ErrNotFound if it does not live.
func (s *Service) load(ctx context.Context, id api.SandboxID) (record, error) {
	row, err := s.db.Read().Sandbox(ctx, string(id))
	if err != nil {
		return record{}, err
	}
	return newRecord(&row), nil
}

// loadAll reads the sandboxes that q selects.
func (s *Service) loadAll(ctx context.Context, q store.SandboxQuery) ([]record, error) {
	rows, err := s.db.Read().Sandboxes(ctx, q)
	if err != nil {
		return nil, err
	}
	all := make([]record, len(rows))
	for i := range rows {
		all[i] = newRecord(&rows[i])
	}
	return all, nil
}

// find reads a sandbox of the caller's workspace.
func (s *Service) find(ctx context.Context, p auth.Principal, id api.SandboxID) (record, error) {
	if p.Workspace == "" {
		return record{}, errNoWorkspace()
	}
	if err := s.quotas.CheckActive(ctx, p.Workspace); err != nil {
		return record{}, err
	}
	r, err := s.load(ctx, id)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return r, s.endedError(ctx, p, id)
	case err != nil:
		return r, err
	case r.Workspace != p.Workspace:
		return record{}, notFound(id)
	}
	return r, nil
}

// findOwn is find for what changes or uses a sandbox: forbidden unless the caller owns it. The sandboxes of a service's
// object belong to that object, those of users to all users of the workspace.
func (s *Service) findOwn(ctx context.Context, p auth.Principal, id api.SandboxID) (record, error) {
	r, err := s.find(ctx, p, id)
	if err == nil && r.Owner != p.Owner {
		return record{}, notOwner(&r)
	}
	return r, err
}

// notOwner refuses a caller who does not own a sandbox.
func notOwner(r *record) error {
	if r.Owner.IsZero() {
		return api.Errorf(api.Forbidden, "sandbox %s is a user's own", r.ID)
	}
	return api.Errorf(api.Forbidden, "sandbox %s belongs to the %s %s: use that", r.ID, r.Owner.Kind, r.Owner.ID).
		With("owner", r.Owner.String())
}

// lock takes the lock of a sandbox of the caller and reads it under the lock. The context ends
// with the operation's; release must be called once.
func (s *Service) lock(
	ctx context.Context,
	p auth.Principal,
	id api.SandboxID,
) (r record, op context.Context, release func(), err error) {
	if _, err := s.findOwn(ctx, p, id); err != nil {
		return r, nil, nil, err
	}
	op, release, err = s.locks.Acquire(ctx, string(id))
	if err != nil {
		return r, nil, nil, err
	}
	if r, err = s.find(op, p, id); err != nil {
		release()
		return r, nil, nil, err
	}
	return r, op, release, nil
}

// detached returns a context for work that must be finished although the caller has left.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(
		context.WithoutCancel(ctx), 2*time.Minute, errors.New("finishing an operation took too long"))
}

// setState moves a sandbox to the next state and writes the record, with events. The lock of r is held. If
// the write fails, r is unchanged.
func (s *Service) setState(ctx context.Context, op string, r *record, to api.Status, events ...newEvent) error {
	return s.setStateUsing(ctx, op, r, to, nil, events...)
}

// setStateUsing is setState for a state in which the sandbox uses more of the quotas of its workspace than before; nil
// is nothing.
func (s *Service) setStateUsing(
	ctx context.Context, op string, r *record, to api.Status, uses []quota.Amount, events ...newEvent,
) error {
	was := *r
	if r.State != to && !canReach(r.State, to) {
		return api.Errorf(api.Internal, "sandbox %s cannot go from %s to %s", r.ID, r.State, to)
	}
	if r.State != to {
		r.Changed = now()
	}
	r.State, r.Instance = to, s.instance
	if to != api.Paused {
		r.PauseReason = ""
	}
	r.Active = s.lastUse(r)
	r.Due = s.due(r)
	err := s.db.Write(ctx, op, func(ctx context.Context, tx *store.Tx) error {
		if uses != nil {
			if err := s.quotas.Admit(ctx, tx, r.Workspace, uses...); err != nil {
				return err
			}
		}
		if err := tx.UpdateSandbox(ctx, r.row(), string(was.State)); err != nil {
			return err
		}
		return s.appendEvents(ctx, tx, r, events...)
	})
	if err != nil {
		*r = was
		if errors.Is(err, store.ErrNotFound) { // another process on the same store was faster
			return api.Wrap(api.Conflict, err, "sandbox "+string(r.ID)+" has changed in the meantime: get it again")
		}
		return err
	}
	s.events.Notify(r.ID)
	if to == api.Running {
		s.noticeSuspension(ctx, r.Workspace)
	}
	return nil
}

// canReach reports whether at most two transitions lead from one state to another: a change that the host
// made by itself is seen only when it is complete.
func canReach(from, to api.Status) bool {
	if from.CanBecome(to) {
		return true
	}
	for _, mid := range api.Statuses() {
		if from.CanBecome(mid) && mid.CanBecome(to) && mid != api.Stopping {
			return true
		}
	}
	return false
}

// hostCapacity returns the capacity that the host reported last.
func (s *Service) hostCapacity() hostapi.Capacity {
	s.capacityMu.Lock()
	defer s.capacityMu.Unlock()
	return s.capacity
}

// refreshCapacity asks the host for its capacity, at most once a minute.
func (s *Service) refreshCapacity(ctx context.Context) {
	s.capacityMu.Lock()
	fresh := !s.capacityAt.IsZero() && time.Since(s.capacityAt) < time.Minute
	s.capacityMu.Unlock()
	if fresh {
		return
	}
	c, err := s.host.Capacity(ctx)
	if err != nil {
		return // only shown as a hint; the next create asks again
	}
	s.capacityMu.Lock()
	defer s.capacityMu.Unlock()
	s.capacity, s.capacityAt = c, time.Now()
}

// Labels on machines and snapshots of sandboxes. The host stores them for the day on which the control
// plane's store is lost, and for other hosts.
const (
	workspaceLabel = "workspace"
	storeLabel     = "store" // id of the store that has the record
	injectedLabel  = "surroundings"
	limitsLabel    = "limits"
	serviceLabel   = "sandbox_owner" // the service that the sandbox works for
)

// hostLabels returns the labels of a sandbox's machine and of its snapshots.
func (s *Service) hostLabels(r *record) map[string]string {
	out := map[string]string{
		workspaceLabel:     string(r.Workspace),
		storeLabel:         s.db.ID(),
		hostapi.LabelOwner: hostapi.Owner{Kind: hostapi.OwnerSandbox, ID: string(r.ID)}.String(),
	}
	if text := encodeInjected(r.Injected); text != "" {
		out[injectedLabel] = text
	}
	if !r.Owner.IsZero() {
		out[serviceLabel] = r.Owner.String()
	}
	return out
}

// ours reports whether a machine or snapshot with these labels is a sandbox's. Objects of builds and other
// services have another owner; objects from before there were owners have none.
func ours(labels map[string]string) bool {
	owner := hostapi.OwnerOf(labels)
	return owner.IsZero() || owner.Kind == hostapi.OwnerSandbox
}

// mergeMaps merges maps; a later one wins. It returns nil if all are empty.
func mergeMaps(all ...map[string]string) map[string]string {
	var out map[string]string
	for _, m := range all {
		if out == nil && len(m) > 0 {
			out = map[string]string{}
		}
		maps.Copy(out, m)
	}
	return out
}
