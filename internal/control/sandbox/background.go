package sandbox

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Run ends sandboxes whose time has come, follows the host's events and compares store and host, until
// ctx ends. It begins with a comparison. What goes wrong is logged and tried again; the answer is nil
// when ctx ended.
func (s *Service) Run(ctx context.Context) error {
	s.prepareRun(ctx)
	g, ctx := errgroup.WithContext(ctx)
	events := make(chan hostapi.Event, 256)
	behind := make(chan struct{}, 1)
	g.Go(func() error { s.followEvents(ctx, events, behind); return nil })
	g.Go(func() error { s.handleEvents(ctx, events); return nil })
	g.Go(func() error { s.reconcileLoop(ctx, behind); return nil })
	g.Go(func() error { s.periodically(ctx, s.cfg.ReapInterval, "reaping", s.Reap); return nil })
	g.Go(func() error { s.periodically(ctx, s.cfg.FlushInterval, "writing last uses", s.flush); return nil })
	g.Go(func() error { s.periodically(ctx, time.Minute, "forgetting", s.expire); return nil })
	err := g.Wait()
	last, cancel := detached(ctx)
	defer cancel()
	if err := errors.Join(s.flush(last), s.finalSample(last)); err != nil {
		s.log.Warn("writing last uses failed", "err", err)
	}
	return err
}

// prepareRun counts the start of the control plane as use: while it was away nobody could use anything.
func (s *Service) prepareRun(ctx context.Context) {
	rows, err := s.db.Read().Sandboxes(ctx, store.SandboxQuery{})
	if err != nil {
		s.log.Warn("reading sandboxes failed", "err", err)
		return
	}
	for _, r := range rows {
		s.activity.Touch(r.ID)
	}
	if err := s.loadProcesses(ctx); err != nil {
		s.log.Warn("reading what was seen of processes failed", "err", err)
	}
	s.refreshCapacity(ctx)
}

// periodically calls f now and then, until ctx ends.
func (s *Service) periodically(ctx context.Context, pause time.Duration, doing string, f func(context.Context) error) {
	t := time.NewTicker(pause)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if err := f(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn(doing+" failed; it is tried again", "err", err)
		}
	}
}

// eventRetryDelay is how long a broken stream of events is left before it is asked for anew.
const eventRetryDelay = time.Second

// followEvents hands the host's events on. Whatever was missed is found by a comparison.
func (s *Service) followEvents(ctx context.Context, events chan<- hostapi.Event, behind chan<- struct{}) {
	nudge := func() {
		select {
		case behind <- struct{}{}:
		default: // one is enough
		}
	}
	for ctx.Err() == nil {
		err := s.host.Events(ctx, func(e hostapi.Event) error {
			select {
			case events <- e:
			default:
				nudge()
			}
			return nil
		})
		if ctx.Err() != nil {
			return
		}
		s.log.Warn("the stream of host events broke; it is asked for again", "err", err)
		nudge()
		select {
		case <-ctx.Done():
		case <-time.After(eventRetryDelay):
		}
	}
}

// handleEvents acts on events, one after the other.
func (s *Service) handleEvents(ctx context.Context, events <-chan hostapi.Event) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			if err := s.handleEvent(ctx, e); err != nil && ctx.Err() == nil {
				s.log.Warn("acting on a host event failed; the comparison will", "machine", e.Machine, "err", err)
			}
		}
	}
}

func (s *Service) handleEvent(ctx context.Context, e hostapi.Event) error {
	ctx, release, err := s.locks.acquire(ctx, string(e.Machine))
	if err != nil {
		return err
	}
	defer release()
	r, err := s.db.Read().Sandbox(ctx, string(e.Machine))
	if errors.Is(err, store.ErrNotFound) {
		return s.amendTombstone(ctx, e)
	}
	if err != nil {
		return err
	}
	if e.Type == "adopted" {
		return s.setState(ctx, "adopted", &r, api.Status(r.State), newEvent{api.EventMachineAdopted, nil})
	}
	return s.reconcileRow(ctx, &r, e)
}

// Reap looks at the sandboxes whose time may have come, once. Run does so all the time.
func (s *Service) Reap(ctx context.Context) error {
	rows, err := s.db.Read().Sandboxes(ctx, store.SandboxQuery{DueBy: store.Micros(time.Now())})
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(4)
	for _, r := range rows {
		g.Go(func() error { return s.reap(ctx, r.ID) })
	}
	return g.Wait()
}

// reap ends one sandbox if its time has come; one that something is done to is left for the next look.
func (s *Service) reap(ctx context.Context, id string) error {
	ctx, release, ok := s.locks.tryAcquire(ctx, id)
	if !ok {
		return nil
	}
	defer release()
	r, err := s.db.Read().Sandbox(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	now := store.Micros(time.Now())
	if due := s.due(&r); due == 0 || due > now {
		return s.setState(ctx, "postpone", &r, api.Status(r.State))
	}
	if r.Ends > 0 && r.Ends <= now {
		status, then := api.Status(r.State), api.OnTimeout(r.OnEnd)
		if then.KeepsSandbox() && (status == api.Running || status == api.Paused) {
			r.Ends = 0
			if then == api.TimeoutStop && status == api.Running { // a paused one cannot write out what it holds
				return s.runTransition(ctx, &r, stop)
			}
			return s.runTransition(ctx, &r, hibernate)
		}
		return s.endLocked(ctx, &r, endCause{reason: EndedTimeout, by: "", message: "its time was over"})
	}
	if r.Persistent {
		return s.runTransition(ctx, &r, hibernate)
	}
	idle := time.Duration(r.TTLSeconds) * time.Second
	if api.Status(r.State) == api.Hibernated {
		return s.endLocked(
			ctx,
			&r,
			endCause{reason: EndedIdle, by: "", message: "it was hibernated for " + s.cfg.HibernatedTTL.String()},
		)
	}
	return s.endLocked(ctx, &r, endCause{reason: EndedIdle, by: "", message: "it was not used for " + idle.String()})
}

// expire drops what was kept long enough.
func (s *Service) expire(ctx context.Context) error {
	now := time.Now()
	before := func(keep time.Duration) int64 { return store.Micros(now.Add(-keep)) }
	return s.db.Write(ctx, "forget", func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.DeleteExpired(ctx, before(s.cfg.TombstoneRetention), before(s.cfg.IdempotencyRetention), before(s.cfg.AuditRetention))
		return err
	})
}
