package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
)

// snapshotRef is where a user's snapshot is stored.
func snapshotRef(id hostapi.SnapshotID) (snapshot.Ref, error) {
	if id == "" || len(id) > 64 || strings.Trim(string(id), "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return "", fmt.Errorf(
			"snapshot id %q is not 1 to 64 lower-case letters and digits: %w",
			string(id),
			hostapi.ErrInvalid,
		)
	}
	return snapshot.Join(snapshots, string(id)), nil
}

// TakeSnapshot implements hostapi.Host.
func (h *Host) TakeSnapshot(
	ctx context.Context,
	machine hostapi.MachineID,
	id hostapi.SnapshotID,
	labels map[string]string,
) (hostapi.Snapshot, error) {
	ref, err := snapshotRef(id)
	if err != nil {
		return hostapi.Snapshot{}, err
	}
	snap, err := h.machines.TakeSnapshot(ctx, machine, ref, func(s *snapshot.Snapshot) { s.Labels = labels }, nil)
	if err != nil {
		return hostapi.Snapshot{}, err
	}
	return snapshotInfo(snap), nil
}

// snapshotInfo is how a snapshot is told outside.
func snapshotInfo(s snapshot.Snapshot) hostapi.Snapshot {
	return hostapi.Snapshot{
		ID: hostapi.SnapshotID(
			s.Ref.Name(),
		), Machine: hostapi.MachineID(s.Machine), Template: hostapi.TemplateName(s.Template),
		VCPUs: s.VCPUs, MemoryMiB: s.MemoryMiB, DiskMiB: s.DiskMiB, Bytes: s.Bytes, Created: s.Created, Labels: s.Labels,
	}
}

// Snapshots implements hostapi.Host.
func (h *Host) Snapshots(context.Context) ([]hostapi.Snapshot, error) {
	list := h.store.List(snapshots)
	out := make([]hostapi.Snapshot, 0, len(list))
	for _, s := range list {
		out = append(out, snapshotInfo(s))
	}
	return out, nil
}

// DeleteSnapshot implements hostapi.Host. Machines that run on the snapshot go on.
func (h *Host) DeleteSnapshot(_ context.Context, id hostapi.SnapshotID) error {
	ref, err := snapshotRef(id)
	if err != nil {
		return err
	}
	err = h.store.Delete(ref)
	if errors.Is(err, snapshot.ErrNotFound) {
		return fmt.Errorf("%w: %w", hostapi.ErrNotFound, err)
	}
	return err
}

func now() time.Time { return time.Now().UTC() }
