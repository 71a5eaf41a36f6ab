package volume

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/job"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/volume/lease"
)

// backupKind is the kind of the jobs.
const backupKind = "volume-backup"

// Why backups are made.
const (
	causeManual   = "manual"
	causeSchedule = "schedule"
	causeDetach   = "detach"
)

// backupJob is the payload of a job.
type backupJob struct {
	Volume string `json:"volume"`
	Backup string `json:"backup"`
}

func (s *Service) backupWorker() job.Worker {
	return job.Worker{
		Kind: backupKind, Run: s.runBackup, Changed: s.backupChanged, Concurrency: 2, MaxAttempts: 5,
		Backoff: 10 * time.Second,
	}
}

// labels of backups in the object store.
const (
	labelVolumeName = "volume_name"
	labelCause      = "cause"
)

// Backup begins a backup of a volume, or returns the one that is under way.
func (s *Service) Backup(ctx context.Context, p auth.Principal, name string) (api.VolumeBackup, error) {
	v, err := s.find(ctx, p, name)
	if err != nil {
		return api.VolumeBackup{}, api.AsError(err)
	}
	b, err := s.enqueueBackup(ctx, v, causeManual)
	if err != nil {
		return api.VolumeBackup{}, api.AsError(err)
	}
	return viewBackup(b), nil
}

// enqueueBackup writes the row and the job of a backup, and when the next one is due. While one is under way there is
// no second one.
func (s *Service) enqueueBackup(ctx context.Context, v store.Volume, cause string) (store.VolumeBackup, error) {
	at := store.Micros(time.Now())
	b := store.VolumeBackup{
		ID: string(api.NewBackupID()), Workspace: v.Workspace, Volume: v.ID, VolumeName: v.Name,
		State: store.BackupRunning, Cause: cause, Moment: at, SizeMiB: v.SizeMiB, Created: at,
	}
	err := s.db.Write(ctx, "backup begin", func(ctx context.Context, tx *store.Tx) error {
		if err := s.quotas.Admit(ctx, tx, api.Workspace(v.Workspace)); err != nil {
			return err
		}
		j, created, err := s.jobs.EnqueueTx(ctx, tx, job.Spec{
			Kind: backupKind, Key: v.ID, Owner: hostapi.Owner{Kind: ownerVolume, ID: v.ID}.String(),
			Workspace: api.Workspace(v.Workspace), Payload: backupJob{v.ID, b.ID},
		})
		if err != nil {
			return err
		}
		if err := s.setDue(ctx, tx, v.ID); err != nil {
			return err
		}
		if created {
			return tx.InsertVolumeBackup(ctx, &b)
		}
		var known backupJob
		if err := json.Unmarshal(j.Payload, &known); err != nil {
			return fmt.Errorf("payload of job %s: %w", j.ID, err)
		}
		b, err = tx.VolumeBackup(ctx, known.Backup)
		return err
	})
	if err == nil {
		s.jobs.Notify()
	}
	return b, err
}

// setDue writes when the next backup of a volume is due by its policy. A volume that nothing has written since needs
// none: the next detachment, or attachment, makes one due.
func (s *Service) setDue(ctx context.Context, tx *store.Tx, id string) error {
	v, err := tx.Volume(ctx, id)
	if err != nil {
		return err
	}
	v.BackupDue = 0
	if p := lease.Policy(v); p != nil {
		v.BackupDue = store.Micros(time.Now().Add(p.Interval()))
	}
	return tx.UpdateVolume(ctx, &v, v.State, v.Fence, "backup_due")
}

// scheduleBackups enqueues the backups that are due.
func (s *Service) scheduleBackups(ctx context.Context) error {
	rows, err := s.db.Read().Volumes(ctx, store.VolumeQuery{DueBy: store.Micros(time.Now()), Limit: 100})
	if err != nil {
		return err
	}
	var all error
	for _, v := range rows {
		if v.State != store.VolumeReady {
			continue
		}
		all = errors.Join(all, s.scheduleBackup(ctx, v))
	}
	return all
}

