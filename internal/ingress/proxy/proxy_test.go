package proxy_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
)

// guest is a guest that has programs on ports and nothing else.
type guest struct {
	guestapi.Guest
	ports map[uint16]string // address that serves the port
	dials *counter
}

// counter is a counter for several goroutines.
type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) add() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
}

func (c *counter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

func (g *guest) DialPort(ctx context.Context, port uint16) (net.Conn, error) {
	addr, ok := g.ports[port]
	if !ok {
		return nil, fmt.Errorf("port %d: %w", port, guestapi.ErrRefused)
	}
	g.dials.add()
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

// running is a sandbox of the tests and its guest.
type running struct {
	api.Sandbox
	guest guestapi.Guest
}

// sandboxes implements proxy.Sandboxes over a map by id.
type sandboxes struct {
	mu    sync.Mutex
	set   map[string]running
	err   error
	opens int // calls of OpenForIngress
}

func (s *sandboxes) OpenForIngress(
	_ context.Context,
	id api.SandboxID,
	admit func(auth.Principal, api.Sandbox) error,
) (guestapi.Guest, api.Sandbox, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opens++
	if s.err != nil {
		return nil, api.Sandbox{}, s.err
	}
	b, ok := s.set[string(id)]
	if !ok {
		return nil, api.Sandbox{}, api.Errorf(api.NotFound, "no sandbox %s", id)
	}
	if err := admit(auth.Principal{Workspace: "ours"}, b.Sandbox); err != nil {
		return nil, api.Sandbox{}, err
	}
	b.Status = api.Running
	s.set[string(id)] = b
	return b.guest, b.Sandbox, nil
}

func (s *sandboxes) SetLifecycle(
	_ context.Context,
	_ auth.Principal,
	id api.SandboxID,
	patch api.LifecyclePatch,
) (api.Lifecycle, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.set[string(id)]
	end := time.Now().Add(time.Duration(*patch.TimeoutSeconds) * time.Second)
	b.ExpiresAt = &end
	s.set[string(id)] = b
	return api.Lifecycle{}, nil
}

// opened returns how often a sandbox was opened.
func (s *sandboxes) opened() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opens
}

// change replaces the sandbox with the given id.
func (s *sandboxes) change(id string, by func(*running)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.set[id]
	by(&b)
	s.set[id] = b
}

// trafficHeader carries the token of testPolicy.
const trafficHeader = "Test-Traffic-Token"

// testPolicy has one token for all private sandboxes. No request wakes a sandbox with metadata "asleep"; every other
// one runs for 100 seconds after it was woken.
type testPolicy struct{}

func (testPolicy) TrafficToken(api.SandboxID) (header, token string) { return trafficHeader, "secret" }

func (testPolicy) Secrets(api.SandboxID) []string { return []string{"secret", "agent-secret"} }

func (testPolicy) WakesOnRequest(b api.Sandbox) bool {
	_, asleep := b.Metadata["asleep"]
	return !asleep
}

func (testPolicy) ResumeTimeout(api.Sandbox) int64 { return 100 }

// testService serves a port on the host. Sandboxes that are not open need the header Knock.
type testService struct{}

func (testService) MayWake(r *http.Request, b api.Sandbox) (ok, needed bool) {
	return r.Header.Get("Knock") != "", b.Metadata["open"] == ""
}

func (testService) ServeRoute(w http.ResponseWriter, _ *http.Request, rt proxy.Route) {
	io.WriteString(w, "agent of "+rt.Address.Sandbox)
}

// fixture is a proxy before a sandbox "sbxa", whose port 3000 is a server of the test.
type fixture struct {
	url   string
	boxes *sandboxes
	dials *counter

	opened   *counter
	previews *previews
}

// addressOfHeader is the address of requests with the header Test-Sandbox: port 3000 of that sandbox.
func addressOfHeader(r *http.Request) (proxy.Address, bool, error) {
	id := r.Header.Get("Test-Sandbox")
	return proxy.Address{Sandbox: id, Port: 3000}, id != "", nil
}

// previews implements proxy.Previews over a set of ids.
type previews struct {
	mu      sync.Mutex
	revoked map[string]bool
	uses    map[string]context.CancelFunc
}

func (p *previews) IsRevoked(_ context.Context, id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.revoked[id]
}

func (p *previews) Use(ctx context.Context, id string, expires time.Time) (context.Context, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, cancel := context.WithDeadlineCause(ctx, expires, proxy.ErrExpired)
	p.uses[id] = cancel
	return ctx, !p.revoked[id]
}

func newFixture(t *testing.T, inside http.Handler) *fixture {
	t.Helper()
	return newLimitedFixture(t, inside, nil)
}

func newLimitedFixture(t *testing.T, inside http.Handler, limits proxy.Limiter) *fixture {
	t.Helper()
	program := httptest.NewServer(inside)
	t.Cleanup(program.Close)
	w := &fixture{
		boxes: &sandboxes{set: map[string]running{}}, dials: &counter{}, opened: &counter{},
		previews: &previews{revoked: map[string]bool{}, uses: map[string]context.CancelFunc{}},
	}
	g := &guest{ports: map[uint16]string{3000: program.Listener.Addr().String()}, dials: w.dials}
	w.boxes.set["sbxa"] = running{api.Sandbox{ID: "sbxa", Status: api.Running, Generation: 1}, g}
	p := proxy.New(proxy.Config{
		Resolver: proxy.NewSandboxResolver(w.boxes, proxy.SandboxConfig{
			Services:   map[uint16]proxy.Service{49983: testService{}},
			Policy:     testPolicy{},
			PreviewKey: previewKey,
			Addressers: []proxy.Addresser{addressOfHeader, proxy.AddressOfHost},
			Previews:   w.previews,
			Opened:     func(*http.Request, proxy.Preview) { w.opened.add() },
		}),
		Limits:      limits,
		HideHeaders: []string{trafficHeader},
		IsKey:       func(text string) bool { return strings.HasPrefix(text, "key_") },
		Log:         slog.New(slog.DiscardHandler),
	})
	t.Cleanup(p.Close)
	next := http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "api") })
	front := httptest.NewServer(p.Middleware(next))
	t.Cleanup(front.Close)
	w.url = front.URL
	return w
}

