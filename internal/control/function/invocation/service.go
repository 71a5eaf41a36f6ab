package invocation

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/function"
	"github.com/pandastack/pandastack/internal/control/job"
	"github.com/pandastack/pandastack/internal/control/schedule"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
)

// Bounds of the work of a Service.
const (
	maxSleep      = 5 * time.Second // between looks at a store that others use
	maxSleepAlone = time.Minute     // at one that is exclusive: only the clock can surprise
	errorSleep    = time.Second     // after an error of the store
	sweepInterval = time.Hour
	keyAge        = 24 * time.Hour // of idempotency keys
)

// Config configures a Service. Zero fields mean the default.
type Config struct {
	Concurrency int            // runs at a time; 32
	MaxQueued   int            // runs of a workspace that wait; 50,000
	Lease       time.Duration  // 30 s
	Backoff     time.Duration  // before the second attempt, doubled for each one after it; 2 s
	Retention   time.Duration  // of runs that have ended; 7 days; at least one
	Networks    []netip.Prefix // that outcomes may be posted to although they are not public
	// Exclusive says that no other process uses the store: leases of others are those of dead processes.
	Exclusive bool
	Now       func() time.Time // clock of the rows; time.Now
}

// Deps are the components that a Service works with. All but Ended are required.
type Deps struct {
	Store   *store.DB
	Jobs    *job.Queue // posts outcomes to URLs; New registers the worker
	Invoker function.Invoker
	Log     *slog.Logger
	// Ended is called after a run has ended.
	Ended func(api.FunctionRun)
}

// Service runs functions asynchronously. Make it with New.
type Service struct {
	cfg      Config
	db       *store.DB
	jobs     *job.Queue
	invoker  function.Invoker
	log      *slog.Logger
	ended    func(api.FunctionRun)
	observer func(context.Context, *store.Tx, schedule.FunctionState) error
	client   *http.Client
	instance string
	poked    chan struct{}
	watchers watchers

	mu     sync.Mutex
	active map[string]*attempt // by run; guarded by mu
	turns  turns               // guarded by mu

	// Of the goroutine of Run.
	patience time.Time // until when leases of others are left alone
	looked   time.Time // last look, with the monotonic clock
	wall     time.Time // by the clock of the rows, at the same moment
	swept    time.Time
}

// New returns a service and registers its worker with the job queue. It does not touch the store.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Store == nil || deps.Jobs == nil || deps.Invoker == nil || deps.Log == nil {
		return nil, errors.New("invocation: store, jobs, invoker and log are required")
	}
	cfg.Concurrency = cmp.Or(cfg.Concurrency, 32)
	cfg.MaxQueued = cmp.Or(cfg.MaxQueued, 50_000)
	cfg.Lease = cmp.Or(cfg.Lease, 30*time.Second)
	cfg.Backoff = cmp.Or(cfg.Backoff, 2*time.Second)
	cfg.Retention = max(cmp.Or(cfg.Retention, 7*24*time.Hour), keyAge)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Service{
		cfg: cfg, db: deps.Store, jobs: deps.Jobs, invoker: deps.Invoker, log: deps.Log, ended: deps.Ended,
		client: newClient(cfg.Networks), instance: strings.ToLower(rand.Text()), poked: make(chan struct{}, 1),
		watchers: watchers{all: map[string]map[chan struct{}]bool{}}, active: map[string]*attempt{},
	}
	deps.Jobs.Register(job.Worker{
		Kind: deliveryKind, Run: s.deliver, Concurrency: 8, PerWorkspace: 2, MaxAttempts: 5,
		Backoff: 10 * time.Second, Retention: time.Hour,
	})
	return s, nil
}

// Observe sets what is called in the transactions that change the state of runs of schedules. Call it before Run.
func (s *Service) Observe(f func(context.Context, *store.Tx, schedule.FunctionState) error) {
	s.observer = f
}

// Poke makes Run look at the store now: there may be a run that is due, or room for one.
func (s *Service) Poke(api.FunctionID) { s.wake() }

// Notify is Poke for those who have added a run in a transaction of their own.
func (s *Service) Notify() { s.wake() }

func (s *Service) wake() {
	select {
	case s.poked <- struct{}{}:
	default: // one is enough
	}
}

func (s *Service) now() time.Time { return s.cfg.Now() }

