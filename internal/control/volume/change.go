package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/volume/lease"
)

// Clone copies a volume as it is at this moment.
func (s *Service) Clone(
	ctx context.Context,
	p auth.Principal,
	name string,
	req api.VolumeCloneRequest,
) (api.Volume, error) {
	return s.Create(ctx, p, api.CreateVolumeRequest{Name: req.Name, SizeMB: req.SizeMB, FromVolume: name})
}

// Update changes the size or the policy for backups of a volume.
func (s *Service) Update(
	ctx context.Context,
	p auth.Principal,
	name string,
	req api.VolumePatch,
) (api.Volume, error) {
	if err := req.Validate(); err != nil {
		return api.Volume{}, err
	}
	v, ctx, release, err := s.lock(ctx, p, name)
	if err != nil {
		return api.Volume{}, api.AsError(err)
	}
	defer release()
	if req.SizeMB != 0 && req.SizeMB != v.SizeMiB {
		if err := s.resize(ctx, &v, req.SizeMB); err != nil {
			return api.Volume{}, api.AsError(err)
		}
	}
	if req.Backup != nil {
		setPolicy(&v, *req.Backup)
		err := s.db.Write(ctx, "volume policy", func(ctx context.Context, tx *store.Tx) error {
			return s.updateUnfenced(ctx, tx, v, "policy", "backup_due")
		})
		if err != nil {
			return api.Volume{}, api.AsError(err)
		}
	}
	return s.show(ctx, v)
}

// updateUnfenced writes columns that do not depend on who holds a volume.
func (s *Service) updateUnfenced(ctx context.Context, tx *store.Tx, v store.Volume, columns ...string) error {
	now, err := tx.Volume(ctx, v.ID)
	if err != nil {
		return err
	}
	return tx.UpdateVolume(ctx, &v, now.State, now.Fence, columns...)
}

// setPolicy sets the policy for backups, and when the first is due.
func setPolicy(v *store.Volume, p api.BackupPolicy) {
	v.Policy, v.BackupDue = "", 0
	if p.Keep.IsZero() {
		return
	}
	data, err := json.Marshal(p)
	if err != nil {
		return // a policy is numbers
	}
	v.Policy, v.BackupDue = string(data), store.Micros(time.Now().Add(p.Interval()))
}

