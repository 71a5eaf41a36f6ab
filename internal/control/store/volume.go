package store

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"
)

// The states of the rows of volumes, their snapshots and their backups.
const (
	VolumeCreating = "creating"
	VolumeReady    = "ready"
	VolumeDeleting = "deleting"

	BackupRunning  = "running"
	BackupReady    = "ready"
	BackupFailed   = "failed"
	BackupDeleting = "deleting"
)

// Volume is a row of volumes. Times are microseconds.
type Volume struct {
	bun.BaseModel `bun:"table:volumes"`
	ID            string `bun:"id,pk"`
	Workspace     string `bun:"workspace"`
	Name          string `bun:"name"`
	OwnedBy       string `bun:"owned_by"`
	State         string `bun:"state"`
	Instance      string `bun:"instance"`
	Host          string `bun:"host"`
	Disk          string `bun:"disk"`
	NextDisk      string `bun:"next_disk"`
	SizeMiB       int    `bun:"size_mib"`
	Holder        string `bun:"holder"`
	Fence         int64  `bun:"fence"`
	Held          int64  `bun:"held"`
	Written       int64  `bun:"written"`
	Policy        string `bun:"policy"`
	BackupDue     int64  `bun:"backup_due"`
	BackupError   string `bun:"backup_error"`
	Created       int64  `bun:"created"`
}

// InsertVolume adds a row; ErrExists if the id, or the name in the workspace, is taken. The transaction stays usable.
func (t *Tx) InsertVolume(ctx context.Context, v *Volume) error {
	res, err := t.db.NewInsert().Model(v).On("CONFLICT DO NOTHING").Exec(ctx)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n > 0 {
		return err
	}
	return fmt.Errorf("volume %s: %w", v.Name, ErrExists)
}

// Volume reads one row by id.
func (t *Tx) Volume(ctx context.Context, id string) (Volume, error) {
	v := Volume{ID: id}
	err := t.db.NewSelect().Model(&v).WherePK().Scan(ctx)
	return v, notFound(err, "volume", id)
}

// VolumeByName reads the row of a workspace with this name that is not being deleted.
func (t *Tx) VolumeByName(ctx context.Context, workspace, name string) (Volume, error) {
	var v Volume
	err := t.db.NewSelect().Model(&v).Where("workspace = ?", workspace).Where("name = ?", name).
		Where("state <> ?", VolumeDeleting).Scan(ctx)
	return v, notFound(err, "volume", name)
}

// VolumeByDisk reads the row of a volume by its id on the host.
func (t *Tx) VolumeByDisk(ctx context.Context, disk string) (Volume, error) {
	var v Volume
	err := t.db.NewSelect().Model(&v).Where("disk = ?", disk).Scan(ctx)
	return v, notFound(err, "volume", disk)
}

// VolumeQuery selects volumes. Zero fields select everything.
type VolumeQuery struct {
	Workspace string
	OwnedBy   string // the service's object that it belongs to
	Holder    string
	Held      bool  // there is a holder
	DueBy     int64 // a backup is due by then
	Limit     int
}

// Volumes reads the rows that q selects, by name; those that are due, the longest due first.
func (t *Tx) Volumes(ctx context.Context, q VolumeQuery) ([]Volume, error) {
	rows := []Volume{}
	s := t.db.NewSelect().Model(&rows)
	if q.Workspace != "" {
		s = s.Where("workspace = ?", q.Workspace)
	}
	if q.OwnedBy != "" {
		s = s.Where("owned_by = ?", q.OwnedBy)
	}
	if q.Holder != "" {
		s = s.Where("holder = ?", q.Holder)
	}
	if q.Held {
		s = s.Where("holder <> ''")
	}
	if q.DueBy > 0 {
		s = s.Where("backup_due > 0").Where("backup_due <= ?", q.DueBy).OrderBy("backup_due", bun.OrderAsc)
	}
	if q.Limit > 0 {
		s = s.Limit(int64(q.Limit))
	}
	err := s.OrderBy("workspace", bun.OrderAsc).OrderBy("name", bun.OrderAsc).OrderBy("id", bun.OrderAsc).Scan(ctx)
	return rows, err
}

