package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// proxied is a proxy on loopback. Connections to it have the destination want, but go to a test server.
type proxied struct {
	t     *testing.T
	guard *Enforcer
	proxy *Proxy
	at    string
	dials atomic.Int32
}

func newProxied(t *testing.T, policy Policy, want, server string) *proxied {
	t.Helper()
	p := &proxied{t: t, guard: NewEnforcer(EnforcerConfig{}, compile(t, policy))}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.at = l.Addr().String()
	p.proxy = ServeProxy(context.Background(), l, ProxyConfig{
		Guard:    p.guard,
		Original: func(net.Conn) (netip.AddrPort, error) { return netip.MustParseAddrPort(want), nil },
		Dial: func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
			p.dials.Add(1)
			var d net.Dialer
			return d.DialContext(ctx, "tcp", server)
		},
	})
	t.Cleanup(func() {
		if err := p.proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *proxied) dial() net.Conn {
	p.t.Helper()
	c, err := net.Dial("tcp", p.at)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		p.t.Fatal(err)
	}
	return c
}

var onlyA = Policy{Allow: []string{"a.com"}, DenyOthers: true}

func TestProxyChecksTLSServerName(t *testing.T) {
	srv := httptest.NewTLSServer(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }),
	)
	defer srv.Close()
	p := newProxied(t, onlyA, "1.1.1.1:443", srv.Listener.Addr().String())
	learn(t, p.guard, "a.com", time.Hour, "1.1.1.1")
	get := func(name string) (string, error) {
		client := &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{ServerName: name, InsecureSkipVerify: true},
			DialContext:       func(context.Context, string, string) (net.Conn, error) { return p.dial(), nil },
		}}
		r, err := client.Get("https://server/")
		if err != nil {
			return "", err
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		return string(b), err
	}
	if got, err := get("a.com"); got != "hello" || err != nil {
		t.Errorf("allowed name: got %q, %v", got, err)
	}
	before := p.dials.Load()
	for _, name := range []string{"evil.com", "1.2.3.4"} { // the second sends no name
		if got, err := get(name); err == nil {
			t.Errorf("denied name %s: got %q", name, got)
		}
	}
	if p.dials.Load() != before {
		t.Error("proxy dialled the server for a denied name")
	}
}

func TestProxyChecksEveryRequestHost(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %s", r.Method, r.Host, r.Header.Get("X-Forwarded-For"), b)
	}))
	defer srv.Close()
	for _, want := range []string{"1.1.1.1:80", "1.1.1.1:8080"} {
		p := newProxied(t, onlyA, want, srv.Listener.Addr().String())
		learn(t, p.guard, "a.com", time.Hour, "1.1.1.1")
		c := p.dial()
		r := bufio.NewReader(c)
		for _, step := range []struct{ request, answer string }{
			{"GET / HTTP/1.1\r\nHost: a.com\r\n\r\n", "GET a.com  "},
			{
				"POST /x HTTP/1.1\r\nHost: A.com:80\r\nX-Forwarded-For: me\r\nContent-Length: 4\r\n\r\nbody",
				"POST A.com:80 me body",
			},
			{"GET / HTTP/1.1\r\nHost: evil.com\r\n\r\n", ""},
		} {
			if _, err := c.Write([]byte(step.request)); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatalf("%q: %v", step.request, err)
			}
			b, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if step.answer == "" && resp.StatusCode != http.StatusForbidden ||
				step.answer != "" && string(b) != step.answer {
				t.Errorf("%s: request %q: got status %d, body %q", want, step.request, resp.StatusCode, b)
			}
		}
		if _, err := r.ReadByte(); err == nil {
			t.Error("the connection survived a denied request")
		}
	}
}

func TestProxyRefusesHiddenHosts(t *testing.T) {
	srv := httptest.NewServer(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "leaked") }),
	)
	defer srv.Close()
	p := newProxied(t, onlyA, "1.1.1.1:80", srv.Listener.Addr().String())
	learn(t, p.guard, "a.com", time.Hour, "1.1.1.1")
	for _, request := range []string{
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"GET http://evil.com/ HTTP/1.1\r\nHost: a.com\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.com\r\nHost: evil.com\r\n\r\n",
		"GET / HTTP/1.0\r\n\r\n",
		"CONNECT a.com:80 HTTP/1.1\r\nHost: a.com\r\n\r\n",
		"GET /\r\n",
		"\x00\x01binary",
		"GET / HTTP/1.1\r\nHost: 1.1.1.1\r\n\r\n",
	} {
		c := p.dial()
		if _, err := c.Write([]byte(request)); err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(c)
		if strings.Contains(string(b), "leaked") || strings.HasPrefix(string(b), "HTTP/1.1 200") {
			t.Errorf("request %q: got %q", request, b)
		}
	}
}