// scheduleBackup enqueues a backup, unless the newest has all that was written.
func (s *Service) scheduleBackup(ctx context.Context, v store.Volume) error {
	newest, err := s.newestBackup(ctx, v.ID)
	if err != nil {
		return err
	}
	if v.Holder == "" && newest != nil && newest.Moment > v.Written {
		return s.db.Write(ctx, "backup due", func(ctx context.Context, tx *store.Tx) error {
			return s.setDue(ctx, tx, v.ID)
		})
	}
	cause := causeSchedule
	if v.Holder == "" {
		cause = causeDetach
	}
	_, err = s.enqueueBackup(ctx, v, cause)
	if code := api.CodeOf(err); code == api.WorkspaceSuspended || errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// newestBackup returns the newest backup that is complete; nil if there is none.
func (s *Service) newestBackup(ctx context.Context, volume string) (*store.VolumeBackup, error) {
	rows, err := s.db.Read().VolumeBackups(ctx, store.VolumeBackupQuery{
		Volume: volume, State: store.BackupReady, Limit: 1})
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return &rows[0], nil
}

// runBackup makes one attempt at a backup, and removes those that the policy does not keep.
func (s *Service) runBackup(ctx context.Context, l *job.Lease) error {
	var ask backupJob
	if err := json.Unmarshal(l.Job().Payload, &ask); err != nil {
		return job.Permanent(err)
	}
	v, err := s.db.Read().Volume(ctx, ask.Volume)
	if errors.Is(err, store.ErrNotFound) {
		return job.Permanent(api.Errorf(api.Gone, "the volume was deleted"))
	}
	if err != nil {
		return err
	}
	b, err := s.db.Read().VolumeBackup(ctx, ask.Backup)
	if err != nil {
		return err
	}
	got, err := s.host.BackupVolume(ctx, v.Workspace, hostapi.VolumeID(v.Disk), hostapi.BackupID(b.ID),
		map[string]string{labelVolume: v.ID, labelVolumeName: v.Name, labelCause: b.Cause})
	if err != nil {
		err = wrap(err, "back up", v)
		if code := api.CodeOf(err); code == api.Unsupported || code == api.NotFound {
			err = job.Permanent(err)
		}
		return err
	}
	b.State, b.Moment, b.SizeMiB = store.BackupReady, store.Micros(got.Moment), got.SizeMiB
	b.Stored, b.Uploaded, b.Error = got.Stored, got.Uploaded, ""
	err = s.db.Write(ctx, "backup end", func(ctx context.Context, tx *store.Tx) error {
		if err := l.Complete(ctx, tx, nil); err != nil {
			return err
		}
		if err := tx.UpdateVolumeBackup(ctx, &b, store.BackupRunning); err != nil {
			return err
		}
		v.BackupError = ""
		return s.updateUnfenced(ctx, tx, v, "backup_error")
	})
	if err != nil {
		return err
	}
	if err := s.prune(ctx, v); err != nil {
		s.log.Warn("old backups of a volume were not removed; the next backup tries again", "volume", v.ID, "err", err)
	}
	return nil
}

// backupChanged writes the end of a job that has failed.
func (s *Service) backupChanged(ctx context.Context, tx *store.Tx, j job.Job) error {
	if j.State != job.Failed && j.State != job.Cancelled {
		return nil
	}
	var ask backupJob
	if err := json.Unmarshal(j.Payload, &ask); err != nil {
		return nil //nolint:nilerr // there is no row of it
	}
	b, err := tx.VolumeBackup(ctx, ask.Backup)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	b.State, b.Error = store.BackupFailed, cmp.Or(j.Error, "it was cancelled")
	if err := tx.UpdateVolumeBackup(ctx, &b, store.BackupRunning); err != nil {
		return err
	}
	v, err := tx.Volume(ctx, ask.Volume)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	v.BackupError = b.Error
	return tx.UpdateVolume(ctx, &v, v.State, v.Fence, "backup_error")
}

// prune removes the backups that the policy of a volume does not keep, and finishes removals that failed. Backups that
// a user has asked for are kept until the user deletes them.
func (s *Service) prune(ctx context.Context, v store.Volume) error {
	rows, err := s.db.Read().VolumeBackups(ctx, store.VolumeBackupQuery{Volume: v.ID})
	if err != nil {
		return err
	}
	var keep api.Keep
	if p := lease.Policy(v); p != nil {
		keep = p.Keep
	}
	var all error
	for _, b := range unkept(rows, keep) {
		all = errors.Join(all, s.removeBackup(ctx, b))
	}
	return all
}

// unkept returns the backups to remove, of rows in the order of their moments, newest first.
func unkept(rows []store.VolumeBackup, keep api.Keep) []store.VolumeBackup {
	kept, out := map[string]bool{}, []store.VolumeBackup{}
	for _, span := range []struct {
		n  int
		of func(time.Time) string
	}{
		{keep.Hourly, func(t time.Time) string { return t.Format("2006-01-02 15") }},
		{keep.Daily, func(t time.Time) string { return t.Format("2006-01-02") }},
		{keep.Weekly, func(t time.Time) string { year, week := t.ISOWeek(); return fmt.Sprint(year, week) }},
	} {
		seen := map[string]bool{}
		for _, b := range rows {
			if b.State != store.BackupReady {
				continue
			}
			in := span.of(store.Time(b.Moment).UTC())
			if len(seen) < span.n && !seen[in] {
				seen[in], kept[b.ID] = true, true
			}
		}
	}
	newest := slices.IndexFunc(rows, func(b store.VolumeBackup) bool { return b.State == store.BackupReady })
	for i, b := range rows {
		automatic := b.Cause != causeManual && b.State == store.BackupReady
		if b.State == store.BackupDeleting || automatic && i != newest && !kept[b.ID] {
			out = append(out, b)
		}
	}
	return out
}

// removeBackup removes a backup from the object store, then its row.
func (s *Service) removeBackup(ctx context.Context, b store.VolumeBackup) error {
	was := b.State
	b.State = store.BackupDeleting
	err := s.db.Write(ctx, "backup delete", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateVolumeBackup(ctx, &b, was)
	})
	if err != nil {
		return err
	}
	if err := s.host.DeleteBackup(ctx, b.Workspace, hostapi.BackupID(b.ID)); err != nil {
		return hosterror.Wrap(err, "delete backup", b.ID)
	}
	return s.db.Write(ctx, "backup remove", func(ctx context.Context, tx *store.Tx) error {
		return tx.DeleteVolumeBackup(ctx, b.ID)
	})
}

