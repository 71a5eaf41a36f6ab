package function_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/function"
	"github.com/pandastack/pandastack/internal/control/function/limit"
	"github.com/pandastack/pandastack/internal/control/function/pool"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
)

// modes runs a test with both modes of functions.
func modes(t *testing.T, f func(t *testing.T, mode api.FunctionMode)) {
	for _, mode := range []api.FunctionMode{api.FunctionIsolated, api.FunctionShared} {
		t.Run(string(mode), func(t *testing.T) { f(t, mode) })
	}
}

func TestInvoke(t *testing.T) { modes(t, testInvoke) }

func testInvoke(t *testing.T, mode api.FunctionMode) {
	w := newFixture(t)
	w.made(settings(api.FunctionSettings{Mode: mode, MaxPayloadBytes: 1 << 19}))
	w.live(code{Name: "one"})
	trace := "00-" + strings.Repeat("a", 32) + "-" + strings.Repeat("b", 16) + "-01"
	run := w.invoke(api.InvokeRequest{Input: json.RawMessage(`{"Do":"","n":1}`), Trace: trace})
	a := w.answer(run)
	if a.Code != "one" || a.Calls != 1 || string(a.Event) != `{"Do":"","n":1}` {
		t.Errorf("answer %+v", a)
	}
	for name, want := range map[string]string{"Pandastack-Invocation": string(run.ID), "Pandastack-Attempt": "1",
		"Pandastack-Function": "fn", "Pandastack-Version": "1", "Traceparent": trace} {
		if got := a.Headers.Get(name); got != want {
			t.Errorf("header %s is %q, want %q", name, got, want)
		}
	}
	if run.Stdout != "out of \n" || run.Stderr != "err\n" || run.DurationMS != 1.5 || run.MemoryPeakMB != 3 ||
		!run.Cold || run.TraceID != strings.Repeat("a", 32) || run.Trigger != function.OriginInvoke ||
		run.SandboxID == "" || run.EndedAt == nil {
		t.Errorf("run %+v", run)
	}
	again := w.answer(w.invoke(api.InvokeRequest{}))
	if want := map[api.FunctionMode]int64{api.FunctionIsolated: 1, api.FunctionShared: 2}[mode]; again.Calls != want ||
		string(again.Event) != "null" {
		t.Errorf("the second answer is %+v, want call %d", again, want)
	}
	for _, c := range []struct {
		do     string
		status api.RunStatus
		err    api.FunctionError
	}{
		{"raise", api.RunError, api.FunctionError{Type: "ValueError", Message: "no", Stack: "line 1\n"}},
		{"overtime", api.RunTimeout, api.FunctionError{Type: "Timeout", Message: "it took too long"}},
		{"text", api.RunError, api.FunctionError{Type: "InvalidResult", Message: "the result is not JSON"}},
	} {
		run := w.invoke(api.InvokeRequest{Input: input(c.do)})
		if run.Status != c.status || run.Error == nil || *run.Error != c.err || run.Stdout != "out of "+c.do+"\n" {
			t.Errorf("%s: %+v, %+v", c.do, run, run.Error)
		}
		if kept, err := w.GetRun(t.Context(), alice, "fn", run.ID); err != nil || kept.Status != c.status ||
			kept.Error == nil || *kept.Error != c.err {
			t.Errorf("%s: the row is %+v, %v", c.do, kept, err)
		}
	}
	big := w.invoke(api.InvokeRequest{Input: input("big")})
	if big.Status != api.RunError || big.Error == nil || big.Error.Type != "ResultTooLarge" {
		t.Errorf("a large result: %+v, %+v", big, big.Error)
	}
	large := json.RawMessage(`"` + strings.Repeat("x", 1<<19) + `"`)
	_, err := w.Invoke(t.Context(), alice, "fn", api.InvokeRequest{Input: large})
	w.wants("a large event", err, api.TooLarge)
	_, err = w.Invoke(t.Context(), bob, string(w.get().ID), api.InvokeRequest{})
	w.wants("an invocation of another workspace", err, api.NotFound)
	if got := w.call("").Code; got != "one" {
		t.Errorf("last response is %q, want %q", got, "one")
	}
	runs, err := w.Runs(t.Context(), alice, "fn", api.RunFilter{})
	if err != nil || len(runs) != 7 {
		t.Errorf("%d runs, %v", len(runs), err)
	}
	m, err := w.Metrics(t.Context(), alice, "fn", 1)
	if err != nil || m.Total != 7 || m.Errors != 4 {
		t.Errorf("metrics %+v, %v", m, err)
	}
}

