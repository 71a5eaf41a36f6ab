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

// pageKind is how a page compares with the parent's page.
type pageKind byte

const (
	zero    pageKind = iota
	same             // as in the parent, and not zero
	changed          // not as in the parent, and not zero
)

// part is up to a chunk's worth of a file, compared with the parent.
type part struct {
	page   int64 // first page, in the file
	kinds  []pageKind
	data   int // number of pages that are not zero
	dirty  int // number of pages that changed
	bytes  []byte
	sums   []pageSum        // of pages that changed
	buffer *[ChunkSize]byte // underlies bytes; nil if there are none
}

// pageSum identifies the content of a page.
type pageSum [sha256.Size]byte

func (p part) pages(first, count int) []byte {
	return p.bytes[first*PageSize : (first+count)*PageSize]
}

// fileDiff compares a file with its version in the parent.
type fileDiff struct {
	file, parent     *os.File // parent may be nil: everything is new
	size, parentSize int64
	same             []disk.Run // of both files, known from their extents
	free             sync.Pool  // of *[ChunkSize]byte, from parts that yield has finished with
}

// ownChunk reports whether enough of a part's pages are new to store the part in a chunk of its own, by which
// equal parts of other files are found. Otherwise its pages share chunks with those of other parts. The
// unchanged pages of such a part are stored again, so a difference grows by an eighth at most.
func (p part) ownChunk() bool { return p.dirty >= 64 && p.dirty*8 >= p.data*7 }

// parts compares the parts of the file concurrently and passes them to yield in order, one at a time. Parts
// without content are left out.
func (c *fileDiff) parts(ctx context.Context, workers int, yield func(part) error) error {
	g, ctx := errgroup.WithContext(ctx)
	// The position in the queue gives a part its order, and the length of the queue bounds the memory in use.
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
				return nil // the goroutine that closed it returns the error
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

// skip moves off, the start of a part, over parts that are holes in the file. It returns empty if nothing
// follows.
func (c *fileDiff) skip(off *int64) (empty bool, err error) {
	at, err := unix.Seek(int(c.file.Fd()), *off, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("find holes in %s: %w", c.file.Name(), err)
	}
	*off = max(*off, at/ChunkSize*ChunkSize)
	return false, nil
}

var zeroPage [PageSize]byte // never written

// compare determines the kinds of a part's pages. It reads both files where they may differ.
func (c *fileDiff) compare(off int64) (part, error) {
	size := min(ChunkSize, c.size-off)
	pages := int(pagesOf(size))
	p := part{page: off / PageSize, kinds: make([]pageKind, pages)}
	// Some pages in shared blocks may be zero. The parent's manifest has no extents for them.
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
	if p.ownChunk() { // unchanged pages are stored with it
		if _, err := c.file.ReadAt(p.bytes[:size], off); err != nil {
			return part{}, readError(c.file, err)
		}
	}
	return p, nil
}

// sameByBlocks yields the pages of a part that are the same as the parent's because they share disk blocks.
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

// comparePages reads count pages of a part from both files and determines their kinds.
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
			continue // all kinds are zero at first
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
		return fmt.Errorf("%s was truncated while it was read", f.Name())
	}
	return err
}
