package chunk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// kind is what became of a page.
type kind byte

const (
	zero    kind = iota
	same         // as in the parent, and not zero
	changed      // and not zero
)

// part is up to a chunk's worth of a file, compared.
type part struct {
	page  int64 // first, of the file
	kinds []kind
	data  int // pages that are not zero
	dirty int // pages that changed
	bytes []byte
}

func (p part) pages(first, count int) []byte {
	return p.bytes[first*PageSize : (first+count)*PageSize]
}

// comparison is of a file with the one it grew from.
type comparison struct {
	file, parent     *os.File // parent may be nil: all is new
	size, parentSize int64
}

// parts compares the parts of the file, several at once, and gives them to yield in order, one at a time.
// Parts of zeros alone are left out.
func (c *comparison) parts(ctx context.Context, workers int, yield func(part) error) error {
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
			if p.data == 0 {
				continue
			}
			if err := yield(p); err != nil {
				return err
			}
		}
		return nil
	})
	return g.Wait()
}

// skip moves off, the begin of a part, over parts that are holes of the file. empty: nothing follows.
func (c *comparison) skip(off *int64) (empty bool, err error) {
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

// compare reads a part of both files.
func (c *comparison) compare(off int64) (part, error) {
	size := min(ChunkSize, c.size-off)
	pages := int(pagesOf(size))
	p := part{page: off / PageSize, kinds: make([]kind, pages), bytes: make([]byte, pages*PageSize)}
	if _, err := c.file.ReadAt(p.bytes[:size], off); err != nil {
		return part{}, changing(c.file, err)
	}
	var old []byte
	if c.parent != nil && off < c.parentSize {
		have := min(size, c.parentSize-off)
		old = make([]byte, int(pagesOf(have))*PageSize)
		if _, err := c.parent.ReadAt(old[:have], off); err != nil {
			return part{}, changing(c.parent, err)
		}
	}
	for i := range p.kinds {
		page := p.pages(i, 1)
		switch {
		case bytes.Equal(page, zeroPage[:]):
			p.kinds[i] = zero
			continue
		case (i+1)*PageSize <= len(old) && bytes.Equal(page, old[i*PageSize:(i+1)*PageSize]):
			p.kinds[i] = same
		default:
			p.kinds[i] = changed
			p.dirty++
		}
		p.data++
	}
	return p, nil
}

func changing(f *os.File, err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("%s became shorter while it was read", f.Name())
	}
	return err
}
