package app

import (
	"context"
	"slices"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/store"
)

// sweep removes machines and snapshots of an app that no row names, and deployments that are no longer kept. The lock
// is held.
func (s *Service) sweep(ctx context.Context, row *store.App) error {
	page, err := s.boxes.List(ctx, as(row), api.SandboxFilter{})
	if err != nil {
		return err
	}
	// Read after the list: a deployment under way writes the row of a replica before it makes the machine.
	replicas, err := s.db.Read().Replicas(ctx, row.ID)
	if err != nil {
		return err
	}
	unbuilt, err := s.db.Read().Deployments(ctx, store.DeploymentQuery{App: row.ID, States: unended})
	if err != nil {
		return err
	}
	for _, box := range page.Sandboxes {
		used := true
		switch box.Metadata[RoleKey] {
		case roleReplica:
			used = slices.ContainsFunc(replicas, func(r store.Replica) bool { return r.ID == box.Metadata[replicaKey] })
		case roleBuild:
			used = slices.ContainsFunc(unbuilt, func(d store.Deployment) bool {
				return d.ID == box.Metadata[deploymentKey]
			})
		}
		if used {
			continue
		}
		if err := s.boxes.Delete(ctx, as(row), box.ID); err != nil && !ended(err) {
			return err
		}
	}
	if err := s.keep(ctx, row); err != nil {
		return err
	}
	return s.sweepSnapshots(ctx, row)
}

// sweepSnapshots removes captures of deployments that have ended whose rows do not name them.
func (s *Service) sweepSnapshots(ctx context.Context, row *store.App) error {
	page, err := s.boxes.Snapshots(ctx, as(row), api.SnapshotFilter{})
	if err != nil {
		return err
	}
	rows, err := s.db.Read().Deployments(ctx, store.DeploymentQuery{App: row.ID})
	if err != nil {
		return err
	}
	for _, snap := range page.Snapshots {
		of := snap.Metadata[deploymentKey]
		if role := snap.Metadata[RoleKey]; role != roleReady && role != roleBuilt || of == "" {
			continue
		}
		used := slices.ContainsFunc(rows, func(d store.Deployment) bool {
			return d.Ready == string(snap.ID) || d.Built == string(snap.ID) ||
				d.ID == of && !api.DeploymentStatus(d.State).Ended()
		})
		if used {
			continue
		}
		if err := s.deleteSnapshot(ctx, row, string(snap.ID)); err != nil {
			return err
		}
	}
	return nil
}

// deleteSnapshot removes a snapshot of an app. One that something needs stays for a later time.
func (s *Service) deleteSnapshot(ctx context.Context, row *store.App, id string) error {
	err := s.boxes.DeleteSnapshot(ctx, as(row), api.SnapshotID(id))
	if code := api.CodeOf(err); code == api.NotFound || code == api.Gone {
		return nil
	}
	return err
}

// keep removes the snapshots of deployments that are no longer kept, and the rows of very old ones. The lock is held.
func (s *Service) keep(ctx context.Context, row *store.App) error {
	rows, err := s.db.Read().Deployments(ctx, store.DeploymentQuery{App: row.ID})
	if err != nil {
		return err
	}
	newestFirst(rows)
	kept := 0
	for i := range rows {
		d := &rows[i]
		if d.ID == row.Deployment || !api.DeploymentStatus(d.State).Ended() {
			continue
		}
		if canReturn(d) && kept < s.cfg.Keep {
			kept++
			continue
		}
		if err := s.drop(ctx, row, d, rows, i >= maxDeployments); err != nil {
			return err
		}
	}
	return nil
}

// dropFiles removes the files of a deployment that are served without a machine.
func (s *Service) dropFiles(ctx context.Context, d *store.Deployment) error {
	if s.deps.DropFiles == nil {
		return nil
	}
	return s.deps.DropFiles(ctx, api.DeploymentID(d.ID))
}

// drop removes what a deployment that has ended has, and with all its row.
func (s *Service) drop(
	ctx context.Context,
	row *store.App,
	d *store.Deployment,
	rows []store.Deployment,
	all bool,
) error {
	made, err := decode(d)
	if err != nil {
		return err
	}
	static := made.result.Static != nil
	if d.Built == "" && d.Ready == "" && !static && !all {
		return nil
	}
	built, ready := d.Built, d.Ready
	d.Built, d.Ready = "", ""
	for _, id := range []string{ready, built} {
		shared := func(o store.Deployment) bool { return o.Built == id || o.Ready == id }
		if id == "" || slices.ContainsFunc(rows, shared) {
			continue
		}
		err := s.deleteSnapshot(ctx, row, id)
		if api.CodeOf(err) == api.Conflict {
			d.Built, d.Ready = built, ready
			return nil // a replica that drains was made from it: later
		}
		if err != nil {
			return err
		}
	}
	if static || all {
		if err := s.dropFiles(ctx, d); err != nil {
			return err
		}
		made.result.Static = nil
		if d.Result, err = appspec.Encode(made.result); err != nil {
			return err
		}
	}
	return s.db.Write(ctx, "app deployment drop", func(ctx context.Context, tx *store.Tx) error {
		if all {
			return tx.DeleteDeployment(ctx, d.ID)
		}
		return tx.UpdateDeployment(ctx, d, d.State, "built", "ready", "result")
	})
}
