package limit_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/function/limit"
)

func acquire(t *testing.T, l *limit.Limiter, r limit.Request) func() {
	t.Helper()
	release, err := l.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return release
}

func refused(t *testing.T, l *limit.Limiter, r limit.Request) {
	t.Helper()
	release, err := l.Acquire(t.Context(), r)
	if err == nil {
		release()
	}
	if api.CodeOf(err) != api.RateLimited || api.AsError(err).Details["retry_after_seconds"] == nil {
		t.Fatalf("a refusal with a time to retry expected, not %v", err)
	}
}

// A function has no more under way than its limit, and the server no more than its own.
func TestBounds(t *testing.T) {
	l := limit.New(limit.Config{Total: 3})
	r := limit.Request{Workspace: "w", Function: "a", Limit: 2}
	first := acquire(t, l, r)
	acquire(t, l, r)
	refused(t, l, r)
	other := limit.Request{Workspace: "w", Function: "b", Limit: 9}
	acquire(t, l, other)
	refused(t, l, other)
	first()
	first() // the second call has no effect
	acquire(t, l, r)
	refused(t, l, other)
}

// A request that waits begins when there is room, and fails when its time is over or its caller leaves.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limit.New(limit.Config{Total: 1, Waiting: 1})
		r := limit.Request{Workspace: "w", Function: "a", Limit: 1, Wait: time.Second}
		release := acquire(t, l, r)
		began := time.Now()
		refused(t, l, r)
		if time.Since(began) != time.Second {
			t.Fatalf("waited %s", time.Since(began))
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			_, err := l.Acquire(ctx, r)
			ended <- err
		}()
		synctest.Wait()
		refused(t, l, r) // one waits, and no more may
		cancel()
		if err := <-ended; err != context.Canceled {
			t.Fatalf("error %v", err)
		}
		go func() {
			_, err := l.Acquire(t.Context(), r)
			ended <- err
		}()
		synctest.Wait()
		release()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	})
}

// A workspace with many waiting invocations does not keep others from theirs, nor does one of its functions that is
// at its limit.
func TestFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limit.New(limit.Config{Total: 2})
		var order []string
		turns := make(chan func(), 100)
		wait := func(workspace, function string, limited int) {
			go func() {
				release, err := l.Acquire(t.Context(), limit.Request{Workspace: api.Workspace(workspace),
					Function: api.FunctionID(function), Limit: limited, Wait: time.Hour})
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, workspace+function)
				turns <- release
			}()
			synctest.Wait()
		}
		for range 20 {
			wait("greedy", "a", 1)
		}
		wait("greedy", "b", 9)
		wait("modest", "c", 9)
		for range 22 {
			(<-turns)()
			synctest.Wait()
		}
		if want := "[greedya greedyb modestc greedya"; fmt.Sprint(order)[:len(want)] != want || len(order) != 22 {
			t.Fatalf("order %v", order)
		}
	})
}