// TestMachineEnds ends the machine of an invocation that is under way.
func TestMachineEnds(t *testing.T) { modes(t, testMachineEnds) }

func testMachineEnds(t *testing.T, mode api.FunctionMode) {
	w := newFixture(t)
	w.made(settings(api.FunctionSettings{Mode: mode}))
	w.live(code{Name: "one"})
	under := w.begin(t.Context(), api.InvokeRequest{Input: input("wait")})
	<-w.runtime.entered
	w.host.Kill(w.machines()[0], "it had no memory")
	run, err := under.end()
	if err != nil || run.Status != api.RunError || run.Error == nil || run.Error.Type != "MachineEnded" {
		t.Errorf("run %+v: %+v, %v", run, run.Error, err)
	}
	<-w.runtime.gone
	if a := w.call(""); a.Calls != 1 {
		t.Errorf("afterwards: %+v", a)
	}
}

// TestHandlerThatDoesNotEnd has a handler, and a program, that take no notice of the deadline.
func TestHandlerThatDoesNotEnd(t *testing.T) { modes(t, testHandlerThatDoesNotEnd) }

func testHandlerThatDoesNotEnd(t *testing.T, mode api.FunctionMode) {
	w := newFixture(t)
	fn := w.made(settings(api.FunctionSettings{Mode: mode}))
	w.live(code{Name: "one"})
	out, err := w.Do(t.Context(), function.Call{Function: fn.ID, Version: 1, Run: api.NewInvocationID(), Attempt: 2,
		Event: input("hang"), Deadline: time.Now()})
	if err != nil || out.Status != api.RunTimeout || out.Failure == nil || out.Failure.Type != "Timeout" {
		t.Errorf("outcome %+v, %+v, %v", out, out.Failure, err)
	}
	<-w.runtime.gone
	w.until("the machine is removed", func() bool {
		for _, id := range w.machines() {
			if id == hostapi.MachineID(out.Sandbox) {
				return false
			}
		}
		return true
	})
	if a := w.call(""); a.Calls != 1 {
		t.Errorf("afterwards: %+v", a)
	}
}

// TestSnapshotIsReplaced gives a version another snapshot between an invocation's look at the version and its machine.
func TestSnapshotIsReplaced(t *testing.T) { modes(t, testSnapshotIsReplaced) }

func testSnapshotIsReplaced(t *testing.T, mode api.FunctionMode) {
	w := newFixture(t)
	fn := w.made(settings(api.FunctionSettings{Mode: mode}))
	w.live(code{Name: "one"})
	snapshot := func() string {
		v, err := functionstore.In(w.db.Read()).Version(t.Context(), string(fn.ID), 1)
		w.must(err)
		return v.Snapshot
	}
	old := snapshot()
	w.hook(hooks{create: func() {
		w.hook(hooks{})
		_, err := w.Update(t.Context(), alice, "fn", api.UpdateFunctionRequest{Env: &map[string]string{"KEY": "new"}})
		w.must(err)
		w.Attend(t.Context())
	}})
	if a := w.call(""); a.Loaded["KEY"] != "new" || snapshot() == old {
		t.Errorf("answer %+v, snapshot %s after %s", a, snapshot(), old)
	}
	w.hook(hooks{create: func() {
		w.hook(hooks{})
		w.must(w.boxes.DeleteSnapshot(t.Context(), pool.Principal(function.OwnerKind, "alice", fn.ID),
			api.SnapshotID(snapshot())))
	}})
	if mode == api.FunctionIsolated {
		w.quiet()
		_, err := w.Invoke(t.Context(), alice, "fn", api.InvokeRequest{})
		w.wants("a snapshot that is gone", err, api.Unavailable)
	}
}

// TestCallerLeaves checks that the handler of a caller that has left is ended, and that its key keeps that run.
func TestCallerLeaves(t *testing.T) {
	w := newFixture(t)
	w.made()
	w.live(code{Name: "one"})
	ctx, leave := context.WithCancelCause(t.Context())
	under := w.begin(ctx, api.InvokeRequest{Input: input("wait"), IdempotencyKey: "key"})
	<-w.runtime.entered
	left := errors.New("the caller has left")
	leave(left)
	if _, err := under.end(); !errors.Is(err, left) {
		t.Errorf("got %v", err)
	}
	<-w.runtime.gone
	w.quiet()
	again := w.invoke(api.InvokeRequest{IdempotencyKey: "key"}) // the handler is not called twice for one key
	if again.Status != api.RunError || again.Error == nil || again.Error.Type != "Canceled" {
		t.Errorf("the run is %+v: %+v", again, again.Error)
	}
}

