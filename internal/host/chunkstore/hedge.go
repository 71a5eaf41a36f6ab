package chunkstore

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// A read that takes longer than nearly all lately is made a second time, and whichever answers first counts.
const (
	hedgeWindow     = 128                   // reads that are looked back at
	hedgeMinSamples = 16                    // of them, before any read is made twice
	hedgeMinDelay   = 10 * time.Millisecond // no read is late before that, or a quarter after nearly all have come
	hedgeShare      = 0.05                  // of second reads among all
	hedgeBurst      = 4                     // second reads that may have been saved up
)

// hedge knows how long reads took lately and how many may be made twice. All methods may be called at once.
type hedge struct {
	mu     sync.Mutex
	took   []time.Duration // the last ones that were answered, a ring; guarded by mu
	next   int             // place of the oldest in a full ring; guarded by mu
	tokens float64         // second reads that may be made; guarded by mu
	hedged int64           // second reads that were made; guarded by mu
}

// start notes a read, and tells after how long it is late; false: it never is.
func (h *hedge) start() (late time.Duration, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tokens = min(h.tokens+hedgeShare, hedgeBurst)
	if len(h.took) < hedgeMinSamples {
		return 0, false
	}
	sorted := slices.Sorted(slices.Values(h.took))
	nearly := sorted[len(sorted)*95/100]
	return max(hedgeMinDelay, nearly+nearly/4), true
}

// observe notes how long a read took.
func (h *hedge) observe(took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.took) < hedgeWindow {
		h.took = append(h.took, took)
		return
	}
	h.took[h.next] = took
	h.next = (h.next + 1) % hedgeWindow
}

// allow tells whether a read may be made twice, and counts it.
func (h *hedge) allow() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tokens < 1 {
		return false
	}
	h.tokens--
	h.hedged++
	return true
}

// read calls get, and once more when it is late. The answer that is not needed is cancelled and waited for.
// An error counts when no other call is under way.
func (h *hedge) read(ctx context.Context, get func(context.Context) ([]byte, error)) ([]byte, error) {
	late, ok := h.start()
	if !ok {
		began := time.Now()
		data, err := get(ctx)
		if err == nil {
			h.observe(time.Since(began))
		}
		return data, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel(errSuperseded)
	type answer struct {
		data []byte
		err  error
	}
	answers := make(chan answer, 2)
	begin := func() {
		work.Go(func() {
			began := time.Now()
			data, err := get(ctx)
			if err == nil {
				h.observe(time.Since(began))
			}
			answers <- answer{data, err}
		})
	}
	begin()
	timer := time.NewTimer(late)
	defer timer.Stop()
	for left := 1; ; {
		select {
		case a := <-answers:
			if left--; a.err == nil || left == 0 {
				return a.data, a.err
			}
		case <-timer.C:
			if h.allow() {
				begin()
				left++
			}
		}
	}
}

// errSuperseded ends a read whose answer came from another.
var errSuperseded = errors.New("another read of the same was answered first")
