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

// traces keeps traces in the object store, each beside its snapshot, encrypted and signed as that is. The first
// that is learned of any snapshot that grew from another is kept for that other, too: what grew from the same
// begins in much the same way, and for one that was never used it is the best guess there is.
//
// With the trace of a snapshot goes the memory that it names first, page by page as it was used: what a machine needs
// comes in one go from one place, and nothing that lies beside it comes along. Others of the line get the trace alone,
// since their memory is another.
type traces struct{ h *Host }

// lesson is what the manifest of a trace says.
type lesson struct {
	Trace []byte `json:"trace"` // encoded
}

// pagesFile is the memory that was kept with a trace.
const pagesFile = "pages"

func traceID(id chunkstore.ID) chunkstore.ID { return "trace" + id }

// Load implements lazy.Traces.
func (t traces) Load(ctx context.Context, data []byte) (lazy.Lesson, error) {
	o, err := readOrigin(data)
	if err != nil {
		return lazy.Lesson{}, err
	}
	grew := make(chan origin, 1)
	grew <- o
	return t.soon(ctx, o.Space, o.ID, grew, nil)
}

// soon is Load of a snapshot of which nothing but its name is known yet: what it grew from is told later, and until alone
// is closed (nil: it is) what a machine begins with comes, which its memory leaves room for.
func (t traces) soon(
	ctx context.Context,
	space chunkstore.Space,
	id chunkstore.ID,
	grew <-chan origin,
	alone <-chan struct{},
) (lazy.Lesson, error) {
	own, cancel := context.WithTimeout(ctx, lazy.TraceLimit)
	defer cancel()
	if of, err := t.load(own, space, id, alone); err != nil || len(of.Trace) > 0 {
		return of, err
	}
	select {
	case o := <-grew:
		ctx, cancel := context.WithTimeout(ctx, lazy.TraceLimit)
		defer cancel()
		return t.inherited(ctx, space, o.line()[1:])
	case <-ctx.Done():
		return lazy.Lesson{}, context.Cause(ctx)
	}
}

// inherited gives the trace of the first of some snapshots that has one.
func (t traces) inherited(ctx context.Context, space chunkstore.Space, line []chunkstore.ID) (lazy.Lesson, error) {
	found := make([]lazy.Lesson, len(line))
	var g errgroup.Group // all at once: somebody waits
	for i, id := range line {
		g.Go(func() error {
			var err error
			found[i], err = t.load(ctx, space, id, nil)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return lazy.Lesson{}, err
	}
	for _, of := range found {
		if len(of.Trace) > 0 {
			return lazy.Lesson{Trace: of.Trace}, nil
		}
	}
	return lazy.Lesson{}, nil
}

// line is what a snapshot's trace is kept for, the nearest first: itself, and what it grew from.
func (o origin) line() []chunkstore.ID {
	line := []chunkstore.ID{o.ID}
	for _, id := range []chunkstore.ID{o.Parent, o.Root} {
		if id != "" && !slices.Contains(line, id) {
			line = append(line, id)
		}
	}
	return line
}

// load reads what is known of a snapshot; nothing without an error: nothing is.
func (t traces) load(
	ctx context.Context,
	space chunkstore.Space,
	id chunkstore.ID,
	alone <-chan struct{},
) (lazy.Lesson, error) {
	objects := t.h.deps.Objects
	m, err := objects.Vault.Open(ctx, space, traceID(id))
	if errors.Is(err, chunkstore.ErrNotFound) {
		return lazy.Lesson{}, nil
	}
	if err != nil {
		return lazy.Lesson{}, err
	}
	var about lesson
	if err := json.Unmarshal(m.Meta, &about); err != nil {
		return lazy.Lesson{}, fmt.Errorf("trace of %s: %w", id, err)
	}
	r := objects.Vault.Reader(m, objects.Cache)
	of := lazy.Lesson{Trace: about.Trace}
	var kept bool
	if of.Bytes, kept = r.Size(pagesFile); kept {
		of.Pages = func(ctx context.Context, put func(off int64, data []byte) (kept bool)) error {
			return r.Each(ctx, pagesFile, alone, func(off int64, data []byte) (bool, error) {
				return put(off, data), nil
			})
		}
	}
	return of, nil
}

// Save implements lazy.Traces.
func (t traces) Save(ctx context.Context, data, trace []byte, pages *os.File) error {
	o, err := readOrigin(data)
	if err != nil {
		return err
	}
	vault := t.h.deps.Objects.Vault
	if err := vault.Delete(ctx, o.Space, traceID(o.ID)); err != nil {
		return err
	}
	for _, id := range o.line() {
		if err := t.save(ctx, o.Space, id, trace, pages); err != nil {
			return err
		}
		pages = nil
	}
	return nil
}

// save keeps the trace of a snapshot that has none.
func (t traces) save(
	ctx context.Context,
	space chunkstore.Space,
	id chunkstore.ID,
	trace []byte,
	pages *os.File,
) error {
	about, err := json.Marshal(lesson{trace})
	if err != nil {
		return err
	}
	in := chunkstore.Push{Space: space, ID: traceID(id), Meta: about, Dense: true}
	if pages != nil {
		in.Files = []chunkstore.Local{{Name: pagesFile, Path: fmt.Sprintf("/proc/self/fd/%d", pages.Fd())}}
	}
	_, _, err = t.h.deps.Objects.Vault.Push(ctx, in)
	if errors.Is(err, chunkstore.ErrExists) { // it has one
		return nil
	}
	return err
}
