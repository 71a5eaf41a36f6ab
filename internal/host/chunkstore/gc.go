package chunkstore

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/lib/blob"
)

// checkParent returns ErrNotFound if garbage collection may have removed chunks of a manifest.
func (s *Store) checkParent(ctx context.Context, m *Manifest) error {
	r := s.keys(m.Tenant).own
	var err error
	for _, key := range []string{r.manifestKey(m.ID), r.deletedKey(m.ID)} {
		if _, err = s.objects.Stat(ctx, key); err == nil {
			return nil
		}
	}
	if errors.Is(err, blob.ErrNotFound) {
		return ErrNotFound
	}
	return err
}

// putManifest stores a new manifest. It succeeds if an earlier attempt stored the manifest and its reply was
// lost.
func (s *Store) putManifest(ctx context.Context, key string, data []byte) error {
	err := s.retry(ctx, func(ctx context.Context) error {
		return s.objects.PutIfAbsent(ctx, key, bytes.NewReader(data), int64(len(data)))
	})
	if errors.Is(err, blob.ErrExists) {
		if there, err := s.getAll(ctx, key, int64(len(data))); err == nil && bytes.Equal(there, data) {
			return nil
		}
	}
	return err
}

// Delete removes a manifest. It returns nil if the manifest does not exist. Its chunks stay for the grace
// period at least: machines may read from them, and pushes may rely on them. Then GC removes the chunks that
// no other manifest needs.
func (s *Store) Delete(ctx context.Context, tenant Tenant, id ID) error {
	if err := id.check(); err != nil {
		return fmt.Errorf("delete manifest: %w", err)
	}
	r := s.keys(tenant).own
	data, err := s.getAll(ctx, r.manifestKey(id), maxManifest)
	if errors.Is(err, blob.ErrNotFound) {
		return nil
	}
	if err == nil {
		err = s.put(ctx, r.deletedKey(id), data)
	}
	if err == nil {
		err = s.objects.Delete(ctx, r.manifestKey(id))
	}
	if err != nil {
		return fmt.Errorf("delete manifest %s: %w", id, err)
	}
	return nil
}

// GCStats describes a garbage collection.
type GCStats struct {
	Chunks int
	Bytes  int64 // of the removed chunks
	Kept   int   // chunks that were kept
}

// GC removes chunks, of all tenants, that no manifest has named for the grace period. It may run on several
// hosts concurrently with everything else. If a manifest cannot be read, GC removes nothing of its tenant and
// of Common, and returns an error.
//
// It is safe because it removes only chunks that were older than the grace period when the collection began
// and that no manifest of that time names. A push that relies on a chunk found in the store finds it younger
// than half the grace period, or stores it again, or has a parent that is kept for the grace period; and the
// push itself takes less than half of it.
func (s *Store) GC(ctx context.Context) (GCStats, error) {
	c := collector{v: s, cutoff: time.Now().Add(-s.cfg.Grace), needed: map[chunkRef]bool{}, unreadable: map[tag]bool{}}
	err := s.objects.List(ctx, "w/", func(i blob.Info) error { c.classify(i); return nil })
	if err != nil {
		return GCStats{}, fmt.Errorf("garbage collection of chunks: %w", err)
	}
	unread := c.mark(ctx)
	done, err := c.sweep(ctx)
	if err = errors.Join(unread, err); err != nil {
		err = fmt.Errorf("garbage collection of chunks: %w", err)
	}
	return done, err
}

// chunkRef identifies a chunk of a tenant.
type chunkRef struct {
	tag  tag
	name Name
}

// storedObject is an object in the store.
type storedObject struct {
	blob.Info
	tag  tag
	kind string // "m", "d" or "c"
	rest string // of the key
}

type collector struct {
	v          *Store
	cutoff     time.Time
	manifests  []storedObject
	chunks     []storedObject
	needed     map[chunkRef]bool
	unreadable map[tag]bool // tenants with manifests that could not be read
}

// classify records an object. It ignores objects that are not ours.
func (c *collector) classify(i blob.Info) {
	parts := strings.SplitN(i.Key, "/", 4)
	if len(parts) != 4 {
		return
	}
	o := storedObject{Info: i, kind: parts[2], rest: parts[3]}
	own, err := hex.DecodeString(parts[1])
	if err != nil || len(own) != tagBytes {
		return
	}
	o.tag = tag(own)
	switch o.kind {
	case "m", "d":
		c.manifests = append(c.manifests, o)
	case "c":
		c.chunks = append(c.chunks, o)
	}
}

// mark determines the chunks that are needed.
func (c *collector) mark(ctx context.Context) error {
	common := tagOf(c.v.ring, Common)
	var all error
	for _, o := range c.manifests {
		if o.kind == "d" && o.Modified.Before(c.cutoff) {
			continue
		}
		r := newTenantKeys(c.v.ring, o.tag)
		m, err := c.v.load(ctx, &r, ID(o.rest), o.Key)
		if errors.Is(err, ErrNotFound) && o.kind == "m" { // deleted meanwhile
			m, err = c.v.load(ctx, &r, ID(o.rest), r.deletedKey(ID(o.rest)))
		}
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			c.unreadable[o.tag], c.unreadable[common] = true, true
			all = errors.Join(all, fmt.Errorf("%s: %w", o.Key, err))
			continue
		}
		for _, ch := range m.Chunks {
			at := chunkRef{o.tag, ch.Name}
			if ch.Common {
				at.tag = common
			}
			c.needed[at] = true
		}
	}
	return all
}

// sweep removes the chunks that are not needed.
func (c *collector) sweep(ctx context.Context) (GCStats, error) {
	var done GCStats
	for _, o := range c.chunks {
		at, known := o.chunkRef()
		if !known || c.needed[at] || c.unreadable[o.tag] || !o.Modified.Before(c.cutoff) {
			done.Kept++
			continue
		}
		// It may have been stored again since the listing.
		now, err := c.v.objects.Stat(ctx, o.Key)
		if err == nil && now.Modified.Equal(o.Modified) {
			err = c.v.objects.Delete(ctx, o.Key)
			done.Chunks++
			done.Bytes += o.Bytes
		}
		if err != nil && !errors.Is(err, blob.ErrNotFound) {
			return done, err
		}
	}
	for _, o := range c.manifests {
		if o.kind == "d" && o.Modified.Before(c.cutoff) && !c.unreadable[o.tag] {
			if err := c.v.objects.Delete(ctx, o.Key); err != nil {
				return done, err
			}
		}
	}
	return done, nil
}

// chunkRef returns the chunk that an object is, or false if it is none.
func (o storedObject) chunkRef() (chunkRef, bool) {
	name, err := hex.DecodeString(strings.Replace(o.rest, "/", "", 1))
	if err != nil || len(name) != len(Name{}) {
		return chunkRef{}, false
	}
	at := chunkRef{o.tag, Name(name)}
	return at, (&tenantKeys{tag: at.tag}).chunkKey(at.name) == o.Key
}
