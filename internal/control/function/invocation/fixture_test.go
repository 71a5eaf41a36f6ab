package invocation_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/fnruntime"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/function"
	"github.com/pandastack/pandastack/internal/control/function/invocation"
	"github.com/pandastack/pandastack/internal/control/job"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
	"github.com/pandastack/pandastack/internal/control/store/storetest"
)

var (
	user      = auth.Principal{Workspace: "w1"}
	errKilled = errors.New("killed")
)

type fault = func(op string, committed bool) error

// fixture is a store in the bubble of one test, with functions that do what their events say.
type fixture struct {
	testing.TB
	dsn       string
	db        *store.DB
	functions *functions
	cfg       invocation.Config
}

// emptyStore returns the address of an empty store. TestPostgres sets another one for its tests.
var emptyStore = func(t *testing.T) string { return filepath.Join(storetest.Dir(t), "control.db") }

// test runs f in a bubble.
func test(t *testing.T, f func(f *fixture)) {
	t.Helper()
	dsn := emptyStore(t)
	synctest.Test(t, func(t *testing.T) { f(newFixture(t, dsn)) })
}

func newFixture(t testing.TB, dsn string) *fixture {
	x := &fixture{TB: t, dsn: dsn, functions: &functions{made: map[string]bool{}, ends: map[string]int{}}}
	x.db = x.open(nil)
	x.functions.db = x.db
	return x
}

// open opens the store once more, as another process does.
func (f *fixture) open(fault fault) *store.DB {
	f.Helper()
	db, err := store.Open(f.Context(), store.Config{DSN: f.dsn, Fault: fault})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = db.Close() }) // a test may have closed it
	return db
}

// process is a control plane that runs until stop is called.
type process struct {
	*invocation.Service
	jobs  *job.Queue
	stop  func()
	mu    sync.Mutex
	ended []api.FunctionRun // guarded by mu
}

// prepare makes a process that does not run.
func (f *fixture) prepare(db *store.DB) *process {
	f.Helper()
	log := slog.New(slog.DiscardHandler)
	jobs, err := job.New(job.Config{Poll: time.Hour}, db, log)
	if err != nil {
		f.Fatal(err)
	}
	p := &process{jobs: jobs}
	p.Service, err = invocation.New(f.cfg, invocation.Deps{
		Store: db, Jobs: jobs, Invoker: f.functions, Log: log,
		Ended: func(run api.FunctionRun) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.ended = append(p.ended, run)
		},
	})
	if err != nil {
		f.Fatal(err)
	}
	return p
}

// start runs a process over a store.
func (f *fixture) start(db *store.DB) *process {
	f.Helper()
	p := f.prepare(db)
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.Context()))
	var wg sync.WaitGroup
	for _, run := range []func(context.Context) error{p.jobs.Run, p.Run} {
		wg.Go(func() {
			if err := run(ctx); err != nil {
				f.Errorf("Run: %v", err)
			}
		})
	}
	p.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	f.Cleanup(p.stop)
	return p
}

// function adds a function of a workspace.
func (f *fixture) function(workspace, name string, set api.FunctionSettings) functionstore.Function {
	f.Helper()
	data, err := json.Marshal(set)
	if err != nil {
		f.Fatal(err)
	}
	fn := functionstore.Function{
		ID: string(api.NewFunctionID()), Workspace: workspace, Name: name, State: functionstore.Active,
		Settings: string(data), Version: 1, Secret: "secret of " + name,
	}
	f.write(f.db, func(ctx context.Context, tx *store.Tx) error {
		return functionstore.In(tx).InsertFunction(ctx, &fn)
	})
	return fn
}

func (f *fixture) write(db *store.DB, do func(context.Context, *store.Tx) error) {
	f.Helper()
	if err := db.Write(f.Context(), "test", do); err != nil {
		f.Fatal(err)
	}
}

// submit adds an invocation with an event.
func (f *fixture) submit(s *process, fn functionstore.Function, e event) api.FunctionRun {
	f.Helper()
	run, err := s.Submit(f.Context(), as(fn), fn.ID, api.InvokeRequest{Async: true, Input: e.json()})
	if err != nil {
		f.Fatalf("%v: %v", err, errors.Unwrap(err))
	}
	return run
}

func as(fn functionstore.Function) auth.Principal {
	return auth.Principal{Workspace: api.Workspace(fn.Workspace)}
}

// runs returns the rows of the runs of a function, oldest first.
func (f *fixture) runs(fn functionstore.Function) []functionstore.Run {
	f.Helper()
	rows, err := functionstore.In(f.db.Read()).Runs(f.Context(), functionstore.RunQuery{Function: fn.ID})
	if err != nil {
		f.Fatal(err)
	}
	slices.Reverse(rows)
	return rows
}

// states says how many runs of a function are in each state, and how many attempts they had.
func (f *fixture) states(fn functionstore.Function) string {
	f.Helper()
	count := map[string]int{}
	for _, r := range f.runs(fn) {
		count[fmt.Sprintf("%s %d", r.State, r.Attempt)]++
	}
	return fmt.Sprint(count)
}

