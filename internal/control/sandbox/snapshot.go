package sandbox

import (
	"context"
	"errors"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// TakeSnapshot puts a sandbox's moment into the registry; the sandbox goes on. A hibernated one is woken
// first.
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
	snap := store.Snapshot{
		ID:        string(api.NewSnapshotID()),
		Workspace: r.Workspace,
		Sandbox:   r.ID,
		State:     store.SnapshotCreating,
		Owner:     s.instance,
		Name:      req.Name,
		Template:  r.Template,
		VCPUs:     r.VCPUs,
		MemoryMiB: r.MemoryMiB,
		DiskMiB:   r.DiskMiB,
		Metadata:  req.Metadata,
		Env:       r.Env,
		Injected:  r.Injected,
		Limits:    r.Limits,
		User:      r.User,
		Workdir:   r.Workdir,
		Created:   store.Micros(time.Now()),
	}
	_, free, err := s.locks.acquire(ctx, snap.ID)
	if err != nil {
		return api.Snapshot{}, err
	}
	defer free()
	err = s.db.Write(
		ctx,
		"snapshot begin",
		func(ctx context.Context, tx *store.Tx) error { return tx.InsertSnapshot(ctx, &snap) },
	)
	if err != nil {
		return api.Snapshot{}, err
	}
	labels := s.hostLabels(r.Workspace, r.Injected)
	if r.Limits != "" {
		labels[limitsLabel] = r.Limits
	}
	taken, err := s.host.TakeSnapshot(ctx, machineID(&r), hostapi.SnapshotID(snap.ID), labels)
	if err != nil {
		return api.Snapshot{}, s.dropSnapshot(ctx, &snap, s.operationFailed(ctx, &r, err, "take a snapshot of"))
	}
	firmly, cancel := detached(ctx)
	defer cancel()
	snap.State, snap.Bytes = store.SnapshotReady, taken.Bytes
	snap.VCPUs, snap.MemoryMiB, snap.DiskMiB = taken.VCPUs, taken.MemoryMiB, taken.DiskMiB
	err = s.db.Write(firmly, "snapshot end", func(ctx context.Context, tx *store.Tx) error {
		if err := tx.UpdateSnapshot(ctx, &snap, store.SnapshotCreating); err != nil {
			return err
		}
		return s.appendEvents(ctx, tx, &r, newEvent{api.EventSnapshot, map[string]any{"snapshot_id": snap.ID}})
	})
	if err != nil {
		return api.Snapshot{}, s.dropSnapshot(ctx, &snap, err)
	}
	s.changes.notify(r.ID)
	out := viewSnapshot(&snap)
	if m, err := s.host.Get(firmly, machineID(&r)); err == nil { // how long it stood still is a nicety
		out.PauseMS = (m.Pause.Microseconds() + 999) / 1000
	}
	return out, nil
}

// dropSnapshot takes back a snapshot that could not be taken and answers why.
func (s *Service) dropSnapshot(ctx context.Context, snap *store.Snapshot, why error) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	if err := s.removeSnapshot(ctx, snap); err != nil {
		s.log.Warn("taking back a snapshot failed; it is tried again", "snapshot", snap.ID, "err", err)
	}
	return why
}

// removeSnapshot removes a snapshot from its host, then its row.
func (s *Service) removeSnapshot(ctx context.Context, snap *store.Snapshot) error {
	err := s.host.DeleteSnapshot(ctx, hostapi.SnapshotID(snap.ID))
	if err != nil && !errors.Is(err, hostapi.ErrNotFound) {
		return hostError(err, "delete snapshot", snap.ID)
	}
	return s.db.Write(
		ctx,
		"snapshot remove",
		func(ctx context.Context, tx *store.Tx) error { return tx.DeleteSnapshot(ctx, snap.ID) },
	)
}

