// Package backup keeps backups of volumes in the object store that hosts share.
//
// It owns what a backup is there: a manifest of package chunkstore with one file, the disk, and a description. The
// volumes of this host belong to package volume, the chunks and their garbage collection to package chunkstore.
//
// A backup is stored as a difference to the newest one of the volume while its content is on this host; see
// volume.Base. Every backup is complete by itself: it can be restored, and others deleted, in any order. Backups of a
// workspace are those of a tenant of its own in the store.
//
// All methods of a Repository may be called concurrently.
package backup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/chunkstore/cache"
	"github.com/pandastack/pandastack/internal/host/volume"
)

// Config has what a Repository needs. All but Log and OnStep are required.
type Config struct {
	Chunks  *chunkstore.Store
	Cache   *cache.Cache
	Volumes *volume.Store // of this host
	// Copy makes a private copy of a volume as of this moment, which the caller moves or removes. What the guest of
	// its writer has written is in it.
	Copy func(ctx context.Context, id hostapi.VolumeID) (path string, of volume.Volume, remove func() error, err error)
	// Space returns an error unless so many MiB fit on the disk of this host.
	Space func(what string, mib int) error
	// OnStep, for tests, is called after every step of a backup; an error ends it there. With volume.ErrAbandon
	// everything stays as it is, as after a kill of this process.
	OnStep func(step string) error
	Log    *slog.Logger
}

// Repository has the backups of the object store as one host sees them.
type Repository struct {
	cfg Config

	mu    sync.Mutex
	known map[chunkstore.Tenant]map[chunkstore.ID]hostapi.Backup // by the last List; guarded by mu
}

// maxKnown bounds the workspaces whose backups are remembered.
const maxKnown = 256

// New makes a Repository. It makes no request.
func New(cfg Config) (*Repository, error) {
	if cfg.Chunks == nil || cfg.Cache == nil || cfg.Volumes == nil || cfg.Copy == nil ||
		cfg.Space == nil {
		return nil, errors.New("backup: Chunks, Cache, Volumes, Copy and Space are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.OnStep == nil {
		cfg.OnStep = func(string) error { return nil }
	}
	return &Repository{cfg: cfg, known: map[chunkstore.Tenant]map[chunkstore.ID]hostapi.Backup{}}, nil
}

// tenant returns the owner of a workspace's backups. No workspace has a name with a slash.
func tenant(workspace string) chunkstore.Tenant { return chunkstore.Tenant(workspace + "/volumes") }

// check rejects names that cannot be used.
func check(workspace string, id hostapi.BackupID) error {
	if workspace == "" {
		return fmt.Errorf("no workspace is named: %w", hostapi.ErrInvalid)
	}
	if id == "" || len(id) > 64 || strings.Trim(string(id), "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return fmt.Errorf("backup id %q is not 1 to 64 lower-case letters and digits: %w", string(id),
			hostapi.ErrInvalid)
	}
	return nil
}

