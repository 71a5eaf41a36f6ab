package pager

import (
	"context"
	"sync"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
)

// A store's answer takes some milliseconds however little is asked for, and whoever missed a page soon misses its
// neighbours. So the first miss in a part of a file brings all of that part in, behind what is waited for.
const (
	aroundBytes = 1 << 20 // of a part: a request for it takes about twice as long as one for a page
	maxParts    = 16      // that are brought in at once; a miss beyond brings in what it needs alone
)

// surroundings is what is brought in around misses. File.mu guards all of it but work.
type surroundings struct {
	work   sync.WaitGroup
	tried  bits // parts that were brought in, or are being
	flying int
	ended  bool
	ctx    context.Context // of the work, from the first miss on
	cancel context.CancelFunc
}

// surround begins to bring in the part around an offset, unless that was begun before.
func (f *File) surround(ctx context.Context, off int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a, part := &f.around, off/aroundBytes
	if a.ended || a.flying == maxParts || a.tried.has(part) {
		return
	}
	if a.ctx == nil {
		a.ctx, a.cancel = context.WithCancel(context.WithoutCancel(ctx))
	}
	a.tried = a.tried.with(part)
	a.flying++
	from := part * aroundBytes
	length := min(aroundBytes, f.size-from)
	a.work.Go(func() {
		limit, cancel := context.WithTimeout(a.ctx, f.limit)
		defer cancel()
		err := f.source.Prefetch(limit, []chunkstore.Range{{File: f.name, Offset: from, Length: length}})
		if err == nil { // else whoever needs it asks for it, and is told why
			f.arrived(from, length)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		a.flying--
	})
}

// end ends the work and waits for that. mu is the file's.
func (a *surroundings) end(mu *sync.Mutex) {
	mu.Lock()
	a.ended = true
	cancel := a.cancel
	mu.Unlock()
	if cancel != nil {
		cancel()
	}
	a.work.Wait()
}
