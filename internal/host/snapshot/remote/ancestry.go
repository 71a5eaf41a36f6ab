package remote

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/snapshot"
)

// Bounds of the search for a base that is in the store: how many ancestors, and how many earlier snapshots of
// the same machine, are examined.
const (
	maxAncestors = 64
	maxSiblings  = 4
)

// description is the part of a manifest that describes the snapshot.
type description struct {
	snapshot.Snapshot
	Root       chunkstore.ID `json:"root,omitempty"`   // see Stored.Root
	Checkpoint []byte        `json:"parcel,omitempty"` // see Stored.Checkpoint
}

func describe(m *chunkstore.Manifest) (description, error) {
	var d description
	if err := json.Unmarshal(m.Meta, &d); err != nil {
		return d, fmt.Errorf("manifest %s describes no snapshot: %w", m.ID, errors.Join(chunkstore.ErrVersion, err))
	}
	return d, nil
}

// rootOf returns the first manifest of the ancestry that continues from base.
func rootOf(base *chunkstore.Base) chunkstore.ID {
	if base == nil {
		return ""
	}
	d, err := describe(base.Manifest)
	if err != nil || d.Root == "" {
		return base.Manifest.ID
	}
	return d.Root
}

// manifestCache holds the manifests of the bases that were used last. A manifest never changes, and the store
// rejects a push whose parent was deleted. All methods may be called concurrently.
type manifestCache struct {
	mu     sync.Mutex
	recent []*chunkstore.Manifest // least recently used first; guarded by mu
}

// maxCachedManifests bounds the cache: the manifest of a template takes about a MiB.
const maxCachedManifests = 8

func (k *manifestCache) get(tenant chunkstore.Tenant, id chunkstore.ID) *chunkstore.Manifest {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.IndexFunc(k.recent, func(m *chunkstore.Manifest) bool { return m.Tenant == tenant && m.ID == id })
	if i < 0 {
		return nil
	}
	m := k.recent[i]
	k.recent = append(slices.Delete(k.recent, i, i+1), m)
	return m
}

func (k *manifestCache) put(m *chunkstore.Manifest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.recent = append(k.recent, m)
	if len(k.recent) > maxCachedManifests {
		k.recent = slices.Delete(k.recent, 0, 1)
	}
}

// preloadTemplates reads the manifests of the host's own templates that are in the store for all workspaces.
func (r *Repository) preloadTemplates(ctx context.Context) error {
	for _, t := range r.Store.List(templates) {
		if !r.Public(t.Ref) {
			continue
		}
		id, err := templateID(t)
		if err == nil {
			_, err = r.manifest(ctx, chunkstore.Common, id)
		}
		if err != nil && !errors.Is(err, chunkstore.ErrNotFound) {
			return err
		}
	}
	return nil
}

// manifest opens the manifest of a base.
func (r *Repository) manifest(
	ctx context.Context,
	tenant chunkstore.Tenant,
	id chunkstore.ID,
) (*chunkstore.Manifest, error) {
	if m := r.cached.get(tenant, id); m != nil {
		return m, nil
	}
	m, err := r.Chunks.Open(ctx, tenant, id)
	if err == nil {
		r.cached.put(m)
	}
	return m, err
}

// pushBase chooses the snapshot that snap is pushed as a difference to. It returns the last snapshot of the
// same machine that is in the store, or else the nearest ancestor that is; a template among the ancestors is
// pushed first. The files of the base stay until release is called. The base is nil if there is none.
func (r *Repository) pushBase(
	ctx context.Context,
	tenant chunkstore.Tenant,
	snap snapshot.Snapshot,
	stats *Stats,
) (_ *chunkstore.Base, release func(), err error) {
	for _, ref := range r.siblings(snap) {
		base, release, _, err := r.candidate(ctx, tenant, ref, stats)
		if err != nil || base != nil {
			return base, release, err
		}
	}
	at := snap.Base
	for range maxAncestors {
		if at == "" {
			break
		}
		base, release, older, err := r.candidate(ctx, tenant, at, stats)
		if err != nil || base != nil {
			return base, release, err
		}
		at = older
	}
	return nil, func() {}, nil
}

// siblings lists the earlier snapshots of the machine that snap was taken of, the last one first.
func (r *Repository) siblings(snap snapshot.Snapshot) []snapshot.Ref {
	if snap.Machine == "" || !strings.HasPrefix(string(snap.Ref), userSnapshots+"/") {
		return nil
	}
	var all []snapshot.Snapshot
	for _, s := range r.Store.List(userSnapshots) {
		if s.Machine == snap.Machine && s.Ref != snap.Ref && s.Created.Before(snap.Created) && !s.RemoteBacked() {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b snapshot.Snapshot) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.Ref, b.Ref))
	})
	var refs []snapshot.Ref
	for _, s := range all[:min(len(all), maxSiblings)] {
		refs = append(refs, s.Ref)
	}
	return refs
}

