package httpapi_test

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/httpapi"
)

var update = flag.Bool("update", false, "rewrite the OpenAPI document")

// document is the path of the OpenAPI document.
const document = "../../../docs/openapi.json"

func TestDocumentIsCurrent(t *testing.T) {
	got, err := httpapi.Spec("v1")
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(document, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error(
			"docs/openapi.json differs from the routes: run go test ./internal/ingress/httpapi -run Document -update",
		)
	}
}

// fill fills ids of the right form into a pattern.
func fill(pattern string, box api.SandboxID, snap api.SnapshotID) string {
	return strings.NewReplacer(
		"{sandbox}",
		string(box),
		"{snapshot}",
		string(snap),
		"{pid}",
		"101",
		"{port}",
		"3000",
		"{path...}",
		"x",
		"{token}",
		"a.b",
		"{template}",
		"base",
		"{prefix}",
		"pds_admi",
		"{session}",
		"abc",
		"{org}",
		"ours",
	).Replace(pattern)
}

// bodies are valid bodies of the routes that need a field.
var bodies = map[string]string{
	"POST /v1/sandboxes/{sandbox}/exec":                        `{"cmd":"true"}`,
	"POST /v1/sandboxes/{sandbox}/exec/stream":                 `{"cmd":"true"}`,
	"PUT /v1/sandboxes/{sandbox}/network":                      `{"deny_others":true}`,
	"PATCH /v1/sandboxes/{sandbox}/lifecycle":                  `{"ttl_seconds":1}`,
	"POST /v1/sandboxes/{sandbox}/bake-image":                  `{"image_name":"x"}`,
	"POST /v1/sandboxes/{sandbox}/fs/mkdir":                    `{"path":"/x"}`,
	"POST /v1/sandboxes/{sandbox}/fs/move":                     `{"from":"/x","to":"/y"}`,
	"POST /v1/sandboxes/{sandbox}/ports":                       `{"port":80}`,
	"POST /v1/sandboxes/{sandbox}/volumes":                     `{"name":"v"}`,
	"POST /v1/sandboxes/{sandbox}/volumes/{volume}/promote":    `{"name":"w"}`,
	"POST /v1/sandboxes/{sandbox}/preview":                     `{"port":80}`,
	"POST /v1/sandboxes/{sandbox}/preview-token":               `{"port":80}`,
	"POST /v1/sandboxes/{sandbox}/repl":                        `{"code":"1"}`,
	"POST /v1/sandboxes/{sandbox}/repl/sessions/{session}/run": `{"code":"1"}`,
}

// upgrade asks for a WebSocket without being a WebSocket client.
func upgrade(r *http.Request) {
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "websocket")
	r.Header.Set("Sec-WebSocket-Version", "13")
	r.Header.Set("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
}

// ask calls a route of the table with ids of the member.
func (w *fixture) ask(rt httpapi.Line, box api.SandboxID, snap api.SnapshotID, change ...func(*http.Request)) response {
	w.t.Helper()
	method := rt.Method
	if method == "" {
		method = http.MethodGet
	}
	path := fill(rt.Pattern, box, snap)
	if strings.Contains(path, "/fs") && !strings.Contains(path, "mkdir") && !strings.Contains(path, "move") {
		path += "?path=/etc/hostname"
	}
	if rt.WebSocket {
		change = append(change, upgrade)
	}
	return w.do(method, path, bodies[method+" "+rt.Pattern], change...)
}

