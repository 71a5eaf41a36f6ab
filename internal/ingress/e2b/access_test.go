package e2b_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/audit"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/ingress/e2b"
	"github.com/pandastack/pandastack/internal/ingress/e2b/envd"
	"github.com/pandastack/pandastack/internal/ingress/e2b/envd/proto/filesystem"
	"github.com/pandastack/pandastack/internal/ingress/e2b/envd/proto/process"
	"github.com/pandastack/pandastack/internal/ingress/e2b/interpreter"
	"github.com/pandastack/pandastack/internal/ingress/repl"
)

// TestEveryOperationIsDeclared walks all operations of E2B's faces. Those of the control API cannot be added without a
// declaration: the server would not start.
func TestEveryOperationIsDeclared(t *testing.T) {
	procedures := map[string][]string{}
	for _, file := range []protoreflect.FileDescriptor{
		process.File_process_process_proto, filesystem.File_filesystem_filesystem_proto,
	} {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			prefix := "/" + string(service.FullName()) + "/"
			for n := range service.Methods().Len() {
				procedures[prefix] = append(procedures[prefix], prefix+string(service.Methods().Get(n).Name()))
			}
		}
	}
	var agent []string
	for _, pattern := range envd.New(envd.Budgets{}).Patterns() {
		if all, ok := procedures[pattern]; ok {
			agent = append(agent, all...)
			continue
		}
		agent = append(agent, pattern)
	}
	if len(agent) < 20 {
		t.Errorf("only %d operations of the agent were found: %v", len(agent), agent)
	}
	for face, list := range map[access.Face][]string{
		access.Agent: agent, access.Interpreter: interpreter.New(&repl.Runner{}, nil, nil).Patterns(),
	} {
		for _, pattern := range list {
			if _, ok := access.NeedOf(face, pattern); !ok {
				t.Errorf("%s: %s declares no scope and no other need", face, pattern)
			}
		}
	}
}

// at sends a request to a port of a sandbox, with one header.
func (w *fixture) at(method, id string, port int, path, name, value string) (int, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, strings.NewReader("{}"))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Host = fmt.Sprintf("%d-%s.%s", port, id, domain)
	if name != "" {
		req.Header.Set(name, value)
	}
	status, text, _ := w.do(req)
	return status, text
}

// TestContextsNeedAToken checks that code contexts cannot be seen, made or ended without a token of their sandbox, and
// that clients learn the token that they send.
func TestContextsNeedAToken(t *testing.T) {
	w := newFixture(t)
	var made, open struct{ SandboxID, TrafficAccessToken, EnvdAccessToken string }
	w.decode(w.must(201, "POST", "/v2/sandboxes", `{"templateID":"base","secure":true}`), &made)
	w.decode(w.must(201, "POST", "/v2/sandboxes", `{"templateID":"base","secure":false}`), &open)
	if made.TrafficAccessToken == "" || open.TrafficAccessToken != "" || open.EnvdAccessToken != "" {
		t.Fatalf("created %+v and %+v; want tokens of the first", made, open)
	}
	for _, rt := range []struct{ method, path string }{
		{"GET", "/contexts"}, {"POST", "/contexts"}, {"DELETE", "/contexts/x"}, {"POST", "/contexts/x/restart"},
		{"POST", "/execute"},
	} {
		for _, tt := range []struct {
			name, value string
			refused     bool
		}{
			{"", "", true},
			{"X-Access-Token", "wrong", true},
			{"X-Access-Token", open.SandboxID, true},
			{e2b.TrafficHeader, "wrong", true},
			{e2b.TrafficHeader, made.TrafficAccessToken, rt.path == "/execute"},
			{"X-Access-Token", made.EnvdAccessToken, false},
		} {
			status, text := w.at(rt.method, made.SandboxID, interpreter.Port, rt.path, tt.name, tt.value)
			if (status == http.StatusUnauthorized) != tt.refused {
				t.Errorf("%s %s with %s %q: got %d %s, want it refused: %v", rt.method, rt.path, tt.name, tt.value,
					status, text, tt.refused)
			}
		}
		if status, _ := w.at(rt.method, open.SandboxID, interpreter.Port, rt.path, "", ""); status == 401 {
			t.Errorf("%s %s of a sandbox without tokens: 401", rt.method, rt.path)
		}
	}
}

// key returns a key of the fixture's workspace.
func (w *fixture) newKey(req auth.KeyRequest) string {
	w.t.Helper()
	_, token, err := w.keys.Create(w.t.Context(), auth.Principal{Workspace: auth.DefaultWorkspace}, req)
	if err != nil {
		w.t.Fatal(err)
	}
	return token
}

