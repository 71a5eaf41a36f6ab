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

// idLetters are the characters of ids of machines, snapshots and images.
const idLetters = "abcdefghijklmnopqrstuvwxyz0123456789"

// snapshotRef returns the place of a user's snapshot in the store.
func snapshotRef(id hostapi.SnapshotID) (snapshot.Ref, error) {
	if id == "" || len(id) > 64 || strings.Trim(string(id), idLetters) != "" {
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
	return h.snapshotInfo(snap), nil
}

// snapshotInfo returns a snapshot as callers see it.
func (h *Host) snapshotInfo(s snapshot.Snapshot) hostapi.Snapshot {
	return hostapi.Snapshot{
		ID: hostapi.SnapshotID(
			s.Ref.Name(),
		), Host: h.id, Machine: hostapi.MachineID(s.Machine), Template: hostapi.TemplateName(s.Template),
		VCPUs: s.VCPUs, MemoryMiB: s.MemoryMiB, DiskMiB: s.DiskMiB, Bytes: s.Bytes, Created: s.Created,
		Labels: s.Labels,
	}
}

// GetSnapshot implements hostapi.Host.
func (h *Host) GetSnapshot(_ context.Context, id hostapi.SnapshotID) (hostapi.Snapshot, error) {
	if err := h.recovered(); err != nil {
		return hostapi.Snapshot{}, err
	}
	ref, err := snapshotRef(id)
	if err != nil {
		return hostapi.Snapshot{}, err
	}
	snap, err := h.store.Get(ref)
	switch {
	case errors.Is(err, snapshot.ErrNotFound):
		return hostapi.Snapshot{}, fmt.Errorf("%w: %w", hostapi.ErrNotFound, err)
	case err != nil: // its files are there
		return hostapi.Snapshot{}, fmt.Errorf("%w: %w", hostapi.ErrUnavailable, err)
	}
	return h.snapshotInfo(snap), nil
}

// Snapshots implements hostapi.Host.
func (h *Host) Snapshots(context.Context) ([]hostapi.Snapshot, error) {
	if err := h.recovered(); err != nil {
		return nil, err
	}
	list := h.store.List(snapshots)
	out := make([]hostapi.Snapshot, 0, len(list))
	for _, s := range list {
		out = append(out, h.snapshotInfo(s))
	}
	return out, nil
}

// DeleteSnapshot implements hostapi.Host. Machines that use the snapshot continue.
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