func TestEveryRouteDeniesAStranger(t *testing.T) {
	w := newFixture(t)
	box, path := w.create()
	var snap api.Snapshot
	w.do("POST", path+"/snapshots", "").json(t, &snap)
	open := []string{}
	for _, rt := range httpapi.Table() {
		if rt.Need == "public" || rt.Need == "signed" || rt.Need == "broker" || rt.Need == "function" {
			open = append(open, rt.Pattern)
			continue
		}
		t.Run(strings.ReplaceAll(rt.Method+rt.Pattern, "/", "_"), func(t *testing.T) {
			for _, key := range []string{"", "pds_wrong"} {
				a := w.ask(rt, box, snap.ID, as(key))
				if e := a.failed(t); e.Code != api.Unauthenticated || a.header.Get("WWW-Authenticate") != "Bearer" {
					t.Errorf("key %q: got %d %s, want unauthenticated", key, a.status, a.body)
				}
			}
			for key, role := range map[string]api.Role{
				keyAdmin: api.RoleAdmin, keyMember: api.RoleDeveloper, keyViewer: api.RoleViewer,
			} {
				if slices.Contains(role.Scopes(false), api.Scope(rt.Need)) {
					continue
				}
				if e := w.ask(rt, box, snap.ID, as(key)).failed(t); e.Code != api.Forbidden {
					t.Errorf("%s without the scope %s: got %s, want forbidden", role, rt.Need, e.Code)
				}
			}
			if !strings.Contains(rt.Pattern, "{sandbox}") && !strings.Contains(rt.Pattern, "{snapshot}") {
				return
			}
			theirs := w.ask(rt, box, snap.ID, as(keyStranger))
			nobodys := w.ask(rt, api.NewSandboxID(), api.NewSnapshotID(), as(keyStranger))
			if a, b := theirs.failed(t), nobodys.failed(t); a.Code != api.NotFound || b.Code != api.NotFound {
				t.Errorf(
					"sandbox of another workspace: %s %q, unknown sandbox: %s %q, want not_found twice",
					a.Code,
					a.Message,
					b.Code,
					b.Message,
				)
			}
		})
	}
	want := "[/v1/databases/{database}/proxy/{path...} /v1/functions/{function}/http-invoke " +
		"/v1/functions/{function}/http-invoke/{path...} " +
		"/v1/p/{token}/{path...} /healthz /readyz /version /v1/version /v1/health /openapi.json /v1/openapi.json]"
	if got := fmt.Sprint(open); got != want {
		t.Errorf("got public routes %s\nwant %s", got, want)
	}
	if _, err := w.boxes.get(principal, box); err != nil {
		t.Errorf("the refused requests deleted the sandbox: %v", err)
	}
}

// TestEveryBodyIsChecked checks that every route that takes JSON refuses malformed, oversized and unknown input.
func TestEveryBodyIsChecked(t *testing.T) {
	w := newFixture(t)
	box, path := w.create()
	var snap api.Snapshot
	w.do("POST", path+"/snapshots", "").json(t, &snap)
	for _, rt := range httpapi.Table() {
		if !rt.JSON {
			continue
		}
		t.Run(strings.ReplaceAll(rt.Method+rt.Pattern, "/", "_"), func(t *testing.T) {
			for name, body := range map[string]string{
				"malformed": `{"a":`, "list": `[]`, "two values": `{} {}`,
				"unknown field": `{"colour of nothing":"red"}`,
				"twice":         `{"port":1,"port":2}`,
				"oversize":      `{"a":"` + strings.Repeat("x", 33<<20) + `"}`,
			} {
				a := w.do(rt.Method, fill(rt.Pattern, box, snap.ID), body, as(keyOperator))
				if a.status < 400 || a.status >= 500 && a.status != 501 {
					t.Errorf("%s: got %d %.200s, want 4xx or 501", name, a.status, a.body)
				}
			}
		})
	}
}

// TestQueriesAreUnderstood checks that every route refuses an unknown name in a query and knows every documented one.
func TestQueriesAreUnderstood(t *testing.T) {
	w := newFixture(t)
	box, path := w.create()
	var snap api.Snapshot
	w.do("POST", path+"/snapshots", "").json(t, &snap)
	for _, rt := range httpapi.Table() {
		if rt.Need == "public" || rt.Need == "function" || strings.Contains(rt.Pattern, "{path...}") {
			continue
		}
		method, change := rt.Method, as(keyOperator)
		at := fill(rt.Pattern, box, snap.ID) + "?colour=red"
		e := w.do(method, at, bodies[method+" "+rt.Pattern], change).failed(t)
		if e.Code != api.Invalid || e.Details["field"] != "colour" {
			t.Errorf("%s %s: got %s %s, want a refusal of colour", method, at, e.Code, e.Message)
		}
	}
	for _, tt := range []struct{ query, want string }{
		{"metadata=a", "metadata.{key}"}, {"metadata.a=b&access_token=x&limit=1", ""},
	} {
		a := w.do("GET", "/v1/sandboxes?"+tt.query, "")
		if tt.want == "" {
			if a.status != 200 {
				t.Errorf("%s: got %d %s, want 200", tt.query, a.status, a.body)
			}
		} else if e := a.failed(t); !strings.Contains(e.Message, tt.want) {
			t.Errorf("%s: message %s lacks %s", tt.query, e.Message, tt.want)
		}
	}
}

