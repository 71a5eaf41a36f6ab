package chunkstore

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// A read that takes longer than nearly all recent ones is repeated, and the first response is used.
const (
	hedgeWindow     = 128 // number of recent reads that are considered
	hedgeMinSamples = 16  // reads before the first repetition
	// a read is late only after that, and a quarter after the time of nearly all others
	hedgeMinDelay = 10 * time.Millisecond
	hedgeShare    = 0.05 // repetitions per read
	hedgeBurst    = 4    // repetitions that may be saved up
)

// hedge tracks the durations of recent reads and how many reads may be repeated. All methods may be called
// concurrently.
type hedge struct {
	mu     sync.Mutex
	took   []time.Duration // durations of the last reads, a ring; guarded by mu
	next   int             // index of the oldest in a full ring; guarded by mu
	tokens float64         // repetitions that are allowed now; guarded by mu
	hedged int64           // repetitions so far; guarded by mu
}

// start counts a read and returns the time after which it is late, or false if there is none.
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

// observe records the duration of a read.
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

// allow reports whether a read may be repeated, and counts the repetition.
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

// read calls get, and calls it again if it is late. It cancels the call that is not needed and waits for it.
// An error counts only if no other call is running.
func (h *hedge) read(ctx context.Context, get func(context.Context) ([]byte, error)) ([]byte, error) {
	late, ok := h.start()
	if !ok {
		start := time.Now()
		data, err := get(ctx)
		if err == nil {
			h.observe(time.Since(start))
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
			start := time.Now()
			data, err := get(ctx)
			if err == nil {
				h.observe(time.Since(start))
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

// errSuperseded cancels a read when its repetition, or the original, has finished.
var errSuperseded = errors.New("another read of the same content finished first")