func (f *fixture) want(what, got, want string) {
	f.Helper()
	if got != want {
		f.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

// after lets time pass and waits until everything has happened.
func after(d time.Duration) {
	<-time.After(d) // by the clock of the bubble
	synctest.Wait()
}

// event says what a function does.
type event struct {
	N      int           `json:"n,omitempty"`
	Takes  time.Duration `json:"takes,omitempty"`
	Fails  int           `json:"fails,omitempty"`  // attempts that fail
	Busy   int           `json:"busy,omitempty"`   // calls that are refused
	Result string        `json:"result,omitempty"` // JSON; the event if it is ""
}

func (e event) json() json.RawMessage {
	data, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	return data
}

// functions call functions that do what their events say.
type functions struct {
	db *store.DB

	mu     sync.Mutex
	calls  []function.Call
	made   map[string]bool // "run/attempt"
	twice  []string        // those that were made twice
	ends   map[string]int  // calls of a run that were answered
	busy   map[string]int  // calls of a run that were refused
	now    int             // under way
	most   int             // under way at a time
	starts []string        // workspaces of calls in their order
	queue  string          // of the last batch

	answer func(invocation.Batch) (any, bool) // to batches
}

func (x *functions) Find(ctx context.Context, p auth.Principal, name string) (functionstore.Function, error) {
	fn, err := functionstore.In(x.db.Read()).Function(ctx, name)
	if errors.Is(err, store.ErrNotFound) || err == nil && fn.Workspace != string(p.Workspace) {
		return fn, api.Errorf(api.NotFound, "function %s not found", name)
	}
	return fn, err
}

func (x *functions) Pick(_ context.Context, fn *functionstore.Function, _ string, version int64) (int64, error) {
	if version > fn.Version {
		return 0, api.Errorf(api.NotFound, "version %d not found", version)
	}
	return max(version, fn.Version), nil
}

func (x *functions) Do(ctx context.Context, c function.Call) (function.Outcome, error) {
	var e event
	if err := json.Unmarshal(c.Event, &e); err != nil {
		e = event{}
	}
	if c.Queue != "" { // the first message says it
		var b invocation.Batch
		if err := json.Unmarshal(c.Event, &b); err != nil || json.Unmarshal(b.Messages[0].Body, &e) != nil {
			e = event{}
		}
	}
	fn, err := functionstore.In(x.db.Read()).Function(ctx, string(c.Function))
	if err != nil {
		return function.Outcome{}, err
	}
	if !x.begin(c, fn.Workspace, e) {
		return function.Outcome{}, api.Errorf(api.RateLimited, "too many calls")
	}
	defer func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.now--
	}()
	if e.Takes > 0 {
		select {
		case <-time.After(e.Takes):
		case <-ctx.Done():
			return function.Outcome{}, context.Cause(ctx)
		}
	}
	x.mu.Lock()
	x.ends[string(c.Run)]++
	x.mu.Unlock()
	out := function.Outcome{
		Status: api.RunSuccess, Result: json.RawMessage(e.Result), Cold: true, Sandbox: "sbx",
		Summary: fnruntime.Summary{Stdout: "printed\n", Micros: e.Takes.Microseconds()},
	}
	if e.Result == "" {
		out.Result = json.RawMessage(c.Event)
	}
	if c.Queue != "" && x.answer != nil {
		x.mu.Lock()
		x.queue = c.Queue
		x.mu.Unlock()
		var b invocation.Batch
		if err := json.Unmarshal(c.Event, &b); err != nil {
			return out, err
		}
		result, ok := x.answer(b)
		data, err := json.Marshal(result)
		if err != nil {
			return out, err
		}
		out.Result = data
		if !ok {
			e.Fails = 1
		}
	}
	if c.Attempt <= e.Fails {
		out.Status, out.Result = api.RunError, nil
		out.Failure = &api.FunctionError{Type: "ValueError", Message: fmt.Sprintf("attempt %d", c.Attempt)}
	}
	return out, nil
}

func (x *functions) begin(c function.Call, workspace string, e event) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.busy == nil {
		x.busy = map[string]int{}
	}
	if x.busy[string(c.Run)] < e.Busy {
		x.busy[string(c.Run)]++
		return false
	}
	key := fmt.Sprintf("%s/%d", c.Run, c.Attempt)
	if x.made[key] {
		x.twice = append(x.twice, key)
	}
	x.made[key] = true
	x.calls, x.starts = append(x.calls, c), append(x.starts, workspace)
	x.now++
	x.most = max(x.most, x.now)
	return true
}

// check reports attempts that were made twice.
func (x *functions) check(t testing.TB) {
	t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.twice) > 0 {
		t.Errorf("%d attempts were made twice, such as %s", len(x.twice), x.twice[0])
	}
}

func (x *functions) count() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.calls)
}

type jsonText = json.RawMessage

func unmarshal(text string, v any) error { return json.Unmarshal([]byte(text), v) }