// Backup uploads a volume as of this moment. If the store has the backup already, as after an attempt whose result was
// lost, it stays as it is.
func (r *Repository) Backup(ctx context.Context, workspace string, id hostapi.VolumeID, as hostapi.BackupID,
	labels map[string]string) (out hostapi.BackupResult, err error) {
	if err := check(workspace, as); err != nil {
		return out, err
	}
	began := time.Now()
	space := tenant(workspace)
	m, err := r.cfg.Chunks.Open(ctx, space, chunkstore.ID(as))
	switch {
	case err == nil:
		d, err := describe(m)
		if err == nil && d.Volume != id {
			err = fmt.Errorf("backup %s is of volume %s: %w", as, d.Volume, hostapi.ErrExists)
		}
		return result(m, d, chunkstore.PushStats{}, began), err
	case !errors.Is(err, chunkstore.ErrNotFound):
		return out, err
	}
	moment := began.UTC().Truncate(time.Microsecond) // as databases of nodes keep it
	path, of, remove, err := r.cfg.Copy(ctx, id)
	if err != nil {
		return out, err
	}
	defer func() {
		if !errors.Is(err, volume.ErrAbandon) {
			err = errors.Join(err, remove())
		}
	}()
	if err := r.cfg.OnStep("copy"); err != nil {
		return out, err
	}
	d := description{Version: version, Volume: id, SizeMiB: of.SizeMiB, Moment: moment, Dirty: of.Dirty, Labels: labels}
	m, stats, err := r.push(ctx, space, chunkstore.ID(as), d, path)
	if err != nil {
		return out, err
	}
	// The backup is complete. If its content is not kept, the next one is compared with an older one.
	err = r.cfg.OnStep("push")
	if err == nil {
		err = r.cfg.Volumes.SetBase(id, volume.Base{Tenant: string(space), Backup: string(as)}, path)
	}
	if errors.Is(err, volume.ErrAbandon) {
		return out, err
	}
	if err != nil {
		r.cfg.Log.Warn("the content of a backup is not kept; the next backup takes longer", "volume", id, "err", err)
	}
	return result(m, d, stats, began), nil
}

func result(m *chunkstore.Manifest, d description, stats chunkstore.PushStats, began time.Time) hostapi.BackupResult {
	return hostapi.BackupResult{
		Moment: d.Moment, SizeMiB: d.SizeMiB, Bytes: stats.DirtyBytes, Uploaded: stats.Uploaded, Stored: m.Stored(),
		Took: time.Since(began),
	}
}

// push stores the copy of a volume, as a difference to its base if there is one.
func (r *Repository) push(ctx context.Context, space chunkstore.Tenant, id chunkstore.ID, d description, path string) (
	_ *chunkstore.Manifest, _ chunkstore.PushStats, err error) {
	meta, err := d.encode()
	if err != nil {
		return nil, chunkstore.PushStats{}, err
	}
	in := chunkstore.Push{
		Tenant: space, ID: id, Meta: meta, Files: []chunkstore.LocalFile{{Name: diskFile, Path: path}},
	}
	base, basePath, release, err := r.cfg.Volumes.OpenBase(d.Volume)
	if err != nil {
		return nil, chunkstore.PushStats{}, err
	}
	defer func() { err = errors.Join(err, release()) }()
	if base != nil && base.Tenant == string(space) {
		parent, err := r.cfg.Chunks.Open(ctx, space, chunkstore.ID(base.Backup))
		switch {
		case errors.Is(err, chunkstore.ErrNotFound): // it was deleted
		case err != nil:
			return nil, chunkstore.PushStats{}, err
		case !scattered(parent):
			in.Parent, in.ParentFiles = parent, map[string]string{diskFile: basePath}
		}
	}
	m, stats, err := r.cfg.Chunks.Push(ctx, in)
	if in.Parent != nil && errors.Is(err, chunkstore.ErrNotFound) { // deleted meanwhile
		in.Parent, in.ParentFiles = nil, nil
		m, stats, err = r.cfg.Chunks.Push(ctx, in)
	}
	return m, stats, err
}

// scattered reports whether the content of a manifest is in so many chunks, or uses so little of them, that the next
// backup is better stored in full: what it then shares with earlier ones is found by whole chunks.
func scattered(m *chunkstore.Manifest) bool {
	const perChunk = chunkstore.ChunkSize / chunkstore.PageSize
	used, stored := pages(m), 0
	for _, c := range m.Chunks {
		stored += c.Pages
	}
	return stored > 2*used+4*perChunk || len(m.Chunks) > 4*(used/perChunk)+1024
}

// pages returns how many pages of a manifest's files are not zero.
func pages(m *chunkstore.Manifest) (n int) {
	for _, f := range m.Files {
		for _, e := range f.Extents {
			n += e.Count
		}
	}
	return n
}