func (w *fixture) get(t *testing.T, host, path string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(text))
}

// visit gets a page as a browser does: it follows redirects and returns the cookies that it was given.
func (w *fixture) visit(t *testing.T, host, path string, header ...string) (int, string) {
	t.Helper()
	stay := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for range 3 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := stay.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close() // it was read to its end
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != http.StatusFound {
			return resp.StatusCode, strings.TrimSpace(string(text))
		}
		path = resp.Header.Get("Location")
		for _, c := range resp.Cookies() {
			header = append(header, "Cookie", c.Name+"="+c.Value)
		}
	}
	t.Fatal("got more than three redirects")
	return 0, ""
}

func echoRequest(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "host=%s origin=%s forwarded=%s token=%q uri=%s", r.Host, r.Header.Get("Origin"),
		r.Header.Get("X-Forwarded-Host"), r.Header.Get(trafficHeader), r.RequestURI)
}

// TestTLSInside checks that TLS ports are reached by TLS, HTTP/1.1 and HTTP/2, with any certificate.
// ration is a proxy.Limiter that admits a number of requests to each port.
type ration struct {
	mu   sync.Mutex
	left map[string]int // by sandbox and port
}

func (l *ration) Admit(w http.ResponseWriter, _ *http.Request, sandbox string, port uint16) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := fmt.Sprintf("%s:%d", sandbox, port)
	if l.left[name]--; l.left[name] < 0 {
		w.Header().Set("Retry-After", "7")
		return api.Errorf(api.RateLimited, "too many requests to port %d", port)
	}
	return nil
}