// TestMachinesAreRemovedLater checks that an answer does not wait for the removal of its machine, whose place others
// do not get before.
func TestMachinesAreRemovedLater(t *testing.T) {
	w := newFixture(t, func(w *fixture) { w.cfg.Wait = time.Nanosecond })
	w.made(settings(api.FunctionSettings{MaxConcurrency: 1}))
	w.live(code{Name: "one"})
	w.quiet()
	remove := make(chan struct{})
	w.host.SetHook(func(_ context.Context, op, _ string, after bool) error {
		if op == "destroy" && !after {
			<-remove
		}
		return nil
	})
	if got := w.call("").Code; got != "one" {
		t.Errorf("response is %q, want %q", got, "one")
	}
	_, err := w.Invoke(t.Context(), alice, "fn", api.InvokeRequest{})
	w.wants("an invocation before the machine is gone", err, api.RateLimited)
	if n := len(w.machines()); n != 1 {
		t.Errorf("%d machines", n)
	}
	close(remove)
	w.quiet()
	w.until("there is room again", func() bool {
		_, err := w.Invoke(t.Context(), alice, "fn", api.InvokeRequest{})
		return err == nil
	})
}

func TestLimits(t *testing.T) {
	w := newFixture(t, func(w *fixture) {
		w.cfg.Wait = time.Nanosecond
		w.cfg.Limit = limit.Config{Total: 3}
	})
	w.made(settings(api.FunctionSettings{MaxConcurrency: 2}))
	w.live(code{Name: "one"})
	_, err := w.Create(t.Context(), alice, api.CreateFunctionRequest{Name: "other", Runtime: api.RuntimePython})
	w.must(err)
	_, err = w.Deploy(t.Context(), alice, "other", strings.NewReader(code{Name: "other"}.String()), "", false)
	w.must(err)
	w.Attend(t.Context())
	busy := func(what, fn, message string) {
		t.Helper()
		_, err := w.Invoke(t.Context(), alice, fn, api.InvokeRequest{})
		e := w.wants(what, err, api.RateLimited)
		if e.Details["retry_after_seconds"] != 1 || !strings.Contains(e.Message, message) {
			t.Errorf("%s: %+v", what, e)
		}
	}
	var under []*invoking
	for range 2 {
		under = append(under, w.begin(t.Context(), api.InvokeRequest{Input: input("wait")}))
		<-w.runtime.entered
	}
	busy("a third invocation of the function", "fn", "max_concurrency")
	other := make(chan error, 1)
	go func() {
		_, err := w.Invoke(t.Context(), alice, "other", api.InvokeRequest{Input: input("wait")})
		other <- err
	}()
	<-w.runtime.entered
	busy("a fourth one of the server", "other", "the server")
	for range 3 {
		w.runtime.release <- struct{}{}
	}
	w.must(<-other)
	for _, u := range under {
		if _, err := u.end(); err != nil {
			t.Error(err)
		}
	}
	w.until("there is room again", func() bool {
		_, err := w.Invoke(t.Context(), alice, "fn", api.InvokeRequest{})
		return err == nil
	})
}

// TestTurn checks that an invocation waits for its turn.
func TestTurn(t *testing.T) { modes(t, testTurn) }

func testTurn(t *testing.T, mode api.FunctionMode) {
	w := newFixture(t)
	w.made(settings(api.FunctionSettings{Mode: mode, MaxConcurrency: 1, Concurrency: 1}))
	w.live(code{Name: "one"})
	under := w.begin(t.Context(), api.InvokeRequest{Input: input("wait")})
	<-w.runtime.entered
	next := w.begin(t.Context(), api.InvokeRequest{Input: input("wait")})
	w.runtime.release <- struct{}{}
	_, err := under.end()
	w.must(err)
	<-w.runtime.entered
	w.runtime.release <- struct{}{}
	_, err = next.end()
	w.must(err)
}

