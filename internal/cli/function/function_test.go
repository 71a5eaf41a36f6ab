package function_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
	"github.com/pandastack/pandastack/internal/cli/function"
)

const runID = "invaaaaaaaaaaaaaaaaaaaa"

// server has one function, unless it is empty, and keeps the calls.
type server struct {
	*httptest.Server

	mu     sync.Mutex
	exists bool
	broken bool // builds fail
	run    api.FunctionRun
	calls  []string
	files  []string // names in the last bundle
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{run: api.FunctionRun{
		ID: runID, Version: 2, Status: api.RunSuccess, Result: []byte(`{"a":1}`), Stdout: "one\n", Stderr: "two\n",
		Trigger: "invoke",
	}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *server) function() api.Function {
	fn := api.Function{
		ID: "funaaaaaaaaaaaaaaaaaaaa", Name: "hello", Runtime: "python", Status: "ready", Version: 2, Latest: 2,
		URL: "http://fn-x.fn.test/", Env: map[string]string{"OLD": api.MaskedValue},
		Settings: api.FunctionSettings{TimeoutSeconds: 9},
	}
	if s.broken {
		fn.Status, fn.Latest = api.FunctionFailed, 3
	}
	return fn
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := strings.TrimPrefix(r.URL.RequestURI(), "/v1/functions")
	fail := func(code api.Code, message string) {
		w.WriteHeader(code.Info().Status)
		_ = json.NewEncoder(w).Encode(api.Errorf(code, "%s", message))
	}
	if strings.HasSuffix(path, "/deploy") {
		s.deploy(w, r)
		if s.broken {
			fail(api.Invalid, "the build has failed")
			return
		}
		_ = json.NewEncoder(w).Encode(s.function())
		return
	}
	body, _ := io.ReadAll(r.Body)
	s.calls = append(s.calls, strings.TrimSpace(r.Method+" "+path+" "+string(body)))
	if path == "" && r.Method == http.MethodPost {
		s.exists = true
	}
	if !s.exists && path != "" {
		fail(api.NotFound, "function hello not found")
		return
	}
	var out any = s.function()
	switch {
	case path == "" && r.Method == http.MethodGet:
		out = []api.Function{s.function()}
	case strings.HasSuffix(path, "/invoke"), strings.Contains(path, "/runs/"):
		out = s.run
	case strings.Contains(path, "/runs"):
		out = []api.FunctionRun{s.run}
	case strings.Contains(path, "/logs?"):
		text, _ := json.Marshal(s.run)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "id: 1\nevent: run\ndata: "+string(text)+"\n\nevent: done\ndata: end\n\n")
		return
	case strings.HasSuffix(path, "/logs"):
		_, _ = io.WriteString(w, "no such package\n")
		return
	case strings.HasSuffix(path, "/versions"):
		out = []api.FunctionVersion{{Number: 2, Status: "ready", Style: "event"}}
	case strings.Contains(path, "/aliases/"):
		out = api.FunctionAlias{Name: "live", Versions: []api.FunctionWeight{
			{Version: 3, Weight: 90}, {Version: 4, Weight: 10},
		}}
	}
	if r.Method == http.MethodDelete {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	_ = json.NewEncoder(w).Encode(out)
}

// deploy reads the form of a deployment.
func (s *server) deploy(w http.ResponseWriter, r *http.Request) {
	s.files = nil
	file, _, err := r.FormFile("bundle")
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.calls = append(s.calls, "deploy "+r.FormValue("entrypoint"))
	z, err := gzip.NewReader(file)
	if err != nil {
		return
	}
	in := tar.NewReader(z)
	for {
		h, err := in.Next()
		if err != nil {
			break
		}
		if h.Typeflag == tar.TypeReg {
			s.files = append(s.files, h.Name)
		}
	}
	slices.Sort(s.files)
}

// last returns the last calls.
func (s *server) last(n int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.calls[max(0, len(s.calls)-n):], "; ")
}

// fn runs a command.
func (s *server) fn(t *testing.T, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, notes bytes.Buffer
	f := &cmdutil.Factory{Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &notes}
	f.Dial = func() (*client.Client, error) { return client.New(s.URL, "pds_x", client.WithTries(1)) }
	c := function.Command(f)
	c.PersistentFlags().BoolVar(&f.JSON, "json", false, "")
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetArgs(args)
	c.SetOut(&out)
	c.SetErr(&notes)
	err = c.ExecuteContext(t.Context())
	return out.String(), notes.String(), err
}

