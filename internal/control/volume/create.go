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
	"github.com/pandastack/pandastack/internal/control/volume/lease"
)

// source is what a volume is made from. The zero source is an empty volume.
type source struct {
	from     hostapi.VolumeID  // a volume or snapshot
	machine  hostapi.MachineID // its private copy of from
	keep     bool              // that copy itself: the machine goes on writing to it
	template hostapi.TemplateName
	disk     string
	backup   hostapi.BackupID
	sizeMiB  int // 0: not known
}

// Disk names a data disk of a baked template.
type Disk struct {
	Template hostapi.TemplateName
	Name     string
	SizeMiB  int
}

// Create makes a volume, empty or as a copy.
func (s *Service) Create(ctx context.Context, p auth.Principal, req api.CreateVolumeRequest) (api.Volume, error) {
	if err := s.admit(ctx, p); err != nil {
		return api.Volume{}, err
	}
	if err := req.Validate(); err != nil {
		return api.Volume{}, err
	}
	from, err := s.sourceOf(ctx, p, req)
	if err != nil {
		return api.Volume{}, api.AsError(err)
	}
	return s.create(ctx, p, req, hostapi.Owner{}, from)
}

// CreateFor makes a volume that belongs to another service's object: it is not listed to users. Its name is its id if
// the request has none. A disk that is not zero is copied.
func (s *Service) CreateFor(
	ctx context.Context,
	p auth.Principal,
	owner hostapi.Owner,
	req api.CreateVolumeRequest,
	disk Disk,
) (api.Volume, error) {
	if disk == (Disk{}) {
		from, err := s.sourceOf(ctx, p, req)
		if err != nil {
			return api.Volume{}, api.AsError(err)
		}
		return s.create(ctx, p, req, owner, from)
	}
	return s.create(ctx, p, req, owner, source{template: disk.Template, disk: disk.Name, sizeMiB: disk.SizeMiB})
}

// sourceOf finds what a request copies.
func (s *Service) sourceOf(ctx context.Context, p auth.Principal, req api.CreateVolumeRequest) (source, error) {
	switch {
	case req.FromVolume != "":
		v, err := lease.Resolve(ctx, s.db.Read(), p.Workspace, p.Owner, req.FromVolume)
		return source{from: hostapi.VolumeID(v.Disk), sizeMiB: v.SizeMiB}, err
	case req.FromSnapshot != "":
		snap, err := s.findSnapshot(ctx, p, req.FromSnapshot)
		return source{from: hostapi.VolumeID(snap.ID), sizeMiB: snap.SizeMiB}, err
	case req.FromBackup != "":
		return s.backupSource(ctx, p, req.FromBackup)
	}
	return source{}, nil
}

// create makes a volume. After an error nothing is left, at the latest when Reconcile has run.
func (s *Service) create(
	ctx context.Context,
	p auth.Principal,
	req api.CreateVolumeRequest,
	owner hostapi.Owner,
	from source,
) (api.Volume, error) {
	v := store.Volume{
		ID: string(api.NewVolumeID()), Workspace: string(p.Workspace), Name: req.Name, OwnedBy: owner.String(),
		State: store.VolumeCreating, Instance: s.instance, SizeMiB: req.SizeMB, Created: store.Micros(time.Now()),
	}
	v.Disk = v.ID
	if v.Name == "" {
		v.Name = v.ID
	}
	if v.SizeMiB == 0 {
		if v.SizeMiB = from.sizeMiB; v.SizeMiB == 0 {
			v.SizeMiB = s.cfg.SizeMiB
		}
	}
	if v.SizeMiB < from.sizeMiB {
		return api.Volume{}, api.Errorf(api.Invalid, "size_mb: %d is less than the %d MiB of the source: a copy can "+
			"be larger, not smaller", v.SizeMiB, from.sizeMiB).With("field", "size_mb")
	}
	if req.Backup != nil {
		setPolicy(&v, *req.Backup)
	}
	ctx, release, err := s.locks.Acquire(ctx, v.ID)
	if err != nil {
		return api.Volume{}, api.AsError(err)
	}
	defer release()
	if err := s.insert(ctx, &v); err != nil {
		return api.Volume{}, api.AsError(err)
	}
	made, err := s.makeDisk(ctx, v, v.Disk, v.SizeMiB, from)
	if err != nil {
		return api.Volume{}, s.abortCreate(ctx, v, from, err)
	}
	finish, cancel := detached(ctx)
	defer cancel()
	if v, err = s.finishCreate(finish, v, made); err != nil {
		return api.Volume{}, s.abortCreate(ctx, v, from, err)
	}
	out, err := s.view(finish, v, made)
	if err != nil {
		return out, api.AsError(err)
	}
	return out, nil
}

