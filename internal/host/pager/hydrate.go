package pager

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/os/disk"
)

// Hydration reads hydratePieceBytes bytes in each of hydrateWorkers concurrent requests: enough to use a
// store with high latency, and little enough not to delay the content that machines wait for.
const (
	hydratePieceBytes = 1 << 20
	hydrateWorkers    = 4
)

// Hydrate writes the whole file to dst, which is empty or holds a part of it, and makes it durable. Long runs
// of zeros become holes, and content of a local copy shares the blocks of that file. After a nil error dst is
// the complete file. Hydrate calls room before each piece and stops at its first error.
func (f *File) Hydrate(ctx context.Context, dst *os.File, room func() error) error {
	if f.source == nil {
		return fmt.Errorf("hydrate %s: it has no source", f.name)
	}
	if err := dst.Truncate(f.size); err != nil {
		return fmt.Errorf("hydrate %s: %w", f.name, err)
	}
	g, each := errgroup.WithContext(ctx)
	g.SetLimit(hydrateWorkers)
	for at := int64(0); at < f.size && each.Err() == nil; {
		if length, zero := f.source.RunAt(f.name, at); zero && length > 0 {
			at += length
			continue
		}
		if err := room(); err != nil {
			g.Go(func() error { return err })
			break
		}
		off, n := at, min(hydratePieceBytes-at%hydratePieceBytes, f.size-at)
		if local, length := f.source.LocalCopy(f.name, at); length >= holeUnit {
			n = length &^ (chunkstore.PageSize - 1)
			g.Go(func() error { return disk.CloneRange(dst, local, off, n) })
		} else {
			n = f.untilShared(off, n)
			g.Go(func() error { return f.hydratePiece(each, dst, off, n) })
		}
		at += n
	}
	err := g.Wait()
	if err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = dst.Sync()
	}
	if err != nil {
		return fmt.Errorf("hydrate %s: %w", f.name, err)
	}
	return nil
}

// holeUnit is the shortest run of zeros that stays a hole, and the shortest run of a local copy that is
// shared.
const holeUnit = 64 << 10

// RemoteRanges lists the parts of the file that are neither zero nor in a local copy, in order. It returns
// false if they exceed most bytes.
func (f *File) RemoteRanges(most int64) (ranges []chunkstore.Range, all bool) {
	for at := int64(0); f.source != nil && at < f.size; {
		run, zero := f.source.RunAt(f.name, at)
		if zero && run > 0 {
			at += run
			continue
		}
		if _, here := f.source.LocalCopy(f.name, at); here > 0 {
			at += here
			continue
		}
		n := min(chunkstore.PageSize-at%chunkstore.PageSize, f.size-at)
		if most -= n; most < 0 {
			return ranges, false
		}
		if last := len(ranges) - 1; last >= 0 && ranges[last].Offset+ranges[last].Length == at {
			ranges[last].Length += n
		} else {
			ranges = append(ranges, chunkstore.Range{File: f.name, Offset: at, Length: n})
		}
		at += n
	}
	return ranges, true
}

// untilShared returns how many of length bytes from off on come before a run of a local copy.
func (f *File) untilShared(off, length int64) int64 {
	for n := chunkstore.PageSize - off%chunkstore.PageSize; n < length; n += chunkstore.PageSize {
		if _, here := f.source.LocalCopy(f.name, off+n); here >= holeUnit {
			return n
		}
	}
	return length
}

// hydratePiece writes one piece, except for units of zeros.
func (f *File) hydratePiece(ctx context.Context, dst *os.File, off, length int64) error {
	buf := make([]byte, length)
	if err := f.fetch(ctx, buf, off); err != nil {
		return err
	}
	for at := int64(0); at < length; {
		n := min(holeUnit-(off+at)%holeUnit, length-at)
		if run, zero := f.source.RunAt(f.name, off+at); !zero || run < n {
			if _, err := dst.WriteAt(buf[at:at+n], off+at); err != nil {
				return err
			}
		}
		at += n
	}
	return nil
}