// TestLimits checks that requests to ports, services and sandboxes that do not exist are counted, that a refused one
// opens nothing, and that those for the API are not counted.
func TestLimits(t *testing.T) {
	w := newLimitedFixture(t, http.HandlerFunc(echoRequest), &ration{left: map[string]int{
		"sbxa:3000": 1, "sbxa:49983": 1, "gone:80": 1,
	}})
	for host, want := range map[string]int{
		"3000-sbxa.localhost": http.StatusOK, "49983-sbxa.localhost": http.StatusOK,
		"80-gone.localhost": http.StatusBadGateway,
	} {
		if status, text := w.get(t, host, "/"); status != want {
			t.Errorf("the first request to %s: got %d %s, want %d", host, status, text, want)
		}
		opens := w.boxes.opened()
		status, text := w.get(t, host, "/")
		if status != http.StatusTooManyRequests || !strings.Contains(text, `"error_code":"rate_limited"`) ||
			!strings.Contains(text, `"retryable":true`) {
			t.Errorf("a request to %s over the limit: got %d %s, want 429 rate_limited", host, status, text)
		}
		if w.boxes.opened() != opens {
			t.Errorf("a request to %s over the limit opened the sandbox", host)
		}
	}
	status, text := w.get(t, "localhost", "/", "Test-Sandbox", "sbxa")
	if status != http.StatusTooManyRequests {
		t.Errorf("a request with the address in a header: got %d %s, want 429", status, text)
	}
	if status, text := w.get(t, "localhost", "/v1"); status != http.StatusOK || text != "api" {
		t.Errorf("a request to the API: got %d %s", status, text)
	}
}

func TestTLSInside(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		w := newFixture(t, http.HandlerFunc(echoRequest))
		inside := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(rw, "tls=%v proto=%d ", r.TLS != nil, r.ProtoMajor)
			echoRequest(rw, r)
		}))
		inside.EnableHTTP2 = h2
		inside.StartTLS()
		t.Cleanup(inside.Close)
		g := &guest{ports: map[uint16]string{3443: inside.Listener.Addr().String()}, dials: w.dials}
		w.boxes.set["sbxt"] = running{api.Sandbox{
			ID: "sbxt", Status: api.Running, Generation: 1, Network: &api.Network{TLSPorts: []int{3443}},
		}, g}
		want := map[bool]string{false: "tls=true proto=1 ", true: "tls=true proto=2 "}[h2] +
			"host=localhost:3443 origin=https://localhost:3443"
		if status, text := w.get(t, "3443-sbxt.test", "/", "Origin", "https://3443-sbxt.test"); status != 200 ||
			!strings.HasPrefix(text, want) {
			t.Errorf("got %d %s, want 200 %s", status, text, want)
		}
	}
}

