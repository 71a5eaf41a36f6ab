package access_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/audit"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/access"
)

// keys authenticates the tokens "a" to "z" and counts how often it was asked.
type keys struct {
	asked int
	known string // token that was valid lately
}

func (k *keys) Known(token string) bool { return token == k.known }

func (k *keys) OfKey(ctx context.Context, prefix string, from netip.Addr) (auth.Principal, error) {
	return k.Authenticate(ctx, prefix, from)
}

func (k *keys) Authenticate(_ context.Context, token string, _ netip.Addr) (auth.Principal, error) {
	k.asked++
	if len(token) != 1 {
		return auth.Principal{}, api.Errorf(api.Unauthenticated, "the key does not hold")
	}
	return auth.Principal{Workspace: "w", KeyPrefix: token, Scopes: auth.NewScopes(api.ScopeRead)}, nil
}

// log is an audit log in memory.
type log struct {
	mu  sync.Mutex
	all []audit.Entry
}

func (l *log) Record(_ context.Context, e audit.Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, e)
}

func (l *log) RecordUse(ctx context.Context, e audit.Entry) { l.Record(ctx, e) }

func request(from string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/x", nil)
	r.RemoteAddr = from
	return r
}

func TestScopes(t *testing.T) {
	g := access.New(access.Config{}, &keys{}, nil)
	for need, want := range map[access.Need]api.Code{
		access.Need(api.ScopeRead): "", access.Need(api.ScopeExec): api.Forbidden,
		access.Need(api.ScopeNode): api.Forbidden, access.Need(api.ScopeMetrics): api.Forbidden,
		access.Token: api.Forbidden, access.Need("unheard of"): api.Forbidden, "": api.Forbidden,
	} {
		_, err := g.Admit(httptest.NewRecorder(), request("192.0.2.1:1"), "a", need)
		if api.CodeOf(err) != want {
			t.Errorf("a reader at what needs %q: %v, want %q", need, err, want)
		}
	}
}

func TestRateOfKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := access.New(access.Config{KeyRate: 10, AddressRate: 1000}, &keys{}, nil)
		admit := func(key string) (*httptest.ResponseRecorder, error) {
			w := httptest.NewRecorder()
			_, err := g.Admit(w, request("192.0.2.1:1"), key, access.Need(api.ScopeRead))
			return w, err
		}
		for n := range 20 {
			w, err := admit("a")
			if err != nil || w.Header().Get("RateLimit-Limit") != "20" ||
				w.Header().Get("RateLimit-Remaining") != fmt.Sprint(19-n) {
				t.Fatalf("request %d: %v, %v", n, err, w.Header())
			}
		}
		w, err := admit("a")
		if api.CodeOf(err) != api.RateLimited || w.Header().Get("Retry-After") != "1" ||
			w.Header().Get("RateLimit-Remaining") != "0" || w.Header().Get("RateLimit-Reset") != "2" {
			t.Errorf("over the rate: %v, %v; want rate_limited", err, w.Header())
		}
		if _, err := admit("b"); err != nil {
			t.Errorf("another key: %v", err)
		}
		<-time.After(time.Second)
		if _, err := admit("a"); err != nil {
			t.Errorf("a second later: %v", err)
		}
	})
}

func TestRateOfAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := access.New(access.Config{AddressRate: 5}, &keys{}, nil)
		count := func(from func(n int) string) (ok int) {
			for n := range 30 {
				_, err := g.Admit(httptest.NewRecorder(), request(from(n)), "a", access.Need(api.ScopeRead))
				if err == nil {
					ok++
				}
			}
			return ok
		}
		if n := count(func(int) string { return "192.0.2.1:1" }); n != 10 {
			t.Errorf("%d requests of one address were admitted, want 10", n)
		}
		if n := count(func(n int) string { return fmt.Sprintf("[2001:db8::%x]:1", n) }); n != 10 {
			t.Errorf("%d requests of one IPv6 network were admitted, want 10", n)
		}
		if n := count(func(n int) string { return fmt.Sprintf("[2001:db8:0:%x::1]:1", n+1) }); n != 30 {
			t.Errorf("%d requests of 30 IPv6 networks were admitted, want all", n)
		}
	})
}

