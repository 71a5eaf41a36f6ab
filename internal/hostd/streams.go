package hostd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/chunk"
	"github.com/pandastack/pandastack/internal/hostapi"
	"github.com/pandastack/pandastack/internal/pager"
	"github.com/pandastack/pandastack/internal/snapshot"
	"github.com/pandastack/pandastack/internal/stream"
	"github.com/pandastack/pandastack/internal/vmm"
)

// origin is where the content of a partial snapshot comes from.
type origin struct {
	Space chunk.Space `json:"space"`
	ID    chunk.ID    `json:"id"`
	// Parent is what it was pushed as a difference to, and Root what their line begins with; "": nothing.
	Parent chunk.ID `json:"parent,omitempty"`
	Root   chunk.ID `json:"root,omitempty"`
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
			from, err := h.depot.Near(ctx, o.Space, o.ID)
			if err != nil {
				return nil, err
			}
			return from.Reader, nil
		},
	})
	return err
}

// unpackLimit is how long somebody may wait for what makes a machine ready sooner, by a second or less.
const unpackLimit = 2 * time.Second

var errUnpack = errors.New("it would take longer than it saves")

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
	from, err := h.depot.Near(ctx, chunk.Space(workspace), chunk.ID(id))
	if err != nil {
		return hostapi.Pulled{}, moveError("stream", id, err)
	}
	opened := time.Since(began)
	data, err := json.Marshal(origin{chunk.Space(workspace), chunk.ID(id), from.Reader.Manifest().Parent, from.Root})
	if err != nil {
		return hostapi.Pulled{}, errors.Join(err, from.Reader.Close())
	}
	snap := from.Snapshot.Labelled(labels)
	snap.Base = ""
	snap, err = h.streams.Begin(ctx, ref, snap, data, from.Reader, func(dir string) {
		brief, cancel := context.WithTimeoutCause(ctx, unpackLimit, errUnpack)
		defer cancel()
		h.depot.Unpack(brief, from, vmm.Image{Dir: dir, Manifest: from.Snapshot.Manifest})
	})
	if errors.Is(err, snapshot.ErrExists) { // somebody else began it meanwhile
		snap, err = h.store.Get(ref)
	}
	if err != nil {
		return hostapi.Pulled{}, moveError("stream", id, err)
	}
	out := hostapi.Pulled{Snapshot: told(snap), Env: snap.Env, User: snap.User, Workdir: snap.Workdir, Took: time.Since(began)}
	h.deps.Log.Info("snapshot streams", "snapshot", id, "took", out.Took, "opened", opened)
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
	line := o.line()
	found := make([][]byte, len(line))
	var g errgroup.Group // all at once: somebody waits
	for i, id := range line {
		g.Go(func() error {
			var err error
			found[i], err = t.load(ctx, o.Space, id)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for _, trace := range found {
		if trace != nil {
			return trace, nil
		}
	}
	return nil, nil
}

// line is what a snapshot's trace is kept for, the nearest first: itself, and what it grew from.
func (o origin) line() []chunk.ID {
	line := []chunk.ID{o.ID}
	for _, id := range []chunk.ID{o.Parent, o.Root} {
		if id != "" && !slices.Contains(line, id) {
			line = append(line, id)
		}
	}
	return line
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
	for _, id := range o.line() {
		if err := t.save(ctx, o.Space, id, trace); err != nil {
			return err
		}
	}
	return nil
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
