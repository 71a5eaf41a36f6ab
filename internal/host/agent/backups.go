package agent

import (
	"context"
	"fmt"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/host/volume"
	"github.com/pandastack/pandastack/internal/host/volume/backup"
)

// openBackups opens the backups of volumes, if there is an object store.
func (h *Host) openBackups(volumes *volume.Store, machines *machine.Manager) (err error) {
	if h.deps.Objects == nil {
		return nil
	}
	h.backups, err = backup.New(backup.Config{
		Chunks: h.deps.Objects.Chunks, Cache: h.deps.Objects.Cache, Volumes: volumes, Copy: machines.CopyVolume,
		Space: machines.CheckDiskSpace, Log: h.deps.Log,
	})
	return err
}

// reclaim returns a function that frees disk that holds what can be downloaded again.
func (h *Host) reclaim(volumes *volume.Store) func(bytes int64) int64 {
	return func(bytes int64) int64 {
		freed := h.deps.Objects.Cache.Evict(bytes)
		if freed < bytes {
			freed += volumes.Reclaim(bytes - freed)
		}
		return freed
	}
}

// repository returns the backups of the object store.
func (h *Host) repository() (*backup.Repository, error) {
	if err := h.recovered(); err != nil {
		return nil, err
	}
	if h.backups == nil {
		return nil, errNoObjects
	}
	return h.backups, nil
}

// BackupVolume implements hostapi.VolumeHost.
func (h *Host) BackupVolume(
	ctx context.Context,
	workspace string,
	id hostapi.VolumeID,
	as hostapi.BackupID,
	labels map[string]string,
) (hostapi.BackupResult, error) {
	doing := fmt.Sprintf("back up volume %s as %s", id, as)
	backups, err := h.repository()
	if err != nil {
		return hostapi.BackupResult{}, objectsError(doing, err)
	}
	out, err := backups.Backup(ctx, workspace, id, as, labels)
	if err != nil {
		return hostapi.BackupResult{}, objectsError(doing, err)
	}
	h.deps.Log.Info("volume backed up", "volume", id, "backup", as, "bytes", out.Bytes, "uploaded", out.Uploaded,
		"took", out.Took)
	return out, nil
}

// Backups implements hostapi.VolumeHost.
func (h *Host) Backups(ctx context.Context, workspace string) ([]hostapi.Backup, error) {
	backups, err := h.repository()
	if err != nil {
		return nil, objectsError("list backups", err)
	}
	all, err := backups.List(ctx, workspace)
	return all, objectsError("list backups", err)
}

// RestoreVolume implements hostapi.VolumeHost.
func (h *Host) RestoreVolume(
	ctx context.Context,
	workspace string,
	id hostapi.BackupID,
	req hostapi.CreateVolume,
) (hostapi.Volume, error) {
	doing := fmt.Sprintf("restore volume %s of backup %s", req.ID, id)
	backups, err := h.repository()
	if err == nil && (req.From != "" || req.Machine != "" || req.Template != "" || req.Disk != "") {
		err = fmt.Errorf("a backup is its only source: %w", hostapi.ErrInvalid)
	}
	if err != nil {
		return hostapi.Volume{}, objectsError(doing, err)
	}
	v, err := backups.Restore(ctx, workspace, id, volume.Request{
		ID: req.ID, SizeMiB: req.SizeMiB, Frozen: req.Frozen, Group: req.Group, Labels: req.Labels,
	})
	if err != nil {
		return hostapi.Volume{}, objectsError(doing, err)
	}
	return h.volumeOf(v), nil
}

// DeleteBackup implements hostapi.VolumeHost.
func (h *Host) DeleteBackup(ctx context.Context, workspace string, id hostapi.BackupID) error {
	doing := "delete backup " + string(id)
	backups, err := h.repository()
	if err != nil {
		return objectsError(doing, err)
	}
	return objectsError(doing, backups.Delete(ctx, workspace, id))
}