// TestRateOfPorts checks the limits of ports: one port does not take the rate of another, and one client not that of
// others.
func TestRateOfPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		admitted := func(l *access.PortLimits, from, sandbox string, port uint16) (n int, last http.Header) {
			for range 50 {
				w := httptest.NewRecorder()
				err := l.Admit(w, request(from), sandbox, port)
				if err == nil && len(w.Header()) > 0 {
					t.Errorf("an admitted request has the headers %v of the node, want none", w.Header())
				}
				if err == nil {
					n++
				} else if last = w.Header(); api.CodeOf(err) != api.RateLimited {
					t.Errorf("a refused request: %v, want rate_limited", err)
				}
			}
			return n, last
		}
		perPort := access.NewPortLimits(access.PortConfig{PortRate: 5})
		for _, tt := range []struct {
			from, sandbox string
			port          uint16
			want          int
		}{
			{"192.0.2.1:1", "a", 80, 10}, {"192.0.2.2:1", "a", 80, 0}, {"192.0.2.1:1", "a", 81, 10},
			{"192.0.2.1:1", "b", 80, 10},
		} {
			if n, _ := admitted(perPort, tt.from, tt.sandbox, tt.port); n != tt.want {
				t.Errorf("%s to port %d of %s: %d requests admitted, want %d", tt.from, tt.port, tt.sandbox, n, tt.want)
			}
		}
		perAddress := access.NewPortLimits(access.PortConfig{AddressRate: 5})
		n, header := admitted(perAddress, "192.0.2.1:1", "a", 80)
		if n != 10 || header.Get("Retry-After") != "1" || header.Get("RateLimit-Limit") != "10" ||
			header.Get("RateLimit-Remaining") != "0" || header.Get("RateLimit-Reset") != "2" {
			t.Errorf("one address: %d requests admitted, then %v; want 10", n, header)
		}
		if n, _ := admitted(perAddress, "192.0.2.1:2", "b", 81); n != 0 {
			t.Errorf("the same address at another sandbox: %d requests admitted, want 0", n)
		}
		if n, _ := admitted(perAddress, "192.0.2.2:1", "a", 80); n != 10 {
			t.Errorf("another address: %d requests admitted, want 10", n)
		}
		if n, _ := admitted(access.NewPortLimits(access.PortConfig{}), "192.0.2.1:1", "a", 80); n != 50 {
			t.Errorf("without limits: %d requests admitted, want all", n)
		}
		<-time.After(2 * time.Second)
		if n, _ := admitted(perPort, "192.0.2.2:1", "a", 80); n != 10 {
			t.Errorf("two seconds later: %d requests admitted, want 10", n)
		}
	})
}

// TestFailedAuthentication checks that an address cannot guess for ever, and that a key in use works there.
func TestFailedAuthentication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &keys{known: "k"}
		g := access.New(access.Config{FailuresPerMinute: 6}, k, nil)
		try := func(from, key string) api.Code {
			_, err := g.Admit(httptest.NewRecorder(), request(from), key, access.Need(api.ScopeRead))
			return api.CodeOf(err)
		}
		for n := range 100 {
			want := api.Unauthenticated
			if n >= 6 {
				want = api.RateLimited
			}
			if got := try("192.0.2.1:1", "wrong"); got != want {
				t.Fatalf("guess %d: %s, want %s", n, got, want)
			}
		}
		if k.asked != 6 {
			t.Errorf("the store was asked %d times, want 6", k.asked)
		}
		for _, tt := range []struct{ from, key, want string }{
			{"192.0.2.1:1", "k", ""}, {"192.0.2.1:1", "a", "rate_limited"}, {"192.0.2.2:1", "a", ""},
		} {
			if got := try(tt.from, tt.key); string(got) != tt.want {
				t.Errorf("key %s from %s: %q, want %q", tt.key, tt.from, got, tt.want)
			}
		}
		<-time.After(10 * time.Second)
		if got := try("192.0.2.1:1", "a"); got != "" {
			t.Errorf("a valid key ten seconds later: %q", got)
		}
		for range 10 { // other credentials count, too
			g.Failed(request("192.0.2.3:1"))
		}
		if got := try("192.0.2.3:1", "a"); got != api.RateLimited {
			t.Errorf("after failures with other credentials: %q, want rate_limited", got)
		}
	})
}

// TestLimitersAreBounded checks that many addresses do not take memory without bound.
func TestLimitersAreBounded(t *testing.T) {
	g := access.New(access.Config{AddressRate: 5}, &keys{}, nil)
	for n := range 3 * access.MaxLimiters {
		from := fmt.Sprintf("10.%d.%d.%d:1", n>>16&255, n>>8&255, n&255)
		if _, err := g.Admit(httptest.NewRecorder(), request(from), "a", access.Need(api.ScopeRead)); err != nil {
			t.Fatal(err)
		}
	}
	if n := g.Limiters(); n != access.MaxLimiters {
		t.Errorf("%d limiters, want %d", n, access.MaxLimiters)
	}
}

