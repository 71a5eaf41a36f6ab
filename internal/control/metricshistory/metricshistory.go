// Package metricshistory keeps what was measured of sandboxes lately, for faces that show it over time.
//
// A sandbox is measured when somebody asks, and now and then for a while after: nobody's guest is disturbed for a
// history that nobody reads. What is kept is bounded, and ends with the process. It does not know how faces show
// it, nor who may see it: callers ask about what their caller has been let see. All methods may be called at once,
// and guests that do not answer do not keep the others from being measured.
package metricshistory

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// Bounds of what is remembered of measurements.
const (
	sampleEvery   = 5 * time.Second
	sampleFor     = 2 * time.Minute  // after the last question
	retention     = 30 * time.Minute // without a question
	maxPoints     = 360              // of one sandbox, the newest
	maxSeries     = 500              // sandboxes, those that were asked about last
	maxConcurrent = 32               // guests that are asked at the same time
)

// Sandboxes measures them; *sandbox.Service does. It wakes none and counts as no use.
type Sandboxes interface {
	Usage(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Usage, error)
}

// Point is one measurement.
type Point struct {
	At    time.Time
	Guest api.GuestStats // CPUBusySeconds and UptimeSeconds are those of the time that the point stands for alone
}

// CPUPercent is how busy the guest's processors were, all of them together being 100.
func (p Point) CPUPercent() float64 {
	if p.Guest.UptimeSeconds <= 0 || p.Guest.CPUs <= 0 {
		return 0
	}
	return 100 * p.Guest.CPUBusySeconds / p.Guest.UptimeSeconds / float64(p.Guest.CPUs)
}

// Delta is the measurement of the time between two looks into one guest; false if it lives another life since.
func Delta(at time.Time, before, now api.GuestStats) (Point, bool) {
	if now.UptimeSeconds < before.UptimeSeconds {
		return Point{}, false
	}
	now.CPUBusySeconds, now.UptimeSeconds = now.CPUBusySeconds-before.CPUBusySeconds,
		now.UptimeSeconds-before.UptimeSeconds
	return Point{At: at, Guest: now}, true
}

// History is what was measured lately. Make one with New; Run samples for it.
type History struct {
	sandboxes Sandboxes

	mu     sync.Mutex
	series map[api.SandboxID]*series // guarded by mu
}

// series are the measurements of one sandbox.
type series struct {
	principal auth.Principal // asked last
	requested time.Time
	last      *api.GuestStats // what the guest said at the last sample
	points    []Point         // oldest first
	memory    memoryIntegral
}

// New makes an empty history.
func New(sandboxes Sandboxes) *History {
	return &History{sandboxes: sandboxes, series: map[api.SandboxID]*series{}}
}

// Record notes a question at a time, and what was measured for it, if anything was.
func (h *History) Record(who auth.Principal, id api.SandboxID, now time.Time, points ...Point) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.touch(who, id, now)
	for _, p := range points {
		s.add(p)
	}
}

// touch gives the series of a sandbox that somebody asks about. h.mu is held.
func (h *History) touch(who auth.Principal, id api.SandboxID, now time.Time) *series {
	s := h.series[id]
	if s == nil {
		h.evict()
		s = &series{}
		h.series[id] = s
	}
	s.principal, s.requested = who, now
	return s
}

// evict forgets the sandbox that was not asked about for the longest time, if there are too many. h.mu is held.
func (h *History) evict() {
	if len(h.series) < maxSeries {
		return
	}
	var oldest api.SandboxID
	for id, s := range h.series {
		if oldest == "" || s.requested.Before(h.series[oldest].requested) {
			oldest = id
		}
	}
	delete(h.series, oldest)
}

// add appends a measurement that is newer than all.
func (s *series) add(p Point) {
	if n := len(s.points); n > 0 && !p.At.After(s.points[n-1].At) {
		return
	}
	if len(s.points) == maxPoints {
		s.points = slices.Delete(s.points, 0, 1)
	}
	s.points = append(s.points, p)
}

// addSample adds what was measured at a time. The use of processors is that since the sample before, so the first
// only begins.
func (h *History) addSample(id api.SandboxID, now time.Time, u api.Usage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.series[id]
	if s == nil {
		return
	}
	s.memory.add(now, u)
	before := s.last
	s.last = u.Guest
	if u.Guest == nil || before == nil {
		return // it does not run
	}
	if p, ok := Delta(now, *before, *u.Guest); ok {
		s.add(p)
	}
}

// Points gives what is known of a sandbox, oldest first.
func (h *History) Points(id api.SandboxID) []Point {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.series[id]; s != nil {
		return slices.Clone(s.points)
	}
	return nil
}

// active gives who asked about which sandboxes lately, and forgets the points that nobody asked about for long.
func (h *History) active(now time.Time) map[api.SandboxID]auth.Principal {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[api.SandboxID]auth.Principal{}
	for id, s := range h.series {
		switch idle := now.Sub(s.requested); {
		case idle > retention:
			s.points, s.last = nil, nil
		case idle <= sampleFor:
			out[id] = s.principal
		default:
			s.last = nil
		}
	}
	return out
}

// Run samples sandboxes that somebody asked about lately, until ctx ends.
func (h *History) Run(ctx context.Context) error {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			h.sample(ctx)
		}
	}
}

// sample measures all sandboxes that are due.
func (h *History) sample(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	places := make(chan struct{}, maxConcurrent)
	for id, who := range h.active(time.Now()) {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			if u, err := h.sandboxes.Usage(ctx, who, id); err == nil { // else it ended, and is forgotten in time
				h.addSample(id, time.Now(), u)
			}
		})
	}
}
