package chunkstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/internal/host/chunkstore/cache"
	"github.com/pandastack/pandastack/internal/lib/blob"
)

// Reader reads the files of one manifest. It is a Source.
type Reader struct {
	v     *Store
	m     *Manifest
	keys  *keys
	cache *cache.Cache
	files map[string]File
	local map[string]*os.File // opened by WithLocalBase, by name
}

var _ Source = (*Reader)(nil)

// Reader returns a reader of a manifest, from Open or Push, that uses the host's cache.
func (s *Store) Reader(m *Manifest, c *cache.Cache) *Reader {
	r := &Reader{v: s, m: m, keys: s.keys(m.Tenant), cache: c, files: map[string]File{}, local: map[string]*os.File{}}
	for _, f := range m.Files {
		r.files[f.Name] = f
	}
	return r
}

// Manifest returns the manifest of the reader's files.
func (r *Reader) Manifest() *Manifest { return r.m }

// Size implements Source.
func (r *Reader) Size(file string) (int64, bool) {
	f, ok := r.files[file]
	return f.Bytes, ok
}

// RunAt implements Source.
func (r *Reader) RunAt(file string, off int64) (length int64, zero bool) {
	f, ok := r.files[file]
	if !ok || off < 0 || off >= f.Bytes {
		return 0, true
	}
	page := off / PageSize
	i := f.first(page)
	end := pagesOf(f.Bytes)
	switch {
	case i == len(f.Extents):
		zero = true
	case f.Extents[i].Page > page:
		zero, end = true, f.Extents[i].Page
	default:
		end = f.Extents[i].end()
		for i++; i < len(f.Extents) && f.Extents[i].Page == end; i++ {
			end = f.Extents[i].end()
		}
	}
	return min(end*PageSize, f.Bytes) - off, zero
}

// object returns the cache's identity of a chunk. Names of two tenants never collide: they are keyed hashes.
func object(c Chunk) cache.Object {
	return cache.Object{ID: c.Name.String(), Bytes: c.Pages * PageSize}
}

