// Package bootstats keeps recent start times of machines, by the way of starting.
//
// It knows no sandboxes and stores nothing: counting starts over after a restart. It keeps a bounded number of times
// for a bounded number of ways. All methods may be called at once.
package bootstats

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
)

// Limits of a Recorder.
const (
	kept  = 1000 // times of one way
	modes = 16
)

// Recorder keeps start times. Make one with New.
type Recorder struct {
	since time.Time

	mu   sync.Mutex
	ways map[string]*way // guarded by mu
}

// way is the start times of one way of starting.
type way struct {
	count int64
	last  float64
	times []float64 // milliseconds; a ring once it is full
}

// New returns a recorder that counts from since.
func New(since time.Time) *Recorder {
	return &Recorder{since: since, ways: map[string]*way{}}
}

// Record adds a start that took ms milliseconds. A start without a mode is ignored.
func (b *Recorder) Record(mode string, ms float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.ways[mode]
	if w == nil {
		if mode == "" || len(b.ways) == modes {
			return
		}
		w = &way{}
		b.ways[mode] = w
	}
	if len(w.times) < kept {
		w.times = append(w.times, ms)
	} else {
		w.times[w.count%kept] = ms
	}
	w.count, w.last = w.count+1, ms
}

// Stats returns the statistics of all ways, sorted by name.
func (b *Recorder) Stats() api.BootStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := api.BootStats{Since: b.since, Boots: []api.BootMode{}}
	for mode, w := range b.ways {
		sorted := slices.Sorted(slices.Values(w.times))
		out.Boots = append(out.Boots, api.BootMode{BootMode: mode, Count: w.count, LastMS: w.last,
			P50MS: percentile(sorted, 50), P95MS: percentile(sorted, 95), P99MS: percentile(sorted, 99),
			MaxMS: percentile(sorted, 100)})
	}
	slices.SortFunc(out.Boots, func(a, b api.BootMode) int { return strings.Compare(a.BootMode, b.BootMode) })
	return out
}

// percentile returns the nearest-rank percentile of sorted times, of which there is at least one.
func percentile(sorted []float64, percent int) float64 {
	return sorted[(len(sorted)*percent+99)/100-1]
}
