package app

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/store"
)

// poke makes Run look at all apps.
func (s *Service) poke() {
	select {
	case s.poked <- struct{}{}:
	default: // it will
	}
}

// sweepEvery is how many looks at all apps there are between two searches for what no row names.
const sweepEvery = 30

// Run does what apps need until ctx ends: it does deployments, follows the output of programs, lets idle apps sleep,
// replaces replicas that crashed, removes what is deleted or no longer kept, and finishes what other processes began.
func (s *Service) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	defer s.closeOutputs(ctx)
	defer workers.Wait()
	tick := time.NewTicker(s.cfg.Interval)
	defer tick.Stop()
	sweep, ticks := true, 0
	for {
		if err := s.look(ctx, &workers, sweep); err != nil && ctx.Err() == nil {
			s.log.Warn("the apps cannot be read; it is tried again", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			ticks++
			sweep = ticks%sweepEvery == 0
		case <-s.poked:
			sweep = false // only time makes one due
		}
	}
}

// look begins what apps need. Sweep looks for what no row names, too.
func (s *Service) look(ctx context.Context, workers *sync.WaitGroup, sweep bool) error {
	apps, err := s.db.Read().Apps(ctx, store.AppQuery{})
	if err != nil {
		return err
	}
	replicas, err := s.db.Read().Replicas(ctx, "")
	if err != nil {
		return err
	}
	pending, err := s.db.Read().Deployments(ctx, store.DeploymentQuery{States: unended})
	if err != nil {
		return err
	}
	report := func(what, app string, err error) {
		if err != nil && ctx.Err() == nil {
			s.log.Warn(what+"; it is tried again", "app", app, "err", err)
		}
	}
	for i := range apps {
		row := &apps[i]
		mine := slices.DeleteFunc(slices.Clone(replicas), func(r store.Replica) bool { return r.App != row.ID })
		if slices.ContainsFunc(pending, func(d store.Deployment) bool { return d.App == row.ID }) &&
			row.State == store.AppActive {
			workers.Go(func() { report("a deployment could not be continued", row.ID, s.deployNext(ctx, row)) })
		}
		if sweep || s.hasWork(row, mine) {
			workers.Go(func() {
				report("an operation on an app failed", row.ID, errors.Join(s.tend(ctx, row.ID, sweep),
					s.drain(ctx, row.ID)))
			})
		}
		ready := false
		for _, r := range mine {
			if r.State == store.ReplicaReady && r.Sandbox != "" {
				ready = true
				workers.Go(func() { report("the output of an app cannot be read", row.ID, s.follow(ctx, row, r)) })
			}
		}
		report("the output of an app could not be written", row.ID, s.closeOutput(ctx, s.of(row), ready))
	}
	return nil
}

// closeOutputs closes the logs of programs' output.
func (s *Service) closeOutputs(ctx context.Context) {
	ctx, cancel := detached(ctx)
	defer cancel()
	s.mu.Lock()
	all := make([]*live, 0, len(s.live))
	for _, l := range s.live {
		all = append(all, l)
	}
	s.mu.Unlock()
	for _, l := range all {
		if err := s.closeOutput(ctx, l, false); err != nil {
			s.log.Warn("the last output of an app could not be written", "err", err)
		}
	}
}

// Reconcile does once, and waits for it, what Run does. It follows no output.
func (s *Service) Reconcile(ctx context.Context) error {
	apps, err := s.db.Read().Apps(ctx, store.AppQuery{})
	for i := range apps {
		id := apps[i].ID
		err = errors.Join(err, s.deployNext(ctx, &apps[i]), s.tend(ctx, id, true), s.drain(ctx, id))
	}
	return err
}

// hasWork reports whether tend or drain may have something to do.
func (s *Service) hasWork(row *store.App, replicas []store.Replica) bool {
	if row.State != store.AppActive {
		return true
	}
	for _, r := range replicas {
		if r.State != store.ReplicaAsleep {
			return true
		}
	}
	set, err := settingsOf(row)
	if err != nil || row.Deployment == "" {
		return false
	}
	l := s.of(row)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.revive || set.Scale.Min > len(replicas) || len(set.Databases) > 0 ||
		set.Scale.Max == 0 && len(replicas) > 0
}

// tend does what an app needs beside its deployments, unless an operation of this process is under way.
func (s *Service) tend(ctx context.Context, id string, sweep bool) error {
	ctx, release, ok := s.locks.TryAcquire(ctx, id)
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
	if row.State == store.AppDeleting {
		return s.remove(ctx, &row)
	}
	if err := s.settle(ctx, &row); err != nil {
		return err
	}
	if sweep {
		if err := s.sweep(ctx, &row); err != nil {
			return err
		}
	}
	if row.Deployment == "" {
		return nil
	}
	set, err := settingsOf(&row)
	if err != nil {
		return err
	}
	if err := s.followLinks(ctx, &row); err != nil {
		return err
	}
	if s.quotas.CheckActive(ctx, api.Workspace(row.Workspace)) != nil {
		return nil
	}
	return s.scale(ctx, &row, &set)
}

// settle compares the replicas of an app with their machines. The lock is held.
func (s *Service) settle(ctx context.Context, row *store.App) error {
	all, err := s.db.Read().Replicas(ctx, row.ID)
	if err != nil {
		return err
	}
	l := s.of(row)
	for i := range all {
		r := &all[i]
		switch r.State {
		case store.ReplicaStarting:
			if l.isMade(r.ID) || s.db.Shared() && time.Since(store.Time(r.Changed)) < s.cfg.ForeignGrace {
				continue
			}
			err = s.removeReplica(ctx, row, r)
		case store.ReplicaDeleting:
			err = s.removeReplica(ctx, row, r)
		case store.ReplicaReady, store.ReplicaSleeping, store.ReplicaAsleep:
			err = s.settleReplica(ctx, row, r)
		}
		if err != nil {
			return err
		}
	}
	l.mu.Lock()
	crashes := l.crashes
	l.mu.Unlock()
	if row.Error == "" || crashes > 0 && s.backoff(l) > -calmError {
		return nil
	}
	row.Error = ""
	return s.db.Write(ctx, "app calm", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateApp(ctx, row, store.AppActive, "error")
	})
}

// calmError is how long after the end of a back-off the reason of a crash is shown.
const calmError = time.Minute

// settleReplica compares a replica with its machine.
func (s *Service) settleReplica(ctx context.Context, row *store.App, r *store.Replica) error {
	box, err := s.boxes.Get(ctx, as(row), api.SandboxID(r.Sandbox))
	if err != nil && !ended(err) {
		return err
	}
	gone := err != nil || box.Status == api.Failed || box.Status == api.Stopping || box.Status == api.Deleted
	switch {
	case gone && r.State == store.ReplicaReady:
		return s.replace(ctx, row, r, "its machine has ended")
	case gone:
		return s.removeReplica(ctx, row, r)
	case r.State != store.ReplicaAsleep && box.Status == api.Hibernated:
		return s.setReplica(ctx, row, r, store.ReplicaAsleep)
	case r.State != store.ReplicaReady && box.Status == api.Running:
		return s.setReplica(ctx, row, r, store.ReplicaReady)
	}
	return nil
}
