package pager

import (
	"context"
	"sync"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
)

// A request to the store takes some milliseconds however small it is, and a process that missed a page soon
// touches its neighbours. So the first miss in a part of a file reads the whole part, with lower priority
// than the page itself.
const (
	readaheadBytes = 1 << 20 // size of a part: a request for it takes about twice as long as one for a page
	maxReadaheads  = 16      // concurrent readaheads; a miss beyond that reads only the page
)

// readahead is the state of reading around misses. File.mu guards all of it but work.
type readahead struct {
	work     sync.WaitGroup
	started  bits // parts that were read, or are being read
	inFlight int
	stopped  bool
	ctx      context.Context // of the work, made at the first miss
	cancel   context.CancelFunc
}

// readAround starts to read the part around an offset, unless that was done before.
func (f *File) readAround(ctx context.Context, off int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a, part := &f.readahead, off/readaheadBytes
	if a.stopped || a.inFlight == maxReadaheads || a.started.has(part) {
		return
	}
	if a.ctx == nil {
		a.ctx, a.cancel = context.WithCancel(context.WithoutCancel(ctx))
	}
	a.started = a.started.with(part)
	a.inFlight++
	from := part * readaheadBytes
	length := min(readaheadBytes, f.size-from)
	a.work.Go(func() {
		limit, cancel := context.WithTimeout(a.ctx, f.timeout)
		defer cancel()
		err := f.source.Prefetch(limit, []chunkstore.Range{{File: f.name, Offset: from, Length: length}})
		if err == nil { // otherwise a read that needs the content reports the error
			f.markFetched(from, length)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		a.inFlight--
	})
}

// stop cancels the work and waits for it. mu is the file's.
func (a *readahead) stop(mu *sync.Mutex) {
	mu.Lock()
	a.stopped = true
	cancel := a.cancel
	mu.Unlock()
	if cancel != nil {
		cancel()
	}
	a.work.Wait()
}
