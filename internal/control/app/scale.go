package app

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/store"
)

// followLinks deploys an app again whose linked databases have other credentials than its programs know.
func (s *Service) followLinks(ctx context.Context, row *store.App) error {
	live, err := s.db.Read().Deployment(ctx, row.Deployment)
	if err != nil || live.Linked == "" {
		return err
	}
	made, err := decode(&live)
	if err != nil {
		return err
	}
	linked, err := s.linkedTo(ctx, row, made.set.Databases)
	if err != nil || hashOf(linked) == live.Linked {
		return nil //nolint:nilerr // a database that cannot be asked has not changed
	}
	last, err := s.db.Read().Deployments(ctx, store.DeploymentQuery{App: row.ID, Limit: 1})
	if err != nil || len(last) > 0 && (!api.DeploymentStatus(last[0].State).Ended() || // not at once again
		last[0].State == string(api.DeploymentFailed) && time.Since(store.Time(last[0].Created)) < calm) {
		return err
	}
	_, err = s.restart(ctx, row, OwnerKind, "the credentials of a linked database have changed")
	return err
}

// scale makes an app have the replicas that it needs: it revives those that crashed, starts the minimum, lets idle ones
// sleep and removes those that are too many. The lock is held.
func (s *Service) scale(ctx context.Context, row *store.App, set *appspec.Settings) error {
	all, err := s.replicasOf(ctx, row)
	if err != nil {
		return err
	}
	ready := slices.DeleteFunc(slices.Clone(all), func(r store.Replica) bool { return r.State != store.ReplicaReady })
	l, id := s.of(row), api.AppID(row.ID)
	if set.Scale.Max == 0 {
		return s.retire(ctx, row, all)
	}
	if len(ready) > set.Scale.Max {
		return s.retire(ctx, row, ready[set.Scale.Max:])
	}
	l.mu.Lock()
	revive := l.revive
	l.mu.Unlock()
	want, idle := set.Scale.Min, s.isIdle(ctx, row, set)
	if revive && !idle {
		want = max(want, 1)
	}
	if len(ready) < want {
		if s.backoff(l) > 0 {
			return nil
		}
		if err := s.wake(ctx, row, want); err != nil {
			if api.CodeOf(err) == api.NotFound { // the machine or the snapshot is gone: not at once again
				l.crash()
			}
			return err
		}
	}
	if revive {
		l.mu.Lock()
		l.revive = false
		l.mu.Unlock()
	}
	if idle {
		return s.sleep(ctx, row, ready)
	}
	return s.shrink(ctx, row, set, l, ready, s.requests().InFlight(id))
}

// isIdle reports whether an app that runs is to sleep.
func (s *Service) isIdle(ctx context.Context, row *store.App, set *appspec.Settings) bool {
	id := api.AppID(row.ID)
	last := s.requests().LastUse(id)
	if used := store.Time(row.Used); last.Sub(used) > time.Second || s.requests().InFlight(id) > 0 {
		err := s.db.Write(ctx, "app use", func(ctx context.Context, tx *store.Tx) error {
			return tx.TouchApp(ctx, row.ID, store.Micros(last))
		})
		if err != nil {
			return false
		}
	}
	if !set.AutoHibernate || set.Scale.Min > 0 || s.requests().InFlight(id) > 0 {
		return false
	}
	l := s.of(row)
	l.mu.Lock()
	began := l.began
	l.mu.Unlock()
	for _, at := range []time.Time{store.Time(row.Used), s.began, began} {
		if at.After(last) {
			last = at
		}
	}
	return time.Since(last) >= time.Duration(set.IdleSeconds)*time.Second
}

// shrink retires one replica when for a while there were more than the load needs.
func (s *Service) shrink(
	ctx context.Context,
	row *store.App,
	set *appspec.Settings,
	l *live,
	ready []store.Replica,
	load int,
) error {
	per := max(set.Scale.Concurrency, 1)
	needed := max(set.Scale.Min, 1, (load+per-1)/per)
	l.mu.Lock()
	if len(ready) <= needed {
		l.surplus = time.Time{}
	} else if l.surplus.IsZero() {
		l.surplus = time.Now()
	}
	since := l.surplus
	l.mu.Unlock()
	if since.IsZero() || time.Since(since) < s.cfg.SurplusGrace {
		return nil
	}
	l.mu.Lock()
	l.surplus = time.Now() // of the next one
	l.mu.Unlock()
	return s.retire(ctx, row, ready[len(ready)-1:])
}

// retire lets replicas take no further requests. Drain removes them.
func (s *Service) retire(ctx context.Context, row *store.App, all []store.Replica) error {
	for i := range all {
		switch all[i].State {
		case store.ReplicaReady, store.ReplicaSleeping, store.ReplicaAsleep:
			if err := s.setReplica(ctx, row, &all[i], store.ReplicaDraining); err != nil {
				return err
			}
		}
	}
	return nil
}

// drain removes replicas that take no further requests, when the last of their requests has ended.
func (s *Service) drain(ctx context.Context, id string) error {
	ctx, release, ok := s.locks.TryAcquire(ctx, "drain/"+id)
	if !ok {
		return nil
	}
	defer release()
	row, err := s.db.Read().App(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	all, err := s.db.Read().Replicas(ctx, id)
	if err != nil {
		return err
	}
	for i := range all {
		r := &all[i]
		if r.State != store.ReplicaDraining {
			continue
		}
		left := s.cfg.DrainTimeout - time.Since(store.Time(r.Changed))
		switch {
		case left <= 0 || s.requests().InFlight(api.AppID(id)) == 0:
		case r.Deployment == row.Deployment:
			continue // the edge does not say which requests are its: later
		default:
			waiting, cancel := context.WithTimeout(ctx, left)
			s.requests().Drain(waiting, api.AppID(id), api.DeploymentID(r.Deployment))
			cancel()
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		if err := s.removeReplica(ctx, &row, r); err != nil {
			return err
		}
	}
	return nil
}
