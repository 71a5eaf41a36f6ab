package sandbox

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/sandbox/activity"
	"github.com/pandastack/pandastack/internal/control/sandbox/expiry"
	"github.com/pandastack/pandastack/internal/control/sandbox/hostevents"
	"github.com/pandastack/pandastack/internal/control/sandbox/relief"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Run runs the controllers until ctx ends; see the package comment. It starts with a comparison of store and
// host. Errors are logged and the work is tried again; Run returns nil when ctx ended.
func (s *Service) Run(ctx context.Context) error {
	uses := &activity.Recorder{Source: useSource{s}, Activity: &s.activity, Store: s.db,
		Interval: s.cfg.FlushInterval, Log: s.log}
	uses.Load(ctx)
	s.refreshCapacity(ctx)
	reconciler := s.newReconciler()
	events := hostevents.New(s.host, eventHandler{s}, reconciler.Trigger, s.log)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return events.Run(ctx) })
	g.Go(func() error { return reconciler.Run(ctx) })
	g.Go(func() error { return s.newReaper().Run(ctx) })
	g.Go(func() error {
		return activity.Periodically(ctx, relief.Interval, s.log, "relieving memory", s.RelieveMemory)
	})
	g.Go(func() error { return uses.Run(ctx) })
	keep := expiry.Retention{Tombstones: s.cfg.TombstoneRetention, Idempotency: s.cfg.IdempotencyRetention,
		Audit: s.cfg.AuditRetention}
	g.Go(func() error { return expiry.New(s.db, keep, s.log).Run(ctx) })
	g.Go(func() error { return s.suspensions.Run(ctx) })
	err := g.Wait()
	last, cancel := detached(ctx)
	defer cancel()
	uses.Finish(last)
	s.guests.Close()
	return err
}

// useSource implements activity.Source.
type useSource struct{ *Service }

// IDs implements activity.Source.
func (s useSource) IDs(ctx context.Context, running bool) ([]string, error) {
	q := store.SandboxQuery{}
	if running {
		q.States = inMemory
	}
	all, err := s.loadAll(ctx, q)
	ids := make([]string, 0, len(all))
	for _, r := range all {
		ids = append(ids, string(r.ID))
	}
	return ids, err
}

// Usage implements activity.Source.
func (s useSource) Usage(ctx context.Context, id string) string {
	return s.usageJSON(ctx, hostapi.MachineID(id), nil)
}

// Console implements activity.Source.
func (s useSource) Console(ctx context.Context, id string) string {
	return s.console(ctx, &record{ID: api.SandboxID(id)})
}