func viewSnapshot(s *store.Snapshot) api.Snapshot {
	return api.Snapshot{
		ID:        api.SnapshotID(s.ID),
		SandboxID: api.SandboxID(s.Sandbox),
		Workspace: api.Workspace(s.Workspace),
		Template:  s.Template,
		Name:      s.Name,
		Metadata:  visibleMetadata(s.Metadata),
		CreatedAt: store.Time(s.Created),
		SizeBytes: s.Bytes,
		CPU:       s.VCPUs,
		MemoryMB:  s.MemoryMiB,
		DiskMB:    s.DiskMiB,
	}
}

// snapshot reads one that is ready and the caller's.
func (s *Service) snapshot(ctx context.Context, p auth.Principal, id api.SnapshotID) (store.Snapshot, error) {
	if p.Workspace == "" {
		return store.Snapshot{}, api.Errorf(api.Unauthenticated, "the caller has no workspace")
	}
	snap, err := s.db.Read().Snapshot(ctx, string(id))
	switch {
	case errors.Is(err, store.ErrNotFound):
		return snap, snapshotNotFound(id)
	case err != nil:
		return snap, err
	case snap.Workspace != string(p.Workspace) || snap.State != store.SnapshotReady:
		return store.Snapshot{}, snapshotNotFound(id)
	}
	return snap, nil
}

// Snapshot answers one snapshot.
func (s *Service) Snapshot(ctx context.Context, p auth.Principal, id api.SnapshotID) (_ api.Snapshot, err error) {
	defer s.finishVerb("get snapshot", time.Now(), &err)
	snap, err := s.snapshot(ctx, p, id)
	if err != nil {
		return api.Snapshot{}, err
	}
	return viewSnapshot(&snap), nil
}

// Snapshots answers the workspace's snapshots, newest first: all that f selects, or a page if f has a
// limit, of at most 1000.
func (s *Service) Snapshots(ctx context.Context, p auth.Principal, f api.SnapshotFilter) (_ SnapshotPage, err error) {
	defer s.finishVerb("list snapshots", time.Now(), &err)
	if p.Workspace == "" {
		return SnapshotPage{}, api.Errorf(api.Unauthenticated, "the caller has no workspace")
	}
	q := store.SnapshotQuery{Workspace: string(p.Workspace), Sandbox: string(f.SandboxID), State: store.SnapshotReady}
	limit, err := pageOf(f.Limit, f.Cursor, &q.BeforeCreated, &q.BeforeID)
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
	page := SnapshotPage{Snapshots: []api.Snapshot{}}
	for i := range rows {
		if limit > 0 && i == limit {
			page.Next = cursor(rows[i-1].Created, rows[i-1].ID)
			break
		}
		page.Snapshots = append(page.Snapshots, viewSnapshot(&rows[i]))
	}
	return page, nil
}

// DeleteSnapshot removes a snapshot; one that something still needs is a conflict.
func (s *Service) DeleteSnapshot(ctx context.Context, p auth.Principal, id api.SnapshotID) (err error) {
	defer s.finishVerb("delete snapshot", time.Now(), &err)
	if _, err := s.snapshot(ctx, p, id); err != nil {
		return err
	}
	ctx, release, err := s.locks.acquire(ctx, string(id))
	if err != nil {
		return err
	}
	defer release()
	snap, err := s.snapshot(ctx, p, id)
	if err != nil {
		return err
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	snap.State = store.SnapshotDeleting
	err = s.db.Write(ctx, "snapshot deleting", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateSnapshot(ctx, &snap, store.SnapshotReady)
	})
	if err != nil {
		return err
	}
	err = s.removeSnapshot(ctx, &snap)
	if api.CodeOf(err) != api.Conflict {
		return err
	}
	snap.State = store.SnapshotReady
	back := s.db.Write(ctx, "snapshot kept", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateSnapshot(ctx, &snap, store.SnapshotDeleting)
	})
	if back != nil {
		s.log.Warn("keeping a snapshot that is in use failed", "snapshot", snap.ID, "err", back)
	}
	return err
}
