package app

import (
	"context"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/store"
)

// cutOver makes a deployment live and its replica ready, in one transaction; r is nil if it is files alone. What was
// live becomes was, and its replicas take no further requests.
func (s *Service) cutOver(
	ctx context.Context,
	row *store.App,
	d *store.Deployment,
	r *store.Replica,
	was api.DeploymentStatus,
) error {
	ctx, release, err := s.locks.Acquire(ctx, row.ID)
	if err != nil {
		return err
	}
	defer release()
	from := d.State
	var old *store.Deployment
	err = s.db.Write(ctx, "app cut-over", func(ctx context.Context, tx *store.Tx) (err error) {
		now, err := tx.App(ctx, row.ID)
		if err != nil {
			return err
		}
		*row = now
		if old, err = endLive(ctx, tx, row, d, was); err != nil {
			return err
		}
		end(d, api.DeploymentLive)
		d.Step, d.Error, d.Code, d.Machine = "", "", "", ""
		if r != nil {
			d.Machine = r.Sandbox
		}
		err = tx.UpdateDeployment(ctx, d, from, "state", "step", "error", "code", "machine", "ended", "changed")
		if err != nil {
			return err
		}
		row.Deployment, row.Found, row.Error, row.Instance = d.ID, d.Result, "", ""
		row.Generation++
		if err := tx.UpdateApp(ctx, row, store.AppActive, "deployment", "found", "error", "instance",
			"generation"); err != nil {
			return err
		}
		return cutOverReplicas(ctx, tx, row, r)
	})
	if err != nil {
		if now, unknown := s.db.Read().Deployment(ctx, d.ID); unknown != nil ||
			now.State != string(api.DeploymentLive) { // a commit whose outcome is not known may have done it
			d.State = from
			return err
		}
	}
	s.of(row).cutOver()
	if old != nil {
		s.changed(ctx, row, old)
	}
	s.changed(ctx, row, d)
	return nil
}

// endLive writes that what is live is no longer.
func endLive(
	ctx context.Context,
	tx *store.Tx,
	row *store.App,
	next *store.Deployment,
	to api.DeploymentStatus,
) (*store.Deployment, error) {
	if row.Deployment == "" || row.Deployment == next.ID {
		return nil, nil
	}
	old, err := tx.Deployment(ctx, row.Deployment)
	if err != nil {
		return nil, err
	}
	was := old.State
	end(&old, to)
	old.Machine = ""
	return &old, tx.UpdateDeployment(ctx, &old, was, "state", "machine", "ended", "changed")
}

// cutOverReplicas makes a replica ready, and all of other deployments drain.
func cutOverReplicas(ctx context.Context, tx *store.Tx, row *store.App, ready *store.Replica) error {
	all, err := tx.Replicas(ctx, row.ID)
	if err != nil {
		return err
	}
	at := store.Micros(time.Now())
	for i := range all {
		r, was := &all[i], all[i].State
		switch {
		case ready != nil && r.ID == ready.ID:
			r.State = store.ReplicaReady
		case r.Deployment != row.Deployment &&
			(was == store.ReplicaReady || was == store.ReplicaSleeping || was == store.ReplicaAsleep):
			r.State = store.ReplicaDraining
		default:
			continue
		}
		r.Changed = at
		if err := tx.UpdateReplica(ctx, r, was); err != nil {
			return err
		}
	}
	return nil
}