func TestResponses(t *testing.T) {
	w := newFixture(t, http.HandlerFunc(echoRequest))
	private := w.boxes.set["sbxa"]
	const private403 = `{"sandboxId":"sbxp","message":"this sandbox is private: ` +
		`send its traffic access token in the header Test-Traffic-Token, or open it by a preview URL","code":403,` +
		`"error":"this sandbox is private: send its traffic access token in the header Test-Traffic-Token, ` +
		`or open it by a preview URL","error_code":"forbidden","request_id":"ID","retryable":false}`
	private.ID, private.Network = "sbxp", &api.Network{PrivatePorts: true, PortHost: "app.test:${PORT}"}
	w.boxes.set["sbxp"] = private
	for _, c := range []struct {
		name, host, path string
		header           []string
		status           int
		want             string
	}{
		{name: "api", host: "api.test", path: "/", status: 200, want: "api"},
		{name: "program", host: "3000-sbxa.test", path: "/a%2Fb?x=1", status: 200,
			want: `host=localhost:3000 origin= forwarded=3000-sbxa.test token="" uri=/a%2Fb?x=1`},
		{name: "origin", host: "3000-sbxa.test", path: "/",
			header: []string{"Origin", "https://3000-sbxa.test"}, status: 200,
			want: `host=localhost:3000 origin=http://localhost:3000 forwarded=3000-sbxa.test token="" uri=/`},
		{name: "foreign-origin", host: "3000-sbxa.test", path: "/",
			header: []string{"Origin", "https://evil.test"}, status: 200,
			want: `host=localhost:3000 origin=https://evil.test forwarded=3000-sbxa.test token="" uri=/`},
		{name: "service", host: "49983-sbxa.test", path: "/", status: 200, want: "agent of sbxa"},
		{name: "unknown", host: "3000-sbxz.test", path: "/", status: 502,
			want: `{"sandboxId":"sbxz","message":"The sandbox was not found","code":502,` +
				`"error":"The sandbox was not found","error_code":"not_found","request_id":"ID","retryable":false}`},
		{name: "closed-port", host: "4000-sbxa.test", path: "/", status: 502,
			want: `{"sandboxId":"sbxa","port":4000,` +
				`"message":"The sandbox is running but port is not open","code":502,` +
				`"error":"The sandbox is running but port is not open","error_code":"unreachable",` +
				`"request_id":"ID","retryable":true}`},
		{name: "private-without", host: "3000-sbxp.test", path: "/", status: 403,
			want: private403},
		{name: "private-wrong", host: "3000-sbxp.test", path: "/",
			header: []string{trafficHeader, "secre"}, status: 403,
			want: private403},
		{name: "private-with", host: "3000-sbxp.test", path: "/",
			header: []string{trafficHeader, "secret"}, status: 200,
			want: `host=app.test:3000 origin= forwarded=3000-sbxp.test token="" uri=/`},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, text := w.get(t, c.host, c.path, c.header...)
			text = regexp.MustCompile(`"req[a-z0-9]{20}"`).ReplaceAllString(text, `"ID"`)
			if status != c.status || text != c.want {
				t.Errorf("got %d %s; want %d %s", status, text, c.status, c.want)
			}
		})
	}
	if status, _ := w.get(t, "0-sbxa.test", "/"); status != http.StatusBadRequest {
		t.Errorf("status for a malformed host = %d, want 400", status)
	}
	if _, text := w.get(t, "3000-sbxz.test", "/", "Accept", "text/html"); !strings.Contains(
		text,
		"<h1>The sandbox was not found</h1>",
	) {
		t.Errorf("a browser got %q, want a page", text)
	}
	w.boxes.err = errors.New("broken")
	if status, _ := w.get(t, "3000-sbxa.test", "/"); status != http.StatusBadGateway {
		t.Errorf("status with a broken service = %d, want 502", status)
	}
}

// TestConnectionsEndWithGeneration checks that a pooled connection is not used for the machine's next generation, and
// that a request looks its sandbox up once, whether it needs a connection or not.
func TestConnectionsEndWithGeneration(t *testing.T) {
	w := newFixture(t, http.HandlerFunc(echoRequest))
	for range 3 {
		w.get(t, "3000-sbxa.test", "/")
	}
	if got := w.dials.count(); got != 1 {
		t.Fatalf("three requests in a row dialled %d connections, want 1", got)
	}
	w.boxes.change("sbxa", func(b *running) { b.Generation = 2 })
	if status, _ := w.get(t, "3000-sbxa.test", "/"); status != http.StatusOK {
		t.Fatalf("status after the restore = %d, want 200", status)
	}
	if got := w.dials.count(); got != 2 {
		t.Errorf("%d connections after the restore, want 2: the old connection was used", got)
	}
	if w.boxes.opens != 4 {
		t.Errorf("four requests looked the sandbox up %d times, want 4", w.boxes.opens)
	}
}

