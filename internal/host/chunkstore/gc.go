package chunkstore

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/host/blob"
)

// checkParent answers ErrNotFound for a manifest whose chunks a collection may have removed.
func (v *Store) checkParent(ctx context.Context, m *Manifest) error {
	r := v.keys(m.Tenant).own
	var err error
	for _, key := range []string{r.manifestKey(m.ID), r.deletedKey(m.ID)} {
		if _, err = v.objects.Stat(ctx, key); err == nil {
			return nil
		}
	}
	if errors.Is(err, blob.ErrNotFound) {
		return ErrNotFound
	}
	return err
}

// putManifest stores a manifest where none is. An attempt whose answer was lost counts.
func (v *Store) putManifest(ctx context.Context, key string, data []byte) error {
	err := v.retry(ctx, func(ctx context.Context) error {
		return v.objects.PutIfAbsent(ctx, key, bytes.NewReader(data), int64(len(data)))
	})
	if errors.Is(err, blob.ErrExists) {
		if there, err := v.getAll(ctx, key, int64(len(data))); err == nil && bytes.Equal(there, data) {
			return nil
		}
	}
	return err
}

// Delete removes a manifest; one that is not there is fine. Its chunks stay for the grace at least:
// machines may read from them, and pushes may rely on them. Then Collect removes those that nobody else
// needs.
func (v *Store) Delete(ctx context.Context, s Tenant, id ID) error {
	if err := id.check(); err != nil {
		return fmt.Errorf("delete manifest: %w", err)
	}
	r := v.keys(s).own
	data, err := v.getAll(ctx, r.manifestKey(id), maxManifest)
	if errors.Is(err, blob.ErrNotFound) {
		return nil
	}
	if err == nil {
		err = v.put(ctx, r.deletedKey(id), data)
	}
	if err == nil {
		err = v.objects.Delete(ctx, r.manifestKey(id))
	}
	if err != nil {
		return fmt.Errorf("delete manifest %s: %w", id, err)
	}
	return nil
}

// GCStats tells what a collection removed.
type GCStats struct {
	Chunks int
	Bytes  int64 // of chunks
	Kept   int   // chunks that stay
}

// GC removes chunks that no manifest has named for the grace, of all spaces. It may run on several
// hosts at once, beside everything else. Where a manifest cannot be read nothing of its space and of
// Common is removed, and the error says so.
//
// It is safe because a chunk goes only when it is older than the grace at the begin of the collection and
// no manifest of that time names it, while a push that relies on a chunk it found either finds it younger
// than half of that, or stores it again, or has a parent that is kept for the grace, and itself takes less
// than half of the grace.
func (v *Store) GC(ctx context.Context) (GCStats, error) {
	c := collector{v: v, cutoff: time.Now().Add(-v.cfg.Grace), needed: map[chunkRef]bool{}, unreadable: map[tag]bool{}}
	err := v.objects.List(ctx, "w/", func(i blob.Info) error { c.classify(i); return nil })
	if err != nil {
		return GCStats{}, fmt.Errorf("collect chunks: %w", err)
	}
	unread := c.mark(ctx)
	done, err := c.sweep(ctx)
	if err = errors.Join(unread, err); err != nil {
		err = fmt.Errorf("collect chunks: %w", err)
	}
	return done, err
}

// chunkRef is where a chunk lies.
type chunkRef struct {
	tag  tag
	name Name
}

// storedObject is one object in the store that a collection looks at.
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
	unreadable map[tag]bool // spaces of which not all is known
}

// classify takes an object into account. What is not ours is left alone.
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

// mark finds out what is needed.
func (c *collector) mark(ctx context.Context) error {
	common := c.v.ring.tag(Common)
	var all error
	for _, o := range c.manifests {
		if o.kind == "d" && o.Modified.Before(c.cutoff) {
			continue
		}
		r := c.v.ring.tenantKeys(o.tag)
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

// sweep removes what is not needed.
func (c *collector) sweep(ctx context.Context) (GCStats, error) {
	var done GCStats
	for _, o := range c.chunks {
		at, known := o.chunkRef()
		if !known || c.needed[at] || c.unreadable[o.tag] || !o.Modified.Before(c.cutoff) {
			done.Kept++
			continue
		}
		// It may have been stored again since the list was made.
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

// chunkRef tells which chunk an object is; false for one that is none.
func (o storedObject) chunkRef() (chunkRef, bool) {
	name, err := hex.DecodeString(strings.Replace(o.rest, "/", "", 1))
	if err != nil || len(name) != len(Name{}) {
		return chunkRef{}, false
	}
	at := chunkRef{o.tag, Name(name)}
	return at, (&tenantKeys{tag: at.tag}).chunkKey(at.name) == o.Key
}