// Backups returns the backups of a volume, or of the workspace if name is empty, newest first.
//
// With everywhere it asks the object store for those that other nodes made, too.
func (s *Service) Backups(
	ctx context.Context,
	p auth.Principal,
	name string,
	everywhere bool,
) ([]api.VolumeBackup, error) {
	if err := s.admit(ctx, p); err != nil {
		return nil, err
	}
	q := store.VolumeBackupQuery{Workspace: string(p.Workspace)}
	if name != "" {
		v, err := s.find(ctx, p, name)
		if err != nil {
			return nil, api.AsError(err)
		}
		q.Volume = v.ID
	}
	rows, err := s.db.Read().VolumeBackups(ctx, q)
	if err != nil {
		return nil, api.AsError(err)
	}
	all, known := []api.VolumeBackup{}, map[api.BackupID]bool{}
	for _, b := range rows {
		all = append(all, viewBackup(b))
		known[api.BackupID(b.ID)] = true
	}
	if !everywhere || name != "" {
		return all, nil
	}
	stored, err := s.host.Backups(ctx, string(p.Workspace))
	if err != nil {
		return nil, api.AsError(hosterror.Wrap(err, "list backups of", string(p.Workspace)))
	}
	for _, b := range stored {
		if !known[api.BackupID(b.ID)] {
			all = append(all, viewStored(b))
		}
	}
	slices.SortStableFunc(all, func(a, b api.VolumeBackup) int { return b.Moment.Compare(a.Moment) })
	return all, nil
}

