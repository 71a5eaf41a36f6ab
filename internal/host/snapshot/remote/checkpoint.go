package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/vmm"
)

// checkpointFile is the content of what goes along with a snapshot for hosts that are like the one it was taken on, among the
// snapshot's files. No file of an image is called so.
const checkpointFile = "parcel"

func notCheckpoint(name string) bool { return name != checkpointFile }

// exportCheckpoint makes what goes along with a snapshot, which it does without where there is any trouble: nil. Done is called after
// its use.
func (d *Repository) exportCheckpoint(ctx context.Context, snap snapshot.Snapshot) (_ *vmm.Checkpoint, done func()) {
	done = func() {}
	if d.Exporter == nil {
		return nil, done
	}
	p, err := d.Exporter.ExportCheckpoint(ctx, snap.Image())
	if err != nil {
		d.Log.Warn("snapshot is pushed without what its monitor has learnt", "snapshot", snap.Ref, "err", err)
		return nil, done
	}
	if p == nil {
		return nil, done
	}
	return p, func() { _ = p.Content.Close() } // it was only read
}

// fdPath is where this process finds a file that it has open, whatever became of its name (proc_pid_fd(5)).
func fdPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// ImportCheckpoint gives an image of this host, which came from a snapshot in the object store, what went along with that for
// hosts like this one. Nobody relies on it, so trouble is logged: machines of the image are ready later then.
func (d *Repository) ImportCheckpoint(ctx context.Context, from Stored, image vmm.Image) {
	if d.Exporter == nil {
		return
	}
	began := time.Now()
	there, err := d.importCheckpoint(ctx, from, image)
	id := from.Reader.Manifest().ID
	switch _, other := errors.AsType[*vmm.MismatchError](err); {
	case other:
		d.Log.Info(
			"machines of a snapshot begin by their device state: it is of another kind of host",
			"snapshot",
			id,
			"why",
			err,
		)
	case err != nil:
		d.Log.Warn("machines of a snapshot begin by their device state, which takes longer", "snapshot", id, "why", err)
	case there:
		d.Log.Info("a snapshot came with what its monitor has learnt", "snapshot", id, "took", time.Since(began))
	}
}

func (d *Repository) importCheckpoint(ctx context.Context, from Stored, image vmm.Image) (there bool, err error) {
	if len(from.Checkpoint) == 0 {
		return false, nil
	}
	r := d.Chunks.Reader(from.Reader.Manifest(), d.Cache) // the other may be closed meanwhile
	near, release := d.localBaseImage(ctx, from)
	defer release()
	return true, d.Exporter.ImportCheckpoint(
		ctx,
		image,
		vmm.CheckpointSource{
			Description: from.Checkpoint,
			LocalBase:   near,
			Fetch: func(ctx context.Context, origin bool, to io.WriterAt) (int64, error) {
				of := r
				if origin {
					var err error
					if of, err = d.rootReader(ctx, from); err != nil {
						return 0, err
					}
				}
				return fetchCheckpoint(ctx, of, to)
			},
		},
	)
}

// localBaseImage is the directory of the image of this host that has most of a stored snapshot; "": there is none.
func (d *Repository) localBaseImage(ctx context.Context, from Stored) (dir string, release func()) {
	_, ref, release := d.localBase(ctx, from)
	if ref == "" {
		return "", release
	}
	snap, err := d.Store.Get(ref)
	if err != nil {
		return "", release
	}
	return snap.Image().Dir, release
}

// rootReader reads what a snapshot's line begins with in the store: of its own space, or one that all workspaces read.
func (d *Repository) rootReader(ctx context.Context, of Stored) (*chunkstore.Reader, error) {
	if of.Root == "" {
		return nil, errors.New("its line begins with itself")
	}
	m, err := d.manifest(ctx, of.Reader.Manifest().Tenant, of.Root)
	if errors.Is(err, chunkstore.ErrNotFound) {
		m, err = d.manifest(ctx, chunkstore.Common, of.Root)
	}
	if err != nil {
		return nil, err
	}
	return d.Chunks.Reader(m, d.Cache), nil
}

// fetchCheckpoint writes the content of a parcel, and answers of how many bytes it is.
func fetchCheckpoint(ctx context.Context, r *chunkstore.Reader, to io.WriterAt) (int64, error) {
	size, ok := r.Size(checkpointFile)
	if !ok {
		return 0, fmt.Errorf("nothing went along with %s", r.Manifest().ID)
	}
	return size, r.Scan(ctx, checkpointFile, nil, func(off int64, data []byte) (kept bool, err error) {
		_, err = to.WriteAt(data, off)
		return false, err
	})
}