// ReadAt implements Source.
func (r *Reader) ReadAt(ctx context.Context, file string, p []byte, off int64) error {
	f, ok := r.files[file]
	if !ok || off < 0 || off+int64(len(p)) > f.Bytes {
		return fmt.Errorf("read %d bytes of %s at %d: beyond its end at %d", len(p), file, off, f.Bytes)
	}
	if len(p) == 0 {
		return nil
	}
	missing := map[int][]cache.Piece{}
	for _, x := range r.pieces(f, p, off) {
		if x.chunk == localChunk {
			if _, err := r.local[file].ReadAt(x.into, int64(x.at)); err != nil {
				return fmt.Errorf("read local copy of %s: %w", file, err)
			}
			continue
		}
		if !r.cache.Read(object(r.m.Chunks[x.chunk]), x.at, x.into) {
			missing[x.chunk] = append(missing[x.chunk], cache.Piece{Off: x.at, Into: x.into})
		}
	}
	if len(missing) == 0 {
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(r.v.cfg.Parallel)
	for i, pieces := range missing {
		g.Go(func() error { return r.fill(ctx, i, pieces) })
	}
	return g.Wait()
}

// piece is a part of a request whose content is in one place.
type piece struct {
	chunk, at int // in bytes of the chunk, or of the local file
	into      []byte
}

// pieces finds the content to read and fills the rest with zeros. It joins runs that are adjacent in the file
// and in the chunk.
func (r *Reader) pieces(f File, p []byte, off int64) []piece {
	var all []piece
	end, done := off+int64(len(p)), off
	for e := range f.within(off/PageSize, pagesOf(end)) {
		from, to := max(off, e.Page*PageSize), min(end, e.end()*PageSize)
		clear(p[done-off : from-off])
		at := e.At*PageSize + int(from-e.Page*PageSize)
		if e.Chunk == localChunk {
			at = int(from)
		}
		if n := len(all) - 1; n >= 0 && done == from && all[n].chunk == e.Chunk && all[n].at+len(all[n].into) == at {
			all[n].into = p[from-off-int64(len(all[n].into)) : to-off]
		} else {
			all = append(all, piece{e.Chunk, at, p[from-off : to-off]})
		}
		done = to
	}
	clear(p[done-off:])
	return all
}

// fill reads pieces of one chunk.
func (r *Reader) fill(ctx context.Context, index int, pieces []cache.Piece) error {
	c := r.m.Chunks[index]
	slices.SortFunc(pieces, func(a, b cache.Piece) int { return cmp.Compare(a.Off, b.Off) })
	return r.cache.Fill(ctx, object(c), pieces, r.fetcher(c))
}

// fetcher returns the function that fetches frames of a chunk.
func (r *Reader) fetcher(c Chunk) cache.Fetch {
	return func(ctx context.Context, first, count int) ([]byte, error) {
		return r.v.fetch(ctx, r.keys.of(c.Common), c, first, count, nil)
	}
}

// errReadTimeout is the cause of an attempt that took too long.
var errReadTimeout = fmt.Errorf("%w: the request for a part of a chunk took too long", blob.ErrTimeout)

// fetch reads frames from the store and verifies them. Their pages are in out if it has room for them and
// slack.
func (s *Store) fetch(
	ctx context.Context,
	r *tenantKeys,
	c Chunk,
	first, count int,
	out []byte,
) (pages []byte, err error) {
	key := r.chunkKey(c.Name)
	offset, length := c.span(first, count)
	err = s.retry(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.ReadTimeout, errReadTimeout)
		defer cancel()
		stored, err := s.hedge.read(
			ctx,
			func(ctx context.Context) ([]byte, error) { return s.getRange(ctx, key, offset, length) },
		)
		if err != nil {
			return err
		}
		defer s.buffers.put(stored)
		if pages, err = open(s.codec, r, c, first, count, stored, out); err != nil {
			return &DamagedError{key, err.Error()}
		}
		return nil
	})
	if errors.Is(err, blob.ErrNotFound) {
		err = errors.Join(&DamagedError{key, "object is missing from the store"}, err)
	}
	return pages, err
}

// frameRun is a run of frames of one chunk.
type frameRun struct{ chunk, first, count int }

// Prefetch implements Source.
func (r *Reader) Prefetch(ctx context.Context, ranges []Range) error {
	wanted, err := r.framesOf(ranges)
	if err != nil {
		return err
	}
	return parallel(ctx, r.v.cfg.Parallel, wanted, func(ctx context.Context, _ int, w frameRun) error {
		c := r.m.Chunks[w.chunk]
		return r.cache.Ensure(ctx, object(c), w.first, w.count, r.fetcher(c))
	})
}

// prefetchFrames bounds one request of a prefetch to 1 MiB before compression, so that one chunk takes
// several concurrent requests.
const prefetchFrames = 8

// framesOf lists the frames of ranges, each once, in the order of their first use, and joins adjacent ones.
func (r *Reader) framesOf(ranges []Range) ([]frameRun, error) {
	type place struct{ chunk, frame int }
	seen := map[place]bool{}
	var all []frameRun
	for _, x := range ranges {
		f, ok := r.files[x.File]
		if !ok || x.Offset < 0 || x.Length < 0 || x.Offset > f.Bytes-x.Length {
			return nil, fmt.Errorf("prefetch %d bytes of %s at %d: beyond its end at %d",
				x.Length, x.File, x.Offset, f.Bytes)
		}
		for e := range f.within(x.Offset/PageSize, pagesOf(x.Offset+x.Length)) {
			if e.Chunk == localChunk {
				continue
			}
			for i := e.At / framePages; i <= (e.At+e.Count-1)/framePages; i++ {
				if seen[place{e.Chunk, i}] {
					continue
				}
				seen[place{e.Chunk, i}] = true
				if n := len(all) - 1; n >= 0 && all[n].chunk == e.Chunk && all[n].first+all[n].count == i &&
					all[n].count < prefetchFrames {
					all[n].count++
				} else {
					all = append(all, frameRun{e.Chunk, i, 1})
				}
			}
		}
	}
	return all, nil
}