// TestSharedMachines checks how invocations are spread over machines, and that these are hibernated and woken.
func TestSharedMachines(t *testing.T) {
	w := newFixture(t)
	w.made(settings(api.FunctionSettings{Mode: api.FunctionShared, Concurrency: 2, MaxConcurrency: 4, IdleSeconds: 1}))
	w.live(code{Name: "one"})
	defer w.run()()
	var under []*invoking
	for range 4 {
		under = append(under, w.begin(t.Context(), api.InvokeRequest{Input: input("wait")}))
		<-w.runtime.entered
	}
	if n := len(w.machines()); n != 2 {
		t.Errorf("four invocations, two in each machine, have %d machines", n)
	}
	for range 4 {
		w.runtime.release <- struct{}{}
	}
	for _, u := range under {
		_, err := u.end()
		w.must(err)
	}
	asleep := func() {
		t.Helper()
		w.until("the machines are hibernated", func() bool {
			n := 0
			for _, m := range w.host.Machines() {
				if m.State == hostapi.Hibernated {
					n++
				}
			}
			return n == 2
		})
	}
	asleep()
	run := w.invoke(api.InvokeRequest{})
	if a := w.answer(run); !run.Cold || a.Code != "one" || len(w.machines()) != 2 {
		t.Errorf("woken: %+v", run)
	}
	asleep()
	for _, id := range w.machines() {
		w.host.Lose(id)
	}
	if got := w.call("").Code; got != "one" {
		t.Errorf("response after the loss of all machines that slept is %q, want %q", got, "one")
	}
	w.redeploy(code{Name: "two"})
	if got := w.call("").Code; got != "two" {
		t.Errorf("response is %q, want %q", got, "two")
	}
	w.until("the machines of version 1 are removed", func() bool { return len(w.machines()) == 1 })
}

// redeploy deploys code while the service runs.
func (w *fixture) redeploy(c code) {
	w.t.Helper()
	_, err := w.Deploy(w.t.Context(), alice, "fn", strings.NewReader(c.String()), "", true)
	w.must(err)
}

func TestIdempotency(t *testing.T) {
	w := newFixture(t)
	w.made(shared) // its machine counts the calls
	w.live(code{Name: "one"})
	req := api.InvokeRequest{IdempotencyKey: "key", Input: input("wait")}
	first, second := w.begin(t.Context(), req), w.begin(t.Context(), req)
	<-w.runtime.entered
	w.runtime.release <- struct{}{}
	one, err := first.end()
	w.must(err)
	two, err := second.end()
	w.must(err)
	three := w.invoke(req)
	if one.ID != two.ID || one.ID != three.ID || w.answer(three).Calls != 1 {
		t.Errorf("runs of one key: %s, %s, %s", one.ID, two.ID, three.ID)
	}
	other := w.invoke(api.InvokeRequest{IdempotencyKey: "other"})
	if a := w.answer(other); a.Calls != 2 || other.ID == one.ID {
		t.Errorf("another key: %+v", other)
	}
	// The run of a key that is a day old does not count.
	w.must(w.db.Write(t.Context(), "test", func(ctx context.Context, tx *store.Tx) error {
		row, err := functionstore.In(tx).Run(ctx, string(one.ID))
		if err != nil {
			return err
		}
		row.Created -= (24 * time.Hour).Microseconds()
		return functionstore.In(tx).UpdateRun(ctx, &row, row.State, "created")
	}))
	if late := w.invoke(api.InvokeRequest{IdempotencyKey: "key"}); late.ID == one.ID || w.answer(late).Calls != 3 {
		t.Errorf("a day later: %+v", late)
	}
	// A handler that fails is the run of the key, a handler that was not called is none.
	failed := w.invoke(api.InvokeRequest{IdempotencyKey: "fails", Input: input("raise")})
	if again := w.invoke(api.InvokeRequest{IdempotencyKey: "fails"}); again.ID != failed.ID ||
		again.Status != api.RunError {
		t.Errorf("again: %+v", again)
	}
	_, err = w.Invoke(t.Context(), alice, "fn", api.InvokeRequest{IdempotencyKey: "none", Version: 9})
	w.wants("a version that is not there", err, api.NotFound)
	if run := w.invoke(api.InvokeRequest{IdempotencyKey: "none"}); run.Status != api.RunSuccess {
		t.Errorf("the key of a handler that was not called: %+v", run)
	}
}

func TestServe(t *testing.T) { modes(t, testServe) }

