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
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
)

// guest has programs on ports and nothing else.
type guest struct {
	guestapi.Guest
	ports map[uint16]string // address that really serves the port
	dials *counter
}

type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) add() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
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

type sandboxes struct {
	mu  sync.Mutex
	set map[string]proxy.Target
	err error
}

func (s *sandboxes) Open(_ context.Context, id string, _ func(proxy.Target) bool) (proxy.Target, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return proxy.Target{}, s.err
	}
	t, ok := s.set[id]
	if !ok {
		return proxy.Target{}, proxy.ErrNotFound
	}
	return t, nil
}

// fixture is an edge before a sandbox "sbxa" whose port 3000 is inside.
type fixture struct {
	url   string
	boxes *sandboxes
	dials *counter
}

func newFixture(t *testing.T, inside http.Handler) *fixture {
	t.Helper()
	program := httptest.NewServer(inside)
	t.Cleanup(program.Close)
	w := &fixture{boxes: &sandboxes{set: map[string]proxy.Target{}}, dials: &counter{}}
	g := &guest{ports: map[uint16]string{3000: program.Listener.Addr().String()}, dials: w.dials}
	w.boxes.set["sbxa"] = proxy.Target{ID: "sbxa", Generation: 1, Guest: g}
	services := map[uint16]proxy.Service{
		49983: func(rw http.ResponseWriter, _ *http.Request, tg proxy.Target) { io.WriteString(rw, "agent of "+tg.ID) },
	}
	e := proxy.New(w.boxes, services, slog.New(slog.DiscardHandler))
	t.Cleanup(e.Close)
	api := http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "api") })
	front := httptest.NewServer(e.Middleware(api))
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

// visit gets a page as a browser does: what it is given as a cookie it shows when it is sent on.
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
	t.Fatal("sent on without end")
	return 0, ""
}

func echoRequest(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "host=%s origin=%s forwarded=%s token=%q uri=%s", r.Host, r.Header.Get("Origin"),
		r.Header.Get("X-Forwarded-Host"), r.Header.Get(proxy.TrafficHeader), r.RequestURI)
}

// TestTLSInside: a port that speaks TLS is spoken to in it, by HTTP/1.1 and HTTP/2, whatever its certificate says.
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
		w.boxes.set["sbxt"] = proxy.Target{ID: "sbxt", Generation: 1, Guest: g, TLSPorts: []int{3443}}
		want := map[bool]string{false: "tls=true proto=1 host=localhost:3443 origin=https://localhost:3443", true: "tls=true proto=2 host=localhost:3443 origin=https://localhost:3443"}[h2]
		if status, text := w.get(t, "3443-sbxt.test", "/", "Origin", "https://3443-sbxt.test"); status != 200 ||
			!strings.HasPrefix(text, want) {
			t.Errorf("%d %s, want %s", status, text, want)
		}
	}
}

func TestAnswers(t *testing.T) {
	w := newFixture(t, http.HandlerFunc(echoRequest))
	private := w.boxes.set["sbxa"]
	private.ID, private.TrafficToken, private.MaskHost = "sbxp", "secret", "app.test:${PORT}"
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
		{name: "origin", host: "3000-sbxa.test", path: "/", header: []string{"Origin", "https://3000-sbxa.test"}, status: 200,
			want: `host=localhost:3000 origin=http://localhost:3000 forwarded=3000-sbxa.test token="" uri=/`},
		{name: "foreign-origin", host: "3000-sbxa.test", path: "/", header: []string{"Origin", "https://evil.test"}, status: 200,
			want: `host=localhost:3000 origin=https://evil.test forwarded=3000-sbxa.test token="" uri=/`},
		{name: "service", host: "49983-sbxa.test", path: "/", status: 200, want: "agent of sbxa"},
		{name: "unknown", host: "3000-sbxz.test", path: "/", status: 502, want: `{"sandboxId":"sbxz","message":"The sandbox was not found","code":502}`},
		{name: "closed-port", host: "4000-sbxa.test", path: "/", status: 502,
			want: `{"sandboxId":"sbxa","port":4000,"message":"The sandbox is running but port is not open","code":502}`},
		{name: "private-without", host: "3000-sbxp.test", path: "/", status: 403,
			want: `{"sandboxId":"sbxp","message":"this sandbox is private: send its traffic access token in the header e2b-traffic-access-token","code":403}`},
		{name: "private-wrong", host: "3000-sbxp.test", path: "/", header: []string{proxy.TrafficHeader, "secre"}, status: 403,
			want: `{"sandboxId":"sbxp","message":"this sandbox is private: send its traffic access token in the header e2b-traffic-access-token","code":403}`},
		{name: "private-with", host: "3000-sbxp.test", path: "/", header: []string{proxy.TrafficHeader, "secret"}, status: 200,
			want: `host=app.test:3000 origin= forwarded=3000-sbxp.test token="" uri=/`},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, text := w.get(t, c.host, c.path, c.header...)
			if status != c.status || text != c.want {
				t.Errorf("got %d %s; want %d %s", status, text, c.status, c.want)
			}
		})
	}
	if status, _ := w.get(t, "0-sbxa.test", "/"); status != http.StatusBadRequest {
		t.Errorf("malformed host answered %d, want 400", status)
	}
	if _, text := w.get(t, "3000-sbxz.test", "/", "Accept", "text/html"); !strings.Contains(
		text,
		"<h1>The sandbox was not found</h1>",
	) {
		t.Errorf("a browser got %q", text)
	}
	w.boxes.err = errors.New("broken")
	if status, _ := w.get(t, "3000-sbxa.test", "/"); status != http.StatusBadGateway {
		t.Errorf("broken sandboxes answered %d, want 502", status)
	}
}

// A connection that was kept must not be used for the next generation of a machine.
func TestConnectionsEndWithGeneration(t *testing.T) {
	w := newFixture(t, http.HandlerFunc(echoRequest))
	for range 3 {
		w.get(t, "3000-sbxa.test", "/")
	}
	if n := w.dials.add() - 1; n != 1 {
		t.Fatalf("%d connections for three requests one after the other, want 1", n)
	}
	w.boxes.mu.Lock()
	next := w.boxes.set["sbxa"]
	next.Generation = 2
	w.boxes.set["sbxa"] = next
	w.boxes.mu.Unlock()
	if status, _ := w.get(t, "3000-sbxa.test", "/"); status != http.StatusOK {
		t.Fatalf("status %d after the restore, want 200", status)
	}
	if n := w.dials.add() - 1; n != 3 { // one more, and the counting above
		t.Errorf("%d connections and counts, want 3: the old connection was used", n)
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
		t.Fatalf("first event %q, %v, before the second was sent", line, err)
	}
	close(goOn)
	if rest, err := io.ReadAll(lines); err != nil || !strings.Contains(string(rest), "data: two") {
		t.Fatalf("rest %q, %v", rest, err)
	}
}
