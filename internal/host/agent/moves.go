package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/bake"
	"github.com/pandastack/pandastack/internal/host/blob"
	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/chunkstore/cache"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/host/snapshot/remote"
	"github.com/pandastack/pandastack/internal/vmm"
)

// Objects is the object store that hosts share, as Deps give it. The caller closes both after Host.Close.
type Objects struct {
	Vault *chunkstore.Vault
	Cache *cache.Cache
}

// openDepot makes the depot, if there is an object store.
func (h *Host) openDepot(store *snapshot.Store) error {
	if h.deps.Objects == nil {
		return nil
	}
	deps := remote.Deps{
		Vault: h.deps.Objects.Vault, Cache: h.deps.Objects.Cache, Store: store,
		Clone: h.deps.Machine.Disks.Clone, Public: h.public, Log: h.deps.Log,
	}
	if f, ok := h.deps.Machine.Driver.(vmm.Fitter); ok {
		deps.Fits = f.Fits
	}
	if c, ok := h.deps.Machine.Driver.(vmm.Carrier); ok {
		deps.Carrier = c
	}
	var err error
	h.depot, err = remote.New(deps)
	return err
}

// public tells of templates that come with the program: every workspace has them.
func (h *Host) public(ref snapshot.Ref) bool {
	for _, r := range h.cfg.Recipes {
		if strings.HasPrefix(string(ref), string(snapshot.Join(bake.Area, string(r.Name)))+"/") {
			return true
		}
	}
	return false
}

// moving checks what all moves have in common.
func (h *Host) moving(op, workspace string, id hostapi.SnapshotID) (snapshot.Ref, error) {
	if h.depot == nil {
		return "", fmt.Errorf(
			"%s snapshot %s: this host has no object store (objects.url): %w",
			op,
			id,
			hostapi.ErrUnsupported,
		)
	}
	if workspace == "" {
		return "", fmt.Errorf("%s snapshot %s: no workspace is named: %w", op, id, hostapi.ErrInvalid)
	}
	return snapshotRef(id)
}

// moveError says what could not be moved, in the words of hostapi.
func moveError(op string, id hostapi.SnapshotID, err error) error {
	if err == nil {
		return nil
	}
	kind := map[error]error{
		snapshot.ErrNotFound: hostapi.ErrNotFound, snapshot.ErrPartial: hostapi.ErrWrongState, chunkstore.ErrNotFound: hostapi.ErrNotFound,
		chunkstore.ErrWorkspace: hostapi.ErrInvalid, chunkstore.ErrTampered: hostapi.ErrInvalid, chunkstore.ErrVersion: hostapi.ErrUnsupported,
		blob.ErrNoSpace: hostapi.ErrNoSpace, syscall.ENOSPC: hostapi.ErrNoSpace,
	}
	err = fmt.Errorf("%s snapshot %s: %w", op, id, err)
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
func (h *Host) PushSnapshot(ctx context.Context, workspace string, id hostapi.SnapshotID) (hostapi.Pushed, error) {
	ref, err := h.moving("push", workspace, id)
	if err != nil {
		return hostapi.Pushed{}, err
	}
	began := time.Now()
	stats, err := h.depot.Push(ctx, chunkstore.Space(workspace), chunkstore.ID(id), ref)
	if err != nil {
		return hostapi.Pushed{}, moveError("push", id, err)
	}
	out := hostapi.Pushed{Bytes: stats.Dirty, Uploaded: stats.Uploaded, Stored: stats.Stored, Took: time.Since(began)}
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

// pulled is how a snapshot is told that was asked for at began.
func pulled(snap snapshot.Snapshot, began time.Time) hostapi.Pulled {
	return hostapi.Pulled{
		Snapshot: told(snap),
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
) (hostapi.Pulled, error) {
	ref, err := h.moving("pull", workspace, id)
	if err != nil {
		return hostapi.Pulled{}, err
	}
	began := time.Now()
	if snap, err := h.store.Get(ref); err == nil {
		return pulled(snap, began), nil
	}
	if err := h.machines.Room("snapshot " + string(id)); err != nil {
		return hostapi.Pulled{}, err
	}
	snap, stats, err := h.depot.Pull(ctx, chunkstore.Space(workspace), chunkstore.ID(id), ref, labels)
	if err != nil {
		return hostapi.Pulled{}, moveError("pull", id, err)
	}
	out := pulled(snap, began)
	out.Fetched = stats.Fetched
	h.deps.Log.Info("snapshot pulled", "snapshot", id, "fetched", out.Fetched, "took", out.Took)
	return out, nil
}

// DeletePushed implements hostapi.Host.
func (h *Host) DeletePushed(ctx context.Context, workspace string, id hostapi.SnapshotID) error {
	if _, err := h.moving("delete pushed", workspace, id); err != nil {
		return err
	}
	space := chunkstore.Space(workspace)
	err := errors.Join(
		h.depot.Delete(ctx, space, chunkstore.ID(id)),
		h.depot.Delete(ctx, space, traceID(chunkstore.ID(id))),
	)
	return moveError("delete pushed", id, err)
}
