package sandbox

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/internal/control/sandbox/hostevents"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Run runs the controllers until ctx ends; see the package comment. It starts with a comparison of store and
// host. Errors are logged and the work is tried again; Run returns nil when ctx ended.
func (s *Service) Run(ctx context.Context) error {
	uses := s.newUseRecorder()
	uses.load(ctx)
	s.refreshCapacity(ctx)
	reconciler := s.newReconciler()
	events := hostevents.New(s.host, eventHandler{s}, reconciler.trigger, s.log)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return events.Run(ctx) })
	g.Go(func() error { return reconciler.Run(ctx) })
	g.Go(func() error { return s.newReaper().Run(ctx) })
	g.Go(func() error { return uses.Run(ctx) })
	g.Go(func() error { return s.newExpirer().Run(ctx) })
	err := g.Wait()
	last, cancel := detached(ctx)
	defer cancel()
	uses.finish(last)
	s.guests.Close()
	return err
}

// periodically calls f at every interval until ctx ends, and logs its errors.
func periodically(
	ctx context.Context,
	interval time.Duration,
	log *slog.Logger,
	doing string,
	f func(context.Context) error,
) error {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if err := f(ctx); err != nil && ctx.Err() == nil {
			log.Warn(doing+" failed; it is tried again", "err", err)
		}
	}
}

// expireInterval is the time between removals of what was kept long enough.
const expireInterval = time.Minute

// expirer removes tombstones, idempotency keys and audit entries that were kept long enough.
type expirer struct {
	db                            *store.DB
	tombstones, idempotency, logs time.Duration // how long each is kept
	log                           *slog.Logger
}

func (s *Service) newExpirer() *expirer {
	return &expirer{db: s.db, tombstones: s.cfg.TombstoneRetention, idempotency: s.cfg.IdempotencyRetention,
		logs: s.cfg.AuditRetention, log: s.log}
}

// Run removes what has expired, until ctx ends.
func (e *expirer) Run(ctx context.Context) error {
	return periodically(ctx, expireInterval, e.log, "removing what has expired", e.once)
}

func (e *expirer) once(ctx context.Context) error {
	at := time.Now()
	before := func(keep time.Duration) int64 { return store.Micros(at.Add(-keep)) }
	return e.db.Write(ctx, "forget", func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.DeleteExpired(ctx, before(e.tombstones), before(e.idempotency), before(e.logs))
		return err
	})
}
