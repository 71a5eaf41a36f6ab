package sandbox

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sandbox/activity"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Config is what may be chosen. Defaults gives one that works.
type Config struct {
	DefaultTemplate      string
	DefaultTTL           time.Duration // idle time until deletion when a request does not say; 0: never
	HibernatedTTL        time.Duration // until a hibernated sandbox that is not persistent is deleted; 0: never
	IdleHibernate        time.Duration // idle time until a persistent sandbox is hibernated; 0: never
	MaxSandboxes         int           // of one workspace, unless it has its own bound; 0: no bound
	MaxFork              int           // children of one fork
	TombstoneRetention   time.Duration // how long after a sandbox's end it is known why, with its logs and events
	IdempotencyRetention time.Duration // how long an idempotency key is known
	AuditRetention       time.Duration
	MaxEvents            int           // of one sandbox
	ReapInterval         time.Duration // between looks for sandboxes whose time has come
	FlushInterval        time.Duration // between writes of when sandboxes were used last
	ReconcileInterval    time.Duration // between comparisons of store and host
	OrphanGrace          time.Duration // a machine or snapshot that nobody owns is left alone so long
	ForeignOwnerGrace    time.Duration // an operation of another process on a shared store is left alone so long
}

// Defaults is the configuration of a node that was not told otherwise.
func Defaults() Config {
	return Config{
		DefaultTemplate: "base", DefaultTTL: 300 * time.Second, MaxSandboxes: 1000, MaxFork: 16,
		TombstoneRetention: 72 * time.Hour, IdempotencyRetention: 24 * time.Hour, AuditRetention: 30 * 24 * time.Hour, MaxEvents: 1000,
		ReapInterval: time.Second, FlushInterval: 5 * time.Second, ReconcileInterval: 30 * time.Second,
		OrphanGrace: time.Minute, ForeignOwnerGrace: 10 * time.Minute,
	}
}

// Templates finds templates by what users call them.
type Templates interface {
	// Resolve answers a template that a caller may use by name or alias; not_found as *api.Error.
	Resolve(ctx context.Context, p auth.Principal, name string) (api.Template, error)
}

// Deps are the components a Service stands on. All but Observe are required.
type Deps struct {
	Store     *store.DB
	Host      hostapi.Host
	Templates Templates
	Log       *slog.Logger
	// Observe is told the end of every verb: its name, its code ("" for well) and how long it took. It
	// must not block.
	Observe func(verb string, code api.Code, took time.Duration)
}

// Service is every verb on sandboxes. See the package comment.
type Service struct {
	cfg       Config
	db        *store.DB
	host      hostapi.Host
	templates Templates
	log       *slog.Logger
	observe   func(verb string, code api.Code, took time.Duration)
	instance  string // this process, as the owner of operations

	locks    locks
	activity activity.Tracker
	changes  hub

	capacityMu sync.Mutex
	capacity   hostapi.Capacity
	capacityAt time.Time
}

// New makes a service; it touches neither store nor host.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Store == nil || deps.Host == nil || deps.Templates == nil || deps.Log == nil {
		return nil, errors.New("sandbox: store, host, templates and log are required")
	}
	if cfg.ReapInterval <= 0 || cfg.FlushInterval <= 0 || cfg.ReconcileInterval <= 0 || cfg.MaxFork <= 0 || cfg.MaxEvents <= 0 {
		return nil, errors.New(
			"sandbox: tick, flush, compare, max fork and keep events must be above zero; begin with Defaults",
		)
	}
	s := &Service{cfg: cfg, db: deps.Store, host: deps.Host, templates: deps.Templates, log: deps.Log,
		observe: deps.Observe, instance: strings.ToLower(rand.Text())}
	if s.observe == nil {
		s.observe = func(string, api.Code, time.Duration) {}
	}
	return s, nil
}

