package agent

import (
	"context"
	"fmt"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

var errNoVolumes = fmt.Errorf("volumes: %w", hostapi.ErrUnsupported)

// CreateVolume implements hostapi.VolumeHost.
func (*Host) CreateVolume(_ context.Context, _ hostapi.CreateVolume) (hostapi.Volume, error) {
	return hostapi.Volume{}, errNoVolumes
}

// GetVolume implements hostapi.VolumeHost.
func (*Host) GetVolume(_ context.Context, _ hostapi.VolumeID) (hostapi.Volume, error) {
	return hostapi.Volume{}, errNoVolumes
}

// Volumes implements hostapi.VolumeHost.
func (*Host) Volumes(_ context.Context) ([]hostapi.Volume, error) {
	return nil, errNoVolumes
}

// ResizeVolume implements hostapi.VolumeHost.
func (*Host) ResizeVolume(_ context.Context, _ hostapi.VolumeID, _ int) (hostapi.Volume, error) {
	return hostapi.Volume{}, errNoVolumes
}

// DeleteVolume implements hostapi.VolumeHost.
func (*Host) DeleteVolume(_ context.Context, _ hostapi.VolumeID) error {
	return errNoVolumes
}

// AttachVolume implements hostapi.VolumeHost.
func (*Host) AttachVolume(
	_ context.Context,
	_ hostapi.MachineID,
	_ hostapi.VolumeAttachment,
) (hostapi.Machine, error) {
	return hostapi.Machine{}, errNoVolumes
}

// DetachVolume implements hostapi.VolumeHost.
func (*Host) DetachVolume(
	_ context.Context,
	_ hostapi.MachineID,
	_ hostapi.VolumeID,
	_ bool,
) (hostapi.Machine, error) {
	return hostapi.Machine{}, errNoVolumes
}

// BackupVolume implements hostapi.VolumeHost.
func (*Host) BackupVolume(
	_ context.Context,
	_ string,
	_ hostapi.VolumeID,
	_ hostapi.BackupID,
	_ map[string]string,
) (hostapi.BackupResult, error) {
	return hostapi.BackupResult{}, errNoVolumes
}

// Backups implements hostapi.VolumeHost.
func (*Host) Backups(_ context.Context, _ string) ([]hostapi.Backup, error) {
	return nil, errNoVolumes
}

// RestoreVolume implements hostapi.VolumeHost.
func (*Host) RestoreVolume(
	_ context.Context,
	_ string,
	_ hostapi.BackupID,
	_ hostapi.CreateVolume,
) (hostapi.Volume, error) {
	return hostapi.Volume{}, errNoVolumes
}

// DeleteBackup implements hostapi.VolumeHost.
func (*Host) DeleteBackup(_ context.Context, _ string, _ hostapi.BackupID) error {
	return errNoVolumes
}