func testServe(t *testing.T, mode api.FunctionMode) {
	w := newFixture(t)
	fn := w.made(settings(api.FunctionSettings{Mode: mode, MaxPayloadBytes: 1000}))
	w.live(code{Name: "one"})
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.Serve(rw, r, fn.ID, r.Header.Get("X-Alias"), func(rw http.ResponseWriter, _ *http.Request, e *api.Error) {
			rw.Header().Set("X-Code", string(e.Code))
			rw.WriteHeader(http.StatusTeapot)
			_, _ = io.WriteString(rw, e.Message) // the client is there
		})
	}))
	defer server.Close()
	do := func(method, path, body string, header ...string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(body))
		w.must(err)
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		answer, err := server.Client().Do(r)
		w.must(err)
		t.Cleanup(func() { _ = answer.Body.Close() })
		return answer
	}
	answer := do(http.MethodPut, "/a%20b?q=1", "hello", "X-One", "1", "Pandastack-Attempt", "9", "Connection", "X-Hop",
		"X-Hop", "1")
	var seen struct {
		Method, URI, Host, Body string
		Header                  http.Header
	}
	w.must(json.NewDecoder(answer.Body).Decode(&seen))
	if seen.Method != http.MethodPut || seen.URI != "/a%20b?q=1" || seen.Body != "hello" ||
		seen.Header.Get("X-One") != "1" || seen.Header.Get("X-Hop") != "" || seen.Header.Get("Connection") != "" ||
		seen.Header.Get("Pandastack-Attempt") != "1" || !strings.HasSuffix(server.URL, seen.Host) {
		t.Errorf("the handler has seen %+v", seen)
	}
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != "application/json" ||
		answer.Header.Get("Pandastack-Secret") != "" || len(answer.Trailer) > 0 {
		t.Errorf("answer %+v", answer)
	}
	var runs []api.FunctionRun
	w.until("the run is written", func() bool { // it is written after the answer
		var err error
		runs, err = w.Runs(t.Context(), alice, "fn", api.RunFilter{})
		return err != nil || len(runs) > 0
	})
	if len(runs) != 1 || runs[0].Trigger != function.OriginHTTP || runs[0].Status != api.RunSuccess ||
		runs[0].Stdout != "PUT /a b\n" {
		t.Errorf("runs %+v", runs)
	}

	answer = do(http.MethodGet, "/stream", "")
	first := make([]byte, len("first "))
	if _, err := io.ReadFull(answer.Body, first); err != nil || string(first) != "first " {
		t.Errorf("the beginning is %q, %v", first, err)
	}
	if answer.StatusCode != http.StatusAccepted || fmt.Sprint(answer.Header["Set-Cookie"]) != "[a=1 b=2]" {
		t.Errorf("answer %+v", answer)
	}
	w.runtime.release <- struct{}{}
	if rest, err := io.ReadAll(answer.Body); err != nil || string(rest) != "second" {
		t.Errorf("the rest is %q, %v", rest, err)
	}
	<-w.runtime.entered

	for _, c := range []struct {
		path, body, alias string
		code              api.Code
		text              string
	}{
		{"/raise", "", "", api.Unreachable, "ValueError: no"},
		{"/", strings.Repeat("x", 1001), "", api.TooLarge, "1001 bytes"},
		{"/", "", "other", api.NotFound, "other"},
	} {
		answer := do(http.MethodPost, c.path, c.body, "X-Alias", c.alias)
		text, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != http.StatusTeapot || answer.Header.Get("X-Code") != string(c.code) ||
			!strings.Contains(string(text), c.text) {
			t.Errorf("%+v: %+v, %q, %v", c, answer, text, err)
		}
	}
	if text, err := io.ReadAll(do(http.MethodGet, "/late", "").Body); err == nil {
		t.Errorf("a handler that failed in the middle: %q without an error", text)
	}
	w.until("the run is written", func() bool {
		runs, err := w.Runs(t.Context(), alice, "fn", api.RunFilter{Status: api.RunError})
		return err == nil && len(runs) == 2
	})

	// The client leaves in the middle of the response.
	answer = do(http.MethodGet, "/stream", "")
	<-w.runtime.entered
	w.must(answer.Body.Close())
	<-w.runtime.gone
	w.until("the run is written", func() bool {
		runs, err := w.Runs(t.Context(), alice, "fn", api.RunFilter{Status: api.RunError})
		return err == nil && len(runs) == 3 && runs[0].Error.Type == "Canceled"
	})
	if got := w.call("").Code; got != "one" {
		t.Errorf("last response is %q, want %q", got, "one")
	}
}
