package chunk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/internal/blob"
	"github.com/pandastack/pandastack/internal/disk"
)

// Push is what to put into the store.
type Push struct {
	Space Space
	ID    ID
	Meta  json.RawMessage // kept in the manifest, encrypted
	Files []Local
	// Parent is a manifest whose content is at hand in ParentFiles, by name: only what differs is stored.
	// It is of the same space or of Common. The caller vouches that the files are what was pushed.
	Parent      *Manifest
	ParentFiles map[string]string
}

// Local is a file to push. It must not change meanwhile.
type Local struct{ Name, Path string }

// Push stores files and answers their manifest. Nothing of a push is to be seen before it is whole: the
// manifest is stored last. After an error, or a kill, chunks may be left that no manifest names; the next
// push of the same files finds them, or Collect removes them.
//
// ErrExists: there is a manifest of this id. ErrNotFound: the parent was deleted meanwhile, push without.
func (v *Vault) Push(ctx context.Context, in Push) (_ *Manifest, stats Stats, err error) {
	began := time.Now()
	p := &pushing{v: v, in: in, keys: v.keys(in.Space), known: map[Name]int{}, sent: map[Name]bool{},
		m: &Manifest{ID: in.ID, Space: in.Space, Meta: in.Meta, Created: began.UTC()}}
	defer func() {
		if err != nil {
			err = fmt.Errorf("push %s: %w", in.ID, err)
		}
	}()
	if err := p.check(ctx); err != nil {
		return nil, stats, err
	}
	up, upCtx := errgroup.WithContext(ctx)
	up.SetLimit(v.cfg.Parallel)
	p.up, p.upCtx = up, upCtx
	for _, f := range in.Files {
		if err = p.file(upCtx, f); err != nil {
			break
		}
	}
	if err == nil {
		err = p.flush()
	}
	if sent := up.Wait(); sent != nil {
		return nil, p.stats, sent
	}
	if err != nil {
		return nil, p.stats, err
	}
	if err := p.finish(ctx, began); err != nil {
		return nil, p.stats, err
	}
	return p.m, p.stats, nil
}

// pushing is one push under way. One goroutine goes through the files; uploads have their own.
type pushing struct {
	v    *Vault
	in   Push
	keys *keys
	m    *Manifest

	up    *errgroup.Group
	upCtx context.Context

	known map[Name]int // index in m.Chunks of those taken over from the parent

	pack   []byte // pages that have no chunk yet
	packed []home // where they belong

	mu    sync.Mutex
	stats Stats         // guarded by mu
	sent  map[Name]bool // chunks that this push looks after; guarded by mu
}

// home is where a run of pages of the pack belongs: an extent of a file whose chunk is not known yet.
type home struct{ file, extent int }

// check refuses what cannot be pushed before anything is stored.
func (p *pushing) check(ctx context.Context) error {
	if err := p.in.ID.check(); err != nil {
		return err
	}
	for _, f := range p.in.Files {
		if err := checkName(f.Name); err != nil {
			return err
		}
	}
	if parent := p.in.Parent; parent != nil {
		if parent.Space != p.in.Space && parent.Space != Common {
			return fmt.Errorf("parent %s: %w", parent.ID, ErrWorkspace)
		}
		p.m.Parent = parent.ID
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		there, err := p.v.Exists(ctx, p.in.Space, p.in.ID)
		if there {
			return ErrExists
		}
		return err
	})
	if parent := p.in.Parent; parent != nil {
		g.Go(func() error {
			there, err := p.v.Exists(ctx, parent.Space, parent.ID)
			if err == nil && !there {
				err = fmt.Errorf("parent %s: %w", parent.ID, ErrNotFound)
			}
			return err
		})
	}
	return g.Wait()
}

// finish stores the manifest, when all it names is in the store for sure.
func (p *pushing) finish(ctx context.Context, began time.Time) error {
	if parent := p.in.Parent; parent != nil {
		if err := p.v.stillThere(ctx, parent); err != nil {
			return fmt.Errorf("parent %s: %w", parent.ID, err)
		}
	}
	if took := time.Since(began); took > p.v.cfg.Grace/2 {
		return fmt.Errorf("it took %v, and after %v a collection may have removed what it relies on", took, p.v.cfg.Grace/2)
	}
	data, err := p.m.envelope(p.v.codec, &p.keys.own)
	if err != nil {
		return err
	}
	p.stats.Uploaded += int64(len(data))
	if err := p.v.putManifest(ctx, p.keys.own.manifestKey(p.in.ID), data); err != nil {
		if errors.Is(err, blob.ErrExists) {
			return ErrExists
		}
		return err
	}
	return nil
}

