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
	hedgeWindow = 128                   // reads that are looked back at
	hedgeNeeds  = 16                    // of them, before any read is made twice
	hedgeSoon   = 10 * time.Millisecond // no read is late before that, or a quarter after nearly all have come
	hedgeShare  = 0.05                  // of second reads among all
	hedgeBurst  = 4                     // second reads that may have been saved up
)

// hedge knows how long reads took lately and how many may be made twice. All methods may be called at once.
type hedge struct {
	mu    sync.Mutex
	took  []time.Duration // the last ones that were answered, a ring; guarded by mu
	next  int             // place of the oldest in a full ring; guarded by mu
	saved float64         // second reads that may be made; guarded by mu
	twice int64           // second reads that were made; guarded by mu
}

// begin notes a read, and tells after how long it is late; false: it never is.
func (h *hedge) begin() (late time.Duration, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.saved = min(h.saved+hedgeShare, hedgeBurst)
	if len(h.took) < hedgeNeeds {
		return 0, false
	}
	sorted := slices.Sorted(slices.Values(h.took))
	nearly := sorted[len(sorted)*95/100]
	return max(hedgeSoon, nearly+nearly/4), true
}

// answered notes how long a read took.
func (h *hedge) answered(took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.took) < hedgeWindow {
		h.took = append(h.took, took)
		return
	}
	h.took[h.next] = took
	h.next = (h.next + 1) % hedgeWindow
}

// spend tells whether a read may be made twice, and counts it.
func (h *hedge) spend() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.saved < 1 {
		return false
	}
	h.saved--
	h.twice++
	return true
}

// read calls get, and once more when it is late. The answer that is not needed is cancelled and waited for.
// An error counts when no other call is under way.
func (h *hedge) read(ctx context.Context, get func(context.Context) ([]byte, error)) ([]byte, error) {
	late, ok := h.begin()
	if !ok {
		began := time.Now()
		data, err := get(ctx)
		if err == nil {
			h.answered(time.Since(began))
		}
		return data, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel(errOther)
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
				h.answered(time.Since(began))
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
			if h.spend() {
				begin()
				left++
			}
		}
	}
}

// errOther ends a read whose answer came from another.
var errOther = errors.New("another read of the same was answered first")
