package app

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Delete removes an app with all that belongs to it, and its previews. What cannot be removed at once, Run removes.
func (s *Service) Delete(ctx context.Context, p auth.Principal, app string) error {
	row, err := s.find(ctx, p, app)
	if err != nil {
		return api.AsError(err)
	}
	previews, err := s.db.Read().Apps(ctx, store.AppQuery{PreviewOf: row.ID, State: store.AppActive})
	if err != nil {
		return api.AsError(err)
	}
	for i := range previews {
		if err := s.deleteApp(ctx, &previews[i]); err != nil {
			return api.AsError(err)
		}
	}
	if err := s.deleteApp(ctx, &row); err != nil {
		return api.AsError(err)
	}
	return nil
}

func (s *Service) deleteApp(ctx context.Context, row *store.App) error {
	err := s.db.Write(ctx, "app delete begin", func(ctx context.Context, tx *store.Tx) error {
		now, err := tx.App(ctx, row.ID)
		if err != nil {
			return err
		}
		*row = now
		row.State, row.Instance, row.Changed = store.AppDeleting, s.instance, store.Micros(time.Now())
		row.Generation++
		return tx.UpdateApp(ctx, row, now.State, "state", "instance", "generation", "changed")
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	s.changed(ctx, row, nil)
	_, release, err := s.interrupt(ctx, deployLock(row.ID), errDeleted)
	if err != nil {
		return err
	}
	release()
	op, release, err := s.interrupt(ctx, row.ID, errDeleted)
	if err != nil {
		return err
	}
	defer release()
	op, cancel := detached(op)
	defer cancel()
	if err := s.remove(op, row); err != nil {
		s.log.Warn("a deleted app is not removed yet; it is tried again", "app", row.ID, "err", err)
	}
	return nil
}

// remove removes everything that belongs to an app that is being deleted, and at last its row. The lock is held.
func (s *Service) remove(ctx context.Context, row *store.App) error {
	id := api.AppID(row.ID)
	for _, forget := range append(slices.Clone(s.deps.Forget), s.deps.Builder.Forget) {
		if err := forget(ctx, id); err != nil {
			return err
		}
	}
	deployments, err := s.db.Read().Deployments(ctx, store.DeploymentQuery{App: row.ID})
	if err != nil {
		return err
	}
	for i := range deployments {
		if err := s.dropFiles(ctx, &deployments[i]); err != nil {
			return err
		}
	}
	page, err := s.boxes.List(ctx, as(row), api.SandboxFilter{})
	if err != nil {
		return err
	}
	for _, box := range page.Sandboxes {
		if err := s.boxes.Delete(ctx, as(row), box.ID); err != nil && !ended(err) {
			return err
		}
	}
	snaps, err := s.boxes.Snapshots(ctx, as(row), api.SnapshotFilter{})
	if err != nil {
		return err
	}
	for _, snap := range snaps.Snapshots {
		if err := s.deleteSnapshot(ctx, row, string(snap.ID)); err != nil {
			return err
		}
	}
	volumes, err := s.db.Read().Volumes(ctx, store.VolumeQuery{Workspace: row.Workspace, OwnedBy: owner(row).String()})
	if err != nil {
		return err
	}
	for _, v := range volumes {
		if v.State != store.VolumeReady {
			return api.Errorf(api.Unavailable, "volume %s of app %s is being made or removed", v.ID, row.ID)
		}
		if err := s.deps.Volumes.Delete(ctx, as(row), v.ID, true); err != nil {
			return err
		}
	}
	err = s.db.Write(ctx, "app removed", func(ctx context.Context, tx *store.Tx) error {
		return tx.DeleteApp(ctx, row.ID)
	})
	if err == nil {
		err = s.closeOutput(ctx, s.of(row), false)
		s.forget(id)
		s.routing.changed()
	}
	return err
}
