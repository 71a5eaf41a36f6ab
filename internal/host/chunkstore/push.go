package chunkstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/internal/host/blob"
	"github.com/pandastack/pandastack/internal/os/disk"
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
	// Dense is for what is read soon and often: twice the time goes into packing it, and programs take 6 % less.
	Dense bool
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
	p := &pushing{
		v:     v,
		in:    in,
		keys:  v.keys(in.Space),
		known: map[Name]int{},
		sent:  map[Name]bool{},
		pack:  newPack(0),
		seen:  map[sum]spot{},
		m:     &Manifest{ID: in.ID, Space: in.Space, Meta: in.Meta, Created: began.UTC()},
	}
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

	pack *pack        // of pages that have no chunk yet
	seen map[sum]spot // pages that this push stores

	mu    sync.Mutex
	stats Stats         // guarded by mu
	sent  map[Name]bool // chunks that this push looks after; guarded by mu
}

// pack is pages that become a chunk.
type pack struct {
	pages []byte
	homes []home // where they belong
	index int    // in m.Chunks, when it is stored; until then -1
}

func newPack(pages int) *pack { return &pack{pages: make([]byte, 0, pages*PageSize), index: -1} }

// home is where a run of pages of a pack belongs: an extent of a file whose chunk is not known yet.
type home struct{ file, extent int }

// spot is where a page is stored.
type spot struct {
	pack *pack
	at   int // page of it
}

// maxSeen bounds how many pages are remembered: a file that was written lies on the disk and in the guest's memory, and
// is stored once.
const maxSeen = 1 << 18

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
		return fmt.Errorf(
			"it took %v, and after %v a collection may have removed what it relies on",
			took,
			p.v.cfg.Grace/2,
		)
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
				return errors.Join(
					err,
					fmt.Errorf("%s is not file %s of manifest %s", c.parent.Name(), old.Name, p.in.Parent.ID),
				)
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
	p.mu.Lock()
	p.stats.DirtyBytes += int64(part.dirty) * PageSize
	p.mu.Unlock()
	into := p.pack
	whole := part.ownChunk() && !p.stored(part)
	switch {
	case whole:
		into = newPack(part.data)
	case len(p.pack.pages)+part.dirty*PageSize > ChunkSize:
		if err := p.flush(); err != nil {
			return err
		}
		into = p.pack
	}
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
		case kind == same:
			p.add(index, at, into, part.pages(page, n))
		default:
			p.changed(index, part, page, n, into)
		}
		page += n
	}
	if whole {
		return p.store(into)
	}
	return nil
}

// stored tells whether enough of a part's changed pages is stored already so that it is not stored as a whole.
func (p *pushing) stored(part part) bool {
	n := 0
	for i, k := range part.kinds {
		if k == changed {
			if _, ok := p.seen[part.sums[i]]; ok {
				n++
			}
		}
	}
	return n*8 >= part.dirty
}

// changed maps changed pages to where this push has stored the same, or puts them into a pack.
func (p *pushing) changed(index int, part part, page, count int, into *pack) {
	for end := page + count; page < end; {
		first, known := p.seen[part.sums[page]]
		n := 1
		for ; page+n < end; n++ {
			next, ok := p.seen[part.sums[page+n]]
			if ok != known || ok && next != (spot{first.pack, first.at + n}) {
				break
			}
		}
		at := part.page + int64(page)
		if known {
			p.lay(index, Extent{Page: at, Count: n, At: first.at}, first.pack)
		} else {
			for i := 0; i < n && len(p.seen) < maxSeen; i++ {
				p.seen[part.sums[page+i]] = spot{into, len(into.pages)/PageSize + i}
			}
			p.add(index, at, into, part.pages(page, n))
		}
		page += n
	}
}

// add puts pages of a file, from one on, into a pack.
func (p *pushing) add(index int, page int64, into *pack, pages []byte) {
	e := Extent{Page: page, Count: len(pages) / PageSize, At: len(into.pages) / PageSize}
	into.pages = append(into.pages, pages...)
	p.lay(index, e, into)
}

// lay gives a file an extent in a pack.
func (p *pushing) lay(index int, e Extent, in *pack) {
	f := &p.m.Files[index]
	e.Chunk = in.index
	f.Extents = append(f.Extents, e)
	if in.index < 0 {
		in.homes = append(in.homes, home{index, len(f.Extents) - 1})
	}
}

// inherit maps pages to where the parent has them.
func (p *pushing) inherit(f *File, old File, page int64, count int) {
	for e := range old.within(page, page+int64(count)) {
		c := p.in.Parent.Chunks[e.Chunk]
		c.Common = c.Common || p.in.Parent.Space == Common
		i, ok := p.known[c.Name]
		if !ok {
			i = p.chunk(c)
			p.known[c.Name] = i
		}
		e.Chunk = i
		f.Extents = append(f.Extents, e)
	}
}

// chunk puts a chunk into the manifest and gives its index. Uploads write to earlier ones meanwhile.
func (p *pushing) chunk(c Chunk) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.m.Chunks = append(p.m.Chunks, c)
	return len(p.m.Chunks) - 1
}

// flush gives the packed pages a chunk.
func (p *pushing) flush() error {
	full := p.pack
	p.pack = newPack(chunkPages)
	return p.store(full)
}

// store begins to seal and upload a pack as a chunk, and notes where its pages belong.
func (p *pushing) store(full *pack) error {
	if len(full.pages) == 0 {
		return nil
	}
	if err := context.Cause(p.upCtx); err != nil {
		return err
	}
	index, pages := p.chunk(Chunk{}), full.pages
	full.index, full.pages = index, nil
	for _, h := range full.homes {
		p.m.Files[h.file].Extents[h.extent].Chunk = index
	}
	full.homes = nil
	p.up.Go(func() error {
		c, object, err := seal(p.v.codec.level(p.in.Dense), &p.keys.own, pages)
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