// candidate returns a snapshot of this host as a base, if it is in the store. It pushes a template that is
// not. Otherwise it returns nil and the snapshot that this one derives from.
func (r *Repository) candidate(
	ctx context.Context,
	tenant chunkstore.Tenant,
	ref snapshot.Ref,
	stats *Stats,
) (_ *chunkstore.Base, release func(), older snapshot.Ref, err error) {
	none := func() {}
	snap, release, err := r.acquire(ref)
	if errors.Is(err, snapshot.ErrNotFound) {
		return nil, none, "", nil
	}
	if err != nil {
		return nil, none, "", err
	}
	m, err := r.ensureStored(ctx, tenant, snap, stats)
	if m == nil || err != nil || snap.RemoteBacked() {
		release()
		return nil, none, snap.Base, err
	}
	base, err := r.newBase(m, snap)
	if err != nil {
		release()
		return nil, none, "", err
	}
	return base, release, "", nil
}

// ensureStored returns the manifest of a snapshot. It pushes a template that is not in the store. It returns
// nil for another snapshot that is not.
func (r *Repository) ensureStored(
	ctx context.Context,
	tenant chunkstore.Tenant,
	snap snapshot.Snapshot,
	stats *Stats,
) (*chunkstore.Manifest, error) {
	if strings.HasPrefix(string(snap.Ref), templates+"/") {
		if r.Public(snap.Ref) {
			tenant = chunkstore.Common
		}
		id, err := templateID(snap)
		if err != nil {
			return nil, err
		}
		m, err := r.lookup(ctx, tenant, id)
		if m == nil && err == nil {
			m, err = r.push(ctx, tenant, id, snap.Ref, stats)
		}
		return m, err
	}
	if snap.Anonymous {
		return nil, nil
	}
	return r.lookup(ctx, tenant, chunkstore.ID(snap.Ref.Name()))
}

// lookup returns a manifest if it is in the store now, or nil.
func (r *Repository) lookup(
	ctx context.Context,
	tenant chunkstore.Tenant,
	id chunkstore.ID,
) (*chunkstore.Manifest, error) {
	if m := r.cached.get(tenant, id); m != nil {
		exists, err := r.Chunks.Exists(ctx, tenant, id)
		if !exists {
			m = nil
		}
		return m, err
	}
	m, err := r.manifest(ctx, tenant, id)
	if errors.Is(err, chunkstore.ErrNotFound) {
		return nil, nil
	}
	return m, err
}

// localBase returns the snapshot of this host that shares most content with a stored one: its parent, or else
// the template that both derive from. Any failure means no base, and that everything is downloaded.
func (r *Repository) localBase(ctx context.Context, of Stored) (_ *chunkstore.Base, ref snapshot.Ref, release func()) {
	m := of.Reader.Manifest()
	if m.Parent == "" {
		return nil, "", func() {}
	}
	parent := snapshot.Join(userSnapshots, string(m.Parent))
	if base, release := r.asLocalBase(ctx, m.Tenant, m.Parent, parent); base != nil {
		return base, parent, release
	}
	for _, t := range r.Store.List(templates) {
		id, err := templateID(t)
		if err != nil || id != m.Parent && id != of.Root {
			continue
		}
		tenant := m.Tenant
		if r.Public(t.Ref) {
			tenant = chunkstore.Common
		}
		if base, release := r.asLocalBase(ctx, tenant, id, t.Ref); base != nil {
			return base, t.Ref, release
		}
	}
	return nil, "", func() {}
}

// asLocalBase returns a snapshot of this host as a base if it is local and in the store under the given id,
// or nil.
func (r *Repository) asLocalBase(
	ctx context.Context,
	tenant chunkstore.Tenant,
	id chunkstore.ID,
	ref snapshot.Ref,
) (*chunkstore.Base, func()) {
	snap, release, err := r.acquire(ref)
	if err != nil {
		return nil, nil
	}
	var base *chunkstore.Base
	if !snap.RemoteBacked() {
		var m *chunkstore.Manifest
		if m, err = r.manifest(ctx, tenant, id); err == nil {
			base, err = r.newBase(m, snap)
		}
	}
	if base != nil && err == nil {
		return base, release
	}
	r.Log.Debug("no local base", "snapshot", ref, "remote_backed", snap.RemoteBacked(), "err", err)
	release()
	return nil, nil
}

// templateID returns the id of a template's snapshot in the store, which follows from its description.
func templateID(snap snapshot.Snapshot) (chunkstore.ID, error) {
	text, err := json.Marshal(snap)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return chunkstore.ID("tpl" + hex.EncodeToString(sum[:20])), nil
}

// newBase makes a base of a snapshot of this host.
func (r *Repository) newBase(m *chunkstore.Manifest, snap snapshot.Snapshot) (*chunkstore.Base, error) {
	files, err := snap.Files()
	if err != nil {
		return nil, err
	}
	base := &chunkstore.Base{Manifest: m, Files: map[string]string{}, Clone: r.Clone}
	for _, f := range files {
		base.Files[f.Name] = f.Path
	}
	return base, nil
}
