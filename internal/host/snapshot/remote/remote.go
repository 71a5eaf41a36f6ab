// Package remote keeps snapshots in the object store that hosts share, and brings them back.
//
// It owns what a snapshot is in terms of chunks: which files belong to it, what it is stored as a
// difference to, who may read it, and whether it can be restored on this host. How content is stored
// package remote knows; how a machine is started from it the machine manager.
//
// A snapshot is pushed into the space of its workspace under its own name. Templates that come with the
// program hold nothing of anybody, and are pushed into the common space, once, on the way; every other
// template is pushed for each workspace that uses it. Names of templates there follow from their
// description, so that two hosts never take one's for the other's.
//
// All methods of a Depot may be called at once.
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

// Deps are what a Depot works with. All but Fits, Carrier, Public and Log are required.
type Deps struct {
	Chunks *chunkstore.Store
	Cache  *cache.Cache
	Store  *snapshot.Store // of this host
	// Clone makes a file that shares its blocks with another.
	Clone func(from, to string) error
	// Fits tells whether an image can be restored on this host; nil: every one is tried.
	Fits func(ctx context.Context, m vmm.Manifest) error
	// Exporter takes along what monitors have learnt; nil: nothing of that kind is.
	Exporter vmm.CheckpointExporter
	// Public tells of a snapshot that holds nothing of any workspace; nil: none does.
	Public func(ref snapshot.Ref) bool
	Log    *slog.Logger
}

// Repository is the object store as one host sees it.
type Repository struct {
	Deps
	cached manifestCache
}

