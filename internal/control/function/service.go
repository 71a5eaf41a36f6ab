package function

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/applog"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/function/builder"
	"github.com/pandastack/pandastack/internal/control/function/limit"
	"github.com/pandastack/pandastack/internal/control/function/pool"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/sandbox/keyed"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
	"github.com/pandastack/pandastack/internal/lib/blob"
)

// Config configures a Service. Template, Spool, URL and Endpoint are required; zero fields mean the default.
type Config struct {
	Template string                      // of functions whose creators name none
	Spool    string                      // directory for bundles that are being uploaded
	URL      func(api.FunctionID) string // of a function
	Endpoint func(api.FunctionID) string // of a function, below the API's
	Builds   int                         // at once; 2
	Wait     time.Duration               // that an invocation waits for its turn; 10 s
	Limit    limit.Config
	Pool     pool.Config

	Interval     time.Duration // between looks at all functions; 30 s
	MaxAttempts  int           // at a build, by processes that end in it; 3
	ForeignGrace time.Duration // how long a build of another process on a shared store is left alone; 30 min
}

func (c Config) withDefaults() Config {
	c.Builds = cmp.Or(c.Builds, 2)
	c.Wait = cmp.Or(c.Wait, 10*time.Second)
	c.Interval = cmp.Or(c.Interval, 30*time.Second)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 3)
	c.ForeignGrace = cmp.Or(c.ForeignGrace, 30*time.Minute)
	return c
}

// Sandboxes are the methods of *sandbox.Service that functions need.
type Sandboxes interface {
	pool.Sandboxes
	builder.Sandboxes
}

// Builder builds versions. *builder.Builder is one.
type Builder interface {
	Build(ctx context.Context, in builder.Build) (builder.Built, error)
	Executable() (*os.File, error)
}

// Deps are the components that a Service works with. All are required.
type Deps struct {
	Store     *store.DB
	Sandboxes Sandboxes
	Builder   Builder
	Templates builder.Templates
	Code      blob.Store
	Quotas    *quota.Quotas
	Log       *slog.Logger
}

// Service implements every verb on functions. Make it with New.
type Service struct {
	cfg      Config
	deps     Deps
	db       *store.DB
	boxes    Sandboxes
	quotas   *quota.Quotas
	log      *slog.Logger
	logs     *applog.Logs
	instance string
	pool     *pool.Pool
	limits   *limit.Limiter

	locks  keyed.Locks
	slots  *semaphore.Weighted // of builds
	hub    keyed.Hub           // by function: a version, a run or a machine has changed
	poked  chan struct{}
	builds sync.WaitGroup // of Run
	stray  atomic.Bool    // there may be code that no version has

	mu       sync.Mutex
	queue    Queue
	flights  map[api.FunctionID]*flight
	building map[string]context.CancelCauseFunc // by version
}

// New returns a service. It touches neither store nor host.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Store == nil || deps.Sandboxes == nil || deps.Builder == nil || deps.Templates == nil ||
		deps.Code == nil || deps.Quotas == nil || deps.Log == nil {
		return nil, errors.New("function: a required dependency is missing")
	}
	if cfg.Template == "" || cfg.Spool == "" || cfg.URL == nil || cfg.Endpoint == nil {
		return nil, errors.New("function: template, spool, URL and endpoint are required")
	}
	cfg = cfg.withDefaults()
	s := &Service{
		cfg: cfg, deps: deps, db: deps.Store, boxes: deps.Sandboxes, quotas: deps.Quotas, log: deps.Log,
		logs: applog.New(deps.Store), instance: strings.ToLower(rand.Text()), limits: limit.New(cfg.Limit),
		slots: semaphore.NewWeighted(int64(cfg.Builds)), poked: make(chan struct{}, 1), queue: noQueue{},
		flights: map[api.FunctionID]*flight{}, building: map[string]context.CancelCauseFunc{},
	}
	s.stray.Store(true) // of a process that was killed
	cfg.Pool.Instance, cfg.Pool.OwnerKind = s.instance, OwnerKind
	var err error
	s.pool, err = pool.New(cfg.Pool, deps.Store, deps.Sandboxes, deps.Log)
	return s, err
}

// noQueue is the queue of a service without asynchronous invocations.
type noQueue struct{}

func (noQueue) Poke(api.FunctionID)                          {}
func (noQueue) Forget(context.Context, api.FunctionID) error { return nil }

// SetQueue sets what has the asynchronous invocations, before Run.
func (s *Service) SetQueue(q Queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = q
}

func (s *Service) async() Queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queue
}