// insert writes the row of a volume that is about to be made.
func (s *Service) insert(ctx context.Context, v *store.Volume) error {
	if err := s.checkHeadroom(ctx, v.SizeMiB); err != nil {
		return err
	}
	return s.db.Write(ctx, "volume create begin", func(ctx context.Context, tx *store.Tx) error {
		err := s.quotas.Admit(ctx, tx, api.Workspace(v.Workspace), quota.Amount{Kind: quota.Volumes, N: 1},
			quota.Amount{Kind: quota.VolumeSize, N: int64(v.SizeMiB) * quota.MiB})
		if err != nil {
			return err
		}
		err = tx.InsertVolume(ctx, v)
		if errors.Is(err, store.ErrExists) {
			return api.Errorf(api.Conflict, "name: there is a volume %s already: use another name", v.Name).
				With("field", "name")
		}
		return err
	})
}

// firstFence is the fence of the first writer of a volume.
const firstFence = 1

// makeDisk makes what a volume is on its host.
func (s *Service) makeDisk(
	ctx context.Context,
	v store.Volume,
	disk string,
	sizeMiB int,
	from source,
) (hostapi.Volume, error) {
	ask := hostapi.CreateVolume{
		ID: hostapi.VolumeID(disk), SizeMiB: sizeMiB, From: from.from, Machine: from.machine,
		Template: from.template, Disk: from.disk, Group: v.Workspace,
		Labels: s.labels(ownerVolume, v.ID, v.Workspace, v.Name),
	}
	if from.keep {
		ask.Fence = firstFence
	}
	var made hostapi.Volume
	var err error
	if from.backup != "" {
		made, err = s.host.RestoreVolume(ctx, v.Workspace, from.backup, ask)
	} else {
		made, err = s.host.CreateVolume(ctx, ask)
	}
	if errors.Is(err, hostapi.ErrNoSpace) {
		return made, s.noSpace(ctx, "host", fmt.Errorf("make volume %s: %w", v.Name, err))
	}
	return made, wrap(err, "make", v)
}

// finishCreate writes that a volume is ready, and who writes to it.
func (s *Service) finishCreate(ctx context.Context, v store.Volume, made hostapi.Volume) (store.Volume, error) {
	done := v
	done.State, done.Instance, done.Host, done.SizeMiB = store.VolumeReady, "", string(made.Host), made.SizeMiB
	err := s.db.Write(ctx, "volume create end", func(ctx context.Context, tx *store.Tx) (err error) {
		err = tx.UpdateVolume(ctx, &done, store.VolumeCreating, 0, "state", "instance", "host", "size_mib")
		if err == nil && made.Machine != "" {
			done, err = lease.Acquire(ctx, tx, done, lease.Sandbox(api.SandboxID(made.Machine)), "")
		}
		return err
	})
	if err != nil {
		return v, err
	}
	return done, nil
}

// settleCreate finishes a volume that a machine writes to since it was made of that machine's copy, and removes others
// that were not made completely.
func (s *Service) settleCreate(ctx context.Context, v store.Volume) error {
	made, err := s.host.GetVolume(ctx, hostapi.VolumeID(v.Disk))
	if err != nil && !errors.Is(err, hostapi.ErrNotFound) {
		return wrap(err, "look at", v)
	}
	if err != nil || made.Machine == "" {
		return s.remove(ctx, v)
	}
	_, err = s.finishCreate(ctx, v, made)
	return err
}

// abortCreate removes a volume that could not be made and returns why. Reconcile removes later what cannot be removed
// now.
func (s *Service) abortCreate(ctx context.Context, v store.Volume, from source, why error) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	if from.keep {
		row, err := s.db.Read().Volume(ctx, v.ID)
		if err == nil && row.State == store.VolumeCreating {
			err = s.settleCreate(ctx, row)
		}
		if err != nil {
			s.log.Warn("a volume was not settled; it is tried again", "volume", v.ID, "err", err)
		}
		return api.AsError(why)
	}
	// A commit whose outcome is not known may have made it ready.
	err := s.db.Write(ctx, "volume create abort", func(ctx context.Context, tx *store.Tx) error {
		row, err := tx.Volume(ctx, v.ID)
		if err != nil {
			return err
		}
		was := row.State
		row.State = store.VolumeDeleting
		return tx.UpdateVolume(ctx, &row, was, 0, "state")
	})
	if err == nil {
		err = s.remove(ctx, v)
	}
	if err != nil {
		s.log.Warn("removing a volume that could not be made failed; it is tried again", "volume", v.ID, "err", err)
	}
	return api.AsError(why)
}

// remove removes a volume that is not ready, and its snapshots that are not, from their host and then their rows.
func (s *Service) remove(ctx context.Context, v store.Volume) error {
	for _, disk := range []string{v.Disk, v.NextDisk} {
		if disk == "" {
			continue
		}
		if err := s.host.DeleteVolume(ctx, hostapi.VolumeID(disk)); err != nil {
			return wrap(err, "delete", v)
		}
	}
	snaps, err := s.db.Read().VolumeSnapshots(ctx, v.ID)
	if err != nil {
		return err
	}
	for _, snap := range snaps {
		if err := s.removeSnapshot(ctx, snap); err != nil {
			return err
		}
	}
	return s.db.Write(ctx, "volume remove", func(ctx context.Context, tx *store.Tx) error {
		return tx.DeleteVolume(ctx, v.ID)
	})
}