func TestWhatIsRecorded(t *testing.T) {
	for _, tt := range []struct {
		face    access.Face
		pattern string
		status  int
		want    bool
	}{
		{access.V1, "GET /v1/sandboxes", 200, false},
		{access.V1, "GET /v1/sandboxes", 401, true},
		{access.V1, "GET /v1/sandboxes", 403, true},
		{access.V1, "GET /v1/sandboxes", 429, true},
		{access.V1, "GET /v1/sandboxes/{sandbox}/exec/pty", 101, true},
		{access.V1, "GET /v1/sandboxes/{sandbox}/exec/pty/shared", 101, true},
		{access.V1, "GET /v1/sandboxes/{sandbox}/exec/ws", 101, true},
		{access.V1, "GET /v1/sandboxes/{sandbox}/ssh", 101, true},
		{access.V1, "DELETE /v1/sandboxes/{sandbox}", 404, true},
		{access.V1, "POST /v1/sandboxes/{sandbox}/ports", 201, true},
		{access.V1, "DELETE /v1/sandboxes/{sandbox}/ports/{port}", 204, true},
		{access.V1, "PUT /v1/sandboxes/{sandbox}/network", 200, true},
		{access.V1, "POST /v1/sandboxes/{sandbox}/preview", 200, true},
		{access.V1, "POST /v1/sandboxes/{sandbox}/preview-token", 200, true},
		{access.V1, "DELETE /v1/sandboxes/{sandbox}/previews/{preview}", 204, true},
		{access.V1, "POST /v1/snapshots/{snapshot}/push", 202, true},
		{access.V1, "POST /v1/snapshots/{snapshot}/pull", 202, true},
		{access.V1, "GET /v1/sandboxes/{sandbox}/fs", 200, false},
		{access.V1, "GET /v1/sandboxes/{sandbox}/fs", 401, true},
		{access.Agent, "GET /files", 200, false},
		{access.E2B, "PUT /sandboxes/{id}/network", 204, true},
		{access.V1, "GET /healthz", 200, false},
		{access.E2B, "POST /sandboxes", 201, true},
		{access.E2B, "GET /v2/sandboxes", 200, false},
		{access.E2B, "PUT /templates/uploads/{hash}", 200, true},
		{access.Agent, "/process.Process/Start", 200, true},
		{access.Agent, "/process.Process/SendInput", 200, false},
		{access.Agent, "/process.Process/SendInput", 401, true},
		{access.Agent, "POST /files", 200, true},
		{access.Interpreter, "POST /execute", 200, true},
		{access.Interpreter, "GET /contexts", 200, false},
	} {
		l := &log{}
		g := access.New(access.Config{}, &keys{}, l)
		r := request("192.0.2.1:5")
		g.Record(r, access.Call{Face: tt.face, Pattern: tt.pattern, Status: tt.status, Target: "t",
			Token: "pds_0123456789abcdef0123456789abcdef"})
		if (len(l.all) == 1) != tt.want {
			t.Errorf("%s %s with status %d: %d entries, want %v", tt.face, tt.pattern, tt.status, len(l.all), tt.want)
		}
		if len(l.all) == 1 && (l.all[0].Remote != "192.0.2.1" || l.all[0].Principal.KeyPrefix != "pds_01234567") {
			t.Errorf("entry %+v", l.all[0])
		}
	}
}

// TestFileReadsAreRecorded checks that reads of files are recorded with their paths where that is wanted.
func TestFileReadsAreRecorded(t *testing.T) {
	l := &log{}
	g := access.New(access.Config{RecordFileReads: true}, &keys{}, l)
	for _, tt := range []struct {
		face                  access.Face
		method, pattern, want string
	}{
		{access.V1, "GET", "GET /v1/sandboxes/{sandbox}/fs", "GET /v1/sandboxes/{sandbox}/fs /a b"},
		{access.V1, "HEAD", "GET /v1/sandboxes/{sandbox}/fs", ""},
		{access.V1, "GET", "GET /v1/sandboxes/{sandbox}/fs/dir", ""},
		{access.V1, "GET", "GET /v1/sandboxes", ""},
		{access.V1, "GET", "GET /v1/volumes/{volume}/fs", "GET /v1/volumes/{volume}/fs /a b"},
		{access.V1, "GET", "GET /v1/volumes/{volume}/export", "GET /v1/volumes/{volume}/export /a b"},
		{access.E2B, "GET", "GET /volumecontent/{id}/file", "GET /volumecontent/{id}/file /a b"},
		{access.E2B, "GET", "GET /volumecontent/{id}/dir", ""},
		{access.Agent, "GET", "GET /files", "GET /files /a b"},
	} {
		l.all = nil
		r := httptest.NewRequest(tt.method, "/x?path=%2Fa+b", nil)
		g.Record(r, access.Call{Face: tt.face, Pattern: tt.pattern, Status: 200, Target: "t"})
		var got string
		if len(l.all) > 0 {
			got = l.all[0].Action
		}
		if got != tt.want || len(l.all) > 1 {
			t.Errorf("%s %s: entries %+v, want the action %q", tt.method, tt.pattern, l.all, tt.want)
		}
	}
}

