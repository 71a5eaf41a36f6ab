package pager

import (
	"context"
	"slices"
	"sync"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/os/uffd"
)

// prefetchWorkers is how many pieces of a trace are installed concurrently. The store is asked for all of
// them together before; this many keep a processor busy.
const prefetchWorkers = 4

// pieces returns the parts of one file in a trace as whole pieces of grain bytes below end, each once and in
// the order of the first use.
func (t Trace) pieces(file string, grain, end int64) []chunkstore.Range {
	var out []chunkstore.Range
	var seen bits
	for _, r := range t {
		if r.File != file {
			continue
		}
		for at := r.Offset - r.Offset%grain; at < min(r.Offset+r.Length, end); at += grain {
			if !seen.has(at / grain) {
				seen = seen.with(at / grain)
				out = append(out, chunkstore.Range{File: file, Offset: at, Length: min(grain, end-at)})
			}
		}
	}
	return out
}

// Prefetch reads the content of this file that is in a trace and passes it to put piece by piece. The order
// is that of the trace as far as the store responds in order. Pieces have grain bytes, a power of two. put
// may be nil. Prefetch returns when everything is read, ctx ended, or the source failed. A failure needs no
// report: missing content is read again when it is needed.
func (f *File) Prefetch(ctx context.Context, trace Trace, grain int64, put func(off int64, data []byte)) {
	pieces := trace.pieces(f.name, grain, f.size)
	if len(pieces) == 0 || f.source == nil {
		return
	}
	var work sync.WaitGroup
	defer work.Wait()
	if !f.IsLocal() {
		work.Go(func() { _ = f.source.Prefetch(ctx, pieces) }) // a read that needs the content reports the error
	}
	if put == nil {
		return
	}
	next := make(chan chunkstore.Range)
	for range prefetchWorkers {
		work.Go(func() {
			buf := make([]byte, grain)
			for r := range next {
				if length, zero := f.RunAt(r.Offset); zero && length >= r.Length {
					continue
				}
				if f.ReadAhead(ctx, buf[:r.Length], r.Offset) == nil {
					put(r.Offset, buf[:r.Length])
				}
			}
		})
	}
	defer close(next)
	for _, r := range pieces {
		select {
		case next <- r:
		case <-ctx.Done():
			return
		}
	}
}

// ZeroRanges passes the zero pages of this file that are in a trace to put, up to limit bytes. limit is in
// whole pages. Zeros need no request to the store, so they are not part of a working set.
func (f *File) ZeroRanges(trace Trace, limit int64, put func(off int64, data []byte)) {
	var zeros [chunkstore.FrameSize]byte
	for _, r := range trace {
		if r.File != f.name {
			continue
		}
		for at, end := r.Offset, min(r.Offset+r.Length, f.size); at < end && limit > 0; {
			length, zero := f.RunAt(at)
			n := min(length, end-at)
			if zero {
				n = min(n, limit, int64(len(zeros)))
				limit -= n
				put(at, zeros[:n])
			}
			if n <= 0 {
				break
			}
			at += n
		}
	}
}

// prefetch installs the content of the trace before the monitor touches it.
func (s *server) prefetch(ctx context.Context) {
	put := func(off int64, data []byte) {
		for _, r := range s.regions {
			from, to := max(uint64(off), r.Offset), min(uint64(off)+uint64(len(data)), r.Offset+r.Size)
			if r.PageSize != uffd.Page || from >= to {
				continue
			}
			part := data[from-uint64(off) : to-uint64(off)]
			s.install(r.Base+from-r.Offset, window{r, from - r.Offset, to - r.Offset}, part)
		}
	}
	take := put
	if slices.ContainsFunc(s.regions, func(r uffd.Region) bool { return r.PageSize != uffd.Page }) {
		take = nil
	}
	s.file.Prefetch(ctx, s.opt.Prefetch(ctx, take), s.opt.FaultAround, put)
}