// micros is the time by the clock of the rows.
func (s *Service) micros() int64 { return store.Micros(s.now()) }

// Run claims and makes runs until ctx ends. It then interrupts those under way, which are attempted again later, and
// returns when all have been written down.
func (s *Service) Run(ctx context.Context) error {
	running, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	var workers sync.WaitGroup
	defer s.client.CloseIdleConnections()
	defer workers.Wait()
	defer stop(errShutdown) // before the wait
	workers.Go(func() { s.heartbeat(running) })
	s.looked, s.wall = time.Now(), s.now()
	first := true
	for ctx.Err() == nil {
		wait, err := s.look(ctx, running, &workers, first)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			s.patience = time.Now().Add(s.cfg.Lease)
			s.log.Warn("runs of functions could not be claimed; it is tried again", "err", err)
			wait = errorSleep
		default:
			first = false
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-s.poked:
		}
		timer.Stop()
	}
	return nil
}

// look does everything that is due, and returns how long to sleep. The first look of an exclusive Service ends the
// leases of all others.
func (s *Service) look(
	ctx, running context.Context,
	workers *sync.WaitGroup,
	first bool,
) (time.Duration, error) {
	s.watchClock()
	if now := time.Now(); s.swept.IsZero() || now.Sub(s.swept) >= sweepInterval {
		if err := s.sweep(ctx); err != nil {
			return 0, err
		}
		s.swept = now
	}
	if err := s.reclaim(ctx, first && s.cfg.Exclusive); err != nil {
		return 0, err
	}
	if err := s.dispatch(ctx); err != nil {
		return 0, err
	}
	if err := s.claim(ctx, running, workers); err != nil {
		return 0, err
	}
	return s.untilNext(ctx)
}

// watchClock notices that the clock of the rows was set.
func (s *Service) watchClock() {
	now, wall := time.Now(), s.now()
	jump := wall.Round(0).Sub(s.wall.Round(0)) - now.Sub(s.looked)
	if jump.Abs() > s.cfg.Lease/6 {
		s.log.Info("the clock was set", "by", jump)
		s.patience = now.Add(s.cfg.Lease)
	}
	s.looked, s.wall = now, wall
}

// untilNext returns how long nothing is due.
func (s *Service) untilNext(ctx context.Context) (time.Duration, error) {
	now := s.now()
	in, sleep := functionstore.In(s.db.Read()), maxSleep
	if s.cfg.Exclusive {
		sleep = maxSleepAlone
	}
	for _, next := range []func(context.Context, int64) (int64, error){in.NextRun, in.NextLease, in.NextMessage} {
		at, err := next(ctx, store.Micros(now))
		if err != nil {
			return 0, err
		}
		if at > 0 {
			sleep = min(sleep, store.Time(at).Sub(now)+time.Millisecond)
		}
	}
	return sleep, nil
}

// sweep removes runs that ended long ago and messages that are too old.
func (s *Service) sweep(ctx context.Context) error {
	const some = 500
	now := s.now()
	for _, remove := range []func(context.Context, functionstore.Tx) (int64, error){
		func(ctx context.Context, tx functionstore.Tx) (int64, error) {
			return tx.DeleteRuns(ctx, store.Micros(now.Add(-s.cfg.Retention)), some)
		},
		func(ctx context.Context, tx functionstore.Tx) (int64, error) {
			return tx.ExpireMessages(ctx, store.Micros(now), some)
		},
	} {
		for n := int64(some); n == some; {
			err := s.db.Write(ctx, "invocation sweep", func(ctx context.Context, tx *store.Tx) (err error) {
				n, err = remove(ctx, functionstore.In(tx))
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// watchers wait for something to happen to a key: the end of a run of a map, a message of a queue.
type watchers struct {
	mu  sync.Mutex
	all map[string]map[chan struct{}]bool // guarded by mu
}

// watch returns a channel that receives after something has happened to a key, until stop is called.
func (w *watchers) watch(key string) (happened <-chan struct{}, stop func()) {
	ch := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all[key] == nil {
		w.all[key] = map[chan struct{}]bool{}
	}
	w.all[key][ch] = true
	return ch, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.all[key], ch)
		if len(w.all[key]) == 0 {
			delete(w.all, key)
		}
	}
}

func (w *watchers) notify(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ch := range w.all[key] {
		select {
		case ch <- struct{}{}:
		default: // one is enough
		}
	}
}