// DeleteBackup removes a backup, also one that another node made.
func (s *Service) DeleteBackup(ctx context.Context, p auth.Principal, id api.BackupID) error {
	if err := s.admit(ctx, p); err != nil {
		return err
	}
	b, err := s.db.Read().VolumeBackup(ctx, string(id))
	switch {
	case errors.Is(err, store.ErrNotFound):
		if _, err := s.storedBackup(ctx, p, id); err != nil {
			return err
		}
		err := s.host.DeleteBackup(ctx, string(p.Workspace), hostapi.BackupID(id))
		if err != nil {
			return api.AsError(hosterror.Wrap(err, "delete backup", string(id)))
		}
		return nil
	case err != nil:
		return api.AsError(err)
	case b.Workspace != string(p.Workspace):
		return noBackup(id)
	case b.State == store.BackupRunning:
		return api.Errorf(api.Conflict, "backup %s is being made: wait until it has ended", id)
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	if err := s.removeBackup(ctx, b); err != nil {
		return api.AsError(err)
	}
	return nil
}

func noBackup(id api.BackupID) error {
	return api.Errorf(api.NotFound, "backup %.70q not found: list them at /v1/volume-backups", id)
}

// storedBackup finds a backup of the workspace in the object store.
func (s *Service) storedBackup(ctx context.Context, p auth.Principal, id api.BackupID) (hostapi.Backup, error) {
	all, err := s.host.Backups(ctx, string(p.Workspace))
	if err != nil {
		return hostapi.Backup{}, api.AsError(hosterror.Wrap(err, "look for backup", string(id)))
	}
	i := slices.IndexFunc(all, func(b hostapi.Backup) bool { return b.ID == hostapi.BackupID(id) })
	if i < 0 {
		return hostapi.Backup{}, noBackup(id)
	}
	return all[i], nil
}

// backupSource finds a backup to restore: one that this node knows, or one that another left in the object store.
func (s *Service) backupSource(ctx context.Context, p auth.Principal, id api.BackupID) (source, error) {
	b, err := s.db.Read().VolumeBackup(ctx, string(id))
	switch {
	case errors.Is(err, store.ErrNotFound):
		stored, err := s.storedBackup(ctx, p, id)
		return source{backup: stored.ID, sizeMiB: stored.SizeMiB}, err
	case err != nil:
		return source{}, err
	case b.Workspace != string(p.Workspace) || b.State == store.BackupDeleting:
		return source{}, noBackup(id)
	case b.State != store.BackupReady:
		return source{}, api.Errorf(api.Conflict, "backup %s is not complete: it is %s", id, b.State)
	}
	return source{backup: hostapi.BackupID(b.ID), sizeMiB: b.SizeMiB}, nil
}

// backupStatus says how well a volume is backed up; nil if it has neither backups nor a policy.
func (s *Service) backupStatus(ctx context.Context, v store.Volume) (*api.BackupStatus, error) {
	newest, err := s.newestBackup(ctx, v.ID)
	if err != nil || newest == nil && v.Policy == "" && v.BackupError == "" {
		return nil, err
	}
	out := &api.BackupStatus{Policy: lease.Policy(v), NextAt: timeOrNil(v.BackupDue), LastError: v.BackupError}
	if newest == nil {
		return out, nil
	}
	moment := store.Time(newest.Moment)
	out.LastBackupAt = &moment
	var lost int64
	switch {
	case v.Holder != "":
		lost = int64(time.Since(moment).Seconds())
	case v.Written > newest.Moment:
		lost = (v.Written - newest.Moment) / int64(time.Second/time.Microsecond)
	}
	out.RPOSeconds = &lost
	return out, nil
}

func viewBackup(b store.VolumeBackup) api.VolumeBackup {
	return api.VolumeBackup{
		ID: api.BackupID(b.ID), VolumeID: api.VolumeID(b.Volume), VolumeName: b.VolumeName, Status: b.State,
		Reason: b.Cause, Moment: store.Time(b.Moment), SizeMB: b.SizeMiB, StoredBytes: b.Stored,
		UploadedBytes: b.Uploaded, Error: b.Error,
	}
}

func viewStored(b hostapi.Backup) api.VolumeBackup {
	return api.VolumeBackup{
		ID: api.BackupID(b.ID), VolumeID: api.VolumeID(cmp.Or(b.Labels[labelVolume], string(b.Volume))),
		VolumeName: b.Labels[labelVolumeName], Status: store.BackupReady, Reason: b.Labels[labelCause],
		Moment: b.Moment, SizeMB: b.SizeMiB, StoredBytes: b.Stored, Elsewhere: true,
	}
}
