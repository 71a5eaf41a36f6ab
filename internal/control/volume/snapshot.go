package volume

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
)

// findSnapshot reads a snapshot of a volume of the caller's workspace.
func (s *Service) findSnapshot(
	ctx context.Context,
	p auth.Principal,
	id api.VolumeSnapshotID,
) (store.VolumeSnapshot, error) {
	snap, err := s.db.Read().VolumeSnapshot(ctx, string(id))
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return snap, err
	}
	if err != nil || snap.Workspace != string(p.Workspace) || snap.State != store.VolumeReady {
		return store.VolumeSnapshot{}, api.Errorf(api.NotFound, "snapshot %.70q of a volume not found", id)
	}
	return snap, nil
}

// Snapshot keeps the content of a volume as of this moment, also while it is attached.
func (s *Service) Snapshot(
	ctx context.Context,
	p auth.Principal,
	name string,
	req api.VolumeSnapshotRequest,
) (api.VolumeSnapshot, error) {
	if err := req.Validate(); err != nil {
		return api.VolumeSnapshot{}, err
	}
	v, ctx, release, err := s.lock(ctx, p, name)
	if err != nil {
		return api.VolumeSnapshot{}, api.AsError(err)
	}
	defer release()
	snap := store.VolumeSnapshot{
		ID: string(api.NewVolumeSnapshotID()), Workspace: v.Workspace, Volume: v.ID, VolumeName: v.Name,
		Name: req.Name, State: store.VolumeCreating, Instance: s.instance, Host: v.Host, SizeMiB: v.SizeMiB,
		Created: store.Micros(time.Now()),
	}
	err = s.db.Write(ctx, "volume snapshot begin", func(ctx context.Context, tx *store.Tx) error {
		one := quota.Amount{Kind: quota.VolumeSnaps, N: 1}
		if err := s.quotas.Admit(ctx, tx, p.Workspace, one); err != nil {
			return err
		}
		return tx.InsertVolumeSnapshot(ctx, &snap)
	})
	if err != nil {
		return api.VolumeSnapshot{}, api.AsError(err)
	}
	labels := s.labels(ownerSnapshot, snap.ID, v.Workspace, snap.Name)
	labels[labelVolume] = v.ID
	_, err = s.host.CreateVolume(ctx, hostapi.CreateVolume{ID: hostapi.VolumeID(snap.ID),
		From: hostapi.VolumeID(v.Disk), Frozen: true, Group: v.Workspace, Labels: labels})
	finish, cancel := detached(ctx)
	defer cancel()
	if errors.Is(err, hostapi.ErrNoSpace) {
		err = s.noSpace(finish, "host", fmt.Errorf("take a snapshot of volume %s: %w", v.Name, err))
	}
	if err == nil {
		err = s.db.Write(finish, "volume snapshot end", func(ctx context.Context, tx *store.Tx) error {
			return tx.SetVolumeSnapshotState(ctx, snap.ID, store.VolumeReady, store.VolumeCreating)
		})
	}
	if err != nil {
		if failed := s.removeSnapshot(finish, snap); failed != nil {
			s.log.Warn("removing an incomplete snapshot of a volume failed; it is tried again",
				"snapshot", snap.ID, "err", failed)
		}
		return api.VolumeSnapshot{}, api.AsError(wrap(err, "take a snapshot of", v))
	}
	return viewSnapshot(snap), nil
}

// Snapshots returns the snapshots of a volume, newest first.
func (s *Service) Snapshots(ctx context.Context, p auth.Principal, name string) ([]api.VolumeSnapshot, error) {
	v, err := s.find(ctx, p, name)
	if err != nil {
		return nil, api.AsError(err)
	}
	rows, err := s.db.Read().VolumeSnapshots(ctx, v.ID)
	if err != nil {
		return nil, api.AsError(err)
	}
	all := []api.VolumeSnapshot{}
	for _, snap := range rows {
		if snap.State == store.VolumeReady {
			all = append(all, viewSnapshot(snap))
		}
	}
	return all, nil
}

// DeleteSnapshot removes a snapshot of a volume. Volumes that were made from it stay.
func (s *Service) DeleteSnapshot(
	ctx context.Context,
	p auth.Principal,
	name string,
	id api.VolumeSnapshotID,
) error {
	v, ctx, release, err := s.lock(ctx, p, name)
	if err != nil {
		return api.AsError(err)
	}
	defer release()
	snap, err := s.findSnapshot(ctx, p, id)
	if err == nil && snap.Volume != v.ID {
		err = api.Errorf(api.NotFound, "volume %s has no snapshot %.70q", v.Name, id)
	}
	if err == nil {
		err = s.db.Write(ctx, "volume snapshot delete", func(ctx context.Context, tx *store.Tx) error {
			return tx.SetVolumeSnapshotState(ctx, snap.ID, store.VolumeDeleting, store.VolumeReady)
		})
	}
	if err != nil {
		return api.AsError(err)
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	if err := s.removeSnapshot(ctx, snap); err != nil { // Reconcile finishes it
		return api.AsError(err)
	}
	return nil
}

// removeSnapshot removes a snapshot from its host, then its row.
func (s *Service) removeSnapshot(ctx context.Context, snap store.VolumeSnapshot) error {
	if err := s.host.DeleteVolume(ctx, hostapi.VolumeID(snap.ID)); err != nil {
		return wrap(err, "delete a snapshot of", store.Volume{Name: snap.VolumeName})
	}
	return s.db.Write(ctx, "volume snapshot remove", func(ctx context.Context, tx *store.Tx) error {
		return tx.DeleteVolumeSnapshot(ctx, snap.ID)
	})
}

func viewSnapshot(snap store.VolumeSnapshot) api.VolumeSnapshot {
	return api.VolumeSnapshot{
		ID: api.VolumeSnapshotID(snap.ID), VolumeID: api.VolumeID(snap.Volume), VolumeName: snap.VolumeName,
		Name: snap.Name, SizeMB: snap.SizeMiB, CreatedAt: store.Time(snap.Created),
	}
}