// file maps one file, and stores those of its pages that the store lacks.
func (p *pushing) file(ctx context.Context, l Local) (err error) {
	f, err := os.Open(l.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return fmt.Errorf("%s is not a file that can be pushed", l.Path)
	}
	c := &comparison{file: f, size: info.Size()}
	var old File
	if p.in.Parent != nil {
		if was, ok := p.in.Parent.File(l.Name); ok && p.in.ParentFiles[l.Name] != "" {
			if c.parent, err = os.Open(p.in.ParentFiles[l.Name]); err != nil {
				return fmt.Errorf("file of the parent: %w", err)
			}
			defer c.parent.Close()
			old = was
			if info, err := c.parent.Stat(); err != nil || info.Size() != old.Bytes {
				return errors.Join(err, fmt.Errorf("%s is not file %s of manifest %s", c.parent.Name(), old.Name, p.in.Parent.ID))
			}
			c.parentSize = old.Bytes
			if c.same, err = disk.Same(f, c.parent); err != nil {
				return err
			}
		}
	}
	p.m.Files = append(p.m.Files, File{Name: l.Name, Bytes: info.Size(), Mode: uint32(info.Mode().Perm())})
	index := len(p.m.Files) - 1
	return c.parts(ctx, p.v.workers(), func(part part) error { return p.part(index, old, part) })
}

// part maps one part of a file.
func (p *pushing) part(index int, old File, part part) error {
	whole := part.ownChunk()
	p.mu.Lock()
	p.stats.DirtyBytes += int64(part.dirty) * PageSize
	p.mu.Unlock()
	if !whole && len(p.pack)+part.dirty*PageSize > ChunkSize {
		if err := p.flush(); err != nil {
			return err
		}
	}
	var own []byte // pages of the part's own chunk
	if whole {
		own = make([]byte, 0, part.data*PageSize)
	} else if p.pack == nil && part.dirty > 0 {
		p.pack = make([]byte, 0, ChunkSize)
	}
	var homes []home
	f := &p.m.Files[index]
	for page := 0; page < len(part.kinds); {
		kind, n := part.kinds[page], 1
		for page+n < len(part.kinds) && part.kinds[page+n] == kind {
			n++
		}
		at := part.page + int64(page)
		switch {
		case kind == zero:
		case kind == same && !whole:
			p.inherit(f, old, at, n)
		default: // changed; also what is the same, in a chunk of its own
			into := &p.pack
			if whole {
				into = &own
			}
			f.Extents = append(f.Extents, Extent{Page: at, Count: n, Chunk: -1, At: len(*into) / PageSize})
			*into = append(*into, part.pages(page, n)...)
			h := home{index, len(f.Extents) - 1}
			if whole {
				homes = append(homes, h)
			} else {
				p.packed = append(p.packed, h)
			}
		}
		page += n
	}
	if whole {
		return p.store(own, homes)
	}
	return nil
}

// inherit maps pages to where the parent has them.
func (p *pushing) inherit(f *File, old File, page int64, count int) {
	for e := range old.within(page, page+int64(count)) {
		c := p.in.Parent.Chunks[e.Chunk]
		c.Common = c.Common || p.in.Parent.Space == Common
		i, ok := p.known[c.Name]
		if !ok {
			i = p.add(c)
			p.known[c.Name] = i
		}
		e.Chunk = i
		f.Extents = append(f.Extents, e)
	}
}

// add puts a chunk into the manifest and gives its index. Uploads write to earlier ones meanwhile.
func (p *pushing) add(c Chunk) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.m.Chunks = append(p.m.Chunks, c)
	return len(p.m.Chunks) - 1
}

// flush gives the packed pages a chunk.
func (p *pushing) flush() error {
	pages, homes := p.pack, p.packed
	p.pack, p.packed = nil, nil
	return p.store(pages, homes)
}

// store begins to seal and upload a chunk, and notes where its pages belong.
func (p *pushing) store(pages []byte, homes []home) error {
	if len(pages) == 0 {
		return nil
	}
	if err := context.Cause(p.upCtx); err != nil {
		return err
	}
	index := p.add(Chunk{})
	for _, h := range homes {
		p.m.Files[h.file].Extents[h.extent].Chunk = index
	}
	p.up.Go(func() error {
		c, object, err := seal(p.v.codec, &p.keys.own, pages)
		if err != nil {
			return err
		}
		c.Common = p.in.Space == Common
		p.mu.Lock()
		p.m.Chunks[index] = c
		twice := p.sent[c.Name]
		p.sent[c.Name] = true
		p.mu.Unlock()
		if twice {
			return nil
		}
		return p.upload(c, object)
	})
	return nil
}

// upload stores a chunk unless the store has it. One that is so old that a collection may be about to
// remove it is stored again, which makes it young.
func (p *pushing) upload(c Chunk, object []byte) error {
	key := p.keys.own.chunkKey(c.Name)
	info, err := p.v.store.Stat(p.upCtx, key)
	fresh := err == nil && info.Bytes == int64(len(object)) && time.Since(info.Modified) < p.v.cfg.Grace/2
	if err != nil && !errors.Is(err, blob.ErrNotFound) && final(err) {
		return err
	}
	if !fresh {
		if err := p.v.put(p.upCtx, key, object); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Chunks++
	if fresh {
		p.stats.Reused++
	} else {
		p.stats.Uploaded += int64(len(object))
	}
	return nil
}
