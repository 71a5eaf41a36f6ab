//go:build e2e

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/test/nodelab"
)

// eventHandler counts what its machine has served, and fails or takes long if its event says so.
const eventHandler = `
import time
calls = 0

def handler(event, context):
    global calls
    calls += 1
    print("called with", event)
    if event == "fail":
        raise ValueError("no good")
    if event == "sleep":
        time.sleep(600)
    return {"version": "%s", "event": event, "calls": calls}
`

// fetchHandler counts, too, and streams.
const fetchHandler = `
let calls = 0;
export default {
  async fetch(request) {
    const url = new URL(request.url);
    if (url.pathname !== "/stream")
      return new Response([request.method, url.pathname + url.search, await request.text(), ++calls].join(" "),
        { status: 201, headers: { "x-from": "handler" } });
    let n = 0;
    return new Response(new ReadableStream({
      pull(c) { n < 3 ? c.enqueue(new TextEncoder().encode("part " + n++ + "\n")) : c.close(); },
    }));
  },
};
`

// functionLab is a node with functions.
type functionLab struct {
	t *testing.T
	n *nodelab.Node
	c *client.Client
}

// deploy deploys a bundle and returns the function, which is ready.
func (l *functionLab) deploy(name string, files map[string]string) api.Function {
	l.t.Helper()
	began := time.Now()
	f, err := l.c.Functions.Deploy(l.t.Context(), name, archive(l.t, files), "")
	if err != nil || !f.IsReady {
		l.t.Fatalf("deploy: %+v, %v", f, err)
	}
	l.t.Logf("version %d of %s was ready after %s", f.Version, name, time.Since(began).Round(time.Millisecond))
	return f
}

// invoke invokes a function and checks how the run ended.
func (l *functionLab) invoke(name string, input string, want api.RunStatus) api.FunctionRun {
	l.t.Helper()
	began := time.Now()
	run, err := l.c.Functions.Invoke(l.t.Context(), name, api.InvokeRequest{Input: json.RawMessage(input)})
	if err != nil || run.Status != want {
		l.t.Fatalf("invoke with %s: %+v, %v; want the status %s", input, run, err, want)
	}
	l.t.Logf("%s(%s): %s in %s", name, input, run.Status, time.Since(began).Round(time.Millisecond))
	return run
}

// returned reads a result of eventHandler.
func (l *functionLab) returned(run api.FunctionRun) (got struct {
	Version, Event string
	Calls          int
}) {
	l.t.Helper()
	if err := json.Unmarshal(run.Result, &got); err != nil {
		l.t.Fatalf("result %s: %v", run.Result, err)
	}
	return got
}

