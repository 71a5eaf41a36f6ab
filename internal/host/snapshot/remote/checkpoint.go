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

// checkpointFile is the name, among the snapshot's files, of the content of the checkpoint bundle, which is
// for hosts like the one that took the snapshot. No file of an image has this name.
const checkpointFile = "parcel"

func notCheckpoint(name string) bool { return name != checkpointFile }

// exportCheckpoint exports the checkpoint bundle of a snapshot. It returns nil after any failure: the
// snapshot is then pushed without one. The caller calls done after using the bundle.
func (r *Repository) exportCheckpoint(ctx context.Context, snap snapshot.Snapshot) (_ *vmm.Checkpoint, done func()) {
	done = func() {}
	if r.Exporter == nil {
		return nil, done
	}
	p, err := r.Exporter.ExportCheckpoint(ctx, snap.Image())
	if err != nil {
		r.Log.Warn("snapshot is pushed without its checkpoint bundle", "snapshot", snap.Ref, "err", err)
		return nil, done
	}
	if p == nil {
		return nil, done
	}
	return p, func() { _ = p.Content.Close() } // the file was only read
}

// fdPath returns the path of an open file of this process, even if the file has no name any more
// (proc_pid_fd(5)).
func fdPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// ImportCheckpoint adds the checkpoint bundle of a stored snapshot to an image of this host. It only logs
// failures: without the bundle, machines of the image take longer to be ready.
func (r *Repository) ImportCheckpoint(ctx context.Context, from Stored, image vmm.Image) {
	if r.Exporter == nil {
		return
	}
	start := time.Now()
	exists, err := r.importCheckpoint(ctx, from, image)
	id := from.Reader.Manifest().ID
	switch _, other := errors.AsType[*vmm.MismatchError](err); {
	case other:
		r.Log.Info(
			"checkpoint bundle of a snapshot is for another kind of host; its machines start more slowly",
			"snapshot",
			id,
			"why",
			err,
		)
	case err != nil:
		r.Log.Warn(
			"checkpoint bundle of a snapshot not imported; its machines start more slowly",
			"snapshot",
			id,
			"why",
			err,
		)
	case exists:
		r.Log.Info("checkpoint bundle of a snapshot imported", "snapshot", id, "took", time.Since(start))
	}
}

func (r *Repository) importCheckpoint(ctx context.Context, from Stored, image vmm.Image) (exists bool, err error) {
	if len(from.Checkpoint) == 0 {
		return false, nil
	}
	own := r.Chunks.Reader(from.Reader.Manifest(), r.Cache) // the caller's reader may be closed meanwhile
	baseDir, release := r.localBaseImage(ctx, from)
	defer release()
	return true, r.Exporter.ImportCheckpoint(
		ctx,
		image,
		vmm.CheckpointSource{
			Description: from.Checkpoint,
			LocalBase:   baseDir,
			Fetch: func(ctx context.Context, origin bool, to io.WriterAt) (int64, error) {
				of := own
				if origin {
					var err error
					if of, err = r.rootReader(ctx, from); err != nil {
						return 0, err
					}
				}
				return fetchCheckpoint(ctx, of, to)
			},
		},
	)
}

// localBaseImage returns the image directory of the local base of a stored snapshot, or "" if there is none.
func (r *Repository) localBaseImage(ctx context.Context, from Stored) (dir string, release func()) {
	_, ref, release := r.localBase(ctx, from)
	if ref == "" {
		return "", release
	}
	snap, err := r.Store.Get(ref)
	if err != nil {
		return "", release
	}
	return snap.Image().Dir, release
}

// rootReader reads the root of a snapshot's ancestry. The root belongs to the snapshot's own tenant or to
// Common.
func (r *Repository) rootReader(ctx context.Context, of Stored) (*chunkstore.Reader, error) {
	if of.Root == "" {
		return nil, errors.New("the snapshot is the root of its ancestry")
	}
	m, err := r.manifest(ctx, of.Reader.Manifest().Tenant, of.Root)
	if errors.Is(err, chunkstore.ErrNotFound) {
		m, err = r.manifest(ctx, chunkstore.Common, of.Root)
	}
	if err != nil {
		return nil, err
	}
	return r.Chunks.Reader(m, r.Cache), nil
}

// fetchCheckpoint writes the content of a checkpoint bundle to to and returns its size in bytes.
func fetchCheckpoint(ctx context.Context, r *chunkstore.Reader, to io.WriterAt) (int64, error) {
	size, ok := r.Size(checkpointFile)
	if !ok {
		return 0, fmt.Errorf("snapshot %s has no checkpoint bundle", r.Manifest().ID)
	}
	return size, r.Scan(ctx, checkpointFile, nil, func(off int64, data []byte) (kept bool, err error) {
		_, err = to.WriteAt(data, off)
		return false, err
	})
}