// UpdateVolume writes the named columns of a row that is in state was and has the fence given.
//
// ErrNotFound if it is not or has not.
func (t *Tx) UpdateVolume(ctx context.Context, v *Volume, was string, fence int64, columns ...string) error {
	res, err := t.db.NewUpdate().Model(v).WherePK().Where("state = ?", was).Where("fence = ?", fence).
		Column(columns...).Exec(ctx)
	return changed(res, err, "volume", v.ID)
}

// AcquireVolume makes a holder the writer of a volume and returns its new row.
//
// ErrNotFound: the volume is not ready, or has a holder.
func (t *Tx) AcquireVolume(ctx context.Context, id, holder, instance string, at int64) (Volume, error) {
	res, err := t.db.NewUpdate().Model((*Volume)(nil)).
		Set("holder = ?", holder).Set("instance = ?", instance).Set("held = ?", at).Set("fence = fence + 1").
		Where("id = ?", id).Where("state = ?", VolumeReady).Where("holder = ''").Exec(ctx)
	if err := changed(res, err, "volume", id); err != nil {
		return Volume{}, err
	}
	return t.Volume(ctx, id)
}

// DeleteVolume removes a row that is being deleted or created. A missing row is no error.
func (t *Tx) DeleteVolume(ctx context.Context, id string) error {
	_, err := t.db.NewDelete().Model((*Volume)(nil)).Where("id = ?", id).Where("state <> ?", VolumeReady).Exec(ctx)
	return err
}

// VolumeSums counts the volumes of a workspace, in any state, and adds up their sizes. workspace "" is all.
func (t *Tx) VolumeSums(ctx context.Context, workspace string) (count, mib int64, err error) {
	q := t.db.NewSelect().Model((*Volume)(nil)).ColumnExpr("count(*)").
		ColumnExpr("CAST(COALESCE(SUM(size_mib), 0) AS BIGINT)")
	if workspace != "" {
		q = q.Where("workspace = ?", workspace)
	}
	err = q.Scan(ctx, &count, &mib)
	return count, mib, err
}

// VolumeSnapshot is a row of volume_snapshots.
type VolumeSnapshot struct {
	bun.BaseModel `bun:"table:volume_snapshots"`
	ID            string `bun:"id,pk"`
	Workspace     string `bun:"workspace"`
	Volume        string `bun:"volume"`
	VolumeName    string `bun:"volume_name"`
	Name          string `bun:"name"`
	State         string `bun:"state"`
	Instance      string `bun:"instance"`
	Host          string `bun:"host"`
	SizeMiB       int    `bun:"size_mib"`
	Created       int64  `bun:"created"`
}

// InsertVolumeSnapshot adds a row.
func (t *Tx) InsertVolumeSnapshot(ctx context.Context, s *VolumeSnapshot) error {
	_, err := t.db.NewInsert().Model(s).Exec(ctx)
	return exists(err, "snapshot of a volume", s.ID)
}

// VolumeSnapshot reads one row.
func (t *Tx) VolumeSnapshot(ctx context.Context, id string) (VolumeSnapshot, error) {
	s := VolumeSnapshot{ID: id}
	err := t.db.NewSelect().Model(&s).WherePK().Scan(ctx)
	return s, notFound(err, "snapshot of a volume", id)
}

// VolumeSnapshots reads the rows of a volume, newest first; volume "" is all.
func (t *Tx) VolumeSnapshots(ctx context.Context, volume string) ([]VolumeSnapshot, error) {
	rows := []VolumeSnapshot{}
	q := t.db.NewSelect().Model(&rows)
	if volume != "" {
		q = q.Where("volume = ?", volume)
	}
	err := q.OrderBy("created", bun.OrderDesc).OrderBy("id", bun.OrderAsc).Scan(ctx)
	return rows, err
}

// SetVolumeSnapshotState moves a row from one state to another; ErrNotFound if it is in none of from.
func (t *Tx) SetVolumeSnapshotState(ctx context.Context, id, to string, from ...string) error {
	res, err := t.db.NewUpdate().Model((*VolumeSnapshot)(nil)).Set("state = ?", to).Where("id = ?", id).
		Where("state IN (?)", bun.List(from)).Exec(ctx)
	return changed(res, err, "snapshot of a volume", id)
}