// New makes a depot; it touches nothing.
func New(deps Deps) (*Repository, error) {
	if deps.Chunks == nil || deps.Cache == nil || deps.Store == nil || deps.Clone == nil {
		return nil, errors.New("depot: vault, cache, store and clone are required")
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

// Areas of the host's snapshots: what it baked, and what users took.
const (
	templates     = "templates"
	userSnapshots = "snapshots"
)

// Stats tell what a push or pull had to do, in bytes, and of a push where its time went.
type Stats struct {
	Phases   *obs.Phases
	Dirty    int64 // content that the store did not have
	Uploaded int64
	Stored   int64 // that the snapshot takes, shared content included
	Fetched  int64
}

// gcInterval is between two collections. What is removed is days old, so more often is of no use.
const gcInterval = 6 * time.Hour

// Run collects what nobody needs in the object store, now and then, until ctx ends. It begins with what the templates of
// this host consist of there: the first snapshot that comes would wait for that.
func (d *Repository) Run(ctx context.Context) error {
	if err := d.preloadTemplates(ctx); err != nil && ctx.Err() == nil {
		d.Log.Warn("templates of this host not looked up in the object store", "err", err)
	}
	ticks := time.NewTicker(gcInterval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
		done, err := d.Chunks.GC(ctx)
		if err != nil && ctx.Err() == nil {
			d.Log.Warn("object store not collected", "err", err)
		}
		if done.Chunks > 0 {
			d.Log.Info("object store collected", "chunks", done.Chunks, "bytes", done.Bytes)
		}
	}
}

// Push stores a snapshot of this host, under id, for a space. One that is there already is fine.
func (d *Repository) Push(ctx context.Context, space chunkstore.Tenant, id chunkstore.ID, ref snapshot.Ref) (Stats, error) {
	stats := Stats{Phases: obs.Start()}
	m, err := d.push(ctx, space, id, ref, &stats)
	if err != nil {
		return stats, err
	}
	stats.Stored = m.Stored()
	return stats, nil
}

func (d *Repository) push(
	ctx context.Context,
	space chunkstore.Tenant,
	id chunkstore.ID,
	ref snapshot.Ref,
	stats *Stats,
) (*chunkstore.Manifest, error) {
	m, err := d.Chunks.Open(ctx, space, id)
	stats.Phases.Done("look")
	if !errors.Is(err, chunkstore.ErrNotFound) {
		return m, err
	}
	snap, release, err := d.acquire(ref)
	if err != nil {
		return nil, err
	}
	defer release()
	if snap.RemoteBacked() {
		return nil, fmt.Errorf("push %s: %w", ref, snapshot.ErrRemoteBacked)
	}
	if err := snapshot.Check(snap); err != nil {
		return nil, err
	}
	base, let, err := d.pushBase(ctx, space, snap, stats)
	if err != nil {
		return nil, fmt.Errorf("push what %s grew from: %w", ref, err)
	}
	defer let()
	stats.Phases.Done("base")
	parcel, done := d.exportCheckpoint(ctx, snap)
	defer done()
	in, err := pushContents(snap, rootOf(base), parcel)
	if err != nil {
		return nil, err
	}
	in.Tenant, in.ID = space, id
	if base != nil {
		in.Parent, in.ParentFiles = base.Manifest, base.Files
	}
	m, sent, err := d.Chunks.Push(ctx, in)
	stats.Phases.Done("send")
	stats.Dirty += sent.DirtyBytes
	stats.Uploaded += sent.Uploaded
	if errors.Is(err, chunkstore.ErrExists) { // somebody else pushed it meanwhile
		return d.Chunks.Open(ctx, space, id)
	}
	if err == nil {
		d.cached.put(m)
	}
	return m, err
}

// pushContents is what of a snapshot is pushed, whose line in the store begins with root, with a parcel, unless that is nil.
func pushContents(snap snapshot.Snapshot, root chunkstore.ID, parcel *vmm.Checkpoint) (chunkstore.Push, error) {
	about := description{Snapshot: snap, Root: root}
	if parcel != nil {
		about.Checkpoint = parcel.Description
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
	if parcel != nil {
		in.Files = append(in.Files, chunkstore.LocalFile{Name: checkpointFile, Path: fdPath(parcel.Content)})
	}
	return in, nil
}

// acquire gives a snapshot whose files stay until release is called.
func (d *Repository) acquire(ref snapshot.Ref) (_ snapshot.Snapshot, release func(), err error) {
	snap, err := d.Store.Acquire(ref)
	if err != nil {
		return snapshot.Snapshot{}, nil, err
	}
	return snap, func() {
		if err := d.Store.Release(ref); err != nil {
			d.Log.Warn("snapshot not released", "snapshot", ref, "err", err)
		}
	}, nil
}

// Delete removes a snapshot from the object store; one that is not there is fine.
func (d *Repository) Delete(ctx context.Context, space chunkstore.Tenant, id chunkstore.ID) error {
	return d.Chunks.Delete(ctx, space, id)
}

// Stored is a snapshot in the object store.
type Stored struct {
	Snapshot snapshot.Snapshot // as it was on its host; Ref, Base and Bytes mean nothing here
	// Root is what its line begins with in the store, a template's as a rule; "": with itself.
	Root chunkstore.ID
	// Checkpoint is the description of what goes along with it for hosts like the one it was taken on; empty: nothing does.
	Checkpoint []byte
	Reader     *chunkstore.Reader // of its files: snapshot.DiskFiles, and those of Snapshot.Manifest
}

// Open reads what a snapshot in the object store is, verifies that, and makes sure that it can be restored
// on this host, as far as that can be told from its description: a *vmm.MismatchError says why not.
func (d *Repository) Open(ctx context.Context, space chunkstore.Tenant, id chunkstore.ID) (Stored, error) {
	m, err := d.Chunks.Open(ctx, space, id)
	if err != nil {
		return Stored{}, err
	}
	told, err := describe(m)
	if err != nil {
		return Stored{}, err
	}
	snap := told.Snapshot
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
	if err := d.Fits(ctx, snap.Manifest); err != nil {
		return Stored{}, fmt.Errorf("snapshot %s: %w", id, err)
	}
	return Stored{Snapshot: snap, Root: told.Root, Checkpoint: told.Checkpoint, Reader: d.Chunks.Reader(m, d.Cache)}, nil
}

// OpenWithLocalBase is Open whose reader takes what the snapshot shares with one of this host from there. The caller closes the
// reader.
func (d *Repository) OpenWithLocalBase(ctx context.Context, space chunkstore.Tenant, id chunkstore.ID) (Stored, error) {
	from, err := d.Open(ctx, space, id)
	if err != nil {
		return Stored{}, err
	}
	base, _, release := d.localBase(ctx, from)
	defer release()
	if base == nil {
		return from, nil
	}
	return from, from.Reader.WithLocalBase(base)
}

// Pull makes a snapshot of the object store one of this host, under ref and with labels over those it has. One that is here already is fine.
// What it shares with a snapshot of this host is shared on the disk, too.
func (d *Repository) Pull(
	ctx context.Context,
	space chunkstore.Tenant,
	id chunkstore.ID,
	ref snapshot.Ref,
	labels map[string]string,
) (_ snapshot.Snapshot, stats Stats, err error) {
	if snap, err := d.Store.Get(ref); err == nil {
		return snap, stats, nil
	}
	from, err := d.Open(ctx, space, id)
	if err != nil {
		return snapshot.Snapshot{}, stats, err
	}
	stats.Stored = from.Reader.Manifest().Stored()
	draft, err := d.Store.Draft()
	if err != nil {
		return snapshot.Snapshot{}, stats, err
	}
	defer func() { err = errors.Join(err, draft.Discard()) }()
	base, near, release := d.localBase(ctx, from)
	defer release()
	done, err := from.Reader.Pull(ctx, draft.ImageDir(), base, notCheckpoint)
	stats.Fetched = done.Fetched
	if err == nil {
		err = syncAll(draft.ImageDir())
	}
	if err != nil {
		return snapshot.Snapshot{}, stats, err
	}
	d.ImportCheckpoint(ctx, from, vmm.Image{Dir: draft.ImageDir(), Manifest: from.Snapshot.Manifest})
	snap := from.Snapshot.WithLabels(labels)
	snap.Ref, snap.Base, snap.Anonymous = ref, near, false
	if snap.Disk {
		for _, path := range draft.DiskPaths(snap.Data) {
			if err := os.Rename(filepath.Join(draft.ImageDir(), filepath.Base(path)), path); err != nil {
				return snapshot.Snapshot{}, stats, err
			}
		}
	}
	snap, err = draft.Commit(snap)
	if errors.Is(err, snapshot.ErrExists) { // pulled by somebody else meanwhile
		snap, err = d.Store.Get(ref)
		return snap, stats, err
	}
	if err != nil {
		return snapshot.Snapshot{}, stats, err
	}
	if err := snapshot.Check(snap); err != nil {
		return snapshot.Snapshot{}, stats, errors.Join(err, d.Store.Delete(ref), d.Store.Release(ref))
	}
	return snap, stats, d.Store.Release(ref)
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
