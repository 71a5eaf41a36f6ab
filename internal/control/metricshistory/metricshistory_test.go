package metricshistory

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// fakeSandboxes are sandboxes whose guests are half busy, and counts how often they are asked.
type fakeSandboxes struct {
	began time.Time

	mu      sync.Mutex
	asked   map[api.SandboxID]int // guarded by mu
	stopped bool                  // guarded by mu
	hung    chan struct{}         // those called "hung" answer when it is closed
}

// queries tells how often a sandbox was asked, or all of them were.
func (m *fakeSandboxes) queries(id api.SandboxID) (one, all int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.asked {
		all += n
	}
	return m.asked[id], all
}

func (m *fakeSandboxes) setStopped(now bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped = now
}

func (m *fakeSandboxes) Usage(_ context.Context, who auth.Principal, id api.SandboxID) (api.Usage, error) {
	if strings.HasPrefix(string(id), "hung") {
		<-m.hung
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked[id]++
	if who.Workspace != "ours" {
		return api.Usage{}, api.Errorf(api.NotFound, "no sandbox for %s", who.Workspace)
	}
	if m.stopped {
		return api.Usage{}, nil
	}
	up := time.Since(m.began).Seconds()
	return api.Usage{
		Guest: &api.GuestStats{
			CPUs:              2,
			CPUBusySeconds:    up,
			UptimeSeconds:     up,
			MemTotalBytes:     100,
			MemAvailableBytes: 40,
		},
	}, nil
}

func TestHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		boxes := &fakeSandboxes{began: began, asked: map[api.SandboxID]int{}}
		h := New(boxes)
		between := func(from, to time.Time) []Point {
			return slices.DeleteFunc(h.Points("one"), func(p Point) bool { return p.At.Before(from) || p.At.After(to) })
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()
		pass := func(d time.Duration) {
			<-time.After(d)
			synctest.Wait()
		}
		pass(time.Minute)
		if _, n := boxes.queries(""); n != 0 {
			t.Errorf("guests that nobody asked about were asked %d times", n)
		}
		ours := auth.Principal{Workspace: "ours"}
		h.Record(ours, "one", time.Now(), Point{At: time.Now()})
		h.Record(auth.Principal{Workspace: "gone"}, "two", time.Now(), Point{At: time.Now()})
		asked := time.Now()
		pass(time.Minute + time.Second)
		// The first sample only begins; each after it tells of the time since the one before.
		all := between(asked, time.Now())
		if len(all) != 12 || all[1].CPUPercent() != 50 || all[1].Guest.MemAvailableBytes != 40 ||
			!all[11].At.After(all[10].At) {
			t.Fatalf("%d measurements: %+v", len(all), all)
		}
		if part := between(asked.Add(20*time.Second), asked.Add(40*time.Second)); len(part) != 5 {
			t.Errorf("%d of twenty seconds", len(part))
		}
		if none := between(began, asked.Add(-time.Second)); len(none) != 0 {
			t.Errorf("before the first question: %v", none)
		}
		// While it rests nothing is added, and what it used before says nothing of after.
		boxes.setStopped(true)
		pass(20 * time.Second)
		boxes.setStopped(false)
		pass(10 * time.Second)
		if more := between(asked, time.Now()); len(more) != 13 || more[12].CPUPercent() != 50 {
			t.Errorf("after a rest %d measurements, the last %+v", len(more), more[len(more)-1])
		}
		// Some time after the last question the guest is left alone, and later all is forgotten.
		pass(sampleFor)
		before, _ := boxes.queries("one")
		pass(10 * time.Minute)
		if now, _ := boxes.queries("one"); now != before || len(between(asked, time.Now())) == 0 {
			t.Errorf("asked %d times, and %d before", now, before)
		}
		pass(retention)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := len(h.Points("one")); n != 0 {
			t.Errorf("%d measurements are remembered", n)
		}
	})
}

// TestHungGuests: guests that do not answer do not keep the others from being measured.
func TestHungGuests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boxes := &fakeSandboxes{began: time.Now(), asked: map[api.SandboxID]int{}, hung: make(chan struct{})}
		h := New(boxes)
		for i := range maxConcurrent - 1 {
			h.Record(auth.Principal{Workspace: "ours"}, api.SandboxID(fmt.Sprint("hung", i)), time.Now())
		}
		for i := range 10 {
			h.Record(auth.Principal{Workspace: "ours"}, api.SandboxID(fmt.Sprint("well", i)), time.Now())
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()
		<-time.After(sampleEvery)
		synctest.Wait()
		if _, n := boxes.queries(""); n != 10 {
			t.Errorf("%d guests were measured, want the 10 that answer", n)
		}
		close(boxes.hung)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestMemoryIntegral sums up memory over time: what is measured first holds for the time before, and another process
// begins anew.
func TestMemoryIntegral(t *testing.T) {
	h := New(&fakeSandboxes{})
	at := time.Unix(1000, 0)
	for i, step := range []struct {
		after, up time.Duration
		pid       int
		rss       int64
		want      float64
	}{
		{0, 10 * time.Second, 7, 100, 1000},
		{0, 10 * time.Second, 7, 100, 1000},
		{10 * time.Second, 20 * time.Second, 7, 300, 3000},
		{10 * time.Second, 5 * time.Second, 8, 10, 50},
		{time.Hour, 0, 0, 0, 0},
		{time.Hour, time.Second, 8, 10, 10},
	} {
		at = at.Add(step.after)
		got := h.MemoryIntegral(
			auth.Principal{},
			"one",
			at,
			api.Usage{PID: step.pid, UptimeSeconds: step.up.Seconds(), HostRSSBytes: step.rss},
		)
		if got != step.want {
			t.Errorf("step %d: %v byte seconds, want %v", i, got, step.want)
		}
	}
}

func TestHistoryIsBounded(t *testing.T) {
	h := New(&fakeSandboxes{})
	at := time.Unix(1000, 0)
	for i := range 2 * maxPoints {
		now := at.Add(time.Duration(i) * time.Second)
		h.Record(auth.Principal{}, "long", now, Point{At: now})
	}
	if got := h.Points("long"); len(got) != maxPoints || !got[0].At.Equal(at.Add(maxPoints*time.Second)) {
		t.Errorf("%d measurements, the first of %v", len(got), got[0].At)
	}
	h.Record(auth.Principal{}, "long", at, Point{At: at}) // of before is not taken
	for i := range maxSeries {
		h.Record(
			auth.Principal{},
			api.SandboxID(fmt.Sprint("box", i)),
			at.Add(time.Duration(i+1)*time.Hour),
			Point{At: at},
		)
	}
	if _, there := h.series["long"]; there || len(h.series) != maxSeries {
		t.Errorf("%d sandboxes are remembered, and the oldest question's %v", len(h.series), there)
	}
}
