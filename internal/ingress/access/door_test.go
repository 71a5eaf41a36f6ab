package access_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/access"
)

const (
	execPattern   = "POST /v1/sandboxes/{sandbox}/exec"
	deletePattern = "DELETE /v1/sandboxes/{sandbox}"
	createPattern = "POST /v1/sandboxes"
)

// door returns a guard with one place for each class.
func door(change func(*access.DoorConfig)) *access.Guard {
	cfg := access.DoorConfig{MaxWait: time.Minute, Hold: time.Hour, Places: map[access.Class]int{}}
	for _, class := range access.Classes() {
		cfg.Places[class] = 1
	}
	if change != nil {
		change(&cfg)
	}
	return access.New(access.Config{Door: access.NewDoor(cfg)}, &keys{}, nil)
}

func enter(ctx context.Context, g *access.Guard, pattern, who string) (*httptest.ResponseRecorder, func(), error) {
	w := httptest.NewRecorder()
	leave, err := g.Enter(w, request("192.0.2.1:1").WithContext(ctx), access.V1, pattern, api.Workspace(who))
	return w, leave, err
}

// TestKindsDoNotWaitForEachOther lets many clients run commands and checks that other requests are admitted.
func TestKindsDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := door(func(c *access.DoorConfig) { c.MaxWait = time.Hour })
		var clients sync.WaitGroup
		ctx, end := context.WithCancel(t.Context())
		for range 200 {
			clients.Go(func() {
				if _, leave, err := enter(ctx, g, execPattern, "many"); err == nil {
					<-ctx.Done()
					leave()
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		for _, pattern := range []string{deletePattern, createPattern, "GET /v1/sandboxes", "GET /healthz"} {
			_, leave, err := enter(ctx, g, pattern, "other")
			if err != nil {
				t.Errorf("%s behind commands: %v", pattern, err)
				continue
			}
			leave()
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("other requests waited %v for commands", waited)
		}
		end()
		clients.Wait()
	})
}

// TestOneOwnerLeavesPlaces checks that a workspace with many long requests makes no other one wait.
func TestOneOwnerLeavesPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := door(func(c *access.DoorConfig) { c.Places[access.Work], c.MaxWait = 8, time.Hour })
		ctx, end := context.WithCancel(t.Context())
		var (
			all    sync.WaitGroup
			served atomic.Int32
		)
		for range 20 {
			all.Go(func() {
				if _, leave, err := enter(ctx, g, execPattern, "many"); err == nil {
					served.Add(1)
					<-ctx.Done()
					leave()
				}
			})
		}
		synctest.Wait()
		if n := served.Load(); n != 4 {
			t.Errorf("one workspace has %d of 8 places, want half", n)
		}
		began := time.Now()
		_, leave, err := enter(ctx, g, execPattern, "one")
		if err != nil || time.Since(began) != 0 {
			t.Errorf("another workspace: %v after %v, want a place at once", err, time.Since(began))
		} else {
			leave()
		}
		end()
		all.Wait()
	})
}

// TestOwnersTakeTurns checks that a workspace with one request does not wait for all requests of another one.
func TestOwnersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := door(nil)
		_, leave, err := enter(t.Context(), g, execPattern, "first")
		if err != nil {
			t.Fatal(err)
		}
		var (
			all   sync.WaitGroup
			order []string
		)
		for i, who := range []string{"many", "many", "many", "one"} {
			all.Go(func() {
				_, leave, err := enter(t.Context(), g, execPattern, who)
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, who) // one at a time has the place
				leave()
			})
			synctest.Wait()
			_ = i
		}
		leave()
		all.Wait()
		if want := []string{"many", "one", "many", "many"}; !slices.Equal(order, want) {
			t.Errorf("served %v, want %v", order, want)
		}
	})
}

