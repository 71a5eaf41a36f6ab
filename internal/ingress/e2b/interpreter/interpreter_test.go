package interpreter_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/guest/agent"
	"github.com/pandastack/pandastack/internal/guest/process"
	"github.com/pandastack/pandastack/internal/ingress/e2b/interpreter"
	"github.com/pandastack/pandastack/internal/ingress/e2b/lenient"
	"github.com/pandastack/pandastack/internal/ingress/repl"
)

// fixture is an interpreter over the guest agent as a plain process of this machine.
type fixture struct {
	t     *testing.T
	url   string
	agent guestapi.Guest
	guest atomic.Value // a replacement, in the place of agent
	id    string       // of the sandbox
}

type replacement struct{ guestapi.Guest }

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureWith(t, &repl.Runner{})
}

func newFixtureWith(t *testing.T, runner *repl.Runner) *fixture {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skipf("probe program: python3 is not installed on this machine")
	}
	g := agent.New(agent.Config{Reaper: process.NewReaper(false)})
	t.Cleanup(g.Close)
	s := interpreter.New(runner, nil, &lenient.Decoder{})
	f := &fixture{t: t, agent: g, id: "sbx"}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		guest := f.agent
		if other, ok := f.guest.Load().(replacement); ok {
			guest = other.Guest
		}
		s.Serve(w, r, interpreter.Target{ID: f.id, Guest: guest})
	}))
	t.Cleanup(srv.Close)
	f.url = srv.URL
	return f
}

func (w *fixture) call(method, path, body string) (int, string) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return res.StatusCode, string(data)
}

// run executes a cell and returns the lines of the response.
func (w *fixture) run(body string) []map[string]any {
	w.t.Helper()
	status, text := w.call("POST", "/execute", body)
	if status != 200 {
		w.t.Fatalf("execute %s: status %d, %s", body, status, text)
	}
	var out []map[string]any
	for line := range strings.Lines(text) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			w.t.Fatalf("line %q: %v", line, err)
		}
		out = append(out, v)
	}
	return out
}

// kinds returns the types of lines, in order.
func kinds(lines []map[string]any) string {
	var all []string
	for _, l := range lines {
		kind, _ := l["type"].(string)
		all = append(all, kind)
	}
	return strings.Join(all, " ")
}

// The events of a cell are lines, and the last line is its end.
func TestExecute(t *testing.T) {
	w := newFixture(t)
	if status, text := w.call("GET", "/health", ""); status != 200 || strings.TrimSpace(text) != `"OK"` {
		t.Errorf("GET /health = %d %s, want 200", status, text)
	}
	got := w.run(`{"code":"import os\nprint('grüße')\nos.environ['A']","env_vars":{"A":"b"}}`)
	if kinds(got) != "number_of_executions stdout result end_of_execution" || got[0]["execution_count"] != 1.0 ||
		got[1]["text"] != "grüße\n" ||
		got[1]["timestamp"] == nil ||
		got[2]["text"] != "b" ||
		got[2]["is_main_result"] != true {
		t.Errorf("lines are %v, want the output, the result and the end", got)
	}
	got = w.run(`{"code":"import sys; 1/0 if print('x', file=sys.stderr) is None else 0","language":"python"}`)
	// The outputs are separate streams: their text comes before the end, in no order with the other lines.
	failed := got[slices.IndexFunc(got, func(l map[string]any) bool { return l["type"] == "error" })]
	if k := kinds(got); !strings.HasSuffix(k, " end_of_execution") || !strings.Contains(k, "stderr") ||
		got[0]["execution_count"] != 2.0 ||
		failed["name"] != "ZeroDivisionError" ||
		failed["value"] != "division by zero" ||
		failed["traceback"] == "" {
		t.Errorf("lines of a failing cell are %v, want its error", got)
	}
	got = w.run(
		`{"code":"class T:\n  def _repr_html_(self): return '<b>'\n  def _repr_mimebundle_(self, **k): return ` +
			`{'text/html': '<b>', 'a/b': 1, 'application/vnd.pandastack.chart+json': {'type': 'pie'}}\nT()"}`,
	)
	if kinds(got) != "number_of_executions result end_of_execution" {
		t.Fatalf("lines of a rich value are %v, want a result", got)
	}
	chart, _ := got[1]["chart"].(map[string]any)
	extra, _ := got[1]["extra"].(map[string]any)
	if got[1]["html"] != "<b>" || chart["type"] != "pie" || extra["a/b"] != 1.0 {
		t.Errorf("rich value is %v, want all its representations", got[1])
	}
	got = w.run(`{"code":"import os; os._exit(3)"}`)
	if k := kinds(got); !strings.HasSuffix(k, "error unexpected_end_of_execution") {
		t.Errorf("lines of a cell that ends its driver are %s, want an unexpected end", k)
	}
}

