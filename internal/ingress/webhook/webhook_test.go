package webhook_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/hook"
	"github.com/pandastack/pandastack/internal/control/audit"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/ingress/webhook"
)

// fixture is what a server calls.
type fixture struct {
	mu      sync.Mutex
	bodies  []string
	audited []audit.Entry
}

// Deliver implements webhook.Hooks: the body "forged" is one.
func (f *fixture) Deliver(_ context.Context, app api.AppID, h http.Header, body []byte) (hook.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if string(body) == "forged" {
		return hook.Result{}, api.Errorf(api.Unauthenticated, "not signed")
	}
	f.bodies = append(f.bodies, string(body))
	out := hook.Result{App: app, Result: "ok"}
	if h.Get("X-GitHub-Event") == "push" {
		out.Deployment = "dpl1"
	}
	return out, nil
}

// Authenticate implements access.Keys.
func (f *fixture) Authenticate(_ context.Context, token string, _ netip.Addr) (auth.Principal, error) {
	p := auth.Principal{Workspace: "w", KeyPrefix: token}
	switch token {
	case "owner":
		p.Scopes = auth.NewScopes(api.ScopeLifecycle)
	case "reader":
		p.Scopes = auth.NewScopes(api.ScopeRead)
	default:
		return p, api.Errorf(api.Unauthenticated, "the key is not valid")
	}
	return p, nil
}

// Known implements access.Keys.
func (f *fixture) Known(string) bool { return false }

// OfKey implements access.Keys.
func (f *fixture) OfKey(ctx context.Context, prefix string, from netip.Addr) (auth.Principal, error) {
	return f.Authenticate(ctx, prefix, from)
}

// Record implements access.Audit.
func (f *fixture) Record(_ context.Context, e audit.Entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.audited = append(f.audited, e)
}

// RecordUse implements access.Audit.
func (f *fixture) RecordUse(ctx context.Context, e audit.Entry) { f.Record(ctx, e) }

func TestServer(t *testing.T) {
	f := &fixture{}
	guard := access.New(access.Config{AddressRate: 1000, FailuresPerMinute: 1000}, f, f)
	s, err := webhook.New(f, guard, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s.Middleware(http.NotFoundHandler()))
	defer server.Close()
	const path = "/v1/webhooks/apps/app1"
	for name, c := range map[string]struct {
		method, path, event, body string
		status                    int
		want                      string
	}{
		"push":           {"POST", path, "push", "{}", 202, `"deployment_id":"dpl1"`},
		"ping":           {"POST", path, "ping", "{}", 200, `"result":"ok"`},
		"forged":         {"POST", path, "push", "forged", 401, `"code":"unauthenticated"`},
		"large":          {"POST", path, "push", strings.Repeat("x", 8<<20+1), 413, "larger than 8 MiB"},
		"another method": {"GET", path, "", "", 404, ""},
		"another path":   {"POST", "/v1/webhooks/github", "push", "{}", 404, ""},
	} {
		r, err := http.NewRequestWithContext(t.Context(), c.method, server.URL+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-GitHub-Event", c.event)
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != c.status || !strings.Contains(string(body), c.want) {
			t.Errorf("%s: status %d, %v, %q; want %d and %q", name, res.StatusCode, err, body, c.status, c.want)
		}
	}
	server.Close() // what is recorded is complete then
	if len(f.bodies) != 2 {
		t.Errorf("delivered %q", f.bodies)
	}
	outcomes := map[string]int{}
	for _, e := range f.audited {
		outcomes[e.Action+" "+e.Outcome]++
		if e.Target == "" || e.Remote == "" {
			t.Errorf("recorded %+v", e)
		}
	}
	if outcomes["POST /v1/webhooks/apps/{app} unauthenticated"] != 1 ||
		outcomes["POST /v1/webhooks/apps/{app} ok"] != 2 {
		t.Errorf("recorded %v", outcomes)
	}
}

// TestForgedDeliveriesCountAsFailures: who sends forged deliveries cannot guess keys on the side.
func TestForgedDeliveriesCountAsFailures(t *testing.T) {
	f := &fixture{}
	guard := access.New(access.Config{FailuresPerMinute: 3}, f, f)
	s, err := webhook.New(f, guard, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	forge := func(from string) {
		r := httptest.NewRequest(http.MethodPost, "/v1/webhooks/apps/app1", strings.NewReader("forged"))
		r.RemoteAddr = from
		w := httptest.NewRecorder()
		s.Middleware(http.NotFoundHandler()).ServeHTTP(w, r)
		if w.Code != http.StatusUnauthorized {
			t.Fatalf("status %d", w.Code)
		}
	}
	admit := func(from string) api.Code {
		r := httptest.NewRequest(http.MethodGet, "/v1/apps", nil)
		r.RemoteAddr = from
		_, err := guard.Admit(httptest.NewRecorder(), r, "owner", access.Need(api.ScopeLifecycle))
		return api.CodeOf(err)
	}
	for range 3 {
		forge("192.0.2.1:1")
	}
	if code := admit("192.0.2.1:1"); code != api.RateLimited {
		t.Errorf("a key from an address with forged deliveries: %q", code)
	}
	if code := admit("192.0.2.2:1"); code != "" {
		t.Errorf("a key from another address: %q", code)
	}
}
