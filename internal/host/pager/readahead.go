package pager

import (
	"context"
	"sync"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
)

// A store's answer takes some milliseconds however little is asked for, and whoever missed a page soon misses its
// neighbours. So the first miss in a part of a file brings all of that part in, behind what is waited for.
const (
	readaheadBytes = 1 << 20 // of a part: a request for it takes about twice as long as one for a page
	maxReadaheads  = 16      // that are brought in at once; a miss beyond brings in what it needs alone
)

// readahead is what is brought in around misses. File.mu guards all of it but work.
type readahead struct {
	work     sync.WaitGroup
	started  bits // parts that were brought in, or are being
	inFlight int
	stopped  bool
	ctx      context.Context // of the work, from the first miss on
	cancel   context.CancelFunc
}

// readAround begins to bring in the part around an offset, unless that was begun before.
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
		if err == nil { // else whoever needs it asks for it, and is told why
			f.markFetched(from, length)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		a.inFlight--
	})
}

// stop ends the work and waits for that. mu is the file's.
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