// List returns the backups of a workspace, oldest first. One whose description cannot be used is left out.
func (r *Repository) List(ctx context.Context, workspace string) ([]hostapi.Backup, error) {
	if workspace == "" {
		return nil, fmt.Errorf("no workspace is named: %w", hostapi.ErrInvalid)
	}
	space := tenant(workspace)
	ids, err := r.cfg.Chunks.List(ctx, space)
	if err != nil {
		return nil, err
	}
	found := make([]*hostapi.Backup, len(ids))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i, id := range ids {
		g.Go(func() (err error) {
			found[i], err = r.lookUp(gctx, space, id)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	known := map[chunkstore.ID]hostapi.Backup{}
	all := make([]hostapi.Backup, 0, len(found))
	for _, b := range found {
		if b != nil {
			known[chunkstore.ID(b.ID)] = *b
			all = append(all, *b)
		}
	}
	sortBackups(all)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) >= maxKnown {
		clear(r.known)
	}
	r.known[space] = known
	return all, nil
}

// lookUp returns a backup of the store; nil if there is none, or none that this program can use. What is stored under
// an id never changes.
func (r *Repository) lookUp(ctx context.Context, space chunkstore.Tenant, id chunkstore.ID) (*hostapi.Backup, error) {
	r.mu.Lock()
	b, ok := r.known[space][id]
	r.mu.Unlock()
	if ok {
		return &b, nil
	}
	m, err := r.cfg.Chunks.Open(ctx, space, id)
	var d description
	if err == nil {
		d, err = describe(m)
	}
	switch {
	case errors.Is(err, chunkstore.ErrNotFound): // deleted meanwhile
		return nil, nil
	case isUnusable(err):
		r.cfg.Log.Warn("a backup in the object store cannot be used", "backup", id, "err", err)
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &hostapi.Backup{
		ID: hostapi.BackupID(id), Volume: d.Volume, SizeMiB: d.SizeMiB, Moment: d.Moment, Stored: m.Stored(),
		Labels: d.Labels,
	}, nil
}

func isUnusable(err error) bool {
	_, damaged := errors.AsType[*chunkstore.DamagedError](err)
	return damaged || errors.Is(err, chunkstore.ErrVersion) || errors.Is(err, chunkstore.ErrTampered) ||
		errors.Is(err, chunkstore.ErrWrongTenant)
}

// Restore makes a volume of a backup. From and Fill of req are not set. When it fails nothing is left.
func (r *Repository) Restore(ctx context.Context, workspace string, id hostapi.BackupID, req volume.Request) (
	volume.Volume, error) {
	if err := check(workspace, id); err != nil {
		return volume.Volume{}, err
	}
	space := tenant(workspace)
	m, err := r.cfg.Chunks.Open(ctx, space, chunkstore.ID(id))
	if err != nil {
		return volume.Volume{}, err
	}
	d, err := describe(m)
	if err != nil {
		return volume.Volume{}, err
	}
	if err := r.cfg.Space("volume "+string(req.ID), pages(m)*chunkstore.PageSize>>20); err != nil {
		return volume.Volume{}, err
	}
	req.FillMiB, req.Dirty = d.SizeMiB, d.Dirty
	req.Base = &volume.Base{Tenant: string(space), Backup: string(id)}
	req.Fill = func(ctx context.Context, path string) error {
		dir := filepath.Dir(path)
		if _, err := r.cfg.Chunks.Reader(m, r.cfg.Cache).Pull(ctx, dir, nil, nil); err != nil {
			return err
		}
		return os.Rename(filepath.Join(dir, diskFile), path)
	}
	return r.cfg.Volumes.Create(ctx, req)
}

// Delete removes a backup. An unknown id is no error. Chunks that no other backup needs are removed by the garbage
// collection of the store.
func (r *Repository) Delete(ctx context.Context, workspace string, id hostapi.BackupID) error {
	if err := check(workspace, id); err != nil {
		return err
	}
	space := tenant(workspace)
	r.mu.Lock()
	delete(r.known[space], chunkstore.ID(id))
	r.mu.Unlock()
	return r.cfg.Chunks.Delete(ctx, space, chunkstore.ID(id))
}