// TestFromNothing writes a starter, deploys it and changes it, as a new user does.
func TestFromNothing(t *testing.T) {
	s := newServer(t)
	dir := filepath.Join(t.TempDir(), "hello")
	for runtime, entrypoint := range map[string]string{"python": "handler.py", "nodejs": "index.js"} {
		at := dir + runtime
		if _, _, err := s.fn(t, "", "init", at, "--runtime", runtime); err != nil {
			t.Fatal(err)
		}
		code, err := os.ReadFile(filepath.Join(at, entrypoint))
		if err != nil || !strings.Contains(string(code), "pandastack fn invoke hello"+runtime) {
			t.Errorf("the starter of %s is %q, %v", runtime, code, err)
		}
	}
	if _, _, err := s.fn(t, "", "init", dir+"python"); api.CodeOf(err) != api.Conflict {
		t.Errorf("a second init: %v, want a conflict", err)
	}
	out, notes, err := s.fn(t, "", "deploy", dir+"python", "-e", "A=1", "--auth", "public", "--timeout", "1m")
	if err != nil || out != "http://fn-x.fn.test/\n" || !strings.Contains(notes, "version 2 is ready") {
		t.Fatalf("deploy: %q, %q, %v", out, notes, err)
	}
	want := `GET /hellopython; POST  {"name":"hellopython","runtime":"python","entrypoint":"handler.py",` +
		`"env":{"A":"1"},"settings":{"auth":"public","timeout_seconds":60}}; deploy handler.py`
	if got := s.last(3); got != want || strings.Join(s.files, " ") != "function.json handler.py" {
		t.Errorf("got the calls %s with %v\nwant %s", got, s.files, want)
	}
	if _, _, err = s.fn(t, "", "deploy", dir+"python", "-e", "A=2", "--mode", "shared"); err != nil {
		t.Fatal(err)
	}
	want = `PATCH /funaaaaaaaaaaaaaaaaaaaa {"env":{"A":"2","OLD":"` + api.MaskedValue +
		`"},"settings":{"mode":"shared","timeout_seconds":9}}; deploy handler.py`
	if got := s.last(2); got != want {
		t.Errorf("got the calls %s\nwant %s", got, want)
	}
	file := filepath.Join(t.TempDir(), "resize.py")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err = s.fn(t, "", "deploy", file); err != nil || s.last(2) != "GET /resize; deploy resize.py" {
		t.Errorf("a file: %s, %v", s.last(2), err)
	}
}

// TestInvoke checks where results, output and failures go.
func TestInvoke(t *testing.T) {
	s := newServer(t)
	s.exists = true
	out, notes, err := s.fn(t, "", "invoke", "hello", "-d", `{"x": 1}`)
	if err != nil || out != "{\n  \"a\": 1\n}\n" || notes != "one\ntwo\n" ||
		s.last(1) != `POST /hello/invoke {"input":{"x":1}}` {
		t.Errorf("got %q, %q, %v after %s", out, notes, err, s.last(1))
	}
	if _, _, err = s.fn(t, `[1]`, "invoke", "hello", "--file", "-", "--alias", "canary"); err != nil ||
		s.last(1) != `POST /hello/invoke {"input":[1],"alias":"canary"}` {
		t.Errorf("from standard input: %s, %v", s.last(1), err)
	}
	if _, _, err = s.fn(t, "", "invoke", "hello", "-d", "text"); err == nil || !strings.Contains(err.Error(), "JSON") {
		t.Errorf("an event that is no JSON: %v", err)
	}
	s.run.Status, s.run.Error = api.RunError, &api.FunctionError{Type: "ValueError", Message: "bad", Stack: "line 1"}
	out, notes, err = s.fn(t, "", "invoke", "hello")
	var code cmdutil.ExitCode
	if !errors.As(err, &code) || code != 1 || out != "" || notes != "one\ntwo\nerror: ValueError: bad\nline 1\n" {
		t.Errorf("a failure: %q, %q, %v", out, notes, err)
	}
	out, _, err = s.fn(t, "", "--json", "invoke", "hello")
	if !errors.As(err, &code) || !strings.Contains(out, `"type": "ValueError"`) {
		t.Errorf("a failure as JSON: %q, %v", out, err)
	}
	s.run.Status, s.run.Error = api.RunQueued, nil
	out, notes, err = s.fn(t, "", "invoke", "hello", "--async", "--delay", "1m")
	if err != nil || out != runID+"\n" || !strings.Contains(notes, "fn runs hello "+runID) ||
		s.last(1) != `POST /hello/invoke {"async":true,"delay_seconds":60}` {
		t.Errorf("async: %q, %q, %v after %s", out, notes, err, s.last(1))
	}
}