// TestWake checks which requests wake a sandbox, and that it then has the end that the policy wants.
func TestWake(t *testing.T) {
	w := newFixture(t, http.HandlerFunc(echoRequest))
	for _, c := range []struct {
		name, host string
		asleep     bool // the policy forbids to wake it
		open       bool // services need no credential
		private    bool
		header     []string
		wakes      bool
	}{
		{name: "public", host: "3000-sbxa.test", wakes: true},
		{name: "forbidden-by-policy", host: "3000-sbxa.test", asleep: true},
		{name: "private-without-token", host: "3000-sbxa.test", private: true},
		{name: "private-with-wrong-token", host: "3000-sbxa.test", private: true, header: []string{trafficHeader, "x"}},
		{name: "private-with-token", host: "3000-sbxa.test", private: true, header: []string{trafficHeader, "secret"},
			wakes: true},
		{name: "service-without-its-credential", host: "49983-sbxa.test"},
		{name: "service-with-its-credential", host: "49983-sbxa.test", header: []string{"Knock", "1"}, wakes: true},
		{name: "open-service", host: "49983-sbxa.test", open: true, wakes: true},
		{name: "private-open-service", host: "49983-sbxa.test", private: true, open: true},
		{name: "private-service-with-the-token-of-ports", host: "49983-sbxa.test", private: true,
			header: []string{trafficHeader, "secret"}},
		{name: "private-service", host: "49983-sbxa.test", private: true},
		{name: "private-service-with-its-credential", host: "49983-sbxa.test", private: true,
			header: []string{"Knock", "1"}, wakes: true},
		{name: "credential-of-another-port", host: "3000-sbxa.test", private: true, header: []string{"Knock", "1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.boxes.change("sbxa", func(b *running) {
				b.Status, b.ExpiresAt, b.Metadata = api.Hibernated, nil, nil
				b.Network = &api.Network{PrivatePorts: c.private}
				if c.asleep {
					b.Metadata = map[string]string{"asleep": "1"}
				}
				if c.open {
					b.Metadata = map[string]string{"open": "1"}
				}
			})
			want := map[bool]int{true: http.StatusOK, false: http.StatusForbidden}[c.wakes]
			if c.asleep {
				want = http.StatusBadGateway
			}
			if status, text := w.get(t, c.host, "/", c.header...); status != want {
				t.Errorf("got %d %s, want %d", status, text, want)
			}
			b := w.boxes.set["sbxa"]
			if woken := b.Status == api.Running; woken != c.wakes || (b.ExpiresAt != nil) != c.wakes {
				t.Errorf("then the sandbox is %s and ends at %v, want woken %v", b.Status, b.ExpiresAt, c.wakes)
			}
		})
	}
}

func TestWebSocketAndEvents(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil) // checks that the origin is the host
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, data, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, data) != nil {
				return
			}
		}
	})
	goOn := make(chan struct{})
	mux.HandleFunc("/events", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: one\n\n")
		_ = http.NewResponseController(w).Flush()
		<-goOn
		io.WriteString(w, "data: two\n\n")
	})
	w := newFixture(t, mux)

	h := http.Header{"Origin": {"http://3000-sbxa.test"}}
	c, _, err := websocket.Dial(t.Context(), w.url+"/ws", &websocket.DialOptions{Host: "3000-sbxa.test", HTTPHeader: h})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	for _, want := range []string{"a", strings.Repeat("b", 20_000)} {
		if err := c.Write(t.Context(), websocket.MessageText, []byte(want)); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Read(t.Context()); err != nil || string(got) != want {
			t.Fatalf("read %d bytes, %v; want %d back", len(got), err, len(want))
		}
	}

	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "3000-sbxa.test"
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	if line, err := lines.ReadString('\n'); err != nil || line != "data: one\n" {
		t.Fatalf("first event = %q, %v; want it before the second is sent", line, err)
	}
	close(goOn)
	if rest, err := io.ReadAll(lines); err != nil || !strings.Contains(string(rest), "data: two") {
		t.Fatalf("rest = %q, %v; want the second event", rest, err)
	}
}
