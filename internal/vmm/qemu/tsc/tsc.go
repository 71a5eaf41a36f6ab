// Package tsc measures the frequency of this processor's time stamp counter (TSC). A guest under
// TCG sees the TSC plus an offset, and gets its frequency on the kernel command line.
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

// take reads both clocks as close together as possible in a few attempts.
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

// window is the minimum time between two samples. A sample is accurate to about 100 ns, so the
// frequency is accurate to one part in a million.
const window = 100 * time.Millisecond

// Meter measures the TSC frequency once. All methods may be called concurrently.
type Meter struct {
	start sample

	mu  sync.Mutex
	khz int64
}

// New returns a Meter that starts to measure now.
func New() *Meter { return &Meter{start: take()} }

// KHz returns the frequency in kHz, or 0 on a processor without TSC. The first call waits until
// window has passed since New.
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