// DeleteVolumeSnapshot removes a row. A missing row is no error.
func (t *Tx) DeleteVolumeSnapshot(ctx context.Context, id string) error {
	_, err := t.db.NewDelete().Model((*VolumeSnapshot)(nil)).Where("id = ?", id).Exec(ctx)
	return err
}

// CountVolumeSnapshots counts the snapshots of a workspace's volumes.
func (t *Tx) CountVolumeSnapshots(ctx context.Context, workspace string) (int64, error) {
	n, err := t.db.NewSelect().Model((*VolumeSnapshot)(nil)).Where("workspace = ?", workspace).Count(ctx)
	return int64(n), err
}

// VolumeBackup is a row of volume_backups. Times are microseconds.
type VolumeBackup struct {
	bun.BaseModel `bun:"table:volume_backups"`
	ID            string `bun:"id,pk"`
	Workspace     string `bun:"workspace"`
	Volume        string `bun:"volume"`
	VolumeName    string `bun:"volume_name"`
	State         string `bun:"state"`
	Cause         string `bun:"cause"`
	Moment        int64  `bun:"moment"`
	SizeMiB       int    `bun:"size_mib"`
	Stored        int64  `bun:"stored"`
	Uploaded      int64  `bun:"uploaded"`
	Error         string `bun:"error"`
	Created       int64  `bun:"created"`
}

// InsertVolumeBackup adds a row; ErrExists if the id is taken.
func (t *Tx) InsertVolumeBackup(ctx context.Context, b *VolumeBackup) error {
	_, err := t.db.NewInsert().Model(b).Exec(ctx)
	return exists(err, "backup", b.ID)
}

// VolumeBackup reads one row.
func (t *Tx) VolumeBackup(ctx context.Context, id string) (VolumeBackup, error) {
	b := VolumeBackup{ID: id}
	err := t.db.NewSelect().Model(&b).WherePK().Scan(ctx)
	return b, notFound(err, "backup", id)
}

// UpdateVolumeBackup writes a row that is in state was; ErrNotFound if there is none.
func (t *Tx) UpdateVolumeBackup(ctx context.Context, b *VolumeBackup, was string) error {
	res, err := t.db.NewUpdate().Model(b).WherePK().Where("state = ?", was).Exec(ctx)
	return changed(res, err, "backup", b.ID)
}

// VolumeBackupQuery selects backups. Zero fields select everything.
type VolumeBackupQuery struct {
	Workspace, Volume, State string
	Limit                    int
}

// VolumeBackups reads the rows that q selects, those of the newest moments first.
func (t *Tx) VolumeBackups(ctx context.Context, q VolumeBackupQuery) ([]VolumeBackup, error) {
	rows := []VolumeBackup{}
	s := t.db.NewSelect().Model(&rows)
	if q.Workspace != "" {
		s = s.Where("workspace = ?", q.Workspace)
	}
	if q.Volume != "" {
		s = s.Where("volume = ?", q.Volume)
	}
	if q.State != "" {
		s = s.Where("state = ?", q.State)
	}
	if q.Limit > 0 {
		s = s.Limit(int64(q.Limit))
	}
	err := s.OrderBy("moment", bun.OrderDesc).OrderBy("id", bun.OrderAsc).Scan(ctx)
	return rows, err
}

// DeleteVolumeBackup removes a row. A missing row is no error.
func (t *Tx) DeleteVolumeBackup(ctx context.Context, id string) error {
	_, err := t.db.NewDelete().Model((*VolumeBackup)(nil)).Where("id = ?", id).Exec(ctx)
	return err
}

// SandboxVolumes reads the ids of a workspace's sandboxes that have volumes, each with those as JSON.
func (t *Tx) SandboxVolumes(ctx context.Context, workspace string) (map[string]string, error) {
	var rows []Sandbox
	err := t.db.NewSelect().Model(&rows).Column("id", "volumes").
		Where("workspace = ?", workspace).Where("volumes <> ''").Scan(ctx)
	all := map[string]string{}
	for _, r := range rows {
		all[r.ID] = r.Volumes
	}
	return all, err
}
