package sandbox_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/sandbox"
)

// withFakeClock runs a test in virtual time with a running service.
func withFakeClock(t *testing.T, f func(t *testing.T, w *fixture), change ...func(*sandbox.Config)) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, change...)
		w.run()
		f(t, w)
	})
}

// advance lets virtual time go by, and what is due then happen.
func advance(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestIdleTTL(t *testing.T) {
	withFakeClock(t, func(t *testing.T, w *fixture) {
		s := w.create(alice, api.CreateRequest{})
		kept := w.create(alice, api.CreateRequest{Persistent: true})
		never := w.create(alice, api.CreateRequest{TTLSeconds: p(int64(0))})
		for range 3 { // use resets it
			advance(200 * time.Second)
			w.exec(alice, s.ID, "true")
		}
		if got := w.status(alice, s.ID); got != api.Running {
			t.Fatalf("a sandbox in use is %s", got)
		}
		advance(298 * time.Second)
		if got := w.status(alice, s.ID); got != api.Running {
			t.Fatalf("before its TTL it is %s", got)
		}
		if l, err := w.Lifecycle(t.Context(), alice, s.ID); err != nil || l.IdleSeconds != 298 {
			t.Errorf("idle %d s, %v; want 298", l.IdleSeconds, err)
		}
		advance(5 * time.Second)
		end, err := w.Explain(t.Context(), alice, s.ID)
		if err != nil || end.Reason != sandbox.EndedIdle || !strings.Contains(end.Message, "5m0s") {
			t.Errorf("ended as %+v, %v; want idle for 5m0s", end, err)
		}
		advance(10 * time.Minute)
		w.clean(kept.ID, never.ID)
	})
}

func TestReadsDoNotCountAsUse(t *testing.T) {
	withFakeClock(t, func(t *testing.T, w *fixture) {
		s := w.create(alice, api.CreateRequest{TTLSeconds: p(int64(60))})
		for range 7 {
			advance(10 * time.Second)
			w.status(alice, s.ID)
			if _, err := w.Usage(t.Context(), alice, s.ID); err != nil && api.CodeOf(err) != api.NotFound {
				t.Error(err)
			}
			if _, err := w.Ports(t.Context(), alice, s.ID); err != nil && api.CodeOf(err) != api.NotFound {
				t.Error(err)
			}
		}
		w.clean()
	})
}

func TestOpenStreamsKeepASandboxActive(t *testing.T) {
	withFakeClock(t, func(t *testing.T, w *fixture) {
		ctx := t.Context()
		s := w.create(alice, api.CreateRequest{TTLSeconds: p(int64(60))})
		g, err := w.Guest(ctx, alice, s.ID)
		if err != nil {
			t.Fatal(err)
		}
		proc, err := g.Start(ctx, guestapi.ProcessSpec{Shell: "sleep 100000"})
		if err != nil {
			t.Fatal(err)
		}
		conn, err := g.DialPort(ctx, 7)
		if err != nil {
			t.Fatal(err)
		}
		advance(10 * time.Minute)
		if err := proc.Close(); err != nil {
			t.Fatal(err)
		}
		advance(10 * time.Minute)
		if got := w.status(alice, s.ID); got != api.Running {
			t.Errorf("with an open connection it is %s, want running", got)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		advance(50 * time.Second)
		if got := w.status(alice, s.ID); got != api.Running {
			t.Errorf("the TTL began before the connection was closed: it is %s", got)
		}
		advance(15 * time.Second)
		w.clean()
	})
}

func TestFixedEnd(t *testing.T) {
	withFakeClock(t, func(t *testing.T, w *fixture) {
		s := w.create(alice, api.CreateRequest{Persistent: true, TimeoutSeconds: 100})
		advance(90 * time.Second)
		if _, err := w.SetLifecycle(t.Context(), alice, s.ID,
			api.LifecyclePatch{TimeoutSeconds: p(int64(100))}); err != nil {
			t.Fatal(err)
		}
		advance(90 * time.Second)
		if got := w.status(alice, s.ID); got != api.Running {
			t.Fatalf("after its end was put off it is %s", got)
		}
		advance(15 * time.Second)
		if end, err := w.Explain(t.Context(), alice, s.ID); err != nil || end.Reason != sandbox.EndedTimeout {
			t.Errorf("ended as %+v, %v; want timeout", end, err)
		}
		w.clean()
	})
}

func TestFixedEndHibernates(t *testing.T) {
	withFakeClock(t, func(t *testing.T, w *fixture) {
		s := w.create(
			alice,
			api.CreateRequest{TTLSeconds: p(int64(0)), TimeoutSeconds: 100, OnTimeout: api.TimeoutHibernate},
		)
		if s.ExpiresAt == nil || s.OnTimeout != api.TimeoutHibernate {
			t.Errorf("created %+v, want an end that hibernates", s)
		}
		advance(102 * time.Second)
		if got := w.status(alice, s.ID); got != api.Hibernated {
			t.Fatalf("at its end it is %s, want hibernated", got)
		}
		w.exec(alice, s.ID, "true")
		advance(10 * time.Minute)
		w.clean(s.ID)
		if _, err := w.SetLifecycle(t.Context(), alice, s.ID, api.LifecyclePatch{TimeoutSeconds: p(int64(10)),
			OnTimeout: p(api.TimeoutDelete)}); err != nil {
			t.Fatal(err)
		}
		advance(12 * time.Second)
		w.clean()
	})
}

func TestIdleHibernate(t *testing.T) {
	withFakeClock(t, func(t *testing.T, w *fixture) {
		s := w.create(alice, api.CreateRequest{Persistent: true})
		advance(62 * time.Second)
		if got := w.status(alice, s.ID); got != api.Hibernated {
			t.Errorf("an idle persistent sandbox is %s, want hibernated", got)
		}
		w.exec(alice, s.ID, "true")
		if got := w.status(alice, s.ID); got != api.Running {
			t.Errorf("after use it is %s, want running", got)
		}
		other := w.create(alice, api.CreateRequest{TTLSeconds: p(int64(10))})
		if _, err := w.Hibernate(t.Context(), alice, other.ID); err != nil {
			t.Fatal(err)
		}
		advance(5 * time.Minute)
		if got := w.status(alice, other.ID); got != api.Hibernated {
			t.Errorf("the idle TTL ran on while it was hibernated: it is %s", got)
		}
		advance(6 * time.Minute)
		w.clean(s.ID)
	}, func(c *sandbox.Config) { c.IdleHibernate, c.HibernatedTTL = time.Minute, 10*time.Minute })
}

func TestShorterTTLBeginsNow(t *testing.T) {
	withFakeClock(t, func(t *testing.T, w *fixture) {
		s := w.create(alice, api.CreateRequest{TTLSeconds: p(int64(1000))})
		advance(100 * time.Second)
		if _, err := w.SetLifecycle(t.Context(), alice, s.ID, api.LifecyclePatch{TTLSeconds: p(int64(5))}); err != nil {
			t.Fatal(err)
		}
		advance(3 * time.Second)
		if got := w.status(alice, s.ID); got != api.Running {
			t.Errorf("it is %s after 3 of 5 s", got)
		}
		advance(4 * time.Second)
		w.clean()
	})
}

func TestRestartDoesNotCountAsIdleTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		s := w.create(alice, api.CreateRequest{})
		advance(24 * time.Hour) // the service does not run
		w.restart()
		w.run()
		advance(200 * time.Second)
		if got := w.status(alice, s.ID); got != api.Running {
			t.Errorf("it is %s: the time without a control plane counted as idle", got)
		}
		advance(200 * time.Second)
		w.clean()
	})
}

func TestLastUseIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		s := w.create(alice, api.CreateRequest{})
		advance(100 * time.Second)
		w.exec(alice, s.ID, "true")
		cancel() // what was not written yet is written now
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		advance(10 * time.Second)
		w.restart()
		if l, err := w.Lifecycle(t.Context(), alice, s.ID); err != nil || l.IdleSeconds != 10 {
			t.Errorf("idle %d s, %v; want 10", l.IdleSeconds, err)
		}
	})
}

func TestTombstonesExpire(t *testing.T) {
	withFakeClock(t, func(t *testing.T, w *fixture) {
		ctx := t.Context()
		s := w.create(alice, api.CreateRequest{IdempotencyKey: "k"})
		if err := w.Delete(ctx, alice, s.ID); err != nil {
			t.Fatal(err)
		}
		advance(23 * time.Hour)
		if again := w.create(alice, api.CreateRequest{IdempotencyKey: "k"}); again.ID != s.ID ||
			again.Status != api.Deleted ||
			again.EndReason != "deleted" {
			t.Errorf("the same request returned %+v, want the sandbox that ended", again)
		}
		advance(2 * time.Hour)
		if next := w.create(alice, api.CreateRequest{IdempotencyKey: "k", Persistent: true}); next.ID == s.ID {
			t.Error("an idempotency key is kept longer than a day")
		}
		if _, err := w.Events(ctx, alice, s.ID, sandbox.EventQuery{}); err != nil {
			t.Errorf("events after 25 hours: %v", err)
		}
		advance(48 * time.Hour)
		_, err := w.Explain(ctx, alice, s.ID)
		wantCode(t, err, api.NotFound, "after three days")
		_, err = w.Events(ctx, alice, s.ID, sandbox.EventQuery{})
		wantCode(t, err, api.NotFound, "events after three days")
	}, slowTimers)
}

// slowTimers lets days of virtual time pass soon.
func slowTimers(c *sandbox.Config) {
	c.ReapInterval, c.FlushInterval, c.ReconcileInterval = 10*time.Minute, time.Hour, time.Hour
}