// get requests a path of a function's own host.
func (l *functionLab) request(f api.Function, method, path, body string) *http.Response {
	l.t.Helper()
	u, err := url.Parse(f.URL)
	if err != nil {
		l.t.Fatal(err)
	}
	rq, err := http.NewRequestWithContext(l.t.Context(), method, l.n.URL+path, strings.NewReader(body))
	if err != nil {
		l.t.Fatal(err)
	}
	rq.Host = u.Host
	res, err := http.DefaultClient.Do(rq)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

// TestFunctions deploys functions with real guests and calls them in all ways.
func TestFunctions(t *testing.T) {
	dir := nodelab.DataDir(t)
	n := nodelab.Start(t, dir)
	n.Bake("base")
	c, err := client.New(n.URL, n.AccessKey())
	if err != nil {
		t.Fatal(err)
	}
	l := &functionLab{t, n, c}
	l.events()
	l.requests()
	n.Stop()
	nodelab.NothingLeft(t, dir)
}

// events calls a function with events, each in a machine of its own.
func (l *functionLab) events() {
	t, ctx, fns := l.t, l.t.Context(), l.c.Functions
	_, err := fns.Create(ctx, api.CreateFunctionRequest{Name: "events", Runtime: api.RuntimePython, Template: "base"})
	if err != nil {
		t.Fatal(err)
	}
	l.deploy("events", map[string]string{"handler.py": fmt.Sprintf(eventHandler, "one")})
	for range 2 {
		run := l.invoke("events", `"a"`, api.RunSuccess)
		if got := l.returned(run); got.Version != "one" || got.Event != "a" || got.Calls != 1 {
			t.Errorf("%+v: an invocation sees another", got)
		}
		if run.Stdout != "called with a\n" {
			t.Errorf("it printed %q", run.Stdout)
		}
	}
	if run := l.invoke("events", `"fail"`, api.RunError); run.Error.Type != "ValueError" ||
		run.Error.Message != "no good" || !strings.Contains(run.Error.Stack, "handler.py") {
		t.Errorf("%+v", run.Error)
	}
	_, err = fns.Update(ctx, "events", api.UpdateFunctionRequest{Settings: &api.FunctionSettings{TimeoutSeconds: 3}})
	if err != nil {
		t.Fatal(err)
	}
	if run := l.invoke("events", `"sleep"`, api.RunTimeout); run.Stdout != "called with sleep\n" {
		t.Errorf("before its time was over it printed %q", run.Stdout)
	}
	l.later()
	l.deploy("events", map[string]string{"handler.py": fmt.Sprintf(eventHandler, "two")})
	wrong := archive(t, map[string]string{"handler.py": "def handler(:"})
	if _, err := fns.Deploy(ctx, "events", wrong, ""); err == nil {
		t.Error("a version with a syntax error was deployed")
	}
	if got := l.returned(l.invoke("events", `"b"`, api.RunSuccess)); got.Version != "two" {
		t.Errorf("after a deployment that failed: %+v", got)
	}
	if _, err := fns.Rollback(ctx, "events", 0); err != nil {
		t.Fatal(err)
	}
	if got := l.returned(l.invoke("events", `"c"`, api.RunSuccess)); got.Version != "one" {
		t.Errorf("after the rollback: %+v", got)
	}
	if err := fns.Delete(ctx, "events"); err != nil {
		t.Fatal(err)
	}
}

// later invokes a function without waiting, and for many inputs.
func (l *functionLab) later() {
	t, ctx, fns := l.t, l.t.Context(), l.c.Functions
	run, err := fns.Invoke(ctx, "events", api.InvokeRequest{Input: json.RawMessage(`"later"`), Async: true})
	if err != nil || run.Status.Ended() {
		t.Fatalf("%+v, %v", run, err)
	}
	nodelab.Eventually(t, "the run", func() error {
		run, err = fns.Run(ctx, "events", run.ID)
		if err == nil && run.Status != api.RunSuccess {
			err = fmt.Errorf("its status is %s", run.Status)
		}
		return err
	})
	if got := l.returned(run); got.Event != "later" || run.Attempt != 1 {
		t.Errorf("%+v: %+v", run, got)
	}
	var inputs []json.RawMessage
	for i := range 6 {
		inputs = append(inputs, json.RawMessage(fmt.Sprintf(`"%d"`, i)))
	}
	results := map[int]string{}
	var last api.MapProgress
	err = fns.Map(ctx, "events", api.MapRequest{Inputs: inputs, Concurrency: 2}, func(p api.MapProgress) error {
		if last = p; p.Run != nil {
			results[*p.Index] = l.returned(*p.Run).Event
		}
		return nil
	})
	if err != nil || last.Done != 6 || last.Errors != 0 {
		t.Fatalf("map: %+v, %v", last, err)
	}
	for i := range 6 {
		if results[i] != fmt.Sprint(i) {
			t.Errorf("input %d has the result %q", i, results[i])
		}
	}
}

// requests sends requests to a function in a machine that is kept.
func (l *functionLab) requests() {
	t, ctx, fns := l.t, l.t.Context(), l.c.Functions
	_, err := fns.Create(ctx, api.CreateFunctionRequest{
		Name: "site", Runtime: api.RuntimeNode, Template: "base", Entrypoint: "index.mjs",
		Settings: api.FunctionSettings{Mode: api.FunctionShared, Auth: api.FunctionPublic},
	})
	if err != nil {
		t.Fatal(err)
	}
	f := l.deploy("site", map[string]string{"index.mjs": fetchHandler})
	for i := range 2 {
		res := l.request(f, http.MethodPost, "/a%20b?c=d", "body")
		text, err := io.ReadAll(res.Body)
		want := fmt.Sprintf("POST /a%%20b?c=d body %d", i+1)
		if err != nil || res.StatusCode != http.StatusCreated || string(text) != want ||
			res.Header.Get("X-From") != "handler" {
			t.Errorf("%s: %q, %v; want %q", res.Status, text, err, want)
		}
	}
	lines := bufio.NewScanner(l.request(f, http.MethodGet, "/stream", "").Body)
	for i := range 3 {
		if want := fmt.Sprintf("part %d", i); !lines.Scan() || lines.Text() != want {
			t.Errorf("line %q, %v; want %q", lines.Text(), lines.Err(), want)
		}
	}
	_, err = fns.Update(ctx, "site", api.UpdateFunctionRequest{
		Settings: &api.FunctionSettings{Mode: api.FunctionShared, Auth: api.FunctionKey}})
	if err != nil {
		t.Fatal(err)
	}
	if res := l.request(f, http.MethodGet, "/", ""); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("a stranger gets %s", res.Status)
	}
	if err := fns.Delete(ctx, "site"); err != nil {
		t.Fatal(err)
	}
}