// TestScopesOfKeys checks that each route refuses a key without its scope, and that no key learns a token with which it
// could do more.
func TestScopesOfKeys(t *testing.T) {
	w := newFixture(t)
	made := w.create("/v2/sandboxes", `{"templateID":"base"}`)
	viewer := w.newKey(auth.KeyRequest{Role: api.RoleViewer})
	for _, r := range slices.Concat(ofSandbox, others) {
		path, pattern := r.path, r.method+" "+r.path
		if !slices.Contains(others, r) {
			path, pattern = r.at(made.SandboxID), r.method+" "+r.at("{id}")
		}
		need, ok := access.NeedOf(access.E2B, pattern)
		if !ok {
			t.Errorf("%s declares nothing", pattern)
		}
		status, text, _ := w.call(r.method, path, viewer, r.body)
		scope, keyed := need.Scope()
		if refused := status == 403; refused != (keyed && scope != api.ScopeRead) {
			t.Errorf("%s, which needs %s, for a viewer: got %d %s", pattern, need, status, text)
		}
	}
	for name, tt := range map[string]struct {
		scopes         []api.Scope
		agent, traffic bool
	}{
		"all":       {nil, true, true},
		"lifecycle": {[]api.Scope{api.ScopeRead, api.ScopeLifecycle}, false, false},
		"exec":      {[]api.Scope{api.ScopeRead, api.ScopeLifecycle, api.ScopeExec}, false, false},
		"agent":     {[]api.Scope{api.ScopeRead, api.ScopeLifecycle, api.ScopeExec, api.ScopeFiles}, true, false},
		"ports":     {[]api.Scope{api.ScopeRead, api.ScopeLifecycle, api.ScopePorts}, false, true},
	} {
		key := w.newKey(auth.KeyRequest{Scopes: tt.scopes})
		for _, r := range []route{
			{"POST", "/v2/sandboxes", `{"templateID":"base","network":{"allowPublicTraffic":false}}`, 0},
			{"POST", "/sandboxes/%s/connect", `{"timeout":60}`, 0}, {"GET", "/sandboxes/%s", "", 0},
			{"POST", "/sandboxes/%s/fork", `{"count":1}`, 0},
		} {
			path := strings.ReplaceAll(r.path, "%s", made.SandboxID)
			status, text, _ := w.call(r.method, path, key, r.body)
			if status >= 300 {
				t.Errorf("%s: %s %s: got %d %s", name, r.method, path, status, text)
			}
			if strings.Contains(text, `"envdAccessToken"`) != tt.agent {
				t.Errorf("%s: %s %s returns the token of the agent: %v", name, r.method, path, !tt.agent)
			}
			if strings.Contains(r.body, "allowPublicTraffic") &&
				strings.Contains(text, `"trafficAccessToken"`) != tt.traffic {
				t.Errorf("%s: %s %s returns the token for traffic: %v", name, r.method, path, !tt.traffic)
			}
		}
	}
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

// TestFacesAreAudited checks that calls of all faces of E2B's protocol are recorded, and refused ones too.
func TestFacesAreAudited(t *testing.T) {
	l := &log{}
	w := newFixture(t, func(cfg *e2b.Config, keys *auth.Keys) {
		cfg.Guard = access.New(access.Config{FailuresPerMinute: 1000}, keys, l)
	})
	made := w.create("/v2/sandboxes", `{"templateID":"base"}`)
	w.call("GET", "/v2/sandboxes", w.key, "")
	w.call("DELETE", "/sandboxes/"+made.SandboxID, "e2b_"+strings.Repeat("0", 32), "")
	w.call("DELETE", "/sandboxes/"+made.SandboxID, w.newKey(auth.KeyRequest{Role: api.RoleViewer}), "")
	token := made.EnvdAccessToken
	w.at("POST", made.SandboxID, envd.Port, "/process.Process/List", "X-Access-Token", token)
	w.at("POST", made.SandboxID, envd.Port, "/filesystem.Filesystem/MakeDir", "X-Access-Token", token)
	w.at("POST", made.SandboxID, envd.Port, "/process.Process/Start", "X-Access-Token", "wrong")
	w.at("POST", made.SandboxID, envd.Port, "/process.Process/Unheard", "X-Access-Token", token)
	w.at("POST", made.SandboxID, interpreter.Port, "/execute", "X-Access-Token", "wrong")
	w.call("DELETE", "/sandboxes/"+made.SandboxID, w.key, "")
	var got []string
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.all {
		got = append(got, fmt.Sprintf("%s %s %s", e.Principal.Workspace, e.Action, e.Outcome))
		if e.Remote != "127.0.0.1" || e.At.After(time.Now()) {
			t.Errorf("entry %+v", e)
		}
	}
	want := []string{
		"default POST /v2/sandboxes ok",
		" DELETE /sandboxes/{id} unauthenticated",
		"default DELETE /sandboxes/{id} forbidden",
		"default agent /filesystem.Filesystem/MakeDir invalid",
		"default agent /process.Process/Start unauthenticated",
		"default interpreter POST /execute unauthenticated",
		"default DELETE /sandboxes/{id} ok",
	}
	if !slices.Equal(got, want) {
		text, _ := json.MarshalIndent(got, "", " ") // strings always encode
		t.Errorf("recorded %s, want %v", text, want)
	}
}