// lineServer is a server that speaks first, then echoes lines.
func lineServer(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintln(c, "welcome")
				for s := bufio.NewScanner(c); s.Scan(); {
					fmt.Fprintln(c, "you said "+s.Text())
				}
				fmt.Fprintln(c, "bye")
			}()
		}
	}()
	return l
}

func TestProxyLetsTheServerSpeakFirst(t *testing.T) {
	p := newProxied(t, onlyA, "1.1.1.1:3306", lineServer(t).Addr().String())
	learn(t, p.guard, "a.com", time.Hour, "1.1.1.1")
	c := p.dial()
	r := bufio.NewReader(c)
	say := func(line, want string) {
		t.Helper()
		if line != "" {
			if _, err := fmt.Fprintln(c, line); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := r.ReadString('\n'); strings.TrimSpace(got) != want {
			t.Fatalf("got %q, %v; want %q", got, err, want)
		}
	}
	say("", "welcome")
	say("first", "you said first")
	say("second", "you said second")
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	say("", "bye")

	// A client that waits and then speaks TLS is inspected all the same.
	late := p.dial()
	lr := bufio.NewReader(late)
	if _, err := lr.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if _, err := late.Write(built(nameExtension("evil.com"))); err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(lr); len(b) > 0 {
		t.Errorf("TLS after a wait: got reply %q", b)
	}
	// So is a client that speaks HTTP to a server that spoke first, which is not a web server.
	web := p.dial()
	wr := bufio.NewReader(web)
	if _, err := wr.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(web, "GET / HTTP/1.1\r\nHost: evil.com\r\n\r\n")
	if b, _ := io.ReadAll(wr); len(b) > 0 {
		t.Errorf("HTTP to a server that spoke first: got reply %q", b)
	}
}

func TestProxyPassesUpgrades(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		rw.Flush()
		line, err := rw.ReadString('\n')
		if err == nil {
			fmt.Fprint(rw, "echo "+line)
			rw.Flush()
		}
	}))
	defer srv.Close()
	p := newProxied(t, onlyA, "1.1.1.1:80", srv.Listener.Addr().String())
	learn(t, p.guard, "a.com", time.Hour, "1.1.1.1")
	c := p.dial()
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: a.com\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\r\n")
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("got response %v, %v", resp, err)
	}
	fmt.Fprint(c, "ping\n")
	if got, err := r.ReadString('\n'); got != "echo ping\n" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: got error %v, want EOF", err)
	}
}

func TestRecheckEndsConnections(t *testing.T) {
	p := newProxied(
		t,
		Policy{Allow: []string{"a.com", "b.com"}, DenyOthers: true},
		"1.1.1.1:22",
		lineServer(t).Addr().String(),
	)
	learn(t, p.guard, "a.com", time.Hour, "1.1.1.1")
	c := p.dial()
	r := bufio.NewReader(c)
	fmt.Fprintln(c, "x")
	for range 2 {
		if _, err := r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	p.guard.SetRules(compile(t, onlyA))
	p.proxy.Recheck()
	fmt.Fprintln(c, "y")
	if got, err := r.ReadString('\n'); got != "you said y\n" {
		t.Errorf("connection that is still allowed: got %q, %v", got, err)
	}
	p.guard.SetRules(compile(t, Policy{Allow: []string{"b.com"}, DenyOthers: true}))
	p.proxy.Recheck()
	if b, _ := io.ReadAll(r); len(b) > 0 {
		t.Errorf("connection of a removed name: got %q", b)
	}
}

func TestProxyIsBounded(t *testing.T) {
	p := newProxied(t, onlyA, "1.1.1.1:443", "127.0.0.1:1")
	var open []net.Conn
	for range MaxConns {
		open = append(open, p.dial())
	}
	one := []byte{0}
	more := p.dial() // accepted last, and refused
	if _, err := more.Read(one); err == nil || isTimeout(err) {
		t.Errorf("connection beyond the limit: got error %v", err)
	}
	for _, c := range open {
		c.Close()
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}
