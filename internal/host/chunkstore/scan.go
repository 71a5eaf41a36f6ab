package chunkstore

import (
	"context"
	"fmt"
)

// backgroundShare is one over the part of the requests under way that Each has while others read. Measured where monitors are
// restored from the store over 1 Gbit/s with 5 ms of latency: with an eighth the line is idle between what the others ask
// for, and with more than a quarter they wait.
const backgroundShare = 4

// Scan gives put all of a file's content that is not zero, as it comes: the begin of the file first, as far as the
// store answers in order. Put is called by several goroutines at once, and tells whether it keeps data, which is used
// for other content otherwise; pages that are equal come once for each place. Nothing of it goes into the host's cache.
// After an error, which may be put's, some of it was given.
//
// Until alone is closed somebody else reads what is needed sooner, and has most of the line; nil: nobody does.
func (r *Reader) Scan(
	ctx context.Context,
	file string,
	alone <-chan struct{},
	put func(off int64, data []byte) (kept bool, err error),
) error {
	f, ok := r.files[file]
	if !ok {
		return fmt.Errorf("read %s: there is no such file in %s", file, r.m.ID)
	}
	all, err := r.framesOf([]Range{{File: file, Length: f.Bytes}})
	if err != nil {
		return err
	}
	homes := map[int][]Extent{} // by chunk
	for _, e := range f.Extents {
		if e.Chunk == localChunk {
			return fmt.Errorf("read %s: parts of it are on this host", file)
		}
		homes[e.Chunk] = append(homes[e.Chunk], e)
	}
	few := make(chan struct{}, max(1, r.v.cfg.Parallel/backgroundShare))
	return parallel(ctx, r.v.cfg.Parallel, all, func(ctx context.Context, _ int, w frameRun) error {
		defer throttle(ctx, few, alone)()
		c := r.m.Chunks[w.chunk]
		lent := r.v.buffers.get(c.pagesBytes(w.first, w.count) + slack)
		pages, err := r.v.fetch(ctx, r.keys.of(c.Common), c, w.first, w.count, lent)
		if err != nil {
			return err
		}
		free := true
		first := w.first * framePages
		last := first + len(pages)/PageSize
		for _, e := range homes[w.chunk] {
			from, to := max(e.At, first), min(e.At+e.Count, last)
			if from >= to {
				continue
			}
			off := (e.Page + int64(from-e.At)) * PageSize
			data := pages[(from-first)*PageSize : (to-first)*PageSize]
			kept, err := put(off, data[:min(int64(len(data)), f.Bytes-off)])
			if err != nil {
				return err
			}
			free = free && !kept
		}
		if free {
			r.v.buffers.put(lent)
		}
		return nil
	})
}

// throttle waits until one of few requests may be made, or until there is nobody to leave room to. Done ends the request.
func throttle(ctx context.Context, few chan struct{}, alone <-chan struct{}) (done func()) {
	none := func() {}
	if alone == nil {
		return none
	}
	select {
	case <-alone:
	case few <- struct{}{}:
		return func() { <-few }
	case <-ctx.Done():
	}
	return none
}