// TestFullQueueRefusesAtOnce checks the refusal of what would wait for too long, and that nothing waits longer.
func TestFullQueueRefusesAtOnce(t *testing.T) {
	for name, change := range map[string]func(*access.DoorConfig){
		"queue": func(c *access.DoorConfig) { c.Queue = 3 },
		"wait":  func(c *access.DoorConfig) { c.MaxWait = 190 * time.Millisecond }, // three times what one takes
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := door(change)
				_, leave, err := enter(t.Context(), g, execPattern, "w")
				if err != nil {
					t.Fatal(err)
				}
				var waiting sync.WaitGroup
				results := make(chan error, 3)
				for range 3 {
					waiting.Go(func() {
						_, leave, err := enter(t.Context(), g, execPattern, "w")
						if err == nil {
							leave()
						}
						results <- err
					})
				}
				synctest.Wait()
				began := time.Now()
				w, _, err := enter(t.Context(), g, execPattern, "w")
				if took := time.Since(began); took != 0 {
					t.Errorf("refused after %v, want at once", took)
				}
				e := api.AsError(err)
				if e == nil || e.Code != api.RateLimited || !e.Retryable || e.Details["class"] != string(access.Work) ||
					e.Details["retry_after_seconds"] != 1 || w.Header().Get("Retry-After") != "1" {
					t.Errorf("with a full queue: %v, %v; want rate_limited with Retry-After: 1", err, w.Header())
				}
				if name == "wait" {
					waiting.Wait() // nothing gives the place back
					for range 3 {
						if code := api.CodeOf(<-results); code != api.RateLimited {
							t.Errorf("after max_wait in the queue: %q, want rate_limited", code)
						}
					}
				}
				leave()
				waiting.Wait()
				if _, leave, err := enter(t.Context(), g, execPattern, "w"); err != nil {
					t.Errorf("with an empty queue: %v", err)
				} else {
					leave()
				}
			})
		})
	}
}

// TestLongRequestsGiveTheirPlaceBack checks that commands without end make no request wait.
func TestLongRequestsGiveTheirPlaceBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := door(func(c *access.DoorConfig) { c.Hold = time.Second })
		for i := range 10 {
			_, leave, err := enter(t.Context(), g, execPattern, "w")
			if err != nil {
				t.Fatalf("command %d: %v", i, err)
			}
			defer leave()
		}
	})
}

// TestDoorForgetsWhoLeaves ends requests in the queue in every order; no place may be lost.
func TestDoorForgetsWhoLeaves(t *testing.T) {
	gone := errors.New("gone")
	for first := range 4 {
		synctest.Test(t, func(t *testing.T) {
			g := door(nil)
			_, leave, err := enter(t.Context(), g, execPattern, "w")
			if err != nil {
				t.Fatal(err)
			}
			var all sync.WaitGroup
			for i := range 4 {
				all.Go(func() {
					ctx, cancel := context.WithCancelCause(t.Context())
					defer cancel(nil)
					if i == first {
						cancel(gone)
					}
					_, leave, err := enter(ctx, g, execPattern, fmt.Sprint("w", i%2))
					if i == first && !errors.Is(err, gone) || i != first && err != nil {
						t.Errorf("request %d: %v", i, err)
					}
					if err == nil {
						leave()
					}
				})
			}
			synctest.Wait()
			leave()
			all.Wait()
			if _, leave, err := enter(t.Context(), g, execPattern, "w"); err != nil {
				t.Errorf("afterwards: %v", err)
			} else {
				leave()
			}
		})
	}
}

// TestClasses checks that what ends and makes sandboxes has places of its own in both APIs, and that every operation
// with a key is bounded.
func TestClasses(t *testing.T) {
	for pattern, want := range map[string]access.Class{
		deletePattern: access.Deletes, createPattern: access.Creates, execPattern: access.Work,
		"GET /v1/sandboxes": access.Reads, "GET /healthz": "", "GET /metrics": "",
		"/v1/sandboxes/{sandbox}/proxy/{port}/{path...}": "",
	} {
		if got := access.ClassOf(access.V1, pattern); got != want {
			t.Errorf("%s: class %q, want %q", pattern, got, want)
		}
	}
	for face, list := range access.Operations() {
		for pattern, need := range list {
			_, scoped := need.Scope()
			unbounded := !scoped || need == access.Need(api.ScopeNode) || need == access.Need(api.ScopeMetrics) ||
				strings.Contains(pattern, "/proxy/")
			if need == access.Token || need == access.Traffic {
				unbounded = false
			}
			if got := access.ClassOf(face, pattern); (got == "") != unbounded {
				t.Errorf("%s %s: class %q", face, pattern, got)
			}
		}
	}
	for _, pattern := range []string{"DELETE /sandboxes/{id}", "POST /v2/sandboxes"} {
		if got := access.ClassOf(access.E2B, pattern); got != access.Deletes && got != access.Creates {
			t.Errorf("%s: class %q", pattern, got)
		}
	}
}
