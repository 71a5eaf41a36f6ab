package e2bapi

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/auth"
)

// measured are sandboxes whose guests are half busy, and counts how often they are asked.
type measured struct {
	Sandboxes
	began time.Time

	mu    sync.Mutex
	asked map[api.SandboxID]int // guarded by mu
	rests bool                  // guarded by mu
}

// times tells how often a sandbox was asked, or all of them were.
func (m *measured) times(id api.SandboxID) (one, all int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.asked {
		all += n
	}
	return m.asked[id], all
}

func (m *measured) rest(now bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rests = now
}

func (m *measured) Usage(_ context.Context, who auth.Principal, id api.SandboxID) (api.Usage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked[id]++
	if who.Workspace != "ours" {
		return api.Usage{}, api.Errorf(api.NotFound, "no sandbox for %s", who.Workspace)
	}
	if m.rests {
		return api.Usage{}, nil
	}
	up := time.Since(m.began).Seconds()
	return api.Usage{Guest: &api.Inside{CPUs: 2, CPUBusySeconds: up, UptimeSeconds: up, MemTotalBytes: 100, MemAvailableBytes: 40}}, nil
}

func TestHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		boxes := &measured{began: began, asked: map[api.SandboxID]int{}}
		s := &Server{sandboxes: boxes, past: history{of: map[api.SandboxID]*series{}}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		pass := func(d time.Duration) {
			<-time.After(d)
			synctest.Wait()
		}
		pass(time.Minute)
		if _, n := boxes.times(""); n != 0 {
			t.Errorf("guests that nobody asked about were asked %d times", n)
		}
		ours := auth.Principal{Workspace: "ours"}
		s.past.asked(ours, "one", time.Now(), metric{Timestamp: time.Now()})
		s.past.asked(auth.Principal{Workspace: "gone"}, "two", time.Now(), metric{Timestamp: time.Now()})
		asked := time.Now()
		pass(time.Minute + time.Second)
		// The first sample only begins; each after it tells of the time since the one before.
		all := s.past.between("one", asked, time.Now())
		if len(all) != 12 || all[1].CPUUsedPct != 50 || all[1].MemUsed != 60 || !all[11].Timestamp.After(all[10].Timestamp) {
			t.Fatalf("%d measurements: %+v", len(all), all)
		}
		if part := s.past.between("one", asked.Add(20*time.Second), asked.Add(40*time.Second)); len(part) != 5 {
			t.Errorf("%d of twenty seconds", len(part))
		}
		if none := s.past.between("one", began, asked.Add(-time.Second)); none == nil || len(none) != 0 {
			t.Errorf("before the first question: %v", none)
		}
		// While it rests nothing is added, and what it used before says nothing of after.
		boxes.rest(true)
		pass(20 * time.Second)
		boxes.rest(false)
		pass(10 * time.Second)
		if more := s.past.between("one", asked, time.Now()); len(more) != 13 || more[12].CPUUsedPct != 50 {
			t.Errorf("after a rest %d measurements, the last %+v", len(more), more[len(more)-1])
		}
		// Some time after the last question the guest is left alone, and later all is forgotten.
		pass(sampleFor)
		before, _ := boxes.times("one")
		pass(10 * time.Minute)
		if now, _ := boxes.times("one"); now != before || len(s.past.between("one", asked, time.Now())) == 0 {
			t.Errorf("asked %d times, and %d before", now, before)
		}
		pass(keepPoints)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if len(s.past.of) != 0 {
			t.Errorf("%d sandboxes are remembered", len(s.past.of))
		}
	})
}

func TestHistoryIsBounded(t *testing.T) {
	h := history{of: map[api.SandboxID]*series{}}
	at := time.Unix(1000, 0)
	for i := range 2 * maxPoints {
		h.asked(auth.Principal{}, "long", at.Add(time.Duration(i)*time.Second), metric{Timestamp: at.Add(time.Duration(i) * time.Second)})
	}
	if got := h.between("long", at, at.Add(time.Hour)); len(got) != maxPoints || !got[0].Timestamp.Equal(at.Add(maxPoints*time.Second)) {
		t.Errorf("%d measurements, the first of %v", len(got), got[0].Timestamp)
	}
	h.asked(auth.Principal{}, "long", at, metric{Timestamp: at}) // of before is not taken
	for i := range maxSeries {
		h.asked(auth.Principal{}, api.SandboxID(fmt.Sprint("box", i)), at.Add(time.Duration(i+1)*time.Hour), metric{Timestamp: at})
	}
	if _, there := h.of["long"]; there || len(h.of) != maxSeries {
		t.Errorf("%d sandboxes are remembered, and the oldest question's %v", len(h.of), there)
	}
}
