package volume

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/volume/lease"
)

// Run compares store and hosts, and enqueues backups that are due, until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		s.every(ctx, s.cfg.Interval, "comparing volumes with their host", s.Reconcile)
		return nil
	})
	g.Go(func() error {
		s.every(ctx, s.cfg.Interval, "scheduling backups", s.scheduleBackups)
		return nil
	})
	return g.Wait()
}

func (s *Service) every(ctx context.Context, interval time.Duration, doing string, do func(context.Context) error) {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		if err := do(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn(doing+" failed; it is tried again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// Reconcile compares the rows of volumes with their host once.
//
// Operations of processes that have ended are finished or undone, leases follow what the host says, sizes too, and
// volumes on the host without a row are removed.
func (s *Service) Reconcile(ctx context.Context) error {
	// The host is asked first: a volume in its list had its row by then.
	onHost, err := s.host.Volumes(ctx)
	if errors.Is(err, hostapi.ErrUnsupported) {
		return nil // it has none, and makes none
	}
	if err != nil {
		return err
	}
	rows, err := s.db.Read().Volumes(ctx, store.VolumeQuery{})
	if err != nil {
		return err
	}
	snaps, err := s.db.Read().VolumeSnapshots(ctx, "")
	if err != nil {
		return err
	}
	sizes, known := map[string]int{}, map[hostapi.VolumeID]bool{}
	for _, h := range onHost {
		sizes[string(h.ID)] = h.SizeMiB
	}
	var all error
	for _, v := range rows {
		known[hostapi.VolumeID(v.Disk)], known[hostapi.VolumeID(v.NextDisk)] = true, true
		if v.State == store.VolumeReady && v.Instance == "" && sizes[v.Disk] == v.SizeMiB {
			continue
		}
		all = errors.Join(all, s.reconcileVolume(ctx, v.ID))
	}
	for _, snap := range snaps {
		known[hostapi.VolumeID(snap.ID)] = true
		if snap.State != store.VolumeReady {
			all = errors.Join(all, s.reconcileSnapshot(ctx, snap))
		}
	}
	for _, h := range onHost {
		owner := hostapi.OwnerOf(h.Labels)
		ours := owner.Kind == ownerVolume || owner.Kind == ownerSnapshot
		if known[h.ID] || !ours || time.Since(h.Created) < s.cfg.OrphanGrace {
			continue
		}
		if h.Labels[labelStore] != s.db.ID() {
			all = errors.Join(all, s.adopt(ctx, h))
			continue
		}
		s.log.Warn("a volume without a row is deleted from its host", "volume", h.ID)
		all = errors.Join(all, wrap(s.host.DeleteVolume(ctx, h.ID), "delete", store.Volume{Name: string(h.ID)}))
	}
	return all
}

// ownedElsewhere reports whether another process on a shared store may have an operation under way that began then.
func (s *Service) ownedElsewhere(instance string, began int64) bool {
	return s.db.Shared() && instance != "" && instance != s.instance &&
		time.Since(store.Time(began)) < s.cfg.ForeignGrace
}

// reconcileVolume finishes or undoes what is under way on a volume, unless an operation of this process is.
func (s *Service) reconcileVolume(ctx context.Context, id string) error {
	ctx, release, ok := s.locks.TryAcquire(ctx, id)
	if !ok {
		return nil
	}
	defer release()
	v, err := s.db.Read().Volume(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil || s.ownedElsewhere(v.Instance, max(v.Held, v.Created)) {
		return err
	}
	switch {
	case v.State == store.VolumeCreating:
		return s.settleCreate(ctx, v)
	case v.State != store.VolumeReady:
		return s.remove(ctx, v)
	case hostapi.ParseOwner(v.Holder).Kind == lease.Restore:
		return s.undoReplace(ctx, v)
	case hostapi.ParseOwner(v.Holder).Kind == lease.Files:
		return nil // package helper owns it
	case v.Instance != "":
		return s.settleLocked(ctx, v.ID)
	}
	return s.followSize(ctx, v)
}

// reconcileSnapshot removes a snapshot that was never finished, or whose deletion was not.
func (s *Service) reconcileSnapshot(ctx context.Context, snap store.VolumeSnapshot) error {
	ctx, release, ok := s.locks.TryAcquire(ctx, snap.Volume)
	if !ok || s.ownedElsewhere(snap.Instance, snap.Created) {
		if ok {
			release()
		}
		return nil
	}
	defer release()
	row, err := s.db.Read().VolumeSnapshot(ctx, snap.ID)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil || row.State == store.VolumeReady {
		return err
	}
	return s.removeSnapshot(ctx, row)
}

// adopt writes the row of a volume that another store knew: a user's data must survive the loss of a database. On a
// store that others share the row may be about to appear.
func (s *Service) adopt(ctx context.Context, h hostapi.Volume) error {
	owner := hostapi.OwnerOf(h.Labels)
	id, workspace := api.VolumeID(owner.ID), h.Labels[labelWorkspace]
	if owner.Kind != ownerVolume || !id.Valid() || workspace == "" || h.Labels[labelStore] == "" || h.Frozen {
		return nil
	}
	v := store.Volume{
		ID: string(id), Workspace: workspace, Name: h.Labels[labelName], State: store.VolumeReady, Host: string(h.Host),
		Disk: string(h.ID), SizeMiB: h.SizeMiB, Written: store.Micros(h.Written), Created: store.Micros(h.Created),
		Fence: int64(h.Fence), //nolint:gosec // the store gave it out
	}
	if h.Machine != "" {
		v.Holder, v.Held = lease.Sandbox(api.SandboxID(h.Machine)), v.Created
	}
	if api.ValidateVolumeName("name", v.Name) != nil {
		v.Name = v.ID
	}
	s.log.Warn("a volume of another store is adopted", "volume", v.ID, "workspace", v.Workspace)
	return s.db.Write(ctx, "volume adopt", func(ctx context.Context, tx *store.Tx) error {
		err := tx.PutWorkspace(ctx, &store.Workspace{ID: workspace, Name: workspace, Created: store.Micros(time.Now())})
		if err != nil {
			return err
		}
		if _, err := tx.Volume(ctx, v.ID); !errors.Is(err, store.ErrNotFound) {
			return err // the other half of a restore that was interrupted
		}
		err = tx.InsertVolume(ctx, &v)
		if errors.Is(err, store.ErrExists) {
			v.Name = v.ID // another volume has taken the name
			err = tx.InsertVolume(ctx, &v)
		}
		return err
	})
}
