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

	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/os/disk"
)

// Push are the parameters of Store.Push.
type Push struct {
	Tenant Tenant
	ID     ID
	Meta   json.RawMessage // stored in the manifest, encrypted
	Files  []LocalFile
	// Parent is a manifest whose files are in ParentFiles, by name: only the difference is stored. It belongs
	// to the same tenant or to Common. The caller guarantees that the files are unchanged since they were
	// pushed.
	Parent      *Manifest
	ParentFiles map[string]string
	// HighCompression is for content that is read soon and often. It doubles the time of compression and
	// makes programs 6 % smaller.
	HighCompression bool
}

// LocalFile is a file to push. It must not change meanwhile.
type LocalFile struct{ Name, Path string }

// Push stores files and returns their manifest. The push is invisible until it is complete: the manifest is
// stored last. An error or a kill may leave chunks that no manifest names; the next push of the same files
// reuses them, or GC removes them.
//
// Push returns ErrExists if the id exists, and ErrNotFound if the parent was deleted meanwhile: then push
// again without a parent.
func (s *Store) Push(ctx context.Context, in Push) (_ *Manifest, stats PushStats, err error) {
	start := time.Now()
	p := &pusher{
		v:         s,
		in:        in,
		keys:      s.keys(in.Tenant),
		inherited: map[Name]int{},
		sent:      map[Name]bool{},
		pack:      newOpenChunk(0),
		seen:      map[pageSum]pageLocation{},
		m:         &Manifest{ID: in.ID, Tenant: in.Tenant, Meta: in.Meta, Created: start.UTC()},
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
	up.SetLimit(s.cfg.Parallel)
	p.up, p.upCtx = up, upCtx
	for _, f := range in.Files {
		if err = p.addFile(upCtx, f); err != nil {
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
	if err := p.finish(ctx, start); err != nil {
		return nil, p.stats, err
	}
	return p.m, p.stats, nil
}

// pusher is one running push. One goroutine reads the files; uploads have their own.
type pusher struct {
	v    *Store
	in   Push
	keys *keys
	m    *Manifest

	up    *errgroup.Group
	upCtx context.Context

	inherited map[Name]int // index in m.Chunks of the chunks taken over from the parent

	pack *openChunk               // collects pages that have no chunk yet
	seen map[pageSum]pageLocation // pages that this push stores

	mu    sync.Mutex
	stats PushStats     // guarded by mu
	sent  map[Name]bool // chunks that this push stores; guarded by mu
}

// openChunk collects pages that become a chunk.
type openChunk struct {
	pages   []byte
	extents []extentRef // the extents that refer to it
	index   int         // in m.Chunks when it is stored; -1 before
}

func newOpenChunk(pages int) *openChunk {
	return &openChunk{pages: make([]byte, 0, pages*PageSize), index: -1}
}

// extentRef is an extent of a file whose chunk is not known yet.
type extentRef struct{ file, extent int }

// pageLocation is the place where a page is stored.
type pageLocation struct {
	pack *openChunk
	at   int // index of the page in pack
}

// maxSeen bounds the number of remembered pages. They serve content that is both on the disk and in the
// guest's memory, to store it once.
const maxSeen = 1 << 18

// check rejects an impossible push before anything is stored.
func (p *pusher) check(ctx context.Context) error {
	if err := p.in.ID.check(); err != nil {
		return err
	}
	for _, f := range p.in.Files {
		if err := checkName(f.Name); err != nil {
			return err
		}
	}
	if parent := p.in.Parent; parent != nil {
		if parent.Tenant != p.in.Tenant && parent.Tenant != Common {
			return fmt.Errorf("parent %s: %w", parent.ID, ErrWrongTenant)
		}
		p.m.Parent = parent.ID
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		exists, err := p.v.Exists(ctx, p.in.Tenant, p.in.ID)
		if exists {
			return ErrExists
		}
		return err
	})
	if parent := p.in.Parent; parent != nil {
		g.Go(func() error {
			exists, err := p.v.Exists(ctx, parent.Tenant, parent.ID)
			if err == nil && !exists {
				err = fmt.Errorf("parent %s: %w", parent.ID, ErrNotFound)
			}
			return err
		})
	}
	return g.Wait()
}

// finish stores the manifest after making sure that everything it names is in the store.
func (p *pusher) finish(ctx context.Context, start time.Time) error {
	if parent := p.in.Parent; parent != nil {
		if err := p.v.checkParent(ctx, parent); err != nil {
			return fmt.Errorf("parent %s: %w", parent.ID, err)
		}
	}
	if took := time.Since(start); took > p.v.cfg.Grace/2 {
		return fmt.Errorf(
			"it took %v, and after %v garbage collection may have removed chunks that it uses; push again",
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

// addFile maps one file, and stores its pages that the store lacks.
func (p *pusher) addFile(ctx context.Context, l LocalFile) (err error) {
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
		return fmt.Errorf("%s is too large, or not a regular file", l.Path)
	}
	c := &fileDiff{file: f, size: info.Size()}
	var old File
	if p.in.Parent != nil {
		if was, ok := p.in.Parent.File(l.Name); ok && p.in.ParentFiles[l.Name] != "" {
			if c.parent, err = os.Open(p.in.ParentFiles[l.Name]); err != nil {
				return fmt.Errorf("open file of the parent: %w", err)
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
			if c.same, err = disk.SharedRuns(f, c.parent); err != nil {
				return err
			}
		}
	}
	p.m.Files = append(p.m.Files, File{Name: l.Name, Bytes: info.Size(), Mode: uint32(info.Mode().Perm())})
	index := len(p.m.Files) - 1
	return c.parts(ctx, p.v.workers(), func(part part) error { return p.addPart(index, old, part) })
}

// addPart maps one part of a file.
func (p *pusher) addPart(index int, old File, part part) error {
	p.mu.Lock()
	p.stats.DirtyBytes += int64(part.dirty) * PageSize
	p.mu.Unlock()
	into := p.pack
	whole := part.ownChunk() && !p.mostlyStored(part)
	switch {
	case whole:
		into = newOpenChunk(part.data)
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
			p.addPages(index, at, into, part.pages(page, n))
		default:
			p.addChanged(index, part, page, n, into)
		}
		page += n
	}
	if whole {
		return p.store(into)
	}
	return nil
}

// mostlyStored reports whether so many changed pages of a part are stored already that the part gets no chunk
// of its own.
func (p *pusher) mostlyStored(part part) bool {
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

// addChanged maps changed pages to equal pages of this push, or adds them to an open chunk.
func (p *pusher) addChanged(index int, part part, page, count int, into *openChunk) {
	for end := page + count; page < end; {
		first, known := p.seen[part.sums[page]]
		n := 1
		for ; page+n < end; n++ {
			next, ok := p.seen[part.sums[page+n]]
			if ok != known || ok && next != (pageLocation{first.pack, first.at + n}) {
				break
			}
		}
		at := part.page + int64(page)
		if known {
			p.addExtent(index, Extent{Page: at, Count: n, At: first.at}, first.pack)
		} else {
			for i := 0; i < n && len(p.seen) < maxSeen; i++ {
				p.seen[part.sums[page+i]] = pageLocation{into, len(into.pages)/PageSize + i}
			}
			p.addPages(index, at, into, part.pages(page, n))
		}
		page += n
	}
}

// addPages adds pages of a file, starting at page, to an open chunk.
func (p *pusher) addPages(index int, page int64, into *openChunk, pages []byte) {
	e := Extent{Page: page, Count: len(pages) / PageSize, At: len(into.pages) / PageSize}
	into.pages = append(into.pages, pages...)
	p.addExtent(index, e, into)
}

// addExtent adds an extent in an open chunk to a file.
func (p *pusher) addExtent(index int, e Extent, in *openChunk) {
	f := &p.m.Files[index]
	e.Chunk = in.index
	f.Extents = append(f.Extents, e)
	if in.index < 0 {
		in.extents = append(in.extents, extentRef{index, len(f.Extents) - 1})
	}
}

// inherit maps pages to the chunks of the parent.
func (p *pusher) inherit(f *File, old File, page int64, count int) {
	for e := range old.within(page, page+int64(count)) {
		c := p.in.Parent.Chunks[e.Chunk]
		c.Common = c.Common || p.in.Parent.Tenant == Common
		i, ok := p.inherited[c.Name]
		if !ok {
			i = p.addChunk(c)
			p.inherited[c.Name] = i
		}
		e.Chunk = i
		f.Extents = append(f.Extents, e)
	}
}

// addChunk adds a chunk to the manifest and returns its index. Meanwhile uploads set earlier ones.
func (p *pusher) addChunk(c Chunk) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.m.Chunks = append(p.m.Chunks, c)
	return len(p.m.Chunks) - 1
}

// flush stores the open chunk and starts another.
func (p *pusher) flush() error {
	full := p.pack
	p.pack = newOpenChunk(chunkPages)
	return p.store(full)
}

// store seals an open chunk and uploads it in the background, and completes the extents of its pages.
func (p *pusher) store(full *openChunk) error {
	if len(full.pages) == 0 {
		return nil
	}
	if err := context.Cause(p.upCtx); err != nil {
		return err
	}
	index, pages := p.addChunk(Chunk{}), full.pages
	full.index, full.pages = index, nil
	for _, h := range full.extents {
		p.m.Files[h.file].Extents[h.extent].Chunk = index
	}
	full.extents = nil
	p.up.Go(func() error {
		c, object, err := seal(p.v.codec.level(p.in.HighCompression), &p.keys.own, pages)
		if err != nil {
			return err
		}
		c.Common = p.in.Tenant == Common
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

// upload stores a chunk unless it is in the store. It stores a chunk again if that is so old that garbage
// collection may be about to remove it, which makes the chunk young.
func (p *pusher) upload(c Chunk, object []byte) error {
	key := p.keys.own.chunkKey(c.Name)
	info, err := p.v.objects.Stat(p.upCtx, key)
	fresh := err == nil && info.Bytes == int64(len(object)) && time.Since(info.Modified) < p.v.cfg.Grace/2
	if err != nil && !errors.Is(err, blob.ErrNotFound) && isPermanent(err) {
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
