package sandbox

import (
	"context"
	"errors"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/page"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/control/store"
)

// TakeSnapshot adds a snapshot of a sandbox to the registry. The sandbox keeps its state; a hibernated one is
// woken first.
func (s *Service) TakeSnapshot(
	ctx context.Context,
	p auth.Principal,
	id api.SandboxID,
	req api.SnapshotRequest,
) (_ api.Snapshot, err error) {
	defer s.finishVerb("take snapshot", time.Now(), &err)
	if err := req.Validate(); err != nil {
		return api.Snapshot{}, err
	}
	r, ctx, release, err := s.acquireReady(ctx, p, id, "take a snapshot of", true)
	if err != nil {
		return api.Snapshot{}, err
	}
	defer release()
	snap := snapshotRecord{
		ID: api.NewSnapshotID(), Workspace: r.Workspace, Sandbox: r.ID, State: store.SnapshotCreating,
		Instance: s.instance, Host: r.Host, Name: req.Name, Template: r.Template, Metadata: req.Metadata,
		VCPUs: r.VCPUs, MemoryMiB: r.MemoryMiB, DiskMiB: r.DiskMiB, Env: r.Env, Injected: r.Injected,
		Limits: r.Limits, User: r.User, Workdir: r.Workdir, Created: now(), Owner: r.Owner,
		Bytes: largestSnapshot(&r), // until its size is known
	}
	_, free, err := s.locks.Acquire(ctx, string(snap.ID))
	if err != nil {
		return api.Snapshot{}, err
	}
	defer free()
	if err := s.insertSnapshot(ctx, &snap); err != nil {
		return api.Snapshot{}, err
	}
	labels := s.hostLabels(&r)
	if text := encodeLimits(r.Limits); text != "" {
		labels[limitsLabel] = text
	}
	taken, err := s.host.TakeSnapshot(ctx, r.machineID(), hostapi.SnapshotID(snap.ID), labels)
	if err != nil {
		return api.Snapshot{}, s.abortSnapshot(ctx, &snap, s.operationFailed(ctx, &r, err, "take a snapshot of"))
	}
	finish, cancel := detached(ctx)
	defer cancel()
	snap.State = store.SnapshotReady
	snap.applyHost(taken)
	err = s.db.Write(finish, "snapshot end", func(ctx context.Context, tx *store.Tx) error {
		if err := tx.UpdateSnapshot(ctx, snap.row(), store.SnapshotCreating); err != nil {
			return err
		}
		return s.appendEvents(ctx, tx, &r, newEvent{api.EventSnapshot, map[string]any{"snapshot_id": snap.ID}})
	})
	if err != nil {
		return api.Snapshot{}, s.abortSnapshot(ctx, &snap, err)
	}
	s.events.Notify(r.ID)
	out := viewSnapshot(&snap)
	if m, err := s.host.Get(finish, r.machineID()); err == nil { // without it, only the pause is not known
		out.PauseMS = milliseconds(m.Pause)
	}
	return out, nil
}

// applyHost copies the sizes that the host reports.
func (s *snapshotRecord) applyHost(h hostapi.Snapshot) {
	if h.Host != "" {
		s.Host = h.Host
	}
	s.Bytes, s.VCPUs, s.MemoryMiB, s.DiskMiB = h.Bytes, h.VCPUs, h.MemoryMiB, h.DiskMiB
}

func (s *Service) insertSnapshot(ctx context.Context, snap *snapshotRecord) error {
	uses := []quota.Amount{{Kind: quota.Snapshots, N: 1}, {Kind: quota.SnapshotSize, N: snap.Bytes},
		{Kind: quota.Disk, N: snap.Bytes}}
	return s.db.Write(ctx, "snapshot begin", func(ctx context.Context, tx *store.Tx) error {
		if err := s.quotas.Admit(ctx, tx, snap.Workspace, uses...); err != nil {
			return err
		}
		return tx.InsertSnapshot(ctx, snap.row())
	})
}

// abortSnapshot removes a snapshot that could not be taken and returns why.
func (s *Service) abortSnapshot(ctx context.Context, snap *snapshotRecord, why error) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	if err := s.removeSnapshot(ctx, snap.ID); err != nil {
		s.log.Warn("removing an incomplete snapshot failed; it is tried again", "snapshot", snap.ID, "err", err)
	}
	return why
}

// removeSnapshot removes a snapshot from its host, then its row.
func (s *Service) removeSnapshot(ctx context.Context, id api.SnapshotID) error {
	err := s.host.DeleteSnapshot(ctx, hostapi.SnapshotID(id))
	if err != nil && !errors.Is(err, hostapi.ErrNotFound) {
		return hosterror.Wrap(err, "delete snapshot", string(id))
	}
	return s.db.Write(ctx, "snapshot remove", func(ctx context.Context, tx *store.Tx) error {
		return tx.DeleteSnapshot(ctx, string(id))
	})
}

