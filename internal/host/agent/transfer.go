package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/bake"
	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/chunkstore/cache"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/host/snapshot/remote"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/vmm"
)

// Objects is the object store that hosts share. The caller closes both parts after Host.Close.
type Objects struct {
	Chunks *chunkstore.Store
	Cache  *cache.Cache
}

// openRemote opens the remote snapshots, if there is an object store.
func (h *Host) openRemote(store *snapshot.Store) error {
	if h.deps.Objects == nil {
		return nil
	}
	deps := remote.Deps{
		Chunks: h.deps.Objects.Chunks, Cache: h.deps.Objects.Cache, Store: store,
		Clone: h.deps.Machine.Disks.Clone, Public: h.isPublic, Log: h.deps.Log,
	}
	if f, ok := h.deps.Machine.Driver.(vmm.CompatibilityChecker); ok {
		deps.Fits = f.CheckCompatible
	}
	if c, ok := h.deps.Machine.Driver.(vmm.CheckpointExporter); ok {
		deps.Exporter = c
	}
	var err error
	h.remote, err = remote.New(deps)
	return err
}

// isPublic reports whether a snapshot is of a bundled template, which every workspace has.
func (h *Host) isPublic(ref snapshot.Ref) bool {
	for _, r := range h.cfg.Recipes {
		if strings.HasPrefix(string(ref), string(snapshot.Join(bake.Area, string(r.Name)))+"/") {
			return true
		}
	}
	return false
}

var errNoObjects = fmt.Errorf("this host has no object store (object_store.url): %w", hostapi.ErrUnsupported)

// checkTransfer checks what all transfers require.
func (h *Host) checkTransfer(op, workspace string, id hostapi.SnapshotID) (snapshot.Ref, error) {
	if h.remote == nil {
		return "", fmt.Errorf("%s snapshot %s: %w", op, id, errNoObjects)
	}
	if workspace == "" {
		return "", fmt.Errorf("%s snapshot %s: no workspace is named: %w", op, id, hostapi.ErrInvalid)
	}
	return snapshotRef(id)
}

// transferError translates an error of a transfer to those of hostapi.
func transferError(op string, id hostapi.SnapshotID, err error) error {
	return objectsError(op+" snapshot "+string(id), err)
}

// objectsError translates an error of an operation on the object store to those of hostapi.
func objectsError(doing string, err error) error {
	if err == nil {
		return nil
	}
	kind := map[error]error{
		snapshot.ErrNotFound: hostapi.ErrNotFound, snapshot.ErrRemoteBacked: hostapi.ErrWrongState,
		chunkstore.ErrNotFound: hostapi.ErrNotFound, chunkstore.ErrExists: hostapi.ErrExists,
		chunkstore.ErrWrongTenant: hostapi.ErrInvalid, chunkstore.ErrTampered: hostapi.ErrInvalid,
		chunkstore.ErrVersion: hostapi.ErrUnsupported,
		blob.ErrNoSpace:       hostapi.ErrNoSpace,
	}
	err = fmt.Errorf("%s: %w", doing, err)
	if durable.IsNoSpace(err) {
		return fmt.Errorf("%w: %w", err, hostapi.ErrNoSpace)
	}
	for from, to := range kind {
		if errors.Is(err, from) {
			return fmt.Errorf("%w: %w", err, to)
		}
	}
	if _, ok := errors.AsType[*vmm.MismatchError](err); ok {
		return fmt.Errorf("%w: %w", err, hostapi.ErrUnsupported)
	}
	if _, ok := errors.AsType[*chunkstore.DamagedError](err); ok {
		return fmt.Errorf("%w: %w", err, hostapi.ErrInvalid)
	}
	return err
}

// PushSnapshot implements hostapi.Host.
func (h *Host) PushSnapshot(ctx context.Context, workspace string, id hostapi.SnapshotID) (hostapi.PushResult, error) {
	ref, err := h.checkTransfer("push", workspace, id)
	if err != nil {
		return hostapi.PushResult{}, err
	}
	began := time.Now()
	stats, err := h.remote.Push(ctx, chunkstore.Tenant(workspace), chunkstore.ID(id), ref)
	if err != nil {
		return hostapi.PushResult{}, transferError("push", id, err)
	}
	out := hostapi.PushResult{
		Bytes:    stats.Dirty,
		Uploaded: stats.Uploaded,
		Stored:   stats.Stored,
		Took:     time.Since(began),
	}
	h.deps.Log.Info(
		"snapshot pushed",
		"snapshot",
		id,
		"bytes",
		out.Bytes,
		"uploaded",
		out.Uploaded,
		"took",
		out.Took,
		stats.Phases.Attr(),
	)
	return out, nil
}

// pullResult returns the result for a snapshot that was requested at began.
func (h *Host) pullResult(snap snapshot.Snapshot, began time.Time) hostapi.PullResult {
	return hostapi.PullResult{
		Snapshot: h.snapshotInfo(snap),
		Env:      snap.Env,
		User:     snap.User,
		Workdir:  snap.Workdir,
		Took:     time.Since(began),
	}
}

// PullSnapshot implements hostapi.Host.
func (h *Host) PullSnapshot(
	ctx context.Context,
	workspace string,
	id hostapi.SnapshotID,
	labels map[string]string,
) (hostapi.PullResult, error) {
	ref, err := h.checkTransfer("pull", workspace, id)
	if err != nil {
		return hostapi.PullResult{}, err
	}
	began := time.Now()
	if snap, err := h.store.Get(ref); err == nil {
		return h.pullResult(snap, began), nil
	}
	if err := h.machines.CheckDiskSpace("snapshot "+string(id), 0); err != nil {
		return hostapi.PullResult{}, err
	}
	snap, stats, err := h.remote.Pull(ctx, chunkstore.Tenant(workspace), chunkstore.ID(id), ref, labels)
	if err != nil {
		return hostapi.PullResult{}, transferError("pull", id, err)
	}
	out := h.pullResult(snap, began)
	out.Fetched = stats.Fetched
	h.deps.Log.Info("snapshot pulled", "snapshot", id, "fetched", out.Fetched, "took", out.Took)
	return out, nil
}

// DeletePushed implements hostapi.Host.
func (h *Host) DeletePushed(ctx context.Context, workspace string, id hostapi.SnapshotID) error {
	if _, err := h.checkTransfer("delete pushed", workspace, id); err != nil {
		return err
	}
	space := chunkstore.Tenant(workspace)
	err := errors.Join(
		h.remote.Delete(ctx, space, chunkstore.ID(id)),
		h.remote.Delete(ctx, space, traceID(chunkstore.ID(id))),
	)
	return transferError("delete pushed", id, err)
}
