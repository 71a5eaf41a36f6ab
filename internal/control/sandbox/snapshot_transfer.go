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

// PushSnapshot puts a snapshot into the object store, where other nodes find it.
func (s *Service) PushSnapshot(
	ctx context.Context,
	p auth.Principal,
	id api.SnapshotID,
) (_ api.TransferResult, err error) {
	defer s.finishVerb("push snapshot", time.Now(), &err)
	if _, err := s.snapshot(ctx, p, id); err != nil {
		return api.TransferResult{}, err
	}
	ctx, release, err := s.locks.acquire(ctx, string(id))
	if err != nil {
		return api.TransferResult{}, err
	}
	defer release()
	snap, err := s.snapshot(ctx, p, id)
	if err != nil {
		return api.TransferResult{}, err
	}
	done, err := s.host.PushSnapshot(ctx, snap.Workspace, hostapi.SnapshotID(snap.ID))
	if err != nil {
		return api.TransferResult{}, hostError(err, "push snapshot", snap.ID)
	}
	return api.TransferResult{Snapshot: viewSnapshot(&snap), NewBytes: done.Bytes, UploadedBytes: done.Uploaded,
		StoredBytes: done.Stored, TookMS: done.Took.Milliseconds()}, nil
}

// PullSnapshot brings a snapshot of the caller's workspace from the object store into the registry; one
// that is here already is fine.
func (s *Service) PullSnapshot(
	ctx context.Context,
	p auth.Principal,
	id api.SnapshotID,
	req api.PullRequest,
) (_ api.TransferResult, err error) {
	defer s.finishVerb("pull snapshot", time.Now(), &err)
	if p.Workspace == "" {
		return api.TransferResult{}, api.Errorf(api.Unauthenticated, "the caller has no workspace")
	}
	ctx, release, err := s.locks.acquire(ctx, string(id))
	if err != nil {
		return api.TransferResult{}, err
	}
	defer release()
	here, err := s.snapshot(ctx, p, id)
	if err == nil {
		return api.TransferResult{Snapshot: viewSnapshot(&here)}, nil
	}
	if api.CodeOf(err) != api.NotFound {
		return api.TransferResult{}, err
	}
	snap := store.Snapshot{
		ID:        string(id),
		Workspace: string(p.Workspace),
		State:     store.SnapshotCreating,
		Owner:     s.instance,
		Created:   store.Micros(time.Now()),
	}
	err = s.db.Write(
		ctx,
		"snapshot begin",
		func(ctx context.Context, tx *store.Tx) error { return tx.InsertSnapshot(ctx, &snap) },
	)
	if errors.Is(err, store.ErrExists) { // another workspace's
		return api.TransferResult{}, notPushed(id)
	}
	if err != nil {
		return api.TransferResult{}, err
	}
	pull := s.host.PullSnapshot
	if req.Stream {
		pull = s.host.StreamSnapshot
	}
	done, err := pull(ctx, snap.Workspace, hostapi.SnapshotID(id), s.hostLabels(snap.Workspace, ""))
	if errors.Is(err, hostapi.ErrNotFound) {
		return api.TransferResult{}, s.dropSnapshot(ctx, &snap, notPushed(id))
	}
	if err != nil {
		return api.TransferResult{}, s.dropSnapshot(ctx, &snap, hostError(err, "pull snapshot", snap.ID))
	}
	got := done.Snapshot
	snap.State, snap.Sandbox, snap.Template, snap.Bytes = store.SnapshotReady, string(
		got.Machine,
	), string(
		got.Template,
	), got.Bytes
	snap.VCPUs, snap.MemoryMiB, snap.DiskMiB = got.VCPUs, got.MemoryMiB, got.DiskMiB
	snap.Env, snap.User, snap.Workdir, snap.Created = done.Env, done.User, done.Workdir, store.Micros(got.Created)
	snap.Injected, snap.Limits = got.Labels[injectedLabel], got.Labels[limitsLabel]
	firmly, cancel := detached(ctx)
	defer cancel()
	err = s.db.Write(firmly, "snapshot end", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateSnapshot(ctx, &snap, store.SnapshotCreating)
	})
	if err != nil {
		return api.TransferResult{}, s.dropSnapshot(ctx, &snap, err)
	}
	return api.TransferResult{
		Snapshot:     viewSnapshot(&snap),
		FetchedBytes: done.Fetched,
		TookMS:       done.Took.Milliseconds(),
	}, nil
}

// DeletePushed removes a snapshot of the caller's workspace from the object store; one that is not there is
// fine, and one that is here stays here.
func (s *Service) DeletePushed(ctx context.Context, p auth.Principal, id api.SnapshotID) (err error) {
	defer s.finishVerb("delete pushed snapshot", time.Now(), &err)
	if p.Workspace == "" {
		return api.Errorf(api.Unauthenticated, "the caller has no workspace")
	}
	if err := s.host.DeletePushed(ctx, string(p.Workspace), hostapi.SnapshotID(id)); err != nil {
		return hostError(err, "delete pushed snapshot", string(id))
	}
	return nil
}

// notPushed answers for a snapshot that the caller's workspace has not pushed, whoever else may have one of
// that id.
func notPushed(id api.SnapshotID) *api.Error {
	return api.Errorf(api.NotFound, "snapshot %s is not in the object store: push it where it was taken", id)
}
