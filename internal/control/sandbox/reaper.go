package sandbox

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/sandbox/activity"
	"github.com/pandastack/pandastack/internal/control/store"
)

// parallelReaps limits how many sandboxes are ended at once.
const parallelReaps = 4

// reapable is what the reaper needs of the sandboxes. Service implements it.
type reapable interface {
	loadAll(ctx context.Context, q store.SandboxQuery) ([]record, error)
	// reap ends or hibernates a sandbox if it is due.
	reap(ctx context.Context, id api.SandboxID) error
}

// reaper ends or hibernates sandboxes whose idle time or fixed end has passed.
type reaper struct {
	sandboxes reapable
	interval  time.Duration
	log       *slog.Logger
}

func (s *Service) newReaper() *reaper {
	return &reaper{sandboxes: s, interval: s.cfg.ReapInterval, log: s.log}
}

// Run reaps until ctx ends.
func (r *reaper) Run(ctx context.Context) error {
	return activity.Periodically(ctx, r.interval, r.log, "reaping", r.once)
}

func (r *reaper) once(ctx context.Context) error {
	due, err := r.sandboxes.loadAll(ctx, store.SandboxQuery{DueBy: store.Micros(time.Now())})
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(parallelReaps)
	for _, box := range due {
		g.Go(func() error { return r.sandboxes.reap(ctx, box.ID) })
	}
	return g.Wait()
}

// Reap ends or hibernates the sandboxes that are due, once. Run does so all the time.
func (s *Service) Reap(ctx context.Context) error { return s.newReaper().once(ctx) }

// reap implements reapable. A sandbox with an operation under way is left for the next time.
func (s *Service) reap(ctx context.Context, id api.SandboxID) error {
	return s.ifIdle(ctx, id, s.reapLocked)
}

// ifIdle calls do with a sandbox under its lock, unless it does not live or an operation is in progress.
func (s *Service) ifIdle(ctx context.Context, id api.SandboxID, do func(context.Context, *record) error) error {
	ctx, release, ok := s.locks.TryAcquire(ctx, string(id))
	if !ok {
		return nil
	}
	defer release()
	r, err := s.load(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return do(ctx, &r)
}

func (s *Service) reapLocked(ctx context.Context, r *record) error {
	at := now()
	if due := s.due(r); due.IsZero() || due.After(at) {
		return s.setState(ctx, "postpone", r, r.State)
	}
	if !r.Ends.IsZero() && !r.Ends.After(at) {
		if r.OnEnd.KeepsSandbox() && (r.State == api.Running || r.State == api.Paused) {
			r.Ends = time.Time{}
			if r.OnEnd == api.TimeoutStop &&
				r.State == api.Running { // a paused guest cannot write back its caches
				return s.runTransition(ctx, r, stop)
			}
			return s.runTransition(ctx, r, hibernate)
		}
		return s.endLocked(ctx, r, endCause{reason: EndedTimeout, message: "its timeout passed"})
	}
	if r.Persistent {
		return s.runTransition(ctx, r, hibernate)
	}
	message := "it was not used for " + r.TTL.String()
	if r.State == api.Hibernated {
		message = "it was hibernated for " + s.cfg.HibernatedTTL.String()
	}
	return s.endLocked(ctx, r, endCause{reason: EndedIdle, message: message})
}