func TestBodies(t *testing.T) {
	w := newFixture(t)
	_, path := w.create()
	for _, tt := range []struct {
		name, method, path, body string
		code                     api.Code
		want                     []string // in the message
	}{
		{"unknown-field", "POST", "/v1/sandboxes", `{"tmplate":"base"}`, api.Invalid, []string{"tmplate", "template"}},
		{"unknown-field-case", "POST", path + "/exec", `{"CMD":"true"}`, api.Invalid, []string{"CMD", "cmd"}},
		{"unknown-inner-field", "POST", "/v1/sandboxes", `{"volumes":[{"name":"v","rw":1}]}`,
			api.Invalid, []string{"volumes.rw"}},
		{"bad-json", "POST", "/v1/sandboxes", "{\n  \"template\": base}", api.Invalid, []string{"line 2, column 15"}},
		{"cut-json", "POST", "/v1/sandboxes", `{"template":"ba`, api.Invalid, []string{"line 1"}},
		{"two-values", "POST", "/v1/sandboxes", `{} {}`, api.Invalid, []string{"line 1, column 4"}},
		{"wrong-type", "POST", path + "/exec", `{"cmd":7}`, api.Invalid, []string{"cmd", "a string"}},
		{"not-an-object", "POST", path + "/exec", `[1]`, api.Invalid, []string{"object"}},
		{"missing", "POST", path + "/exec", ``, api.Invalid, []string{"cmd", "missing"}},
		{"volumes", "POST", "/v1/sandboxes", `{"volumes":[{"name":"v/w"}]}`, api.Invalid, []string{"volumes"}},
		{"huge", "POST", path + "/exec", `{"cmd":"` + strings.Repeat("x", 9<<20) + `"}`,
			api.TooLarge, []string{"8388608"}},
		{"bad-id", "GET", "/v1/sandboxes/..%2f..%2fetc", ``, api.NotFound, []string{"sandbox"}},
		{"bad-limit", "GET", "/v1/sandboxes?limit=x", ``, api.Invalid, []string{"limit"}},
		{"bad-status", "GET", "/v1/sandboxes?status=x", ``, api.Invalid, []string{"status", "running"}},
		{"no-path", "GET", path + "/fs", ``, api.Invalid, []string{"path"}},
		{"bad-mode", "PUT", path + "/fs?path=/x&mode=9", ``, api.Invalid, []string{"mode"}},
		{"bad-atomic", "PUT", path + "/fs?path=/x&atomic=maybe", ``, api.Invalid, []string{"atomic", "true or false"}},
		{"bad-port", "DELETE", path + "/ports/70000", ``, api.Invalid, []string{"port"}},
		{"bad-pid", "GET", path + "/processes/x/stream", ``, api.NotFound, []string{"pid"}},
		{"bad-event-tail", "GET", path + "/events?tail=-1", ``, api.Invalid, []string{"tail"}},
		{"bad-log-stream", "GET", path + "/logs?stream=x", ``, api.Invalid, []string{"stream"}},
		{"background-stream", "POST", path + "/exec/stream", `{"cmd":"true","background":true}`,
			api.Invalid, []string{"background"}},
		{"no-upgrade", "GET", path + "/exec/pty", ``, api.Invalid, []string{"upgrade"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := w.do(tt.method, tt.path, tt.body).failed(t)
			if e.Code != tt.code {
				t.Errorf("got code %s (%s), want %s", e.Code, e.Message, tt.code)
			}
			for _, part := range tt.want {
				if !strings.Contains(e.Message, part) {
					t.Errorf("message %q lacks %q", e.Message, part)
				}
			}
		})
	}
}

