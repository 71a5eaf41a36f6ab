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

// fakeSandboxes has sandboxes whose guests are half busy, and counts their measurements.
type fakeSandboxes struct {
	began time.Time

	mu      sync.Mutex
	asked   map[api.SandboxID]int // guarded by mu
	stopped bool                  // guarded by mu
	hung    chan struct{}         // sandboxes whose names begin with "hung" respond when it is closed
}

// queries returns how often one sandbox, and how often all of them, were measured.
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
			t.Errorf("got %d measurements without a request, want 0", n)
		}
		ours := auth.Principal{Workspace: "ours"}
		h.Record(ours, "one", time.Now(), Point{At: time.Now()})
		h.Record(auth.Principal{Workspace: "gone"}, "two", time.Now(), Point{At: time.Now()})
		asked := time.Now()
		pass(time.Minute + time.Second)
		// The first sample makes no point; each later one makes a point for the time since the sample before.
		all := between(asked, time.Now())
		if len(all) != 12 || all[1].CPUPercent() != 50 || all[1].Guest.MemAvailableBytes != 40 ||
			!all[11].At.After(all[10].At) {
			t.Fatalf("got %d points %+v, want 12 with 50 %% of the processors", len(all), all)
		}
		if part := between(asked.Add(20*time.Second), asked.Add(40*time.Second)); len(part) != 5 {
			t.Errorf("got %d points in 20 seconds, want 5", len(part))
		}
		if none := between(began, asked.Add(-time.Second)); len(none) != 0 {
			t.Errorf("got points %v before the first request, want none", none)
		}
		// A stopped sandbox adds no points, and the first sample afterwards makes none.
		boxes.setStopped(true)
		pass(20 * time.Second)
		boxes.setStopped(false)
		pass(10 * time.Second)
		if more := between(asked, time.Now()); len(more) != 13 || more[12].CPUPercent() != 50 {
			t.Errorf("got %d points after a stop, the last %+v; want 13 with 50 %%", len(more), more[len(more)-1])
		}
		// Some time after the last request the sampling ends, and later the points are removed.
		pass(sampleFor)
		before, _ := boxes.queries("one")
		pass(10 * time.Minute)
		if now, _ := boxes.queries("one"); now != before || len(between(asked, time.Now())) == 0 {
			t.Errorf("got %d measurements long after the last request, want %d and the points kept", now, before)
		}
		pass(retention)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := len(h.Points("one")); n != 0 {
			t.Errorf("got %d points after the retention, want 0", n)
		}
	})
}

// TestHungGuests has guests that do not respond: the others are measured.
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
			t.Errorf("got %d measured guests, want the 10 that respond", n)
		}
		close(boxes.hung)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestMemoryIntegral integrates memory over time: the first measurement counts for the time before it, and another
// process begins a new integral.
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
			t.Errorf("step %d: got %v byte seconds, want %v", i, got, step.want)
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
		t.Errorf("got %d points, the first of %v; want the newest %d", len(got), got[0].At, maxPoints)
	}
	h.Record(auth.Principal{}, "long", at, Point{At: at}) // a point of an earlier time is ignored
	for i := range maxSeries {
		h.Record(
			auth.Principal{},
			api.SandboxID(fmt.Sprint("box", i)),
			at.Add(time.Duration(i+1)*time.Hour),
			Point{At: at},
		)
	}
	if _, found := h.series["long"]; found || len(h.series) != maxSeries {
		t.Errorf("got %d series, with the least recently requested %v; want %d without it",
			len(h.series), found, maxSeries)
	}
}

// A workspace that requests the metrics of very many sandboxes does not push out those of a neighbour.
func TestHistoryIsShared(t *testing.T) {
	h := New(&fakeSandboxes{})
	at := time.Unix(1000, 0)
	neighbour, hostile := auth.Principal{Workspace: "neighbour"}, auth.Principal{Workspace: "hostile"}
	for i := range 3 {
		h.Record(neighbour, api.SandboxID(fmt.Sprint("ours", i)), at, Point{At: at})
	}
	for i := range 2 * maxSeries {
		at = at.Add(time.Second)
		h.Record(hostile, api.SandboxID(fmt.Sprint("box", i)), at, Point{At: at})
	}
	for i := range 3 {
		if len(h.Points(api.SandboxID(fmt.Sprint("ours", i)))) == 0 {
			t.Errorf("series %d of the neighbour is lost", i)
		}
	}
	if len(h.series) != maxSeries {
		t.Errorf("got %d series, want %d", len(h.series), maxSeries)
	}
}