func TestClientBehindProxies(t *testing.T) {
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	many := strings.Repeat("10.0.0.1, ", 5000)
	for name, tt := range map[string]struct {
		header, peer, value string
		want                string
	}{
		"stranger":          {"X-Forwarded-For", "192.0.2.1:1", "198.51.100.1", "192.0.2.1"},
		"proxy":             {"X-Forwarded-For", "10.0.0.1:1", "198.51.100.1", "198.51.100.1"},
		"spoofed":           {"X-Forwarded-For", "10.0.0.1:1", "1.1.1.1, 198.51.100.1", "198.51.100.1"},
		"two proxies":       {"X-Forwarded-For", "10.0.0.1:1", "1.1.1.1, 198.51.100.1, 10.9.9.9", "198.51.100.1"},
		"IPv6":              {"X-Forwarded-For", "[fd00::1]:1", "2001:db8::1", "2001:db8::1"},
		"ports":             {"X-Forwarded-For", "10.0.0.1:1", "[2001:db8::1]:99", "2001:db8::1"},
		"mapped":            {"X-Forwarded-For", "[::ffff:10.0.0.1]:1", "::ffff:198.51.100.1", "198.51.100.1"},
		"garbage":           {"X-Forwarded-For", "10.0.0.1:1", "198.51.100.1, what", "10.0.0.1"},
		"garbage before":    {"X-Forwarded-For", "10.0.0.1:1", "what, 10.0.0.2", "10.0.0.2"},
		"empty":             {"X-Forwarded-For", "10.0.0.1:1", "", "10.0.0.1"},
		"zone":              {"X-Forwarded-For", "10.0.0.1:1", "fe80::1%eth0", "10.0.0.1"},
		"many":              {"X-Forwarded-For", "10.0.0.1:1", "1.1.1.1, " + many + "10.0.0.2", "10.0.0.1"},
		"forwarded":         {"Forwarded", "10.0.0.1:1", `for=1.1.1.1, for="[2001:db8::1]:7";by=x`, "2001:db8::1"},
		"forwarded hidden":  {"Forwarded", "10.0.0.1:1", "for=_hidden", "10.0.0.1"},
		"forwarded unknown": {"Forwarded", "10.0.0.1:1", "proto=https", "10.0.0.1"},
	} {
		p := access.Proxies{Networks: trusted, Header: strings.ToLower(tt.header)}
		r := request(tt.peer)
		r.Header.Set(tt.header, tt.value)
		r.Header.Set("X-Forwarded-Proto", "https")
		// The header that the proxies do not set is the client's.
		for _, other := range []string{"X-Forwarded-For", "Forwarded"} {
			if other != tt.header {
				r.Header.Set(other, "for=203.0.113.9")
			}
		}
		var got netip.Addr
		var proto string
		p.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			got, proto = access.AddressOf(r), r.Header.Get("X-Forwarded-Proto")
		})).ServeHTTP(httptest.NewRecorder(), r)
		if got.String() != tt.want || (proto == "") != (name == "stranger") {
			t.Errorf("%s: %v, X-Forwarded-Proto %q; want %s", name, got, proto, tt.want)
		}
	}
}

func FuzzClientAddress(f *testing.F) {
	f.Add("1.1.1.1, 10.0.0.2", true)
	f.Add(`for="[2001:db8::1]:7";proto=https, for=_x`, false)
	f.Fuzz(func(t *testing.T, value string, plain bool) {
		p := access.Proxies{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
		name := "X-Forwarded-For"
		if !plain {
			name, p.Header = "Forwarded", access.HeaderForwarded
		}
		r := request("10.0.0.1:1")
		r.Header[name] = []string{value}
		p.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if a := access.AddressOf(r); !a.IsValid() || a.Zone() != "" {
				t.Errorf("%q gives the address %v", value, a)
			}
		})).ServeHTTP(httptest.NewRecorder(), r)
	})
}

// TestNeedsAreKnown checks that every operation of the table needs a scope or one of the other needs.
func TestNeedsAreKnown(t *testing.T) {
	others := []access.Need{access.Public, access.Token, access.Traffic, access.Signed, access.Broker, access.Function}
	for face, list := range access.Operations() {
		for pattern, need := range list {
			if _, ok := need.Scope(); !ok && !slices.Contains(others, need) {
				t.Errorf("%s: %s needs %q", face, pattern, need)
			}
		}
	}
}
