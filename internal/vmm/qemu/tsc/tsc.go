// Package tsc measures how fast this processor's time stamp counter runs. A guest that is translated sees that counter
// plus an offset, and is told its rate when it boots.
package tsc

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// sample is one reading of both clocks.
type sample struct {
	tsc uint64
	ns  int64
}

// take reads both clocks as close together as a few tries can.
func take() sample {
	var best sample
	least := ^uint64(0)
	for range 8 {
		var ts unix.Timespec
		before := read()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &ts); err != nil {
			continue
		}
		after := read()
		if after-before < least {
			least = after - before
			best = sample{before + (after-before)/2, ts.Nano()}
		}
	}
	return best
}

// window is how far two samples must lie apart: reading them is good to about 100 ns, so the rate to
// one part in a million.
const window = 100 * time.Millisecond

// Meter measures the rate of the time stamp counter once. All methods may be called at once.
type Meter struct {
	start sample

	mu  sync.Mutex
	khz int64
}

// New is a meter that begins to measure now.
func New() *Meter { return &Meter{start: take()} }

// KHz answers the rate in kHz, 0 on a processor without one. The first call waits until window has
// passed since the meter was made.
func (t *Meter) KHz(ctx context.Context) (int64, error) {
	if !supported {
		return 0, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.khz != 0 {
		return t.khz, nil
	}
	now := take()
	if rest := window - time.Duration(now.ns-t.start.ns); rest > 0 {
		timer := time.NewTimer(rest)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		now = take()
	}
	t.khz = rate(t.start, now)
	return t.khz, nil
}

func rate(a, b sample) int64 {
	return int64(float64(b.tsc-a.tsc)*1e6/float64(b.ns-a.ns) + 0.5)
}