func TestCommands(t *testing.T) {
	s := newServer(t)
	s.exists = true
	for _, tt := range []struct{ args, call, out string }{
		{"list", "GET", "hello  python"},
		{"get hello", "GET /hello", "url        http://fn-x.fn.test/"},
		{"create hello --runtime nodejs", `POST  {"name":"hello","runtime":"nodejs"}`, "hello"},
		{"update hello --name bye", `PATCH /hello {"name":"bye"}`, "hello"},
		{"logs hello", "GET /hello/logs?limit=20", "success v2 warm 0 ms\none\ntwo\n"},
		{"logs hello -f --tail 0", "GET /hello/logs?follow=1&limit=0", "success"},
		{"runs hello --status error", "GET /hello/runs?limit=20&status=error", runID},
		{"runs hello " + runID, "GET /hello/runs/" + runID, "\"a\": 1"},
		{"runs hello " + runID + " --cancel", "POST /hello/runs/" + runID + "/cancel", "success"},
		{"versions hello", "GET /hello/versions", "2        ready   event"},
		{"versions hello --log 2", "GET /hello/versions/2/logs", "no such package"},
		{"alias hello live 3=90 4=10", `PUT /hello/aliases/live {"versions":[{"version":3,"weight":90},` +
			`{"version":4,"weight":10}]}`, "live -> 3=90 4=10"},
		{"alias hello live 3", `PUT /hello/aliases/live {"versions":[{"version":3,"weight":100}]}`, ""},
		{"alias hello live --delete", "DELETE /hello/aliases/live", ""},
		{"rollback hello", "POST /hello/rollback {}", "hello is at version 2"},
		{"rollback hello 1", `POST /hello/rollback {"version":1}`, "hello"},
		{"metrics hello --period 2", "GET /hello/metrics?period=2", "invocations  0"},
		{"delete hello", "DELETE /hello", ""},
		{"__complete get he", "GET", ""},
	} {
		out, notes, err := s.fn(t, "", strings.Fields(tt.args)...)
		if err != nil || s.last(1) != tt.call || !strings.Contains(out, tt.out) {
			t.Errorf("fn %s: got %q, %q, %v after %s\nwant %q after %s",
				tt.args, out, notes, err, s.last(1), tt.out, tt.call)
		}
	}
}

// TestErrorsNameTheRemedy checks that each error says what to do.
func TestErrorsNameTheRemedy(t *testing.T) {
	s := newServer(t)
	empty := t.TempDir()
	text := filepath.Join(t.TempDir(), "notes.txt")
	if err := os.WriteFile(text, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"invoke hello":                  "pandastack fn list",
		"deploy " + empty:               "no files",
		"deploy " + text:                "--runtime",
		"deploy /nowhere":               "name a directory",
		"init x --runtime cobol":        "python or nodejs",
		"create x --runtime cobol":      "python, nodejs or provided",
		"rollback hello x":              "fn versions",
		"alias hello live 3=90":         "make it 100",
		"alias hello live x":            "fn versions",
		"runs hello --cancel":           "id of a run",
		"alias hello --delete":          "name of one alias",
		"invoke hello --file /nowhere":  "no such file",
		"invoke hello --delay 1m":       "async",
		"invoke hello --alias !":        "alias",
		"runs hello nonsense":           "ids look like inv",
		"create a/b --runtime nodejs":   "letters, digits",
		"update hello --auth everybody": "fn list",
	} {
		if _, _, err := s.fn(t, "", strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("fn %s: got %v, want %q in it", args, err, want)
		}
	}
	s.exists, s.broken = true, true
	file := filepath.Join(t.TempDir(), "hello.py")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, notes, err := s.fn(t, "", "deploy", file)
	if err == nil || !strings.Contains(notes, "no such package\n") ||
		!strings.Contains(notes, "version 2 still takes") {
		t.Errorf("a build that fails: %q, %v, want its log", notes, err)
	}
}