// finishVerb is deferred at the top of a verb: it makes every error an *api.Error and tells Observe.
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
		case api.NoCapacity, api.NoSpace: // the numbers are the operator's, not the caller's
			s.log.Warn("no room", "verb", verb, "err", why)
		}
	}
	s.observe(verb, code, time.Since(began))
}

// row reads a sandbox that the caller owns.
func (s *Service) row(ctx context.Context, p auth.Principal, id api.SandboxID) (store.Sandbox, error) {
	if p.Workspace == "" {
		return store.Sandbox{}, api.Errorf(api.Unauthenticated, "the caller has no workspace")
	}
	r, err := s.db.Read().Sandbox(ctx, string(id))
	switch {
	case errors.Is(err, store.ErrNotFound):
		return r, s.endedError(ctx, p, id)
	case err != nil:
		return r, err
	case r.Workspace != string(p.Workspace):
		return store.Sandbox{}, notFound(id)
	}
	return r, nil
}

// detached gives a context for what must be finished although the caller left.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(
		context.WithoutCancel(ctx),
		2*time.Minute,
		errors.New("finishing an operation took too long"),
	)
}

// newEvent is an event to be.
type newEvent struct {
	kind    string
	payload map[string]any
}

// appendEvents writes events of a sandbox.
func (s *Service) appendEvents(ctx context.Context, tx *store.Tx, r *store.Sandbox, all ...newEvent) error {
	for _, o := range all {
		payload := []byte("{}")
		if len(o.payload) > 0 {
			var err error
			if payload, err = json.Marshal(o.payload); err != nil {
				return err
			}
		}
		e := &store.Event{
			Sandbox:   r.ID,
			Workspace: r.Workspace,
			At:        store.Micros(time.Now()),
			Type:      o.kind,
			Payload:   string(payload),
		}
		if err := tx.AppendEvent(ctx, e); err != nil {
			return err
		}
		if keep := int64(s.cfg.MaxEvents); e.Seq > keep && e.Seq%100 == 0 {
			if err := tx.TrimEvents(ctx, r.ID, e.Seq, keep); err != nil {
				return err
			}
		}
	}
	return nil
}

// setState moves a sandbox to the next state and writes the row, with events. The lock of r is held. When
// the write fails r is as it was.
func (s *Service) setState(ctx context.Context, op string, r *store.Sandbox, to api.Status, events ...newEvent) error {
	was := *r
	if from := api.Status(r.State); from != to && !canReach(from, to) {
		return api.Errorf(api.Internal, "sandbox %s cannot go from %s to %s", r.ID, from, to)
	}
	now := time.Now()
	if r.State != string(to) {
		r.Changed = store.Micros(now)
	}
	r.State, r.Owner = string(to), s.instance
	r.Active = s.active(r)
	r.Due = s.due(r)
	err := s.db.Write(ctx, op, func(ctx context.Context, tx *store.Tx) error {
		if err := tx.UpdateSandbox(ctx, r, was.State); err != nil {
			return err
		}
		return s.appendEvents(ctx, tx, r, events...)
	})
	if err != nil {
		*r = was
		if errors.Is(err, store.ErrNotFound) { // another process on the same store was faster
			return api.Wrap(api.Conflict, err, "sandbox "+r.ID+" changed meanwhile: look at it again")
		}
		return err
	}
	s.changes.notify(r.ID)
	return nil
}

// canReach tells whether the table leads from one state to another in at most two moves: what a host did
// by itself is seen only when it is done.
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

// applyMachine puts what a host says of a machine into a row.
func applyMachine(r *store.Sandbox, m hostapi.Machine) {
	r.VCPUs, r.MemoryMiB, r.DiskMiB, r.DataDisks = m.VCPUs, m.MemoryMiB, m.DiskMiB, encodeDisks(m.Disks)
	r.GuestIP, r.Tap, r.MAC = m.GuestIP, m.Tap, m.MAC
	r.Generation = int64(m.Generation)
	r.BootMode, r.Boot, r.Pause = string(m.BootMode), m.Boot.Microseconds(), m.Pause.Microseconds()
	phases := make([]api.Phase, 0, len(m.Phases))
	for _, ph := range m.Phases {
		phases = append(phases, api.Phase{Name: ph.Name, TookMS: float64(ph.Took.Microseconds()) / 1000})
	}
	data, err := json.Marshal(phases)
	if err != nil {
		data = []byte("[]") // only a number that JSON cannot have; phases are a hint
	}
	r.Phases = string(data)
}

