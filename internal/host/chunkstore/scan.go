package chunkstore

import (
	"context"
	"fmt"
)

// backgroundShare is one over the part of the concurrent requests that Scan has while others read. It was
// measured with monitors restored from the store over 1 Gbit/s with 5 ms of latency: with an eighth the link
// is idle between the requests of the others, and with more than a quarter they wait.
const backgroundShare = 4

// Scan passes all content of a file that is not zero to put.
//
// The order is that of the file as far as the store responds in order. Scan calls put concurrently. put reports
// whether it keeps data, which is otherwise reused. Equal pages are passed once for each position. Scan does not
// use the host's cache. After an error, which may be put's, part of the content was passed.
//
// Until alone is closed, other readers have priority and most of the bandwidth. If alone is nil, there are none.
func (r *Reader) Scan(
	ctx context.Context,
	file string,
	alone <-chan struct{},
	put func(off int64, data []byte) (kept bool, err error),
) error {
	f, ok := r.files[file]
	if !ok {
		return fmt.Errorf("scan %s: no such file in %s", file, r.m.ID)
	}
	all, err := r.framesOf([]Range{{File: file, Length: f.Bytes}})
	if err != nil {
		return err
	}
	homes := map[int][]Extent{} // by chunk
	for _, e := range f.Extents {
		if e.Chunk == localChunk {
			return fmt.Errorf("scan %s: the reader has a local base", file)
		}
		homes[e.Chunk] = append(homes[e.Chunk], e)
	}
	slots := make(chan struct{}, max(1, r.v.cfg.Parallel/backgroundShare))
	return parallel(ctx, r.v.cfg.Parallel, all, func(ctx context.Context, _ int, w frameRun) error {
		defer throttle(ctx, slots, alone)()
		c := r.m.Chunks[w.chunk]
		buf := r.v.buffers.get(c.pagesBytes(w.first, w.count) + slack)
		pages, err := r.v.fetch(ctx, r.keys.of(c.Common), c, w.first, w.count, buf)
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
			r.v.buffers.put(buf)
		}
		return nil
	})
}

// throttle waits for one of the few request slots, or until alone is closed. The caller calls done after the
// request.
func throttle(ctx context.Context, slots chan struct{}, alone <-chan struct{}) (done func()) {
	none := func() {}
	if alone == nil {
		return none
	}
	select {
	case <-alone:
	case slots <- struct{}{}:
		return func() { <-slots }
	case <-ctx.Done():
	}
	return none
}
