// Package remote pushes snapshots into the object store that hosts share, and pulls them from there.
//
// It owns the mapping of snapshots to chunks: which files belong to a snapshot, which snapshot it is stored
// as a difference to, who may read it, and whether this host can restore it. Package chunkstore owns the
// storage of content; the machine manager starts machines.
//
// A snapshot is pushed for the tenant of its workspace, under its own name. Templates that come with the
// program contain no data of a workspace. They are pushed for chunkstore.Common, once, when a snapshot
// derives from them; every other template is pushed for each workspace that uses it. The id of a template
// follows from its description, so that different templates of two hosts have different ids.
//
// All methods of a Repository may be called concurrently.
package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/chunkstore/cache"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/lib/obs"
	"github.com/pandastack/pandastack/internal/vmm"
)

// Deps are the dependencies of a Repository. All but CheckManifest, Exporter, Public and Log are required.
type Deps struct {
	Chunks *chunkstore.Store
	Cache  *cache.Cache
	Store  *snapshot.Store // of this host
	// Clone makes a file that shares its blocks with another.
	Clone func(from, to string) error
	// CheckManifest returns an error if this host cannot restore an image. If it is nil, every image is
	// tried.
	Fits func(ctx context.Context, m vmm.Manifest) error
	// Exporter exports and imports checkpoint bundles. If it is nil, snapshots travel without them.
	Exporter vmm.CheckpointExporter
	// Public reports whether a snapshot contains no data of any workspace. If it is nil, no snapshot is
	// public.
	Public func(ref snapshot.Ref) bool
	Log    *slog.Logger
}

// Repository is the object store as one host sees it.
type Repository struct {
	Deps
	cached manifestCache
}

