package e2bapi

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/auth"
)

// Bounds of what is remembered of measurements. Nobody's guest is asked for the sake of a history that nobody reads.
const (
	sampleEvery = 5 * time.Second
	sampleFor   = 2 * time.Minute  // after the last question
	keepPoints  = 30 * time.Minute // without a question
	maxPoints   = 360              // of one sandbox, the newest
	maxSeries   = 500              // sandboxes, those that were asked about last
)

// history is what was measured of sandboxes lately: whenever somebody asked, and now and then for a while after.
// All methods may be called at once.
type history struct {
	mu sync.Mutex
	of map[api.SandboxID]*series // guarded by mu
}

// series are the measurements of one sandbox.
type series struct {
	who    auth.Principal // asked last
	asked  time.Time
	last   *api.Inside // what the guest said at the last sample
	points []metric    // oldest first
}

// asked notes a question at a time, and what was measured for it.
func (h *history) asked(who auth.Principal, id api.SandboxID, now time.Time, m metric) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.of[id]
	if s == nil {
		h.makeRoom()
		s = &series{}
		h.of[id] = s
	}
	s.who, s.asked = who, now
	s.add(m)
}

// makeRoom forgets the sandbox that was not asked about for the longest time, if there are too many. h.mu is held.
func (h *history) makeRoom() {
	if len(h.of) < maxSeries {
		return
	}
	var oldest api.SandboxID
	for id, s := range h.of {
		if oldest == "" || s.asked.Before(h.of[oldest].asked) {
			oldest = id
		}
	}
	delete(h.of, oldest)
}

// add appends a measurement that is newer than all.
func (s *series) add(m metric) {
	if n := len(s.points); n > 0 && !m.Timestamp.After(s.points[n-1].Timestamp) {
		return
	}
	if len(s.points) == maxPoints {
		s.points = slices.Delete(s.points, 0, 1)
	}
	s.points = append(s.points, m)
}

// sampled adds what a guest said at a time. The use of processors is that since the sample before, so the first
// only begins.
func (h *history) sampled(id api.SandboxID, now time.Time, in *api.Inside) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.of[id]
	if s == nil {
		return
	}
	before := s.last
	s.last = in
	if in == nil || before == nil || in.UptimeSeconds <= before.UptimeSeconds {
		return // it does not run, or lives another life
	}
	since := *in
	since.CPUBusySeconds, since.UptimeSeconds = in.CPUBusySeconds-before.CPUBusySeconds, in.UptimeSeconds-before.UptimeSeconds
	s.add(metricOf(now, since))
}

// between gives the measurements of a sandbox from one time to another, oldest first. The newest, which the
// question itself brought, lies behind the time that was now for who asked.
func (h *history) between(id api.SandboxID, start, end time.Time) []metric {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := []metric{}
	s := h.of[id]
	if s == nil {
		return out
	}
	for i, m := range s.points {
		at := m.Timestamp
		if i == len(s.points)-1 {
			at = at.Add(-justNow)
		}
		if !m.Timestamp.Before(start) && !at.After(end) {
			out = append(out, m)
		}
	}
	return out
}

// due gives who asked about which sandboxes lately, and forgets those that nobody asked about for long.
func (h *history) due(now time.Time) map[api.SandboxID]auth.Principal {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[api.SandboxID]auth.Principal{}
	for id, s := range h.of {
		switch idle := now.Sub(s.asked); {
		case idle > keepPoints:
			delete(h.of, id)
		case idle <= sampleFor:
			out[id] = s.who
		default:
			s.last = nil
		}
	}
	return out
}

// Run samples sandboxes that somebody asked about lately, until ctx ends. It wakes none and counts as no use.
func (s *Server) Run(ctx context.Context) error {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for id, who := range s.past.due(time.Now()) {
			if u, err := s.sandboxes.Usage(ctx, who, id); err == nil { // else it ended, and is forgotten in time
				s.past.sampled(id, time.Now(), u.Guest)
			}
		}
	}
}
