package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/snapshot/lazy"
)

// prefetchStore keeps prefetch traces in the object store, each beside its snapshot, encrypted and signed like it.
//
// The first trace of a snapshot that derives from another is kept for that other, too: what derives from the same
// snapshot starts in much the same way, and for one that was never used it is the best guess.
//
// With the trace of a snapshot it keeps the memory that the trace names first, page by page in the order of use: what a
// machine needs comes in one read from one place, and nothing else comes with it. Ancestors get the trace alone, since
// their memory differs.
type prefetchStore struct{ h *Host }

// prefetchManifest is the metadata of a stored trace.
type prefetchManifest struct {
	Trace []byte `json:"trace"` // encoded
}

// pagesFile is the memory that is kept with a trace.
const pagesFile = "pages"

func traceID(id chunkstore.ID) chunkstore.ID { return "trace" + id }

// Load implements lazy.Traces.
func (t prefetchStore) Load(ctx context.Context, data []byte) (lazy.Prefetch, error) {
	o, err := readOrigin(data)
	if err != nil {
		return lazy.Prefetch{}, err
	}
	grew := make(chan origin, 1)
	grew <- o
	return t.loadEarly(ctx, o.Tenant, o.ID, grew, nil)
}

// loadEarly is Load for a snapshot of which only the id is known yet. Its origin arrives on grew later. Until alone is
// closed (nil: it is), the content of a starting machine is being fetched, and the pages are read with what it leaves.
func (t prefetchStore) loadEarly(
	ctx context.Context,
	space chunkstore.Tenant,
	id chunkstore.ID,
	grew <-chan origin,
	alone <-chan struct{},
) (lazy.Prefetch, error) {
	own, cancel := context.WithTimeout(ctx, lazy.TraceTimeout)
	defer cancel()
	if of, err := t.load(own, space, id, alone); err != nil || len(of.Trace) > 0 {
		return of, err
	}
	select {
	case o := <-grew:
		ctx, cancel := context.WithTimeout(ctx, lazy.TraceTimeout)
		defer cancel()
		return t.loadInherited(ctx, space, o.ancestry()[1:])
	case <-ctx.Done():
		return lazy.Prefetch{}, context.Cause(ctx)
	}
}

// loadInherited returns the trace of the first of some snapshots that has one.
func (t prefetchStore) loadInherited(
	ctx context.Context,
	space chunkstore.Tenant,
	line []chunkstore.ID,
) (lazy.Prefetch, error) {
	found := make([]lazy.Prefetch, len(line))
	var g errgroup.Group // concurrently: a caller waits
	for i, id := range line {
		g.Go(func() error {
			var err error
			found[i], err = t.load(ctx, space, id, nil)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return lazy.Prefetch{}, err
	}
	for _, of := range found {
		if len(of.Trace) > 0 {
			return lazy.Prefetch{Trace: of.Trace}, nil
		}
	}
	return lazy.Prefetch{}, nil
}

// ancestry lists the snapshots that a trace is kept for, nearest first: the snapshot itself and its ancestors.
func (o origin) ancestry() []chunkstore.ID {
	line := []chunkstore.ID{o.ID}
	for _, id := range []chunkstore.ID{o.Parent, o.Root} {
		if id != "" && !slices.Contains(line, id) {
			line = append(line, id)
		}
	}
	return line
}

// load reads the trace of a snapshot. The result is empty if there is none.
func (t prefetchStore) load(
	ctx context.Context,
	space chunkstore.Tenant,
	id chunkstore.ID,
	alone <-chan struct{},
) (lazy.Prefetch, error) {
	objects := t.h.deps.Objects
	m, err := objects.Chunks.Open(ctx, space, traceID(id))
	if errors.Is(err, chunkstore.ErrNotFound) {
		return lazy.Prefetch{}, nil
	}
	if err != nil {
		return lazy.Prefetch{}, err
	}
	var about prefetchManifest
	if err := json.Unmarshal(m.Meta, &about); err != nil {
		return lazy.Prefetch{}, fmt.Errorf("trace of %s: %w", id, err)
	}
	r := objects.Chunks.Reader(m, objects.Cache)
	of := lazy.Prefetch{Trace: about.Trace}
	var kept bool
	if of.Bytes, kept = r.Size(pagesFile); kept {
		of.Pages = func(ctx context.Context, put func(off int64, data []byte) (kept bool)) error {
			return r.Scan(ctx, pagesFile, alone, func(off int64, data []byte) (bool, error) {
				return put(off, data), nil
			})
		}
	}
	return of, nil
}

// Save implements lazy.Traces.
func (t prefetchStore) Save(ctx context.Context, data, trace []byte, pages *os.File) error {
	o, err := readOrigin(data)
	if err != nil {
		return err
	}
	vault := t.h.deps.Objects.Chunks
	if err := vault.Delete(ctx, o.Tenant, traceID(o.ID)); err != nil {
		return err
	}
	for _, id := range o.ancestry() {
		if err := t.save(ctx, o.Tenant, id, trace, pages); err != nil {
			return err
		}
		pages = nil
	}
	return nil
}

// save stores the trace of a snapshot that has none.
func (t prefetchStore) save(
	ctx context.Context,
	space chunkstore.Tenant,
	id chunkstore.ID,
	trace []byte,
	pages *os.File,
) error {
	about, err := json.Marshal(prefetchManifest{trace})
	if err != nil {
		return err
	}
	in := chunkstore.Push{Tenant: space, ID: traceID(id), Meta: about, HighCompression: true}
	if pages != nil {
		in.Files = []chunkstore.LocalFile{{Name: pagesFile, Path: fmt.Sprintf("/proc/self/fd/%d", pages.Fd())}}
	}
	_, _, err = t.h.deps.Objects.Chunks.Push(ctx, in)
	if errors.Is(err, chunkstore.ErrExists) { // it has one
		return nil
	}
	return err
}