// Recorded says that a run of a function was written, for those who follow its runs.
func (s *Service) Recorded(fn api.FunctionID) { s.hub.Notify(string(fn)) }

// Runtime opens the program that builds functions in machines and serves them.
func (s *Service) Runtime() (io.ReadCloser, error) { return s.deps.Builder.Executable() }

// poke makes Run look at all functions soon.
func (s *Service) poke() {
	select {
	case s.poked <- struct{}{}:
	default:
	}
}

// as returns the principal that uses what belongs to a function.
func as(row *functionstore.Function) auth.Principal {
	return pool.Principal(OwnerKind, api.Workspace(row.Workspace), api.FunctionID(row.ID))
}

func notFound(fn string) error {
	return api.Errorf(api.NotFound, "function %.60q not found: list them at /v1/functions", fn)
}

func (s *Service) read() functionstore.Tx { return functionstore.In(s.db.Read()) }

func (s *Service) write(ctx context.Context, op string, f func(context.Context, functionstore.Tx) error) error {
	return s.db.Write(ctx, op, func(ctx context.Context, tx *store.Tx) error { return f(ctx, functionstore.In(tx)) })
}

// Find implements Invoker.
func (s *Service) Find(ctx context.Context, p auth.Principal, idOrName string) (functionstore.Function, error) {
	if p.Workspace == "" {
		return functionstore.Function{}, api.Errorf(api.Unauthenticated, "the caller has no workspace")
	}
	if err := s.quotas.CheckActive(ctx, p.Workspace); err != nil {
		return functionstore.Function{}, api.AsError(err)
	}
	var row functionstore.Function
	var err error
	if api.FunctionID(idOrName).Valid() {
		row, err = s.read().Function(ctx, idOrName)
	} else {
		row, err = s.read().ByName(ctx, string(p.Workspace), idOrName)
	}
	switch {
	case errors.Is(err, store.ErrNotFound),
		err == nil && (row.Workspace != string(p.Workspace) || row.State != functionstore.Active):
		return functionstore.Function{}, notFound(idOrName)
	case err != nil:
		return functionstore.Function{}, api.AsError(err)
	}
	return row, nil
}

// settings are those of a function with defaults.
type settings struct {
	api.FunctionSettings
}

func (s *settings) timeout() time.Duration {
	return time.Duration(cmp.Or(s.TimeoutSeconds, 30)) * time.Second
}
func (s *settings) concurrency() int    { return cmp.Or(s.Concurrency, 10) }
func (s *settings) maxConcurrency() int { return cmp.Or(s.MaxConcurrency, 100) }
func (s *settings) idle() time.Duration {
	return time.Duration(cmp.Or(s.IdleSeconds, 300)) * time.Second
}
func (s *settings) maxPayload() int64 {
	return int64(cmp.Or(s.MaxPayloadBytes, api.MaxFunctionPayload))
}
func (s *settings) shared() bool { return s.Mode == api.FunctionShared }

func decode[T any](text string) (v T, err error) {
	if text == "" {
		return v, nil
	}
	return v, json.Unmarshal([]byte(text), &v)
}

func encode(v any) (string, error) {
	data, err := json.Marshal(v)
	return string(data), err
}

// detached returns a context for work that must be finished although the caller has left.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(
		context.WithoutCancel(ctx), 2*time.Minute, errors.New("finishing an operation took too long"))
}

// flight is what is under way of a function.
type flight struct {
	n      int
	cancel context.CancelCauseFunc
	ctx    context.Context
	ended  chan struct{} // closed when n is 0
}

// errDeleted ends the invocations and builds of a function that is being deleted.
var errDeleted = api.Errorf(api.NotFound, "the function was deleted")

// enter returns a context that also ends when the function is deleted. Leave says that its work has ended.
func (s *Service) enter(ctx context.Context, fn api.FunctionID) (_ context.Context, leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.flights[fn]
	if f == nil {
		f = &flight{ended: make(chan struct{})}
		f.ctx, f.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
		s.flights[fn] = f
	}
	f.n++
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(f.ctx, func() { cancel(context.Cause(f.ctx)) })
	return ctx, func() {
		stop()
		cancel(nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		if f.n--; f.n == 0 {
			f.cancel(nil)
			close(f.ended)
			delete(s.flights, fn)
		}
	}
}

// interrupt ends what is under way of a function and waits for it.
func (s *Service) interrupt(ctx context.Context, fn api.FunctionID) error {
	for {
		s.mu.Lock()
		f := s.flights[fn]
		s.mu.Unlock()
		if f == nil {
			return nil
		}
		f.cancel(errDeleted)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-f.ended:
		}
	}
}