// New makes a Repository. It makes no request.
func New(deps Deps) (*Repository, error) {
	if deps.Chunks == nil || deps.Cache == nil || deps.Store == nil || deps.Clone == nil {
		return nil, errors.New("remote: Chunks, Cache, Store and Clone are required")
	}
	if deps.Fits == nil {
		deps.Fits = func(context.Context, vmm.Manifest) error { return nil }
	}
	if deps.Public == nil {
		deps.Public = func(snapshot.Ref) bool { return false }
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	return &Repository{Deps: deps}, nil
}

// Areas of the host's snapshots: baked templates, and snapshots taken by users.
const (
	templates     = "templates"
	userSnapshots = "snapshots"
)

// Stats are the bytes that a push or pull handled, and the phases of a push.
type Stats struct {
	Phases   *obs.Phases
	Dirty    int64 // content that was not in the store
	Uploaded int64
	Stored   int64 // size of the snapshot in the store, shared content included
	Fetched  int64
}

// gcInterval is the time between two garbage collections. Removed objects are days old, so a shorter one is
// of no use.
const gcInterval = 6 * time.Hour

// Run collects garbage in the object store at intervals until ctx ends. First it reads the manifests of this
// host's templates, which otherwise the first push would wait for.
func (r *Repository) Run(ctx context.Context) error {
	if err := r.preloadTemplates(ctx); err != nil && ctx.Err() == nil {
		r.Log.Warn("manifests of templates not loaded from the object store", "err", err)
	}
	ticks := time.NewTicker(gcInterval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
		done, err := r.Chunks.GC(ctx)
		if err != nil && ctx.Err() == nil {
			r.Log.Warn("garbage collection of the object store failed", "err", err)
		}
		if done.Chunks > 0 {
			r.Log.Info("garbage of the object store collected", "chunks", done.Chunks, "bytes", done.Bytes)
		}
	}
}

// Push stores a snapshot of this host for a tenant, under id. It does nothing if the id exists.
func (r *Repository) Push(
	ctx context.Context,
	tenant chunkstore.Tenant,
	id chunkstore.ID,
	ref snapshot.Ref,
) (Stats, error) {
	stats := Stats{Phases: obs.Start()}
	m, err := r.push(ctx, tenant, id, ref, &stats)
	if err != nil {
		return stats, err
	}
	stats.Stored = m.Stored()
	return stats, nil
}

func (r *Repository) push(
	ctx context.Context,
	tenant chunkstore.Tenant,
	id chunkstore.ID,
	ref snapshot.Ref,
	stats *Stats,
) (*chunkstore.Manifest, error) {
	m, err := r.Chunks.Open(ctx, tenant, id)
	stats.Phases.Done("look")
	if !errors.Is(err, chunkstore.ErrNotFound) {
		return m, err
	}
	snap, release, err := r.acquire(ref)
	if err != nil {
		return nil, err
	}
	defer release()
	if snap.RemoteBacked() {
		return nil, fmt.Errorf("push snapshot %s: %w", ref, snapshot.ErrRemoteBacked)
	}
	if err := snapshot.Check(snap); err != nil {
		return nil, err
	}
	base, releaseBase, err := r.pushBase(ctx, tenant, snap, stats)
	if err != nil {
		return nil, fmt.Errorf("push base of snapshot %s: %w", ref, err)
	}
	defer releaseBase()
	stats.Phases.Done("base")
	checkpoint, done := r.exportCheckpoint(ctx, snap)
	defer done()
	in, err := pushContents(snap, rootOf(base), checkpoint)
	if err != nil {
		return nil, err
	}
	in.Tenant, in.ID = tenant, id
	if base != nil {
		in.Parent, in.ParentFiles = base.Manifest, base.Files
	}
	m, sent, err := r.Chunks.Push(ctx, in)
	stats.Phases.Done("send")
	stats.Dirty += sent.DirtyBytes
	stats.Uploaded += sent.Uploaded
	if errors.Is(err, chunkstore.ErrExists) { // pushed concurrently
		return r.Chunks.Open(ctx, tenant, id)
	}
	if err == nil {
		r.cached.put(m)
	}
	return m, err
}

// pushContents lists what is pushed of a snapshot. root is the root of its ancestry; checkpoint may be nil.
func pushContents(snap snapshot.Snapshot, root chunkstore.ID, checkpoint *vmm.Checkpoint) (chunkstore.Push, error) {
	about := description{Snapshot: snap, Root: root}
	if checkpoint != nil {
		about.Checkpoint = checkpoint.Description
	}
	meta, err := json.Marshal(about)
	if err != nil {
		return chunkstore.Push{}, err
	}
	files, err := snap.Files()
	if err != nil {
		return chunkstore.Push{}, err
	}
	in := chunkstore.Push{Meta: meta}
	for _, f := range files {
		in.Files = append(in.Files, chunkstore.LocalFile{Name: f.Name, Path: f.Path})
	}
	if checkpoint != nil {
		in.Files = append(in.Files, chunkstore.LocalFile{Name: checkpointFile, Path: fdPath(checkpoint.Content)})
	}
	return in, nil
}

// acquire returns a snapshot whose files stay until release is called.
func (r *Repository) acquire(ref snapshot.Ref) (_ snapshot.Snapshot, release func(), err error) {
	snap, err := r.Store.Acquire(ref)
	if err != nil {
		return snapshot.Snapshot{}, nil, err
	}
	return snap, func() {
		if err := r.Store.Release(ref); err != nil {
			r.Log.Warn("snapshot not released", "snapshot", ref, "err", err)
		}
	}, nil
}

// Delete removes a snapshot from the object store. It returns nil if the snapshot does not exist.
func (r *Repository) Delete(ctx context.Context, tenant chunkstore.Tenant, id chunkstore.ID) error {
	return r.Chunks.Delete(ctx, tenant, id)
}

// Stored is a snapshot in the object store.
type Stored struct {
	Snapshot snapshot.Snapshot // as described by its host; Ref, Base and Bytes have no meaning here
	// Root is the first snapshot of its ancestry in the store, usually a template; "" if it is the first
	// itself.
	Root chunkstore.ID
	// Checkpoint is the description of its checkpoint bundle; empty if it has none.
	Checkpoint []byte
	Reader     *chunkstore.Reader // of its files: snapshot.DiskFiles, and the files of Snapshot.Manifest
}

// Open reads and verifies the description of a stored snapshot. It returns a *vmm.MismatchError if the
// description shows that this host cannot restore the snapshot.
func (r *Repository) Open(ctx context.Context, tenant chunkstore.Tenant, id chunkstore.ID) (Stored, error) {
	m, err := r.Chunks.Open(ctx, tenant, id)
	if err != nil {
		return Stored{}, err
	}
	desc, err := describe(m)
	if err != nil {
		return Stored{}, err
	}
	snap := desc.Snapshot
	if snap.Version != snapshot.Version {
		return Stored{}, fmt.Errorf(
			"snapshot %s is of version %d, not %d: %w",
			id,
			snap.Version,
			snapshot.Version,
			chunkstore.ErrVersion,
		)
	}
	if err := snapshot.CheckDataDisks(snap.Data); err != nil {
		return Stored{}, fmt.Errorf(
			"manifest %s describes no snapshot: %w",
			id,
			errors.Join(chunkstore.ErrVersion, err),
		)
	}
	if err := r.Fits(ctx, snap.Manifest); err != nil {
		return Stored{}, fmt.Errorf("snapshot %s: %w", id, err)
	}
	return Stored{
		Snapshot:   snap,
		Root:       desc.Root,
		Checkpoint: desc.Checkpoint,
		Reader:     r.Chunks.Reader(m, r.Cache),
	}, nil
}

// OpenWithLocalBase is Open with a reader that takes content from a snapshot of this host if it can. The
// caller closes the reader.
func (r *Repository) OpenWithLocalBase(
	ctx context.Context,
	tenant chunkstore.Tenant,
	id chunkstore.ID,
) (Stored, error) {
	from, err := r.Open(ctx, tenant, id)
	if err != nil {
		return Stored{}, err
	}
	base, _, release := r.localBase(ctx, from)
	defer release()
	if base == nil {
		return from, nil
	}
	return from, from.Reader.WithLocalBase(base)
}

// Pull downloads a snapshot of the object store to this host, under ref and with labels added. It does
// nothing if ref exists. Content that a local snapshot has too shares its disk blocks.
func (r *Repository) Pull(
	ctx context.Context,
	tenant chunkstore.Tenant,
	id chunkstore.ID,
	ref snapshot.Ref,
	labels map[string]string,
) (_ snapshot.Snapshot, stats Stats, err error) {
	if snap, err := r.Store.Get(ref); err == nil {
		return snap, stats, nil
	}
	from, err := r.Open(ctx, tenant, id)
	if err != nil {
		return snapshot.Snapshot{}, stats, err
	}
	stats.Stored = from.Reader.Manifest().Stored()
	draft, err := r.Store.Draft()
	if err != nil {
		return snapshot.Snapshot{}, stats, err
	}
	defer func() { err = errors.Join(err, draft.Discard()) }()
	base, baseRef, release := r.localBase(ctx, from)
	defer release()
	done, err := from.Reader.Pull(ctx, draft.ImageDir(), base, notCheckpoint)
	stats.Fetched = done.Fetched
	if err == nil {
		err = syncAll(draft.ImageDir())
	}
	if err != nil {
		return snapshot.Snapshot{}, stats, err
	}
	r.ImportCheckpoint(ctx, from, vmm.Image{Dir: draft.ImageDir(), Manifest: from.Snapshot.Manifest})
	snap := from.Snapshot.WithLabels(labels)
	snap.Ref, snap.Base, snap.Anonymous = ref, baseRef, false
	if snap.Disk {
		for _, path := range draft.DiskPaths(snap.Data) {
			if err := os.Rename(filepath.Join(draft.ImageDir(), filepath.Base(path)), path); err != nil {
				return snapshot.Snapshot{}, stats, err
			}
		}
	}
	snap, err = draft.Commit(snap)
	if errors.Is(err, snapshot.ErrExists) { // pulled concurrently
		snap, err = r.Store.Get(ref)
		return snap, stats, err
	}
	if err != nil {
		return snapshot.Snapshot{}, stats, err
	}
	if err := snapshot.Check(snap); err != nil {
		return snapshot.Snapshot{}, stats, errors.Join(err, r.Store.Delete(ref), r.Store.Release(ref))
	}
	return snap, stats, r.Store.Release(ref)
}

// syncAll makes the files of a directory durable.
func syncAll(dir string) error {
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var g errgroup.Group
	for _, e := range list {
		g.Go(func() error { return durable.Sync(filepath.Join(dir, e.Name())) })
	}
	return g.Wait()
}
