package sandbox

import (
	"context"
	"errors"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/control/store"
)

// PushSnapshot uploads a snapshot to the object store, from which other nodes can pull it.
func (s *Service) PushSnapshot(
	ctx context.Context,
	p auth.Principal,
	id api.SnapshotID,
) (_ api.TransferResult, err error) {
	defer s.finishVerb("push snapshot", time.Now(), &err)
	snap, ctx, release, err := s.lockSnapshot(ctx, p, id)
	if err != nil {
		return api.TransferResult{}, err
	}
	defer release()
	done, err := s.host.PushSnapshot(ctx, string(snap.Workspace), hostapi.SnapshotID(snap.ID))
	if err != nil {
		return api.TransferResult{}, hosterror.Wrap(err, "push snapshot", string(snap.ID))
	}
	return api.TransferResult{Snapshot: viewSnapshot(&snap), NewBytes: done.Bytes, UploadedBytes: done.Uploaded,
		StoredBytes: done.Stored, TookMS: done.Took.Milliseconds()}, nil
}

// PullSnapshot adds a snapshot of the caller's workspace from the object store to the registry. A snapshot
// that the registry has already stays as it is.
func (s *Service) PullSnapshot(
	ctx context.Context,
	p auth.Principal,
	id api.SnapshotID,
	req api.PullRequest,
) (_ api.TransferResult, err error) {
	defer s.finishVerb("pull snapshot", time.Now(), &err)
	if p.Workspace == "" {
		return api.TransferResult{}, errNoWorkspace()
	}
	ctx, release, err := s.locks.Acquire(ctx, string(id))
	if err != nil {
		return api.TransferResult{}, err
	}
	defer release()
	known, err := s.findSnapshot(ctx, p, id)
	if err == nil {
		return api.TransferResult{Snapshot: viewSnapshot(&known)}, nil
	}
	if api.CodeOf(err) != api.NotFound {
		return api.TransferResult{}, err
	}
	snap := snapshotRecord{ID: id, Workspace: p.Workspace, State: store.SnapshotCreating, Instance: s.instance,
		Created: now()}
	err = s.insertSnapshot(ctx, &snap)
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
	labels := map[string]string{workspaceLabel: string(snap.Workspace), storeLabel: s.db.ID()}
	done, err := pull(ctx, string(snap.Workspace), hostapi.SnapshotID(id), labels)
	if errors.Is(err, hostapi.ErrNotFound) {
		return api.TransferResult{}, s.abortSnapshot(ctx, &snap, notPushed(id))
	}
	if err != nil {
		return api.TransferResult{}, s.abortSnapshot(ctx, &snap, hosterror.Wrap(err, "pull snapshot", string(snap.ID)))
	}
	snap.State = store.SnapshotReady
	snap.applyPull(done)
	finish, cancel := detached(ctx)
	defer cancel()
	uses := []quota.Amount{{Kind: quota.SnapshotSize, N: snap.Bytes}, {Kind: quota.Disk, N: snap.Bytes}}
	err = s.db.Write(finish, "snapshot end", func(ctx context.Context, tx *store.Tx) error {
		if err := s.quotas.Admit(ctx, tx, snap.Workspace, uses...); err != nil {
			return err
		}
		return tx.UpdateSnapshot(ctx, snap.row(), store.SnapshotCreating)
	})
	if err != nil {
		return api.TransferResult{}, s.abortSnapshot(ctx, &snap, err)
	}
	return api.TransferResult{Snapshot: viewSnapshot(&snap), FetchedBytes: done.Fetched,
		TookMS: done.Took.Milliseconds()}, nil
}

// applyPull copies what the host knows of a snapshot that it pulled.
func (s *snapshotRecord) applyPull(done hostapi.PullResult) {
	got := done.Snapshot
	s.applyHost(got)
	s.Sandbox, s.Template, s.Created = api.SandboxID(got.Machine), string(got.Template), got.Created
	s.Env, s.User, s.Workdir = done.Env, done.User, done.Workdir
	s.Injected, s.Limits = decodeInjected(got.Labels[injectedLabel]), decodeLimits(got.Labels[limitsLabel])
}

// DeletePushed removes a snapshot of the caller's workspace from the object store. A snapshot that the object
// store does not have is no error; a copy on this node stays.
func (s *Service) DeletePushed(ctx context.Context, p auth.Principal, id api.SnapshotID) (err error) {
	defer s.finishVerb("delete pushed snapshot", time.Now(), &err)
	if p.Workspace == "" {
		return errNoWorkspace()
	}
	if err := s.host.DeletePushed(ctx, string(p.Workspace), hostapi.SnapshotID(id)); err != nil {
		return hosterror.Wrap(err, "delete pushed snapshot", string(id))
	}
	return nil
}

// notPushed is the error for a snapshot that the caller's workspace has not pushed. It is the same whether or
// not another workspace has one of that id.
func notPushed(id api.SnapshotID) *api.Error {
	return api.Errorf(api.NotFound, "snapshot %s is not in the object store: push it where it was taken", id)
}
