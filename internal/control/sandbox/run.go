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
	s.begin(ctx)
	g, ctx := errgroup.WithContext(ctx)
	events := make(chan hostapi.Event, 256)
	behind := make(chan struct{}, 1)
	g.Go(func() error { s.listen(ctx, events, behind); return nil })
	g.Go(func() error { s.answer(ctx, events); return nil })
	g.Go(func() error { s.compare(ctx, behind); return nil })
	g.Go(func() error { s.every(ctx, s.cfg.Tick, "reaping", s.Reap); return nil })
	g.Go(func() error { s.every(ctx, s.cfg.Flush, "writing last uses", s.flush); return nil })
	g.Go(func() error { s.every(ctx, time.Minute, "forgetting", s.forget); return nil })
	err := g.Wait()
	last, cancel := firm(ctx)
	defer cancel()
	if err := errors.Join(s.flush(last), s.lastWords(last)); err != nil {
		s.log.Warn("writing last uses failed", "err", err)
	}
	return err
}

// begin counts the start of the control plane as use: while it was away nobody could use anything.
func (s *Service) begin(ctx context.Context) {
	rows, err := s.db.Read().Sandboxes(ctx, store.SandboxQuery{})
	if err != nil {
		s.log.Warn("reading sandboxes failed", "err", err)
		return
	}
	for _, r := range rows {
		s.used.Touch(r.ID)
	}
	if err := s.recall(ctx); err != nil {
		s.log.Warn("reading what was seen of processes failed", "err", err)
	}
	s.learn(ctx)
}

// every calls f now and then, until ctx ends.
func (s *Service) every(ctx context.Context, pause time.Duration, doing string, f func(context.Context) error) {
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

// retry is how long a broken stream of events is left before it is asked for anew.
const retry = time.Second

// listen hands the host's events on. Whatever was missed is found by a comparison.
func (s *Service) listen(ctx context.Context, events chan<- hostapi.Event, behind chan<- struct{}) {
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
		case <-time.After(retry):
		}
	}
}

// answer acts on events, one after the other.
func (s *Service) answer(ctx context.Context, events <-chan hostapi.Event) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			if err := s.happened(ctx, e); err != nil && ctx.Err() == nil {
				s.log.Warn("acting on a host event failed; the comparison will", "machine", e.Machine, "err", err)
			}
		}
	}
}

func (s *Service) happened(ctx context.Context, e hostapi.Event) error {
	ctx, release, err := s.locks.take(ctx, string(e.Machine))
	if err != nil {
		return err
	}
	defer release()
	r, err := s.db.Read().Sandbox(ctx, string(e.Machine))
	if errors.Is(err, store.ErrNotFound) {
		return s.amend(ctx, e)
	}
	if err != nil {
		return err
	}
	if e.Type == "adopted" {
		return s.become(ctx, "adopted", &r, api.Status(r.State), occurrence{api.EventMachineAdopted, nil})
	}
	return s.settle(ctx, &r, e)
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
	ctx, release, ok := s.locks.try(ctx, id)
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
		return s.become(ctx, "postpone", &r, api.Status(r.State))
	}
	if r.Ends > 0 && r.Ends <= now {
		status, then := api.Status(r.State), api.OnTimeout(r.OnEnd)
		if then.Rests() && (status == api.Running || status == api.Paused) {
			r.Ends = 0
			if then == api.TimeoutStop && status == api.Running { // a paused one cannot write out what it holds
				return s.step(ctx, &r, stop)
			}
			return s.step(ctx, &r, hibernate)
		}
		return s.endLocked(ctx, &r, cause{reason: EndedTimeout, by: "", message: "its time was over"})
	}
	if r.Persistent {
		return s.step(ctx, &r, hibernate)
	}
	idle := time.Duration(r.TTLSeconds) * time.Second
	if api.Status(r.State) == api.Hibernated {
		return s.endLocked(
			ctx,
			&r,
			cause{reason: EndedIdle, by: "", message: "it was hibernated for " + s.cfg.HibernatedTTL.String()},
		)
	}
	return s.endLocked(ctx, &r, cause{reason: EndedIdle, by: "", message: "it was not used for " + idle.String()})
}

// forget drops what was kept long enough.
func (s *Service) forget(ctx context.Context) error {
	now := time.Now()
	before := func(keep time.Duration) int64 { return store.Micros(now.Add(-keep)) }
	return s.db.Write(ctx, "forget", func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.Forget(ctx, before(s.cfg.KeepEndings), before(s.cfg.KeepRequests), before(s.cfg.KeepAudit))
		return err
	})
}
