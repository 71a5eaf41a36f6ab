package appedge_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/ingress/appedge"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
)

const (
	appID = api.AppID("appaaaaaaaaaaaaaaaaaaaa")
	host  = "shop.apps.test"
	port  = 3000
)

// guest is a guest that has a program on one port.
type guest struct {
	guestapi.Guest
	addr string // "": nothing listens
}

func (g guest) DialPort(ctx context.Context, _ uint16) (net.Conn, error) {
	if g.addr == "" {
		return nil, fmt.Errorf("port: %w", guestapi.ErrRefused)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", g.addr)
}

// apps implements appedge.Apps with one app.
type apps struct {
	mu       sync.Mutex
	route    appedge.Route
	replicas []appedge.Replica
	guests   map[api.SandboxID]guest
	changed  chan struct{}
	routed   int
	wants    []int                           // of calls of Wake
	onWake   func(ctx context.Context) error // called without mu
}

func (s *apps) Route(_ context.Context, name string) (appedge.Route, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name != host {
		return appedge.Route{}, fmt.Errorf("%s: %w", name, appedge.ErrNoApp)
	}
	s.routed++
	return s.route, nil
}

func (s *apps) Replicas(context.Context, api.AppID) ([]appedge.Replica, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]appedge.Replica(nil), s.replicas...), nil
}

func (s *apps) Wake(ctx context.Context, _ api.AppID, want int) error {
	s.mu.Lock()
	s.wants = append(s.wants, want)
	do := s.onWake
	s.mu.Unlock()
	if do == nil {
		return nil
	}
	return do(ctx)
}

func (s *apps) Open(_ context.Context, _ api.AppID, id api.SandboxID) (guestapi.Guest, api.Sandbox, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, ok := s.guests[id]
	if !ok {
		return nil, api.Sandbox{}, api.Errorf(api.NotFound, "sandbox %s not found", id)
	}
	return g, api.Sandbox{ID: id, Generation: 1}, nil
}

func (s *apps) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// change changes the app.
func (s *apps) change(by func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	by()
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *apps) wakes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.wants)
}

// start has a program at a replica that is ready. The caller changes the app.
func (s *apps) start(id api.SandboxID, deployment api.DeploymentID, addr string) {
	s.guests[id] = guest{addr: addr}
	s.replicas = append(s.replicas, appedge.Replica{Sandbox: id, Deployment: deployment, Ready: true})
}

// sleep stops all replicas.
func (s *apps) sleep() { s.change(func() { s.replicas, s.guests = nil, map[api.SandboxID]guest{} }) }

type fixture struct {
	t      *testing.T
	apps   *apps
	edge   *appedge.Edge
	server *httptest.Server
}

// newFixture returns an edge in front of an app that sleeps. tune may change the configuration.
func newFixture(t *testing.T, tune func(*appedge.Config)) *fixture {
	t.Helper()
	f := &fixture{t: t, apps: &apps{
		route:  appedge.Route{App: appID, Name: "shop", Deployment: "dpl1", Generation: 1, Port: port, Max: 4},
		guests: map[api.SandboxID]guest{}, changed: make(chan struct{}),
	}}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	p := proxy.New(proxy.Config{
		HideHeaders: []string{"X-Api-Key"}, Log: log,
		IsKey: func(text string) bool { return strings.HasPrefix(text, "pds_") },
	})
	t.Cleanup(p.Close)
	cfg := appedge.Config{
		Apps: f.apps, Proxy: p, Hold: time.Minute, WakeTimeout: time.Minute, Response: time.Minute,
		DrainGrace: time.Millisecond, DrainLimit: time.Minute, Quiet: []string{"googlebot"}, Log: log,
	}
	if tune != nil {
		tune(&cfg)
	}
	f.edge = appedge.New(t.Context(), cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.edge.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	f.server = httptest.NewUnstartedServer(f.edge.Middleware(text("the API")))
	f.server.EnableHTTP2 = true
	return f
}

// listen serves the edge without TLS.
func (f *fixture) listen() *fixture {
	f.server.Start()
	f.t.Cleanup(f.server.Close)
	return f
}

// program serves a handler as the program of an app and returns its address.
func program(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func text(s string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s) })
}

// request returns a request for the app.
func (f *fixture) request(method, path string, body io.Reader, headers ...string) *http.Request {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), method, f.server.URL+path, body)
	if err != nil {
		f.t.Fatal(err)
	}
	r.Host = host
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

type answer struct {
	*http.Response
	body string
}

// do sends a request and reads the response. Redirects are not followed.
func (f *fixture) do(r *http.Request) answer {
	f.t.Helper()
	res, err := f.server.Client().Transport.RoundTrip(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return answer{res, string(body)}
}

func (f *fixture) get(path string, headers ...string) answer {
	f.t.Helper()
	return f.do(f.request(http.MethodGet, path, nil, headers...))
}

// want fails the test unless a response has a status and a body with a text.
func (f *fixture) want(a answer, status int, has string) {
	f.t.Helper()
	if a.StatusCode != status || !strings.Contains(a.body, has) {
		f.t.Fatalf("got %d %q, want %d with %q", a.StatusCode, a.body, status, has)
	}
}

// wakeTo has Wake start a replica of the live deployment.
func (f *fixture) wakeTo(addr string) {
	f.apps.onWake = func(context.Context) error {
		f.apps.change(func() {
			id := api.SandboxID(fmt.Sprintf("sbxreplica%d", len(f.apps.replicas)+1))
			f.apps.start(id, f.apps.route.Deployment, addr)
		})
		return nil
	}
}

// until waits until n requests are under way.
func (f *fixture) until(n int) {
	f.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for f.edge.InFlight(appID) != n {
		select {
		case <-tick.C:
		case <-f.t.Context().Done():
			f.t.Fatalf("%d requests are under way, want %d", f.edge.InFlight(appID), n)
		}
	}
}
