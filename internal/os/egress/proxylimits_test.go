package egress

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/pandastack/pandastack/internal/lib/budget"
)

// TestProxyPassesNoOtherProtocols upgrades to protocols in which the hosts of requests would not be seen.
func TestProxyPassesNoOtherProtocols(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if up := r.Header.Get("Upgrade"); up != "" {
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", up)
			w.WriteHeader(http.StatusSwitchingProtocols)
			return
		}
		fmt.Fprint(w, "plain", r.Header.Get("HTTP2-Settings"))
	}))
	defer srv.Close()
	p := newProxied(t, onlyA, "1.1.1.1:80", srv.Listener.Addr().String())
	learn(t, p.guard, "a.com", time.Hour, "1.1.1.1")
	for _, upgrade := range []string{
		"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
		"Connection: Upgrade\r\nUpgrade: websocket, h2c\r\n",
		"Connection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n",
		"Connection: Upgrade\r\nUpgrade: TLS/1.0\r\n",
	} {
		c := p.dial()
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: a.com\r\n"+upgrade+"\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%q: %v", upgrade, err)
		}
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK || string(b) != "plain" {
			t.Errorf("%q: got status %d, %q, %v; want 200 without an upgrade", upgrade, resp.StatusCode, b, err)
		}
	}
}

// hanging is a proxy whose dials last until they are cancelled.
type hanging struct {
	*proxied
	now, most atomic.Int32 // dials in progress
	started   chan struct{}
	end       func() error // closes the proxy
	deadlines chan time.Duration
}

func newHanging(t *testing.T, want string, cfg ProxyConfig) *hanging {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &hanging{
		proxied: &proxied{t: t, guard: NewEnforcer(EnforcerConfig{}, compile(t, onlyA)), at: l.Addr().String()},
		started: make(chan struct{}, 10*MaxConns), deadlines: make(chan time.Duration, 10*MaxConns),
	}
	learn(t, h.guard, "a.com", time.Hour, "1.1.1.1")
	cfg.Guard = h.guard
	cfg.Original = func(net.Conn) (netip.AddrPort, error) { return netip.MustParseAddrPort(want), nil }
	cfg.Dial = func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
		if n := h.now.Add(1); n > h.most.Load() {
			h.most.Store(n)
		}
		defer h.now.Add(-1)
		end, _ := ctx.Deadline()
		h.deadlines <- time.Until(end)
		h.started <- struct{}{}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	h.proxy = ServeProxy(context.Background(), l, cfg)
	h.end = sync.OnceValue(h.proxy.Close)
	t.Cleanup(func() {
		if err := h.end(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// request opens a connection and sends what makes the proxy dial.
func (h *hanging) request(text string) net.Conn {
	c := h.dial()
	if _, err := io.WriteString(c, text); err != nil {
		h.t.Fatal(err)
	}
	return c
}

func (h *hanging) wait(n int) {
	h.t.Helper()
	for i := range n {
		select {
		case <-h.started:
		case <-time.After(patience):
			h.t.Fatalf("got %d dials, want %d", i, n)
		}
	}
}

const plainRequest = "GET / HTTP/1.1\r\nHost: a.com\r\n\r\n"

// TestDialsAreBounded opens more connections than may be dialled at once, to web servers and to others.
func TestDialsAreBounded(t *testing.T) {
	for want, text := range map[string]string{
		"1.1.1.1:80": plainRequest, "1.1.1.1:443": string(built(nameExtension("a.com"))), "1.1.1.1:22": "x",
	} {
		h := newHanging(t, want, ProxyConfig{})
		var open []net.Conn
		for range MaxDials + 20 {
			open = append(open, h.request(text))
		}
		h.wait(MaxDials)
		if limit := <-h.deadlines; limit <= 0 || limit > dialLimit {
			t.Errorf("%s: a dial may take %v, want at most %v", want, limit, dialLimit)
		}
		for _, c := range open {
			c.Close()
		}
		if err := h.end(); err != nil {
			t.Error(err)
		}
		if most := h.most.Load(); most > MaxDials {
			t.Errorf("%s: got %d dials at once, want at most %d", want, most, MaxDials)
		}
	}
}

// TestDialsAreShared lets one guest dial as much as it can; another can dial all the same.
func TestDialsAreShared(t *testing.T) {
	dials := budget.New(budget.Config{Name: "dials", Total: 20, Levels: []budget.Level{{Name: "slot"}}})
	conns := budget.New(budget.Config{Name: "connections", Total: 60, Levels: []budget.Level{{Name: "slot"}}})
	greedy := newHanging(t, "1.1.1.1:80", ProxyConfig{Conns: conns.Open("a"), Dials: dials.Open("a")})
	refused := make(chan error, 60)
	for range 60 {
		c := greedy.dial()
		go func() {
			_, _ = io.WriteString(c, plainRequest) // a refused connection may be closed already
			_, err := http.ReadResponse(bufio.NewReader(c), nil)
			refused <- err
		}()
	}
	greedy.wait(10) // half of the dials
	closed := 0
	for range 50 {
		if <-refused != nil {
			closed++
		}
	}
	if used := dials.Used(); used != 10 || closed != 30 {
		t.Errorf("one guest: got %d dials at once and %d connections refused, want 10 of 20 and 30 of 60", used, closed)
	}
	other := newHanging(t, "1.1.1.1:80", ProxyConfig{Conns: conns.Open("b"), Dials: dials.Open("b")})
	for range 5 {
		other.request(plainRequest)
	}
	other.wait(5)
	for _, h := range []*hanging{greedy, other} {
		if err := h.end(); err != nil {
			t.Error(err)
		}
	}
	if dials.Used() != 0 || conns.Used() != 0 {
		t.Errorf("after the end: %d dials and %d connections are still paid for", dials.Used(), conns.Used())
	}
}

// TestDialsHaveARate sends requests to a server that ends every connection: each is a new one.
func TestDialsHaveARate(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		fmt.Fprint(w, "hello")
	}))
	defer srv.Close()
	const burst = 3
	h := newProxied(t, onlyA, "1.1.1.1:80", srv.Listener.Addr().String())
	learn(t, h.guard, "a.com", time.Hour, "1.1.1.1")
	h.proxy.cfg.Rate = rate.NewLimiter(rate.Every(24*time.Hour), burst) // before the first connection
	c := h.dial()
	r := bufio.NewReader(c)
	for i := range burst + 1 {
		if _, err := io.WriteString(c, plainRequest); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(resp.Body); err != nil {
			t.Fatal(err)
		}
		if refused := resp.StatusCode == http.StatusBadGateway; refused != (i == burst) {
			t.Errorf("request %d: got status %d", i, resp.StatusCode)
		}
	}
	if n := h.dials.Load(); n != burst {
		t.Errorf("got %d dials, want %d", n, burst)
	}
}
