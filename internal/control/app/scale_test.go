package app_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/store"
)

// asleep lets an app sleep.
func (w *fixture) asleep(a api.App) {
	w.t.Helper()
	_, err := w.Update(w.t.Context(), alice, string(a.ID), api.UpdateAppRequest{IdleTimeoutSeconds: new(int64(1))})
	w.must(err)
	w.until("sleep", func() bool {
		w.must(w.Reconcile(w.t.Context()))
		return len(w.ready(a)) == 0
	})
	_, err = w.Update(w.t.Context(), alice, string(a.ID), api.UpdateAppRequest{IdleTimeoutSeconds: new(int64(3600))})
	w.must(err)
}

// TestSleepAndWake lets an idle app sleep, and wakes it with 50 callers at once: its machine is woken once, and no
// other is made.
func TestSleepAndWake(t *testing.T) {
	w := newFixture(t)
	a := w.made(func(r *api.CreateAppRequest) { r.RestoreHook = "/restored" })
	w.live(a, "one")
	w.asleep(a)
	if now := w.get(a); now.Status != api.AppHibernated || now.Replicas != 0 {
		t.Errorf("%+v", now)
	}
	before := len(w.host.Calls())
	var wakers sync.WaitGroup
	for range 50 {
		wakers.Go(func() {
			if err := w.Wake(t.Context(), a.ID, 1); err != nil {
				t.Error(err)
			}
		})
	}
	wakers.Wait()
	wakes := 0
	for _, call := range w.host.Calls()[before:] {
		if strings.HasPrefix(call, "wake") {
			wakes++
		}
		if strings.HasPrefix(call, "create") {
			t.Error("a machine was made")
		}
	}
	if n := len(w.ready(a)); wakes != 1 || n != 1 {
		t.Errorf("%d wakes, %d replicas", wakes, n)
	}
	posts := w.read(a, w.ready(a)[0].Sandbox, "/srv/posts")
	if posts != "/restored\n/restored\n" { // one is of the rehearsal
		t.Errorf("the hook was called for %q", posts)
	}
	if s, err := w.Stats(t.Context(), alice, "site"); err != nil || s.Hibernates != 1 || s.Requests != 7 {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestRequestKeepsAwake lets a request come between the decision that an app is to sleep and its sleep.
func TestRequestKeepsAwake(t *testing.T) {
	w := newFixture(t)
	a := w.made(func(r *api.CreateAppRequest) { r.IdleTimeoutSeconds = 1 })
	w.live(a, "one")
	w.edge.mu.Lock()
	came := false
	w.edge.asked = func() { // it comes once the replica is marked
		rows, err := w.db.Read().Replicas(t.Context(), string(a.ID))
		if err == nil && len(rows) == 1 && rows[0].State == store.ReplicaSleeping {
			w.edge.inFlight, came = 1, true
		}
	}
	w.edge.mu.Unlock()
	w.until("request", func() bool {
		w.must(w.Reconcile(t.Context()))
		w.edge.mu.Lock()
		defer w.edge.mu.Unlock()
		return came
	})
	if n := len(w.ready(a)); n != 1 {
		t.Errorf("%d replicas are ready", n)
	}
	for _, m := range w.host.Machines() {
		if m.State != hostapi.Running {
			t.Errorf("machine %s is %v", m.ID, m.State)
		}
	}
}

// TestScale starts the minimum, more for the load, never more than the maximum, and retires what is too many.
func TestScale(t *testing.T) {
	w := newFixture(t, func(w *fixture) { w.cfg.SurplusGrace = time.Nanosecond })
	ctx := t.Context()
	a := w.made(func(r *api.CreateAppRequest) { r.Scale = &api.AppScale{Min: 2, Max: 3, Concurrency: 1} })
	w.live(a, "one")
	w.must(w.Reconcile(ctx))
	if n := len(w.ready(a)); n != 2 {
		t.Errorf("%d replicas, want the minimum", n)
	}
	w.edge.set(9, time.Now())
	w.must(w.Wake(ctx, a.ID, 9))
	if n := len(w.ready(a)); n != 3 {
		t.Errorf("%d replicas, want the maximum", n)
	}
	w.must(w.Reconcile(ctx))
	if n := len(w.ready(a)); n != 3 {
		t.Errorf("%d replicas under load", n)
	}
	w.edge.set(0, time.Now())
	for range 3 {
		w.must(w.Reconcile(ctx))
	}
	if n := len(w.ready(a)); n != 2 {
		t.Errorf("%d replicas without load", n)
	}
	_, err := w.Update(ctx, alice, "site", api.UpdateAppRequest{Scale: &api.AppScale{}})
	w.must(err)
	w.must(w.Reconcile(ctx))
	w.must(w.Reconcile(ctx))
	if now := w.get(a); now.Status != api.AppStopped || len(w.host.Machines()) != 0 {
		t.Errorf("%+v, %d machines", now, len(w.host.Machines()))
	}
	w.wants("a wake", w.Wake(ctx, a.ID, 1), api.WrongState)
}

// TestCrash lets the program of an app exit: another replica takes the place, and the app says why.
func TestCrash(t *testing.T) {
	w := newFixture(t, func(w *fixture) { w.cfg.Interval, w.cfg.Backoff = 10*time.Millisecond, 20*time.Millisecond })
	a := w.made()
	w.live(a, "one")
	w.edge.set(1, time.Now())
	w.run()
	first := w.ready(a)[0].Sandbox
	w.until("output", func() bool {
		text := ""
		w.must(w.RuntimeLog(t.Context(), alice, "site", false, func(o api.AppOutput) error {
			text += o.Line
			return nil
		}))
		g, _, err := w.Open(t.Context(), a.ID, first)
		if err != nil {
			return true // it has ended
		}
		all, err := g.Processes(t.Context())
		if err == nil {
			for _, p := range all {
				if p.Tag == "app" && p.Exit == nil {
					_ = g.Signal(t.Context(), ref(p.PID), 9, true) // it may have ended
				}
			}
		}
		return strings.Contains(text, "signal 9")
	})
	w.until("another replica", func() bool {
		now := w.ready(a)
		return len(now) == 1 && now[0].Sandbox != first
	})
	if got := w.get(a); !strings.Contains(got.Error, "signal 9") || got.Status != api.AppRunning {
		t.Errorf("%+v", got)
	}
	if s, err := w.Stats(t.Context(), alice, "site"); err != nil || s.Restarts == 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestLostMachine destroys the machine of a replica behind the service's back.
func TestLostMachine(t *testing.T) {
	w := newFixture(t, func(w *fixture) { w.cfg.Backoff = time.Nanosecond })
	a := w.made(func(r *api.CreateAppRequest) { r.Scale = &api.AppScale{Min: 1, Max: 1} })
	w.live(a, "one")
	w.host.Lose(hostapi.MachineID(w.ready(a)[0].Sandbox))
	w.settle()
	if got := w.get(a); len(w.ready(a)) != 1 || !strings.Contains(got.Error, "machine") {
		t.Errorf("%+v", got)
	}
	w.whole("lost")
}

// TestDrain replaces a deployment whose requests are under way: its machine stays until the edge has let go.
func TestDrain(t *testing.T) {
	w := newFixture(t)
	a := w.made()
	one := w.live(a, "one")
	w.edge.set(1, time.Now())
	w.live(a, "two")
	w.must(w.Reconcile(t.Context()))
	w.edge.mu.Lock()
	defer w.edge.mu.Unlock()
	if len(w.edge.drained) != 1 || w.edge.drained[0] != one.ID {
		t.Errorf("drained %v", w.edge.drained)
	}
}
