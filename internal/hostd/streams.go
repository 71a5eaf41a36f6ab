package hostd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/chunk"
	"github.com/pandastack/pandastack/internal/hostapi"
	"github.com/pandastack/pandastack/internal/pager"
	"github.com/pandastack/pandastack/internal/snapshot"
	"github.com/pandastack/pandastack/internal/stream"
)

// origin is where the content of a partial snapshot comes from.
type origin struct {
	Space chunk.Space `json:"space"`
	ID    chunk.ID    `json:"id"`
	// Parent is what it was pushed as a difference to; "": nothing.
	Parent chunk.ID `json:"parent,omitempty"`
}

func readOrigin(data []byte) (origin, error) {
	var o origin
	if err := json.Unmarshal(data, &o); err != nil {
		return origin{}, fmt.Errorf("origin of a partial snapshot: %w", err)
	}
	return o, nil
}

// openStreams makes what serves partial snapshots, if there is an object store.
func (h *Host) openStreams(ctx context.Context, store *snapshot.Store) error {
	if h.depot == nil {
		return nil
	}
	var err error
	h.streams, err = stream.New(ctx, stream.Config{
		Dir: filepath.Join(h.cfg.DataDir, "stream"), Store: store, Log: h.deps.Log, Traces: traces{h},
		Open: func(ctx context.Context, data []byte) (chunk.Source, error) {
			o, err := readOrigin(data)
			if err != nil {
				return nil, err
			}
			from, err := h.depot.Open(ctx, o.Space, o.ID)
			if err != nil {
				return nil, err
			}
			return from.Reader, nil
		},
	})
	return err
}

// StreamSnapshot implements hostapi.Host.
func (h *Host) StreamSnapshot(ctx context.Context, workspace string, id hostapi.SnapshotID, labels map[string]string) (hostapi.Pulled, error) {
	ref, err := h.moving("stream", workspace, id)
	if err != nil {
		return hostapi.Pulled{}, err
	}
	began := time.Now()
	if snap, err := h.store.Get(ref); err == nil {
		return hostapi.Pulled{Snapshot: told(snap), Env: snap.Env, User: snap.User, Workdir: snap.Workdir, Took: time.Since(began)}, nil
	}
	from, err := h.depot.Open(ctx, chunk.Space(workspace), chunk.ID(id))
	if err != nil {
		return hostapi.Pulled{}, moveError("stream", id, err)
	}
	data, err := json.Marshal(origin{chunk.Space(workspace), chunk.ID(id), from.Reader.Manifest().Parent})
	if err != nil {
		return hostapi.Pulled{}, err
	}
	snap := from.Snapshot
	snap.Base, snap.Labels = "", labels
	snap, err = h.streams.Begin(ctx, ref, snap, data, from.Reader)
	if errors.Is(err, snapshot.ErrExists) { // somebody else began it meanwhile
		snap, err = h.store.Get(ref)
	}
	if err != nil {
		return hostapi.Pulled{}, moveError("stream", id, err)
	}
	out := hostapi.Pulled{Snapshot: told(snap), Env: snap.Env, User: snap.User, Workdir: snap.Workdir, Took: time.Since(began)}
	h.deps.Log.Info("snapshot streams", "snapshot", id, "took", out.Took)
	return out, nil
}

// traces keeps traces in the object store, each beside its snapshot, encrypted and signed as that is. The first
// that is learned of any snapshot that grew from another is kept for that other, too: what grew from the same
// begins in much the same way, and for one that was never used it is the best guess there is.
type traces struct{ h *Host }

const traceFile = "trace"

func traceID(id chunk.ID) chunk.ID { return "trace" + id }

// Load implements stream.Traces.
func (t traces) Load(ctx context.Context, data []byte) ([]byte, error) {
	o, err := readOrigin(data)
	if err != nil {
		return nil, err
	}
	var own, kin []byte
	var g errgroup.Group // both at once: somebody waits
	g.Go(func() error {
		var err error
		own, err = t.load(ctx, o.Space, o.ID)
		return err
	})
	if o.Parent != "" {
		g.Go(func() error {
			var err error
			kin, err = t.load(ctx, o.Space, o.Parent)
			return err
		})
	}
	if err := g.Wait(); err != nil || own != nil {
		return own, err
	}
	return kin, nil
}

// load reads the trace of a snapshot; nil without an error: there is none.
func (t traces) load(ctx context.Context, space chunk.Space, id chunk.ID) ([]byte, error) {
	objects := t.h.deps.Objects
	m, err := objects.Vault.Open(ctx, space, traceID(id))
	if errors.Is(err, chunk.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := objects.Vault.Reader(m, objects.Cache)
	size, ok := r.Size(traceFile)
	if !ok || size > pager.MaxTraceBytes {
		return nil, fmt.Errorf("trace of %s has %d bytes", id, size)
	}
	trace := make([]byte, size)
	return trace, r.ReadAt(ctx, traceFile, trace, 0)
}

// Save implements stream.Traces.
func (t traces) Save(ctx context.Context, data, trace []byte) error {
	o, err := readOrigin(data)
	if err != nil {
		return err
	}
	vault := t.h.deps.Objects.Vault
	if err := vault.Delete(ctx, o.Space, traceID(o.ID)); err != nil {
		return err
	}
	if err := t.save(ctx, o.Space, o.ID, trace); err != nil || o.Parent == "" {
		return err
	}
	return t.save(ctx, o.Space, o.Parent, trace)
}

// save keeps the trace of a snapshot that has none.
func (t traces) save(ctx context.Context, space chunk.Space, id chunk.ID, trace []byte) (err error) {
	fd, err := unix.MemfdCreate("trace", unix.MFD_CLOEXEC) // a push reads files
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "trace")
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(trace); err != nil {
		return err
	}
	_, _, err = t.h.deps.Objects.Vault.Push(ctx, chunk.Push{
		Space: space, ID: traceID(id), Files: []chunk.Local{{Name: traceFile, Path: fmt.Sprintf("/proc/self/fd/%d", fd)}},
	})
	if errors.Is(err, chunk.ErrExists) { // it has one
		return nil
	}
	return err
}
