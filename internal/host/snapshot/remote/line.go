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

// How far back is looked for a snapshot that the store has: in what one grew from, and among those of the same machine.
const (
	maxLine     = 64
	maxSiblings = 4
)

// description is what a manifest says of a snapshot besides its content.
type description struct {
	snapshot.Snapshot
	Root   chunkstore.ID `json:"root,omitempty"`   // as Stored.Root
	Parcel []byte        `json:"parcel,omitempty"` // as Stored.Parcel
}

func describe(m *chunkstore.Manifest) (description, error) {
	var d description
	if err := json.Unmarshal(m.Meta, &d); err != nil {
		return d, fmt.Errorf("manifest %s describes no snapshot: %w", m.ID, errors.Join(chunkstore.ErrVersion, err))
	}
	return d, nil
}

// rootOf is what a line in the store begins with that goes on from base.
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

// manifests keeps what bases of others consist of, the last ones that were used. A manifest never changes, and what is
// made with one that was deleted meanwhile the vault refuses. All methods may be called at once.
type manifests struct {
	mu  sync.Mutex
	all []*chunkstore.Manifest // the last used last; guarded by mu
}

// maxManifests bounds them: one of a template takes about a MiB.
const maxManifests = 8

func (k *manifests) get(space chunkstore.Space, id chunkstore.ID) *chunkstore.Manifest {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.IndexFunc(k.all, func(m *chunkstore.Manifest) bool { return m.Space == space && m.ID == id })
	if i < 0 {
		return nil
	}
	m := k.all[i]
	k.all = append(slices.Delete(k.all, i, i+1), m)
	return m
}

func (k *manifests) put(m *chunkstore.Manifest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = append(k.all, m)
	if len(k.all) > maxManifests {
		k.all = slices.Delete(k.all, 0, 1)
	}
}

// acquaint reads the manifests of the host's own templates that the store has for all workspaces.
func (d *Depot) acquaint(ctx context.Context) error {
	for _, t := range d.Store.List(templates) {
		if !d.Public(t.Ref) {
			continue
		}
		id, err := templateID(t)
		if err == nil {
			_, err = d.manifest(ctx, chunkstore.Common, id)
		}
		if err != nil && !errors.Is(err, chunkstore.ErrNotFound) {
			return err
		}
	}
	return nil
}

// manifest opens the manifest of a base.
func (d *Depot) manifest(ctx context.Context, space chunkstore.Space, id chunkstore.ID) (*chunkstore.Manifest, error) {
	if m := d.known.get(space, id); m != nil {
		return m, nil
	}
	m, err := d.Vault.Open(ctx, space, id)
	if err == nil {
		d.known.put(m)
	}
	return m, err
}

// base gives what a snapshot is pushed as a difference to, with its files, which stay until release is called: the
// last one of the same machine that the store has, or else the nearest that the machine grew from. A template
// at the begin of that line is pushed for it. nil: there is none.
func (d *Depot) base(
	ctx context.Context,
	space chunkstore.Space,
	snap snapshot.Snapshot,
	stats *Stats,
) (_ *chunkstore.Base, release func(), err error) {
	for _, ref := range d.before(snap) {
		base, release, _, err := d.candidate(ctx, space, ref, stats)
		if err != nil || base != nil {
			return base, release, err
		}
	}
	at := snap.Base
	for range maxLine {
		if at == "" {
			break
		}
		base, release, older, err := d.candidate(ctx, space, at, stats)
		if err != nil || base != nil {
			return base, release, err
		}
		at = older
	}
	return nil, func() {}, nil
}