func TestUnknownPathsAndMethods(t *testing.T) {
	w := newFixture(t)
	_, path := w.create()
	for _, tt := range []struct {
		method, path string
		code         api.Code
		allow        string
	}{
		{"GET", "/", api.NotFound, ""},
		{"GET", "/v1/nothing", api.NotFound, ""},
		{"GET", "/v1//sandboxes", api.NotFound, ""},
		{"GET", "/v1/x/../sandboxes", api.NotFound, ""},
		{"POST", "/v1/sandboxes/", api.NotFound, ""},
		{"PUT", "/v1/sandboxes", api.NotAllowed, "GET, HEAD, POST"},
		{"GET", path + "/exec", api.NotAllowed, "POST"},
	} {
		t.Run(tt.method+strings.ReplaceAll(tt.path, "/", "_"), func(t *testing.T) {
			a := w.do(tt.method, tt.path, "")
			if e := a.failed(t); e.Code != tt.code || a.header.Get("Allow") != tt.allow {
				t.Errorf("got %s, Allow %q; want %s, %q", e.Code, a.header.Get("Allow"), tt.code, tt.allow)
			}
		})
	}
}

func TestRequestID(t *testing.T) {
	w := newFixture(t)
	for given, kept := range map[string]bool{"abc-1_X": true, "": false, "a b": false, strings.Repeat("x", 65): false} {
		a := w.do("GET", "/v1/nothing", "", with("X-Request-Id", given))
		got := a.header.Get("X-Request-Id")
		if (got == given) != kept || got == "" || string(a.failed(t).RequestID) != got {
			t.Errorf("request id %q: got header %q, body %s", given, got, a.body)
		}
	}
}

func TestCORS(t *testing.T) {
	w := newFixture(t)
	_, path := w.create()
	for _, p := range []string{"/v1/sandboxes", path + "/proxy/3000/x"} {
		a := w.do(
			"OPTIONS",
			p,
			"",
			as(""),
			with("Access-Control-Request-Method", "POST"),
			with("Access-Control-Request-Headers", "authorization"),
		)
		if a.status != http.StatusNoContent || a.header.Get("Access-Control-Allow-Origin") != "*" ||
			a.header.Get(
				"Access-Control-Allow-Headers",
			) != "authorization" || !strings.Contains(a.header.Get("Access-Control-Allow-Methods"), "PATCH") {
			t.Errorf("%s: got %d %v", p, a.status, a.header)
		}
	}
	if a := w.do("GET", "/v1/me", ""); a.header.Get("Access-Control-Allow-Origin") != "*" {
		t.Errorf("response header %v lacks Access-Control-Allow-Origin", a.header)
	}
}

// TestKeysInAddresses checks that only requests that a browser makes without headers may have the key in the URL.
func TestKeysInAddresses(t *testing.T) {
	w := newFixture(t)
	w.boxes.addEvent("sbx", "x")
	_, path := w.create()
	q := "?access_token=" + keyMember
	if a := w.do("GET", "/v1/me"+q, "", as("")); a.failed(t).Code != api.Unauthenticated {
		t.Errorf("GET with the key in its URL: got %d, want 401", a.status)
	}
	a := w.do("POST", path+"/exec/stream"+q, `{"cmd":"true"}`, as(""), with("Accept", "text/event-stream"))
	if a.failed(t).Code != api.Unauthenticated {
		t.Errorf("POST with the key in its URL: got %d, want 401", a.status)
	}
	a = w.do("GET", path+"/processes/1/stream"+q, "", as(""), with("Accept", "text/event-stream"))
	if a.failed(t).Code != api.NotFound {
		t.Errorf("EventSource with the key in its URL: got %d %s, want not_found of the process", a.status, a.body)
	}
}

// TestDuplicateFields checks that a member that is there twice is refused by its name, at any depth.
func TestDuplicateFields(t *testing.T) {
	w := newFixture(t)
	_, path := w.create()
	for _, tt := range []struct{ path, body, field string }{
		{"/v1/sandboxes", `{"template":"base","template":"base"}`, "template"},
		{"/v1/sandboxes", `{"metadata":{"a":"1","b":"2","\u0061":"3"}}`, "metadata.a"},
		{"/v1/sandboxes", `{"network":{"deny_others":true,"deny_others":false}}`, "network.deny_others"},
		{path + "/exec", `{"cmd":"true","cmd":"false"}`, "cmd"},
	} {
		change := with("Content-Type", "application/json")
		e := w.do("POST", tt.path, tt.body, change).failed(t)
		if e.Code != api.Invalid || e.Details["field"] != tt.field {
			t.Errorf("%s: got %+v, want a refusal of %s", tt.body, e, tt.field)
		}
	}
}