func viewSnapshot(s *snapshotRecord) api.Snapshot {
	return api.Snapshot{
		ID:        s.ID,
		SandboxID: s.Sandbox,
		Workspace: s.Workspace,
		Template:  s.Template,
		Name:      s.Name,
		Metadata:  visibleMetadata(s.Metadata),
		CreatedAt: s.Created,
		SizeBytes: s.Bytes,
		CPU:       s.VCPUs,
		MemoryMB:  s.MemoryMiB,
		DiskMB:    s.DiskMiB,
	}
}

// loadSnapshot reads a snapshot; store.ErrNotFound if it does not exist.
func (s *Service) loadSnapshot(ctx context.Context, id api.SnapshotID) (snapshotRecord, error) {
	row, err := s.db.Read().Snapshot(ctx, string(id))
	if err != nil {
		return snapshotRecord{}, err
	}
	return newSnapshotRecord(&row), nil
}

// findSnapshot reads a snapshot of the caller's workspace that is ready.
func (s *Service) findSnapshot(ctx context.Context, p auth.Principal, id api.SnapshotID) (snapshotRecord, error) {
	if p.Workspace == "" {
		return snapshotRecord{}, errNoWorkspace()
	}
	if err := s.quotas.CheckActive(ctx, p.Workspace); err != nil {
		return snapshotRecord{}, err
	}
	snap, err := s.loadSnapshot(ctx, id)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return snap, snapshotNotFound(id)
	case err != nil:
		return snap, err
	case snap.Workspace != p.Workspace || snap.Owner != p.Owner || snap.State != store.SnapshotReady:
		return snapshotRecord{}, snapshotNotFound(id)
	}
	return snap, nil
}

// lockSnapshot takes the lock of a snapshot of the caller's workspace and reads it under the lock.
func (s *Service) lockSnapshot(
	ctx context.Context,
	p auth.Principal,
	id api.SnapshotID,
) (snap snapshotRecord, op context.Context, release func(), err error) {
	if _, err := s.findSnapshot(ctx, p, id); err != nil {
		return snap, nil, nil, err
	}
	op, release, err = s.locks.Acquire(ctx, string(id))
	if err != nil {
		return snap, nil, nil, err
	}
	if snap, err = s.findSnapshot(op, p, id); err != nil {
		release()
		return snap, nil, nil, err
	}
	return snap, op, release, nil
}

// Snapshot returns one snapshot.
func (s *Service) Snapshot(ctx context.Context, p auth.Principal, id api.SnapshotID) (_ api.Snapshot, err error) {
	defer s.finishVerb("get snapshot", time.Now(), &err)
	snap, err := s.findSnapshot(ctx, p, id)
	if err != nil {
		return api.Snapshot{}, err
	}
	return viewSnapshot(&snap), nil
}

// Snapshots returns the workspace's snapshots that f selects, newest first.
//
// Without a limit it returns all of them, with one a page of at most 1000.
func (s *Service) Snapshots(ctx context.Context, p auth.Principal, f api.SnapshotFilter) (_ SnapshotPage, err error) {
	defer s.finishVerb("list snapshots", time.Now(), &err)
	if p.Workspace == "" {
		return SnapshotPage{}, errNoWorkspace()
	}
	q := store.SnapshotQuery{Workspace: string(p.Workspace), Sandbox: string(f.SandboxID), Name: f.Name}
	q.State, q.OwnedBy = store.SnapshotReady, new(p.Owner.String())
	limit, err := page.Parse(f.Limit, f.Cursor, &q.BeforeCreated, &q.BeforeID)
	if err != nil {
		return SnapshotPage{}, err
	}
	if limit > 0 {
		q.Limit = limit + 1
	}
	rows, err := s.db.Read().Snapshots(ctx, q)
	if err != nil {
		return SnapshotPage{}, err
	}
	result := SnapshotPage{Snapshots: []api.Snapshot{}}
	for i := range rows {
		if limit > 0 && i == limit {
			result.Next = page.Cursor(rows[i-1].Created, rows[i-1].ID)
			break
		}
		snap := newSnapshotRecord(&rows[i])
		result.Snapshots = append(result.Snapshots, viewSnapshot(&snap))
	}
	return result, nil
}

// DeleteSnapshot removes a snapshot; conflict if something still needs it.
func (s *Service) DeleteSnapshot(ctx context.Context, p auth.Principal, id api.SnapshotID) (err error) {
	defer s.finishVerb("delete snapshot", time.Now(), &err)
	snap, ctx, release, err := s.lockSnapshot(ctx, p, id)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := detached(ctx)
	defer cancel()
	if err := s.setSnapshotState(ctx, "snapshot deleting", &snap, store.SnapshotDeleting); err != nil {
		return err
	}
	err = s.removeSnapshot(ctx, snap.ID)
	if api.CodeOf(err) != api.Conflict {
		return err
	}
	if back := s.setSnapshotState(ctx, "snapshot kept", &snap, store.SnapshotReady); back != nil {
		s.log.Warn("keeping a snapshot that is in use failed", "snapshot", snap.ID, "err", back)
	}
	return err
}

func (s *Service) setSnapshotState(ctx context.Context, op string, snap *snapshotRecord, to string) error {
	was := snap.State
	snap.State = to
	return s.db.Write(ctx, op, func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateSnapshot(ctx, snap.row(), was)
	})
}
