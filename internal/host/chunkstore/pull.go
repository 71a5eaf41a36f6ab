package chunkstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/lib/durable"
)

// Base is a manifest whose files are on this host, to derive others from.
type Base struct {
	Manifest *Manifest
	Files    map[string]string // path by name; the files are not changed
	// Clone makes a file that shares its blocks with another.
	Clone func(from, to string) error
}

// PullStats describes a pull.
type PullStats struct {
	Bytes   int64 // written, of pages that are not zero
	Fetched int64 // read from the store, compressed
}

// Pull writes the files of the manifest into dir. If wanted is not nil, Pull writes only the files for which
// it returns true. dir exists and has none of the files. The caller makes them durable. Pages of zeros take
// no space. With a base, files start as clones of its files, and only the difference is downloaded and
// written. Pull reads from the cache and adds nothing to it. After an error the files are removed.
func (r *Reader) Pull(
	ctx context.Context,
	dir string,
	base *Base,
	wanted func(name string) bool,
) (done PullStats, err error) {
	p := &puller{r: r, files: make([]*os.File, len(r.m.Files)), targets: map[int][]target{}}
	defer func() {
		if err = errors.Join(err, p.close(err != nil)); err != nil {
			err = fmt.Errorf("pull %s: %w", r.m.ID, err)
		}
	}()
	for i, f := range r.m.Files {
		if wanted != nil && !wanted(f.Name) {
			continue
		}
		if err := p.createFile(i, f, filepath.Join(dir, f.Name), base); err != nil {
			return PullStats{}, err
		}
	}
	if err := p.fill(ctx); err != nil {
		return PullStats{}, err
	}
	for _, n := range p.perChunk {
		done.Bytes += n.Bytes
		done.Fetched += n.Fetched
	}
	return done, nil
}

// target is a place that pages of a chunk are written to.
type target struct {
	file int
	Extent
}

type puller struct {
	r        *Reader
	files    []*os.File
	targets  map[int][]target // by chunk
	perChunk []PullStats      // statistics of each chunk
}

// close closes the files, and removes them if remove is set.
func (p *puller) close(remove bool) (err error) {
	for _, f := range p.files {
		if f == nil {
			continue
		}
		err = errors.Join(err, f.Close())
		if remove {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}
	return err
}

// createFile makes a file and records what must be written into it.
func (p *puller) createFile(i int, f File, path string, base *Base) (err error) {
	var was File
	if base != nil && base.Files[f.Name] != "" {
		was, _ = base.Manifest.File(f.Name)
	}
	if was.Name != "" {
		if err := base.Clone(base.Files[f.Name], path); err != nil {
			return fmt.Errorf("clone local base: %w", err)
		}
	}
	flags := os.O_RDWR
	if was.Name == "" {
		flags |= os.O_CREATE | os.O_EXCL
	}
	file, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return err
	}
	p.files[i] = file
	if err := errors.Join(file.Truncate(f.Bytes), file.Chmod(os.FileMode(f.Mode))); err != nil {
		return err
	}
	next := int64(0)
	for _, e := range f.Extents {
		if err := punch(file, was, next, e.Page); err != nil {
			return err
		}
		next = e.end()
		for _, x := range p.differ(e, was, base) {
			p.targets[x.Chunk] = append(p.targets[x.Chunk], target{i, x})
		}
	}
	return punch(file, was, next, pagesOf(f.Bytes))
}

// punch clears pages of a file that started as a clone of was.
func punch(file *os.File, was File, from, to int64) error {
	for e := range was.within(from, to) {
		err := unix.Fallocate(
			int(file.Fd()),
			unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE,
			e.Page*PageSize,
			int64(e.Count)*PageSize,
		)
		if err != nil {
			return fmt.Errorf("punch hole in %s: %w", file.Name(), err)
		}
	}
	return nil
}

// differ returns the parts of an extent that the clone does not have.
func (p *puller) differ(e Extent, was File, base *Base) []Extent {
	if was.Name == "" {
		return []Extent{e}
	}
	var all []Extent
	next := e.Page
	for same := range shared(p.r.m, e, was, base.Manifest) {
		all = append(all, e.cut(next, same.Page)...)
		next = same.end()
	}
	return append(all, e.cut(next, e.end())...)
}

// fill writes the recorded content, chunk by chunk.
func (p *puller) fill(ctx context.Context) error {
	chunks := make([]int, 0, len(p.targets))
	for i := range p.targets {
		chunks = append(chunks, i)
	}
	slices.Sort(chunks)
	p.perChunk = make([]PullStats, len(chunks))
	return parallel(ctx, p.r.v.cfg.Parallel, chunks, func(ctx context.Context, n, i int) (err error) {
		p.perChunk[n], err = p.chunk(ctx, i)
		return err
	})
}

// chunk writes the pages of one chunk. It fetches runs of frames that are not in the cache.
func (p *puller) chunk(ctx context.Context, index int) (done PullStats, err error) {
	c := p.r.m.Chunks[index]
	homes := p.targets[index]
	slices.SortFunc(homes, func(a, b target) int { return cmp.Compare(a.At, b.At) })
	pages := make([]byte, c.Pages*PageSize)
	missing := make([]bool, len(c.Frames))
	for _, h := range homes {
		for i := h.At / framePages; i <= (h.At+h.Count-1)/framePages; i++ {
			at := i * FrameSize
			missing[i] = !p.r.cache.Read(object(c), at, pages[at:at+c.frameBytes(i)])
		}
	}
	for i := 0; i < len(missing); i++ {
		first := i
		for i < len(missing) && missing[i] {
			i++
		}
		if i == first {
			continue
		}
		data, err := p.r.v.fetch(ctx, p.r.keys.of(c.Common), c, first, i-first, nil)
		if err != nil {
			return done, err
		}
		copy(pages[first*FrameSize:], data)
		_, n := c.span(first, i-first)
		done.Fetched += n
	}
	for _, h := range homes {
		if err := p.write(h, pages[h.At*PageSize:(h.At+h.Count)*PageSize]); err != nil {
			return done, err
		}
		done.Bytes += int64(h.Count) * PageSize
	}
	return done, nil
}

func (p *puller) write(h target, data []byte) error {
	off, size := h.Page*PageSize, p.r.m.Files[h.file].Bytes
	_, err := p.files[h.file].WriteAt(data[:min(int64(len(data)), size-off)], off)
	if durable.IsNoSpace(err) {
		return fmt.Errorf("disk is full: %w", err)
	}
	return err
}
