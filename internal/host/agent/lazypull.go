package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/host/snapshot/lazy"
	"github.com/pandastack/pandastack/internal/vmm"
)

// origin says where the content of a remote-backed snapshot comes from.
type origin struct {
	Tenant chunkstore.Tenant `json:"space"`
	ID     chunkstore.ID     `json:"id"`
	// Parent is the snapshot that it was pushed as a difference to, and Root their first ancestor; "": none.
	Parent chunkstore.ID `json:"parent,omitempty"`
	Root   chunkstore.ID `json:"root,omitempty"`
}

func readOrigin(data []byte) (origin, error) {
	var o origin
	if err := json.Unmarshal(data, &o); err != nil {
		return origin{}, fmt.Errorf("origin of a remote-backed snapshot: %w", err)
	}
	return o, nil
}

// openLazy opens the manager of remote-backed snapshots, if there is an object store.
func (h *Host) openLazy(ctx context.Context, store *snapshot.Store) error {
	if h.remote == nil {
		return nil
	}
	var err error
	h.lazy, err = lazy.New(ctx, lazy.Config{
		Dir: filepath.Join(h.cfg.DataDir, "stream"), Store: store, Log: h.deps.Log, Prefetches: prefetchStore{h},
		CheckSpace: func() error { return h.machines.CheckDiskSpace("the rest of a snapshot", 0) },
		OpenSource: func(ctx context.Context, data []byte) (chunkstore.Source, error) {
			o, err := readOrigin(data)
			if err != nil {
				return nil, err
			}
			from, err := h.remote.OpenWithLocalBase(ctx, o.Tenant, o.ID)
			if err != nil {
				return nil, err
			}
			return from.Reader, nil
		},
	})
	return err
}

// unpackLimit limits the time for unpacking a monitor checkpoint, which saves a start a second or less.
const unpackLimit = 2 * time.Second

var errUnpack = errors.New("it would take longer than it saves")

// StreamSnapshot implements hostapi.Host.
func (h *Host) StreamSnapshot(
	ctx context.Context,
	workspace string,
	id hostapi.SnapshotID,
	labels map[string]string,
) (hostapi.PullResult, error) {
	ref, err := h.checkTransfer("stream", workspace, id)
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
	grew := make(chan origin, 1)
	begun := make(chan struct{}) // closed once all that a start needs is local, or will not come
	begin := sync.OnceFunc(func() { close(begun) })
	defer begin()
	soon := h.lazy.LoadPrefetch(func(ctx context.Context) (lazy.Prefetch, error) {
		return prefetchStore{h}.loadEarly(ctx, chunkstore.Tenant(workspace), chunkstore.ID(id), grew, begun)
	})
	from, err := h.remote.OpenWithLocalBase(ctx, chunkstore.Tenant(workspace), chunkstore.ID(id))
	if err != nil {
		soon.Close()
		return hostapi.PullResult{}, transferError("stream", id, err)
	}
	opened := time.Since(began)
	o := origin{chunkstore.Tenant(workspace), chunkstore.ID(id), from.Reader.Manifest().Parent, from.Root}
	grew <- o
	data, err := json.Marshal(o)
	if err != nil {
		soon.Close()
		return hostapi.PullResult{}, errors.Join(err, from.Reader.Close())
	}
	snap := from.Snapshot.WithLabels(labels)
	snap.Base = ""
	snap, err = h.lazy.Import(ctx, lazy.ImportParams{
		Ref: ref, Snapshot: snap, Origin: data, Source: from.Reader, Prefetch: soon,
		AddFiles: func(ctx context.Context, dir string) {
			defer begin()
			brief, cancel := context.WithTimeoutCause(ctx, unpackLimit, errUnpack)
			defer cancel()
			h.remote.ImportCheckpoint(brief, from, vmm.Image{Dir: dir, Manifest: from.Snapshot.Manifest})
		},
	})
	if errors.Is(err, snapshot.ErrExists) { // another call began it meanwhile
		snap, err = h.store.Get(ref)
	}
	if err != nil {
		return hostapi.PullResult{}, transferError("stream", id, err)
	}
	out := h.pullResult(snap, began)
	h.deps.Log.Info("snapshot streams", "snapshot", id, "took", out.Took, "opened", opened)
	return out, nil
}
