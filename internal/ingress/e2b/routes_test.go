package e2b_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/ingress/e2b/control"
)

// route is a route of the control API, with a body that it accepts.
type route struct {
	method, path, body string
	paused             int // status for a paused sandbox; 0: as for a running one
}

// ofSandbox are the routes below one sandbox.
var ofSandbox = []route{
	{"GET", "", "", 0},
	{"GET", "/metrics", "", 0},
	{"GET", "/logs", "", 0},
	{"GET", "v2/logs", "", 0},
	{"POST", "/connect", `{"timeout":60}`, 201},
	{"POST", "v2/connect", `{"timeout":60}`, 201},
	{"POST", "/timeout", `{"timeout":60}`, 0},
	{"POST", "/refreshes", `{"duration":60}`, 0},
	{"PUT", "/network", `{}`, 0},
	{"POST", "/fork", `{"count":1}`, 409},
	{"POST", "/snapshots", `{}`, 0},
	{"POST", "/resume", `{}`, 201},
	{"POST", "/pause", `{}`, 409},
	{"DELETE", "", "", 0},
}

func (r route) at(id string) string {
	if rest, ok := strings.CutPrefix(r.path, "v2"); ok {
		return "/v2/sandboxes/" + id + rest
	}
	return "/sandboxes/" + id + r.path
}

// others are all routes that are not below one sandbox. Those with a body refuse bodies that they do not accept.
var others = []route{
	{"GET", "/sandboxes", "", 0},
	{"GET", "/v2/sandboxes", "", 0},
	{"POST", "/sandboxes", `{"templateID":"base"}`, 0},
	{"POST", "/v2/sandboxes", `{"templateID":"base"}`, 0},
	{"GET", "/sandboxes/metrics", "", 0},
	{"GET", "/snapshots", "", 0},
	{"GET", "/templates", "", 0},
	{"GET", "/v2/templates", "", 0},
	{"GET", "/templates/{id}", "", 0},
	{"DELETE", "/templates/{id}", "", 0},
	{"GET", "/templates/{id}/{part}", "", 0},
	{"GET", "/teams", "", 0},
	{"POST", "/v3/templates", `{"name":"mine"}`, 0},
	{"GET", "/templates/{id}/files/{hash}", "", 0},
	{"POST", "/v2/templates/{id}/builds/{build}", `{"fromTemplate":"base"}`, 0},
	{"GET", "/templates/{id}/builds/{build}/status", "", 0},
	{"GET", "/templates/{id}/builds/{build}/logs", "", 0},
	{"POST", "/templates/tags", `{"target":"mine","tags":["a"]}`, 0},
	{"DELETE", "/templates/tags", `{"name":"mine","tags":["a"]}`, 0},
	{"POST", "/templates", "", 0},
	{"POST", "/v2/templates", "", 0},
	{"PUT", "/templates/uploads/{hash}", "", 0},
	{"PATCH", "/templates/{id}", `{"public":false}`, 0},
	{"PATCH", "/v2/templates/{id}", `{"public":false}`, 0},
	{"GET", "/volumes", "", 0},
	{"POST", "/volumes", `{"name":"mine"}`, 0},
	{"GET", "/volumes/{id}", "", 0},
	{"DELETE", "/volumes/{id}", "", 0},
	{"GET", "/volumecontent/{id}/path", "", 0},
	{"PATCH", "/volumecontent/{id}/path", `{"mode":420}`, 0},
	{"DELETE", "/volumecontent/{id}/path", "", 0},
	{"GET", "/volumecontent/{id}/dir", "", 0},
	{"POST", "/volumecontent/{id}/dir", "", 0},
	{"GET", "/volumecontent/{id}/file", "", 0},
	{"PUT", "/volumecontent/{id}/file", "", 0},
	{"GET", "/secrets", "", 0},
	{"POST", "/secrets", "", 0},
	{"GET", "/secrets/{id}", "", 0},
	{"POST", "/secrets/{id}", "", 0},
	{"DELETE", "/secrets/{id}", "", 0},
	{"GET", "/teams/{id}/metrics", "", 0},
	{"GET", "/teams/{id}/metrics/max", "", 0},
}