// before lists the snapshots of the machine that snap is of which were taken before it, the last one first.
func (d *Depot) before(snap snapshot.Snapshot) []snapshot.Ref {
	if snap.Machine == "" || !strings.HasPrefix(string(snap.Ref), users+"/") {
		return nil
	}
	var all []snapshot.Snapshot
	for _, s := range d.Store.List(users) {
		if s.Machine == snap.Machine && s.Ref != snap.Ref && s.Created.Before(snap.Created) && !s.Partial() {
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

// candidate gives a snapshot of this host as a base if the store has it, or, of a template, comes to have it; else nil,
// and what that one grew from.
func (d *Depot) candidate(
	ctx context.Context,
	space chunkstore.Space,
	ref snapshot.Ref,
	stats *Stats,
) (_ *chunkstore.Base, release func(), older snapshot.Ref, err error) {
	none := func() {}
	snap, release, err := d.hold(ref)
	if errors.Is(err, snapshot.ErrNotFound) {
		return nil, none, "", nil
	}
	if err != nil {
		return nil, none, "", err
	}
	m, err := d.stored(ctx, space, snap, stats)
	if m == nil || err != nil || snap.Partial() {
		release()
		return nil, none, snap.Base, err
	}
	base, err := d.from(m, snap)
	if err != nil {
		release()
		return nil, none, "", err
	}
	return base, release, "", nil
}

// stored gives the manifest of a snapshot that is in the store, or, of a template, comes to be in it. nil:
// it is not.
func (d *Depot) stored(
	ctx context.Context,
	space chunkstore.Space,
	snap snapshot.Snapshot,
	stats *Stats,
) (*chunkstore.Manifest, error) {
	if strings.HasPrefix(string(snap.Ref), templates+"/") {
		if d.Public(snap.Ref) {
			space = chunkstore.Common
		}
		id, err := templateID(snap)
		if err != nil {
			return nil, err
		}
		m, err := d.there(ctx, space, id)
		if m == nil && err == nil {
			m, err = d.push(ctx, space, id, snap.Ref, stats)
		}
		return m, err
	}
	if snap.Anonymous {
		return nil, nil
	}
	return d.there(ctx, space, chunkstore.ID(snap.Ref.Name()))
}

// there gives a manifest that is in the store now; nil: it is not.
func (d *Depot) there(ctx context.Context, space chunkstore.Space, id chunkstore.ID) (*chunkstore.Manifest, error) {
	if m := d.known.get(space, id); m != nil {
		there, err := d.Vault.Exists(ctx, space, id)
		if !there {
			m = nil
		}
		return m, err
	}
	m, err := d.manifest(ctx, space, id)
	if errors.Is(err, chunkstore.ErrNotFound) {
		return nil, nil
	}
	return m, err
}

// here gives the snapshot of this host that has most of another in the store: the one that it was pushed as a
// difference to, or else the template that their line begins with. Without it everything is fetched, so that is what
// comes of any trouble with it.
func (d *Depot) here(ctx context.Context, of Stored) (_ *chunkstore.Base, ref snapshot.Ref, release func()) {
	m := of.Reader.Manifest()
	if m.Parent == "" {
		return nil, "", func() {}
	}
	if base, release := d.whole(ctx, m.Space, m.Parent, snapshot.Join(users, string(m.Parent))); base != nil {
		return base, snapshot.Join(users, string(m.Parent)), release
	}
	for _, t := range d.Store.List(templates) {
		id, err := templateID(t)
		if err != nil || id != m.Parent && id != of.Root {
			continue
		}
		space := m.Space
		if d.Public(t.Ref) {
			space = chunkstore.Common
		}
		if base, release := d.whole(ctx, space, id, t.Ref); base != nil {
			return base, t.Ref, release
		}
	}
	return nil, "", func() {}
}

// whole gives a snapshot of this host that is whole, and in the store under an id; nil: it is not.
func (d *Depot) whole(
	ctx context.Context,
	space chunkstore.Space,
	id chunkstore.ID,
	ref snapshot.Ref,
) (*chunkstore.Base, func()) {
	snap, release, err := d.hold(ref)
	if err != nil {
		return nil, nil
	}
	var base *chunkstore.Base
	if !snap.Partial() {
		var m *chunkstore.Manifest
		if m, err = d.manifest(ctx, space, id); err == nil {
			base, err = d.from(m, snap)
		}
	}
	if base != nil && err == nil {
		return base, release
	}
	d.Log.Debug("not read from what is here", "snapshot", ref, "partial", snap.Partial(), "err", err)
	release()
	return nil, nil
}

// templateID is how a template's snapshot is called in the store: it follows from its description.
func templateID(snap snapshot.Snapshot) (chunkstore.ID, error) {
	text, err := json.Marshal(snap)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return chunkstore.ID("tpl" + hex.EncodeToString(sum[:20])), nil
}

// from is a snapshot of this host as something to make others from.
func (d *Depot) from(m *chunkstore.Manifest, snap snapshot.Snapshot) (*chunkstore.Base, error) {
	files, err := snap.Files()
	if err != nil {
		return nil, err
	}
	base := &chunkstore.Base{Manifest: m, Files: map[string]string{}, Clone: d.Clone}
	for _, f := range files {
		base.Files[f.Name] = f.Path
	}
	return base, nil
}
