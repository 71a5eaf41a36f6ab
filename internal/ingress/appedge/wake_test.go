package appedge_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/appedge"
)

// Fifty requests for an app that sleeps are answered after one wake.
func TestOneWakeForManyRequests(t *testing.T) {
	f := newFixture(t, nil).listen()
	const n = 50
	f.wakeTo(program(t, text("hello")))
	ready := f.apps.onWake
	all := make(chan struct{})
	f.apps.onWake = func(ctx context.Context) error {
		<-all
		return ready(ctx)
	}
	var group sync.WaitGroup
	for range n {
		group.Go(func() {
			res, err := f.server.Client().Transport.RoundTrip(f.request(http.MethodGet, "/", nil))
			if err != nil {
				t.Error(err)
				return
			}
			if res.Body.Close(); res.StatusCode != http.StatusOK {
				t.Errorf("status %d", res.StatusCode)
			}
		})
	}
	f.until(n)
	close(all)
	group.Wait()
	f.until(0)
	if f.apps.wakes() != 1 {
		t.Errorf("%d wakes, want 1", f.apps.wakes())
	}
	s := f.edge.Stats(appID)
	if s.Requests != n || s.Statuses["2xx"] != n || s.Wakes != 1 || s.P99Ms == 0 {
		t.Errorf("stats %+v, want %d requests after 1 wake", s, n)
	}
}

// A client that leaves does not cancel the wake that its request began.
func TestWakeOutlivesItsClient(t *testing.T) {
	f := newFixture(t, nil).listen()
	f.wakeTo(program(t, text("hello")))
	ready, began, left := f.apps.onWake, make(chan struct{}), make(chan struct{})
	f.apps.onWake = func(ctx context.Context) error {
		close(began)
		<-left
		return errors.Join(ctx.Err(), ready(ctx))
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := f.server.Client().Transport.RoundTrip(f.request("GET", "/", nil).WithContext(ctx)); err == nil {
			t.Error("the request was answered")
		}
	}()
	<-began
	cancel()
	<-done
	f.until(0)
	close(left)
	f.want(f.get("/"), http.StatusOK, "hello")
	if f.apps.wakes() != 1 {
		t.Errorf("%d wakes, want 1", f.apps.wakes())
	}
}

// A request waits for the wake as long as it may.
func TestHold(t *testing.T) {
	f := newFixture(t, func(c *appedge.Config) { c.Hold = time.Millisecond }).listen()
	f.apps.onWake = func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	res := f.get("/")
	f.want(res, http.StatusServiceUnavailable, `"code":"unavailable"`)
	if res.Header.Get("Retry-After") == "" {
		t.Error("the response has no Retry-After")
	}
	res = f.get("/", "Accept", "text/html")
	f.want(res, http.StatusServiceUnavailable, "<h1>The app is starting")
	if f.apps.wakes() != 1 {
		t.Errorf("%d wakes, want 1", f.apps.wakes())
	}
}

// A wake that fails is not repeated at once, and visitors do not learn why.
func TestFailedWake(t *testing.T) {
	f := newFixture(t, nil).listen()
	f.apps.onWake = func(context.Context) error { return api.Errorf(api.NoCapacity, "host seven is full") }
	for range 3 {
		res := f.get("/")
		f.want(res, http.StatusServiceUnavailable, "could not be started")
		if strings.Contains(res.body, "seven") || res.Header.Get("Retry-After") == "" {
			t.Errorf("response %v %s", res.Header, res.body)
		}
	}
	if f.apps.wakes() != 1 {
		t.Errorf("%d wakes, want 1", f.apps.wakes())
	}
}

// Robots, probes and prefetches wake nothing, and are served by an app that runs.
func TestQuietRequests(t *testing.T) {
	f := newFixture(t, nil).listen()
	addr := program(t, text("hello"))
	quiet := []*http.Request{
		f.request(http.MethodGet, "/", nil, "User-Agent", "Mozilla/5.0 (compatible; Googlebot/2.1)"),
		f.request(http.MethodHead, "/", nil),
		f.request(http.MethodGet, "/", nil, "Sec-Purpose", "prefetch;prerender"),
	}
	for _, r := range quiet {
		res := f.do(r.Clone(t.Context()))
		if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" {
			t.Errorf("%s %v: status %d", r.Method, r.Header, res.StatusCode)
		}
	}
	if f.apps.wakes() != 0 {
		t.Errorf("%d wakes, want 0", f.apps.wakes())
	}
	f.apps.change(func() { f.apps.start("sbx1", "dpl1", addr) })
	for _, r := range quiet {
		if res := f.do(r.Clone(t.Context())); res.StatusCode != http.StatusOK {
			t.Errorf("%s %v at an app that runs: status %d", r.Method, r.Header, res.StatusCode)
		}
	}
}

// Wakes of one app, and those that one network causes, are limited.
func TestWakeLimits(t *testing.T) {
	for name, tune := range map[string]func(*appedge.Config){
		"app":     func(c *appedge.Config) { c.AppWakes = 2 },
		"network": func(c *appedge.Config) { c.NetworkWakes = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, tune).listen()
			f.wakeTo(program(t, text("hello")))
			for range 2 {
				f.want(f.get("/"), http.StatusOK, "hello")
				f.want(f.get("/"), http.StatusOK, "hello")
				f.apps.sleep()
			}
			res := f.get("/")
			f.want(res, http.StatusServiceUnavailable, "")
			if f.apps.wakes() != 2 || res.Header.Get("Retry-After") == "" {
				t.Errorf("%d wakes, want 2; headers %v", f.apps.wakes(), res.Header)
			}
		})
	}
}

// A replica that is full has another one asked for, up to the maximum. Requests go where the fewest are under way.
func TestConcurrency(t *testing.T) {
	f := newFixture(t, nil).listen()
	f.apps.route.Max, f.apps.route.Concurrency = 2, 1
	hold := make(chan struct{})
	arrived := make(chan string, 8)
	handler := func(name string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			arrived <- name
			<-hold
			w.WriteHeader(http.StatusNoContent)
		})
	}
	first, second := program(t, handler("first")), program(t, handler("second"))
	f.apps.change(func() { f.apps.start("sbx1", "dpl1", first) })
	grown := make(chan struct{})
	f.apps.onWake = func(context.Context) error {
		f.apps.change(func() { f.apps.start("sbx2", "dpl1", second) })
		close(grown) // panics if a third is asked for
		return nil
	}
	var group sync.WaitGroup
	send := func() string {
		group.Go(func() {
			res, err := f.server.Client().Transport.RoundTrip(f.request(http.MethodGet, "/", nil))
			if err != nil {
				t.Error(err)
				return
			}
			_ = res.Body.Close()
		})
		return <-arrived
	}
	if got := send() + " " + send(); got != "first first" {
		t.Errorf("the first two requests went to %s", got)
	}
	<-grown
	if got := send() + " " + send(); got != "second second" {
		t.Errorf("the next two requests went to %s", got)
	}
	send()
	close(hold)
	group.Wait()
	if want := []int{2}; len(f.apps.wants) != 1 || f.apps.wants[0] != want[0] {
		t.Errorf("wakes for %v replicas, want %v", f.apps.wants, want)
	}
}

// The end of the edge ends wakes.
func TestStop(t *testing.T) {
	f := newFixture(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- f.edge.Run(ctx) }()
	f.listen()
	f.apps.onWake = func(ctx context.Context) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}
	f.want(f.get("/"), http.StatusServiceUnavailable, "")
	if err := <-done; err != nil {
		t.Error(err)
	}
	f.want(f.get("/"), http.StatusServiceUnavailable, "")
}