// TestTablesAreWhole checks that every route is in a table of refusals, except the one that is public.
func TestTablesAreWhole(t *testing.T) {
	s, err := control.New(control.Config{Secret: bytes.Repeat([]byte("k"), 32)}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	have := []string{"GET /health"}
	for _, r := range ofSandbox {
		have = append(have, r.method+" "+r.at("{id}"))
	}
	for _, r := range others {
		have = append(have, r.method+" "+r.path)
	}
	slices.Sort(have)
	if routes := s.Routes(); !slices.Equal(routes, have) {
		t.Errorf("got routes %v\nwant the tables' %v", routes, have)
	}
}

// TestOtherRoutesRefuse is TestRoutesRefuse for the routes that are not below one sandbox.
func TestOtherRoutesRefuse(t *testing.T) {
	w := newFixture(t)
	fill := strings.NewReplacer(
		"{id}",
		"tmpaaaaaaaaaaaaaaaaaaaaa",
		"{build}",
		"bldaaaaaaaaaaaaaaaaaaaaa",
		"{hash}",
		strings.Repeat("0", 64),
		"{part}",
		"tags",
	)
	for _, r := range others {
		t.Run(r.method+strings.ReplaceAll(r.path, "/", "-"), func(t *testing.T) {
			path := fill.Replace(r.path)
			for _, key := range []string{"", "e2b_x|y", "e2b_" + strings.Repeat("0", 32)} {
				status, text, _ := w.call(r.method, path, key, r.body)
				// Uploads are authorized by a ticket in the URL.
				upload := strings.HasPrefix(path, "/templates/uploads/")
				if status != 401 && !(upload && status >= 400) || !strings.Contains(text, `"message":`) {
					t.Errorf("key %q: got %d %s, want 401", key, status, text)
				}
			}
			if strings.Contains(r.path, "{") {
				if status, text, _ := w.call(r.method, path, w.key, r.body); status < 400 ||
					!strings.Contains(text, `"message":`) {
					t.Errorf("of a resource that does not exist: got %d %s, want an error", status, text)
				}
			}
			if r.body == "" {
				return
			}
			for name, body := range map[string]string{
				"malformed": `{"name":`, "list": `[]`, "two values": r.body + `}`,
				"unknown field": `{"accessColour":"red"}`,
				"oversize":      `{"colour":"` + strings.Repeat("x", 2<<20) + `"}`,
			} {
				if status, text, _ := w.call(r.method, path, w.key, body); status != 400 && status != 413 &&
					status != 501 {
					t.Errorf("%s: got %d %.200s, want 400, 413 or 501", name, status, text)
				}
			}
		})
	}
	if list := w.must(200, "GET", "/v2/sandboxes", ""); list != "[]\n" {
		t.Errorf("a refused request made a sandbox: %s", list)
	}
}

// otherKey returns a key of another workspace of the same installation.
func (w *fixture) otherKey() string {
	w.t.Helper()
	_, key, err := w.keys.Issue(w.t.Context(), "another", "theirs")
	if err != nil {
		w.t.Fatal(err)
	}
	return key
}

// TestRoutesRefuse checks that every route refuses strangers, other workspaces, and bodies that it does not accept.
func TestRoutesRefuse(t *testing.T) {
	w := newFixture(t)
	made := w.create("/v2/sandboxes", `{"templateID":"base"}`)
	other := w.otherKey()
	for _, r := range ofSandbox {
		t.Run(r.method+strings.ReplaceAll(r.path, "/", "-"), func(t *testing.T) {
			path := r.at(made.SandboxID)
			for _, tt := range []struct {
				name, path, key, body string
				status                int
			}{
				{"stranger", path, "", r.body, 401},
				{"malformed key", path, "e2b_x|y", r.body, 401},
				{"unknown key", path, "e2b_" + strings.Repeat("0", 32), r.body, 401},
				{"other workspace", path, other, r.body, 404},
				{"no sandbox", r.at("sbxaaaaaaaaaaaaaaaaaaaa"), w.key, r.body, 404},
				{"no id", r.at("no--id"), w.key, r.body, 404},
			} {
				if status, text, _ := w.call(r.method, tt.path, tt.key, tt.body); status != tt.status ||
					!strings.Contains(text, `"message":`) {
					t.Errorf("%s: got %d %s, want %d", tt.name, status, text, tt.status)
				}
			}
			if r.body == "" {
				return
			}
			for name, tt := range map[string]struct {
				body   string
				status int
			}{
				"malformed":     {`{"timeout":`, 400},
				"list":          {`[]`, 400},
				"two values":    {r.body + `}`, 400},
				"unknown field": {`{"accessColour":"red"}`, 400},
				"oversize":      {`{"colour":"` + strings.Repeat("x", 2<<20) + `"}`, 413},
			} {
				if status, text, _ := w.call(r.method, path, w.key, tt.body); status != tt.status {
					t.Errorf("%s: got %d %.200s, want %d", name, status, text, tt.status)
				}
			}
		})
	}
	if list := w.must(200, "GET", "/v2/sandboxes", ""); !strings.Contains(list, `"state":"running"`) {
		t.Errorf("a refused request changed the sandbox: %s", list)
	}
}

// TestRoutesOfPaused checks what each route does with a paused sandbox.
func TestRoutesOfPaused(t *testing.T) {
	w := newFixture(t)
	for _, r := range ofSandbox {
		running, paused := w.create(
			"/v2/sandboxes",
			`{"templateID":"base"}`,
		), w.create(
			"/v2/sandboxes",
			`{"templateID":"base"}`,
		)
		w.must(204, "POST", "/sandboxes/"+paused.SandboxID+"/pause", "")
		want := r.paused
		if want == 0 {
			want, _, _ = w.call(r.method, r.at(running.SandboxID), w.key, r.body)
		}
		if got, text, _ := w.call(r.method, r.at(paused.SandboxID), w.key, r.body); got != want || got >= 500 {
			t.Errorf("%s %s: got %d %s, want %d", r.method, r.path, got, text, want)
		}
	}
}

// TestOtherInstallation checks that keys of another installation are refused.
func TestOtherInstallation(t *testing.T) {
	w := newFixture(t)
	db, err := store.Open(t.Context(), store.Config{DSN: filepath.Join(t.TempDir(), "other.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // the directory goes with the test
	keys, err := auth.New(db, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := keys.CreateFirst(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if status, _, _ := w.call("GET", "/v2/sandboxes", theirs, ""); status != http.StatusUnauthorized {
		t.Errorf("status with a key of another installation = %d, want 401", status)
	}
	if bytes.Equal([]byte(theirs), []byte(w.key)) {
		t.Error("two installations made the same key")
	}
}
