package chunkstore

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/os/disk"
)

// pageKind is what became of a page.
type pageKind byte

const (
	zero    pageKind = iota
	same             // as in the parent, and not zero
	changed          // and not zero
)

// part is up to a chunk's worth of a file, compared.
type part struct {
	page   int64 // first, of the file
	kinds  []pageKind
	data   int // pages that are not zero
	dirty  int // pages that changed
	bytes  []byte
	sums   []pageSum        // of pages that changed
	buffer *[ChunkSize]byte // behind bytes; nil: there are none
}

// pageSum tells pages apart.
type pageSum [sha256.Size]byte

func (p part) pages(first, count int) []byte {
	return p.bytes[first*PageSize : (first+count)*PageSize]
}

// fileDiff is of a file with the one it grew from.
type fileDiff struct {
	file, parent     *os.File // parent may be nil: all is new
	size, parentSize int64
	same             []disk.Run // of both files, without reading them
	free             sync.Pool  // of *[ChunkSize]byte, behind parts that were yielded
}

// ownChunk is how many of a part's pages must be new so that it gets a chunk of its own, by which equal
// parts of other files are found; below that they are packed with others. The rest of such a part is
// stored anew with them, so a difference grows by an eighth at most.
func (p part) ownChunk() bool { return p.dirty >= 64 && p.dirty*8 >= p.data*7 }

// parts compares the parts of the file, several at once, and gives them to yield in order, one at a time, each until
// yield returns. Parts of zeros alone are left out.
func (c *fileDiff) parts(ctx context.Context, workers int, yield func(part) error) error {
	g, ctx := errgroup.WithContext(ctx)
	// A part is known by its place in the queue, so order and bound of what is in memory are the same thing.
	queue := make(chan chan part, workers)
	g.Go(func() error {
		defer close(queue)
		for off := int64(0); off < c.size; off += ChunkSize {
			if empty, err := c.skip(&off); err != nil || empty {
				return err
			}
			slot := make(chan part, 1)
			select {
			case queue <- slot:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			g.Go(func() error {
				p, err := c.compare(off)
				if err != nil {
					close(slot)
					return err
				}
				slot <- p
				return nil
			})
		}
		return nil
	})
	g.Go(func() error {
		for slot := range queue {
			p, ok := <-slot
			if !ok {
				return nil // whoever closed it has told why
			}
			if p.data != 0 {
				if err := yield(p); err != nil {
					return err
				}
			}
			if p.buffer != nil {
				c.free.Put(p.buffer)
			}
		}
		return nil
	})
	return g.Wait()
}

// skip moves off, the begin of a part, over parts that are holes of the file. empty: nothing follows.
func (c *fileDiff) skip(off *int64) (empty bool, err error) {
	at, err := unix.Seek(int(c.file.Fd()), *off, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for holes in %s: %w", c.file.Name(), err)
	}
	*off = max(*off, at/ChunkSize*ChunkSize)
	return false, nil
}

var zeroPage [PageSize]byte // never written

// compare tells what became of a part's pages. It reads both files where they may differ.
func (c *fileDiff) compare(off int64) (part, error) {
	size := min(ChunkSize, c.size-off)
	pages := int(pagesOf(size))
	p := part{page: off / PageSize, kinds: make([]pageKind, pages)}
	// Of pages that lie on the same blocks some may be zero. The parent's manifest has nothing for these.
	for i := range c.sameByBlocks(off, size) {
		p.kinds[i] = same
		p.data++
	}
	if p.data == pages {
		return p, nil
	}
	p.buffer, _ = c.free.Get().(*[ChunkSize]byte)
	if p.buffer == nil {
		p.buffer = new([ChunkSize]byte)
	}
	p.bytes = p.buffer[:pages*PageSize]
	clear(p.bytes[size:]) // of the last page
	for i := 0; i < pages; {
		n := 1
		for i+n < pages && p.kinds[i+n] == p.kinds[i] {
			n++
		}
		if p.kinds[i] != same {
			if err := c.comparePages(&p, off, i, n); err != nil {
				return part{}, err
			}
		}
		i += n
	}
	if p.dirty > 0 {
		p.sums = make([]pageSum, pages)
	}
	for i, k := range p.kinds {
		if k == changed {
			p.sums[i] = sha256.Sum256(p.pages(i, 1))
		}
	}
	if p.ownChunk() { // what is the same goes with it
		if _, err := c.file.ReadAt(p.bytes[:size], off); err != nil {
			return part{}, readError(c.file, err)
		}
	}
	return p, nil
}

// sameByBlocks gives the pages of a part that are the same as the parent's by where they lie.
func (c *fileDiff) sameByBlocks(off, size int64) iter.Seq[int] {
	return func(yield func(int) bool) {
		i, _ := slices.BinarySearchFunc(
			c.same,
			off,
			func(r disk.Run, off int64) int { return cmp.Compare(r.To, off+1) },
		)
		for ; i < len(c.same) && c.same[i].From < off+size; i++ {
			from := max(0, c.same[i].From-off+PageSize-1) / PageSize
			to := min(size, c.same[i].To-off, c.parentSize-off) / PageSize
			for page := from; page < to; page++ {
				if !yield(int(page)) {
					return
				}
			}
		}
	}
}

// comparePages reads count pages of a part, from first on, in both files and tells their kinds.
func (c *fileDiff) comparePages(p *part, off int64, first, count int) error {
	at := off + int64(first)*PageSize
	size := min(int64(count)*PageSize, c.size-at)
	if _, err := c.file.ReadAt(p.pages(first, count)[:size], at); err != nil {
		return readError(c.file, err)
	}
	var old []byte
	if c.parent != nil && at < c.parentSize {
		have := min(size, c.parentSize-at)
		old = make([]byte, int(pagesOf(have))*PageSize)
		if _, err := c.parent.ReadAt(old[:have], at); err != nil {
			return readError(c.parent, err)
		}
	}
	for i := range count {
		page := p.pages(first+i, 1)
		switch {
		case bytes.Equal(page, zeroPage[:]):
			continue // which all kinds are at first
		case (i+1)*PageSize <= len(old) && bytes.Equal(page, old[i*PageSize:(i+1)*PageSize]):
			p.kinds[first+i] = same
		default:
			p.kinds[first+i] = changed
			p.dirty++
		}
		p.data++
	}
	return nil
}

func readError(f *os.File, err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("%s became shorter while it was read", f.Name())
	}
	return err
}