// redacted stands for the value of a metadata key that may be written but not read.
const redacted = "[redacted]"

// visibleMetadata gives metadata as users may read it.
func visibleMetadata(m map[string]string) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		if strings.HasPrefix(k, "secret.") {
			v = redacted
		}
		out[k] = v
	}
	return out
}

// view gives a row as users see it.
func (s *Service) view(r *store.Sandbox) api.Sandbox {
	var phases []api.Phase
	if err := json.Unmarshal([]byte(r.Phases), &phases); err != nil {
		phases = nil // a hint
	}
	facts := s.hostCapacity()
	out := api.Sandbox{
		ID: api.SandboxID(
			r.ID,
		), Template: r.Template, CPU: r.VCPUs, MemoryMB: r.MemoryMiB, DiskMB: r.DiskMiB, DataDisks: viewDisks(r),
		Status: api.Status(r.State), GuestIP: r.GuestIP, HostTap: r.Tap, MAC: r.MAC, Metadata: visibleMetadata(r.Metadata),
		FromSnapshot: api.SnapshotID(r.Snapshot), BootMS: (r.Boot + 999) / 1000, BootMode: r.BootMode,
		CreatedAt: store.Time(r.Created), Workspace: api.Workspace(r.Workspace), Persistent: r.Persistent,
		TTLSeconds: r.TTLSeconds, IdleSeconds: int64(s.idle(r).Seconds()), ParentID: api.SandboxID(r.Parent),
		TreeID: api.TreeID(
			r.Tree,
		), User: r.User, Workdir: r.Workdir, Egress: r.Egress, Network: viewNetwork(r), Limits: viewLimits(r.Limits), Isolation: facts.Isolation,
		Accelerator: facts.Accelerator, Generation: uint64(r.Generation), PauseMS: (r.Pause + 999) / 1000,
		FailureReason: r.Reason, Phases: phases,
	}
	if r.Ends > 0 {
		at := store.Time(r.Ends)
		out.ExpiresAt = &at
	}
	if then := api.OnTimeout(r.OnEnd); r.Ends > 0 || then.KeepsSandbox() {
		out.OnTimeout = then
	}
	return out
}

// hostCapacity gives what was heard last of the host's abilities.
func (s *Service) hostCapacity() hostapi.Capacity {
	s.capacityMu.Lock()
	defer s.capacityMu.Unlock()
	return s.capacity
}

// refreshCapacity asks the host for its abilities, at most once a minute.
func (s *Service) refreshCapacity(ctx context.Context) {
	s.capacityMu.Lock()
	fresh := !s.capacityAt.IsZero() && time.Since(s.capacityAt) < time.Minute
	s.capacityMu.Unlock()
	if fresh {
		return
	}
	c, err := s.host.Capacity(ctx)
	if err != nil {
		return // shown only as a hint; asked again by the next create
	}
	s.capacityMu.Lock()
	defer s.capacityMu.Unlock()
	s.capacity, s.capacityAt = c, time.Now()
}

// hostLabels go to the host with every machine and snapshot, for the day its store is lost and for other hosts.
func (s *Service) hostLabels(workspace, surroundings string) map[string]string {
	out := map[string]string{"workspace": workspace, "store": s.db.ID()}
	if surroundings != "" {
		out[injectedLabel] = surroundings
	}
	return out
}

// mergeMaps lays maps over each other, the last on top. It answers nil for nothing at all.
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