// The header of the response is sent before the first output of a cell, since clients measure its time from then.
func TestHeaderIsSentBeforeOutput(t *testing.T) {
	w := newFixture(t)
	mark := filepath.Join(t.TempDir(), "go-on")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	code, err := json.Marshal(
		map[string]string{
			"code": fmt.Sprintf("import os, time\nwhile not os.path.exists(%q): time.sleep(0.01)\n6 * 7", mark),
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(ctx, "POST", w.url+"/execute", bytes.NewReader(code))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatalf("no header while the cell runs: %v", err)
	}
	defer res.Body.Close()
	if err := os.WriteFile(mark, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(res.Body); err != nil || res.StatusCode != 200 ||
		!strings.Contains(string(text), `"42"`) {
		t.Errorf("response is %d %s, %v, want 200 and the end", res.StatusCode, text, err)
	}
}

// Contexts are created, listed, restarted with the same id, and ended.
func TestContextsAreLimited(t *testing.T) {
	w := newFixtureWith(t, &repl.Runner{MaxContexts: 1})
	if status, text := w.call("POST", "/contexts", `{"language":"bash"}`); status != http.StatusCreated {
		t.Fatalf("create context = %d %s, want 201", status, text)
	}
	status, text := w.call("POST", "/contexts", `{"language":"bash"}`)
	if status != http.StatusTooManyRequests || !strings.Contains(text, "contexts: this sandbox holds 1 of the 1") {
		t.Errorf("create another context = %d %s, want 429", status, text)
	}
}

func TestContexts(t *testing.T) {
	w := newFixture(t)
	var one struct{ ID, Language, Cwd string }
	status, text := w.call("POST", "/contexts", `{"language":"python","cwd":"/tmp"}`)
	if err := json.Unmarshal([]byte(text), &one); err != nil || status != 201 || one.ID == "" ||
		one.Language != "python" ||
		one.Cwd != "/tmp" {
		t.Fatalf("create context = %d %s, want 201", status, text)
	}
	in := func(code string) []map[string]any {
		return w.run(`{"context_id":"` + one.ID + `","code":"` + code + `"}`)
	}
	in("x = 41")
	if got := in("x + 1"); got[1]["text"] != "42" {
		t.Errorf("lines of the second cell are %v, want the variable of the first", got)
	}
	if got := w.run(`{"code":"x"}`); kinds(got) != "number_of_executions error end_of_execution" {
		t.Errorf("lines in the default context are %v, want no variable of the other one", got)
	}
	_, text = w.call("GET", "/contexts", "")
	var all []struct{ ID, Language, Cwd string }
	if err := json.Unmarshal([]byte(text), &all); err != nil || len(all) != 3 || all[0].ID != "default" ||
		all[1].ID != "jsdefault" || all[1].Language != "javascript" || all[1].Cwd == "" || all[2].ID != one.ID {
		t.Errorf("contexts are %s, want those of Python and JavaScript, and the newest last", text)
	}
	got := w.run(`{"context_id":"jsdefault","code":"6*7"}`)
	if !slices.ContainsFunc(got, func(l map[string]any) bool { return l["text"] == "42" }) {
		t.Errorf("lines of a cell in a listed context that did not run are %v, want its result", got)
	}
	if status, text := w.call("POST", "/contexts/"+one.ID+"/restart", ""); status != 200 ||
		!strings.Contains(text, one.ID) {
		t.Errorf("restart = %d %s, want 200", status, text)
	}
	if got := in("x"); kinds(got) != "number_of_executions error end_of_execution" || got[0]["execution_count"] != 1.0 {
		t.Errorf("lines after a restart are %v, want no variable", got)
	}
	if status, text := w.call("DELETE", "/contexts/"+one.ID, ""); status != 204 {
		t.Errorf("delete = %d %s, want 204", status, text)
	}
	for _, tt := range []struct {
		method, path, body string
		status             int
	}{
		{"DELETE", "/contexts/" + one.ID, "", 404},
		{"POST", "/contexts/" + one.ID + "/restart", "", 404},
		{"POST", "/execute", `{"context_id":"` + one.ID + `","code":"1"}`, 404},
		{"POST", "/execute", `{"context_id":"nobody","code":"1"}`, 404},
		{"POST", "/execute", `{"context_id":"x","language":"python","code":"1"}`, 400},
		{"POST", "/execute", `{"language":"cobol","code":"1"}`, 400},
		{"POST", "/execute", `{"code":`, 400},
		{"POST", "/execute", `{"code":"1","secretColour":"red"}`, 400},
		{"POST", "/execute", `{"code":"` + strings.Repeat("x", 6<<20) + `"}`, 400},
		{"POST", "/contexts", `{"language":"cobol"}`, 400},
		{"POST", "/contexts", `{"secretColour":"red"}`, 400},
		{"POST", "/contexts", `[]`, 400},
		{"GET", "/execute", "", 405},
		{"GET", "/nothing", "", 404},
	} {
		if status, text := w.call(tt.method, tt.path, tt.body); status != tt.status {
			t.Errorf("%s %s %.60s = %d %.200s, want %d", tt.method, tt.path, tt.body, status, text, tt.status)
		}
	}
}

// lostGuest loses the machine when a cell runs.
type lostGuest struct{ guestapi.Guest }

func (g lostGuest) Attach(
	ctx context.Context,
	ref guestapi.ProcessRef,
	from guestapi.Offsets,
) (guestapi.Process, error) {
	p, err := g.Guest.Attach(ctx, ref, from)
	if err != nil {
		return nil, err
	}
	return lostProcess{p}, nil
}

type lostProcess struct{ guestapi.Process }

func (lostProcess) Next(context.Context) (guestapi.Event, error) {
	return guestapi.Event{}, guestapi.ErrLost
}

// TestCellOfLostSandboxIsCut checks that the response breaks if the sandbox ends while a cell runs.
func TestCellOfLostSandboxIsCut(t *testing.T) {
	w := newFixture(t)
	w.run(`{"code":"1"}`)
	w.guest.Store(replacement{lostGuest{w.agent}})
	res, err := http.Post(w.url+"/execute", "application/json", strings.NewReader(`{"code":"2"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, err := io.ReadAll(res.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the response ended with %v after %q, want it cut", err, text)
	}
}

// TestEnvironmentOfDefaultContexts checks that a context that waited in a template has the variables of its sandbox,
// and that those of a cell end with it.
func TestEnvironmentOfDefaultContexts(t *testing.T) {
	w := newFixture(t)
	w.run(`{"code":"import os; os.environ.pop('GIVEN', None); os.environ['MINE'] = 'kept'"}`)
	w.guest.Store(replacement{namedGuest{w.agent, map[string]string{"GIVEN": "by the sandbox"}}})
	w.id = "another"
	for _, step := range []struct{ body, want string }{
		{`{"code":"os.environ['GIVEN']"}`, "by the sandbox"},
		{`{"code":"os.environ['GIVEN']","env_vars":{"GIVEN":"by the cell"}}`, "by the cell"},
		{`{"code":"os.environ['GIVEN'] + os.environ['MINE']"}`, "by the sandboxkept"},
	} {
		if got := w.run(step.body); got[1]["text"] != step.want {
			t.Errorf("%s: lines are %v, want %q", step.body, got, step.want)
		}
	}
}

// namedGuest starts programs with more variables, as the agent of a sandbox does.
type namedGuest struct {
	guestapi.Guest
	env map[string]string
}

func (g namedGuest) Start(ctx context.Context, spec guestapi.ProcessSpec) (guestapi.Process, error) {
	spec.Env = g.env
	return g.Guest.Start(ctx, spec)
}
