// Package metricshistory keeps recent measurements of sandboxes in memory, so that APIs can show them over time.
//
// A sandbox is measured when a user requests its metrics, and periodically for a while after that, so that no guest is
// disturbed for a history that is never read. The history is bounded and ends with the process. The package does not
// decide who may see measurements: its callers have checked that. All methods may be called concurrently. A guest that
// does not respond does not delay the measurements of others.
package metricshistory

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// Bounds of the history.
const (
	sampleEvery   = 5 * time.Second
	sampleFor     = 2 * time.Minute  // how long a sandbox is sampled after the last request
	retention     = 30 * time.Minute // how long points are kept after the last request
	maxPoints     = 360              // newest points of one sandbox
	maxSeries     = 500              // most recently requested sandboxes
	maxConcurrent = 32               // guests that are measured at a time
)

// Sandboxes measures sandboxes; *sandbox.Service implements it. Measuring wakes no sandbox and does not count as use.
type Sandboxes interface {
	Usage(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Usage, error)
}

// Point is one measurement.
type Point struct {
	At    time.Time
	Guest api.GuestStats // CPUBusySeconds and UptimeSeconds are differences to the point before
}

// CPUPercent returns how busy the guest's processors were. At 100 all of them were always busy.
func (p Point) CPUPercent() float64 {
	if p.Guest.UptimeSeconds <= 0 || p.Guest.CPUs <= 0 {
		return 0
	}
	return 100 * p.Guest.CPUBusySeconds / p.Guest.UptimeSeconds / float64(p.Guest.CPUs)
}

// Delta returns the point between two measurements of a guest. It returns false if the guest was restarted in between.
func Delta(at time.Time, before, now api.GuestStats) (Point, bool) {
	if now.UptimeSeconds < before.UptimeSeconds {
		return Point{}, false
	}
	now.CPUBusySeconds, now.UptimeSeconds = now.CPUBusySeconds-before.CPUBusySeconds,
		now.UptimeSeconds-before.UptimeSeconds
	return Point{At: at, Guest: now}, true
}

// History is the recent history of sandboxes. Make it with New; Run takes samples.
type History struct {
	sandboxes Sandboxes

	mu     sync.Mutex
	series map[api.SandboxID]*series // guarded by mu
}

// series is the history of one sandbox.
type series struct {
	principal auth.Principal  // caller of the last request
	requested time.Time       // time of the last request
	last      *api.GuestStats // last sample
	points    []Point         // oldest first
	memory    memoryIntegral
}

// New makes an empty history.
func New(sandboxes Sandboxes) *History {
	return &History{sandboxes: sandboxes, series: map[api.SandboxID]*series{}}
}

// Record records a request for the metrics of a sandbox and the points that were measured for it.
func (h *History) Record(who auth.Principal, id api.SandboxID, now time.Time, points ...Point) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.touch(who, id, now)
	for _, p := range points {
		s.add(p)
	}
}

// touch records a request and returns the series of the sandbox. h.mu is held.
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

// evict removes a series if the history is full: the least recently requested one of the workspace that has most, so
// that no workspace pushes out the series of one with fewer. h.mu is held.
func (h *History) evict() {
	if len(h.series) < maxSeries {
		return
	}
	count := map[api.Workspace]int{}
	for _, s := range h.series {
		count[s.principal.Workspace]++
	}
	most := 0
	for _, n := range count {
		most = max(most, n)
	}
	var oldest api.SandboxID
	for id, s := range h.series {
		if count[s.principal.Workspace] == most &&
			(oldest == "" || s.requested.Before(h.series[oldest].requested)) {
			oldest = id
		}
	}
	delete(h.series, oldest)
}

// add appends a point unless it is older than the last one.
func (s *series) add(p Point) {
	if n := len(s.points); n > 0 && !p.At.After(s.points[n-1].At) {
		return
	}
	if len(s.points) == maxPoints {
		s.points = slices.Delete(s.points, 0, 1)
	}
	s.points = append(s.points, p)
}

// addSample adds a sample. A point needs the sample before, because its processor use is a difference: the first sample
// makes no point.
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
		return // the sandbox does not run, or this is the first sample
	}
	if p, ok := Delta(now, *before, *u.Guest); ok {
		s.add(p)
	}
}

// Points returns the points of a sandbox, oldest first.
func (h *History) Points(id api.SandboxID) []Point {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.series[id]; s != nil {
		return slices.Clone(s.points)
	}
	return nil
}

// active returns the recently requested sandboxes with their callers, and removes the points of sandboxes that were not
// requested for long.
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

// Run samples recently requested sandboxes until ctx ends.
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

// sample measures all recently requested sandboxes.
func (h *History) sample(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	places := make(chan struct{}, maxConcurrent)
	for id, who := range h.active(time.Now()) {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			if u, err := h.sandboxes.Usage(ctx, who, id); err == nil { // after an error the series expires
				h.addSample(id, time.Now(), u)
			}
		})
	}
}