// resize makes a volume larger. The row has the larger size before the host has, so that it is admitted once.
func (s *Service) resize(ctx context.Context, v *store.Volume, sizeMiB int) error {
	if sizeMiB < v.SizeMiB {
		return api.Errorf(api.Invalid, "size_mb: volume %s has %d MiB: a volume can grow, not shrink", v.Name,
			v.SizeMiB).With("field", "size_mb")
	}
	if err := s.checkHeadroom(ctx, sizeMiB-v.SizeMiB); err != nil {
		return err
	}
	was := v.SizeMiB
	write := func(ctx context.Context, op string, to int) error {
		return s.db.Write(ctx, op, func(ctx context.Context, tx *store.Tx) error {
			more := quota.Amount{Kind: quota.VolumeSize, N: int64(to-was) * quota.MiB}
			if err := s.quotas.Admit(ctx, tx, api.Workspace(v.Workspace), more); err != nil {
				return err
			}
			v.SizeMiB = to
			return s.updateUnfenced(ctx, tx, *v, "size_mib")
		})
	}
	if err := write(ctx, "volume resize", sizeMiB); err != nil {
		return err
	}
	_, err := s.host.ResizeVolume(ctx, hostapi.VolumeID(v.Disk), sizeMiB)
	if err == nil {
		return nil
	}
	if errors.Is(err, hostapi.ErrNoSpace) {
		err = s.noSpace(ctx, "host", fmt.Errorf("grow volume %s: %w", v.Name, err))
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	if failed := s.followSize(ctx, *v); failed != nil {
		s.log.Warn("the size of a volume is not known; it is asked for again", "volume", v.ID, "err", failed)
	}
	return wrap(err, "grow", *v)
}

// followSize writes the size that the host says.
func (s *Service) followSize(ctx context.Context, v store.Volume) error {
	h, err := s.host.GetVolume(ctx, hostapi.VolumeID(v.Disk))
	if err != nil {
		return wrap(err, "look at", v)
	}
	if h.SizeMiB == v.SizeMiB {
		return nil
	}
	v.SizeMiB = h.SizeMiB
	return s.db.Write(ctx, "volume size", func(ctx context.Context, tx *store.Tx) error {
		return s.updateUnfenced(ctx, tx, v, "size_mib")
	})
}

// Delete removes a volume that no sandbox has, with its snapshots only if withSnapshots is set. Its backups stay.
func (s *Service) Delete(ctx context.Context, p auth.Principal, name string, withSnapshots bool) error {
	v, ctx, release, err := s.lock(ctx, p, name)
	if err != nil {
		return api.AsError(err)
	}
	defer release()
	if err := s.helpers.Yield(ctx, p.Workspace, p.Owner, []api.VolumeMount{{Name: v.ID}}); err != nil {
		return api.AsError(err)
	}
	err = s.db.Write(ctx, "volume delete", func(ctx context.Context, tx *store.Tx) error {
		if err := checkDelete(ctx, tx, p, v.ID, withSnapshots); err != nil {
			return err
		}
		row, err := tx.Volume(ctx, v.ID)
		if err != nil {
			return err
		}
		row.State, row.Instance = store.VolumeDeleting, s.instance
		return tx.UpdateVolume(ctx, &row, store.VolumeReady, row.Fence, "state", "instance")
	})
	if err != nil {
		return api.AsError(err)
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	if err := s.remove(ctx, v); err != nil { // Reconcile finishes it
		return api.AsError(err)
	}
	return nil
}

// checkDelete refuses the deletion of a volume that something needs.
func checkDelete(ctx context.Context, tx *store.Tx, p auth.Principal, id string, withSnapshots bool) error {
	v, err := lease.Resolve(ctx, tx, p.Workspace, p.Owner, id)
	if err != nil {
		return err
	}
	if v.Holder != "" {
		return lease.InUse(v)
	}
	boxes, err := tx.SandboxVolumes(ctx, string(p.Workspace))
	if err != nil {
		return err
	}
	for box, text := range boxes {
		var has []api.SandboxVolume
		if err := json.Unmarshal([]byte(text), &has); err != nil {
			return fmt.Errorf("volumes of sandbox %s: %w", box, err)
		}
		for _, a := range has {
			if a.ID == api.VolumeID(v.ID) && !a.Private {
				return api.Errorf(api.VolumeInUse, "volume %s is attached to sandbox %s, which reads it: detach it "+
					"there or end that sandbox", v.Name, box).With("sandbox_id", box).With("volume", v.Name)
			}
		}
	}
	snaps, err := tx.VolumeSnapshots(ctx, v.ID)
	if err != nil || withSnapshots || len(snaps) == 0 {
		return err
	}
	ids := make([]string, 0, len(snaps))
	for _, snap := range snaps {
		ids = append(ids, snap.ID)
	}
	return api.Errorf(api.Conflict, "volume %s has %d snapshots: delete them first, or with it by snapshots=1", v.Name,
		len(snaps)).With("snapshots", strings.Join(ids, ","))
}

// Restore replaces the content of a volume that is not attached by that of a snapshot or a backup.
func (s *Service) Restore(
	ctx context.Context,
	p auth.Principal,
	name string,
	req api.VolumeRestoreRequest,
) (api.Volume, error) {
	if err := req.Validate(); err != nil {
		return api.Volume{}, err
	}
	v, ctx, release, err := s.lock(ctx, p, name)
	if err != nil {
		return api.Volume{}, api.AsError(err)
	}
	defer release()
	from, err := s.sourceOf(ctx, p, api.CreateVolumeRequest{FromSnapshot: req.Snapshot, FromBackup: req.Backup})
	if err != nil {
		return api.Volume{}, api.AsError(err)
	}
	if req.Snapshot != "" {
		snap, err := s.findSnapshot(ctx, p, req.Snapshot)
		if err == nil && snap.Volume != v.ID {
			err = api.Errorf(api.Invalid, "snapshot: %s is of volume %s: make a volume of it with from_snapshot",
				snap.ID, snap.VolumeName).With("field", "snapshot")
		}
		if err != nil {
			return api.Volume{}, api.AsError(err)
		}
	}
	if err := s.helpers.Yield(ctx, p.Workspace, p.Owner, []api.VolumeMount{{Name: v.ID}}); err != nil {
		return api.Volume{}, api.AsError(err)
	}
	if v, err = s.replace(ctx, v, from); err != nil {
		return api.Volume{}, api.AsError(err)
	}
	return s.show(ctx, v)
}

// replace exchanges the content of a volume. The old one is there until the new one is complete.
func (s *Service) replace(ctx context.Context, v store.Volume, from source) (store.Volume, error) {
	size := max(v.SizeMiB, from.sizeMiB)
	if err := s.checkHeadroom(ctx, size); err != nil {
		return v, err
	}
	next := string(api.NewVolumeID())
	err := s.db.Write(ctx, "volume restore begin", func(ctx context.Context, tx *store.Tx) error {
		more := quota.Amount{Kind: quota.VolumeSize, N: int64(size-v.SizeMiB) * quota.MiB}
		err := s.quotas.Admit(ctx, tx, api.Workspace(v.Workspace), more)
		if err != nil {
			return err
		}
		holder := hostapi.Owner{Kind: lease.Restore, ID: next}.String()
		if v, err = lease.Acquire(ctx, tx, v, holder, s.instance); err != nil {
			return err
		}
		v.NextDisk = next
		return tx.UpdateVolume(ctx, &v, store.VolumeReady, v.Fence, "next_disk")
	})
	if err != nil {
		return v, err
	}
	made, err := s.makeDisk(ctx, v, next, size, from)
	finish, cancel := detached(ctx)
	defer cancel()
	old := v
	if err == nil {
		v.Disk, v.NextDisk, v.SizeMiB, v.Host = next, "", made.SizeMiB, string(made.Host)
		err = s.db.Write(finish, "volume restore end", func(ctx context.Context, tx *store.Tx) error {
			if err := tx.UpdateVolume(ctx, &v, store.VolumeReady, v.Fence, "disk", "size_mib", "host"); err != nil {
				return err
			}
			return lease.Give(ctx, tx, v)
		})
	}
	if err != nil {
		if failed := s.undoReplace(finish, old); failed != nil {
			s.log.Warn("undoing the restore of a volume failed; it is tried again", "volume", v.ID, "err", failed)
		}
		return old, err
	}
	if err := s.host.DeleteVolume(finish, hostapi.VolumeID(old.Disk)); err != nil {
		s.log.Warn("the replaced content of a volume was not deleted; it is tried again", "volume", v.ID, "err", err)
	}
	return s.db.Read().Volume(finish, v.ID)
}

// undoReplace removes the new content of a volume that was not exchanged. What a write whose outcome is not known has
// exchanged stays exchanged.
func (s *Service) undoReplace(ctx context.Context, v store.Volume) error {
	row, err := s.db.Read().Volume(ctx, v.ID)
	if err != nil || row.NextDisk == "" || row.Fence != v.Fence {
		return err
	}
	if err := s.host.DeleteVolume(ctx, hostapi.VolumeID(row.NextDisk)); err != nil {
		return wrap(err, "delete the new content of", v)
	}
	return s.db.Write(ctx, "volume restore undo", func(ctx context.Context, tx *store.Tx) error {
		return lease.Undo(ctx, tx, row)
	})
}
