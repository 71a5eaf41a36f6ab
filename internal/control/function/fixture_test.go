package function_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/fnruntime/bundletest"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/function"
	"github.com/pandastack/pandastack/internal/control/function/builder"
	"github.com/pandastack/pandastack/internal/control/function/pool"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
	"github.com/pandastack/pandastack/internal/control/store/storetest"
	"github.com/pandastack/pandastack/internal/control/template"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
)

var (
	alice = auth.Principal{Workspace: "alice", KeyPrefix: "pds_a11ce000", Admin: true}
	bob   = auth.Principal{Workspace: "bob", KeyPrefix: "pds_b0b00000"}
)

// fixture is a service for functions over a simulated host whose guests have a stand-in for the runtime program.
type fixture struct {
	*function.Service
	t       *testing.T
	host    *hosttest.Host
	runtime *runtime
	dir     string
	hooks   atomic.Pointer[hooks]
	quotas  map[quota.Kind]int64
	cfg     function.Config
	db      *store.DB
	code    blob.Store
	boxes   *sandbox.Service
}

// hooks are called at steps, some of them in the background; nil: nothing is called.
type hooks struct {
	fault  func(op string, committed bool) error // of the store
	steps  func(step string) error               // of builds
	blob   func() error                          // of the store of code
	create func()                                // before a machine for invocations is restored
}

// hook replaces all hooks.
func (w *fixture) hook(h hooks) { w.hooks.Store(&h) }

func newFixture(t *testing.T, change ...func(*fixture)) *fixture {
	t.Helper()
	w := &fixture{t: t, host: hosttest.New(), runtime: newRuntime(), dir: filepath.Dir(storetest.Empty(t))}
	w.cfg = function.Config{Template: "base", Spool: w.dir, Wait: time.Minute, Interval: time.Hour,
		URL:      func(id api.FunctionID) string { return "https://fn-" + string(id) + ".example.com" },
		Endpoint: func(id api.FunctionID) string { return "https://api.example.com/v1/functions/" + string(id) },
		Pool:     pool.Config{Interval: time.Millisecond}}
	w.hook(hooks{})
	w.must(os.WriteFile(filepath.Join(w.dir, "pandastack-runtime"), []byte("a program"), 0o700))
	w.host.AddProgram("pandastack-runtime", w.runtime.run)
	for _, f := range change {
		f(w)
	}
	w.start()
	t.Cleanup(func() {
		w.end()
		w.host.Close()
	})
	return w
}

// start opens the store and makes the services, as a program that starts does.
func (w *fixture) start() {
	w.t.Helper()
	ctx := context.WithoutCancel(w.t.Context())
	db, err := store.Open(ctx, store.Config{DSN: filepath.Join(w.dir, "control.db"),
		Fault: func(op string, committed bool) error {
			if f := w.hooks.Load().fault; f != nil {
				return f(op, committed)
			}
			return nil
		}})
	w.must(err)
	w.db = db
	code, err := blob.Open(ctx, "file://"+filepath.Join(w.dir, "code"), blob.Options{})
	w.must(err)
	w.code = blobtest.NewFaulty(code, func(c blobtest.Call) (f blobtest.Fault) {
		if fail := w.hooks.Load().blob; fail != nil && (c.Op == "put" || c.Op == "delete") {
			f.Err = fail()
		}
		return f
	})
	log := slog.New(slog.DiscardHandler)
	limits := quota.New(quota.Config{Defaults: w.quotas}, db)
	templates, err := template.New(w.host, db, template.BuiltinAliases(), limits)
	w.must(err)
	cfg := sandbox.Defaults()
	cfg.OrphanGrace = 0
	w.boxes, err = sandbox.New(cfg, sandbox.Deps{Store: db, Host: w.host, Templates: templates, Quotas: limits,
		Log: log})
	w.must(err)
	builds, err := builder.New(builder.Config{Program: filepath.Join(w.dir, "pandastack-runtime"), Rehearse: true,
		OnStep: func(step string) error {
			if f := w.hooks.Load().steps; f != nil {
				return f(step)
			}
			return nil
		}}, w.boxes, templates, log)
	w.must(err)
	w.Service, err = function.New(w.cfg, function.Deps{Store: db, Sandboxes: sandboxes{w.boxes, w}, Builder: builds,
		Templates: templates, Code: w.code, Quotas: limits, Log: log})
	w.must(err)
}

// sandboxes are those of functions.
type sandboxes struct {
	*sandbox.Service
	w *fixture
}

func (s sandboxes) Create(ctx context.Context, p auth.Principal, req api.CreateRequest) (api.Sandbox, error) {
	if f := s.w.hooks.Load().create; f != nil {
		f()
	}
	return s.Service.Create(ctx, p, req)
}

// end ends the services. What they do in the background ends first.
func (w *fixture) end() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	cancel()
	w.must(w.Run(ctx))
	w.must(errors.Join(w.code.Close(), w.db.Close()))
}

// until waits for a condition.
func (w *fixture) until(what string, f func() bool) {
	w.t.Helper()
	end := time.Now().Add(time.Minute)
	for !f() {
		if time.Now().After(end) {
			w.t.Fatalf("%s: did not happen within a minute", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func (w *fixture) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// wants checks the code of an error, and returns the error.
func (w *fixture) wants(what string, err error, code api.Code) *api.Error {
	w.t.Helper()
	if err == nil || api.CodeOf(err) != code {
		w.t.Fatalf("%s: got %v (%s), want %s", what, err, api.CodeOf(err), code)
	}
	return api.AsError(err)
}

// made makes a function of alice without code.
func (w *fixture) made(change ...func(*api.CreateFunctionRequest)) api.Function {
	w.t.Helper()
	req := api.CreateFunctionRequest{Name: "fn", Runtime: api.RuntimePython}
	for _, f := range change {
		f(&req)
	}
	fn, err := w.Create(w.t.Context(), alice, req)
	w.must(err)
	return fn
}

// settings sets those of a function that is made.
func settings(set api.FunctionSettings) func(*api.CreateFunctionRequest) {
	return func(r *api.CreateFunctionRequest) { r.Settings = set }
}

// shared makes a function that keeps machines.
func shared(r *api.CreateFunctionRequest) { r.Settings.Mode = api.FunctionShared }

// deploy deploys code and returns the version as it ended.
func (w *fixture) deploy(bundle string) api.FunctionVersion {
	w.t.Helper()
	_, err := w.Deploy(w.t.Context(), alice, "fn", strings.NewReader(bundle), "", false)
	w.must(err)
	w.Attend(w.t.Context())
	all, err := w.Versions(w.t.Context(), alice, "fn")
	w.must(err)
	return all[0]
}

// live deploys code and checks that it is served.
func (w *fixture) live(c code) int64 {
	w.t.Helper()
	v := w.deploy(c.String())
	if fn := w.get(); v.Status != api.FunctionReady || fn.Version != v.Number {
		w.t.Fatalf("%s: version %+v; function %+v", c.Name, v, fn)
	}
	return v.Number
}

func (w *fixture) get() api.Function {
	w.t.Helper()
	fn, err := w.Get(w.t.Context(), alice, "fn")
	w.must(err)
	return fn
}

// invoke calls the function and returns how that ended.
func (w *fixture) invoke(req api.InvokeRequest) api.FunctionRun {
	w.t.Helper()
	run, err := w.Invoke(w.t.Context(), alice, "fn", req)
	w.must(err)
	return run
}

// call calls the function with an event and returns the answer.
func (w *fixture) call(do string) answer {
	w.t.Helper()
	return w.answer(w.invoke(api.InvokeRequest{Input: input(do)}))
}

func (w *fixture) answer(run api.FunctionRun) (a answer) {
	w.t.Helper()
	if run.Status != api.RunSuccess {
		w.t.Fatalf("run %+v: %+v", run, run.Error)
	}
	w.must(json.Unmarshal(run.Result, &a))
	return a
}

func input(do string) json.RawMessage { return json.RawMessage(fmt.Sprintf(`{"Do":%q}`, do)) }

// invoking is an invocation that is under way.
type invoking struct {
	w    *fixture
	run  api.FunctionRun
	err  error
	done chan struct{}
}

// begin begins an invocation.
func (w *fixture) begin(ctx context.Context, req api.InvokeRequest) *invoking {
	i := &invoking{w: w, done: make(chan struct{})}
	go func() {
		defer close(i.done)
		i.run, i.err = w.Invoke(ctx, alice, "fn", req)
	}()
	return i
}

// end returns how it ended.
func (i *invoking) end() (api.FunctionRun, error) {
	<-i.done
	return i.run, i.err
}

// machines returns the machines on the host.
func (w *fixture) machines() (all []hostapi.MachineID) {
	for _, m := range w.host.Machines() {
		all = append(all, m.ID)
	}
	return all
}

// quiet waits until no machine is left.
func (w *fixture) quiet() {
	w.t.Helper()
	w.until("all machines are removed", func() bool { return len(w.machines()) == 0 })
}

// archive returns a bundle of files.
func (w *fixture) archive(files ...string) string { return string(bundletest.Tar(w.t, files...)) }

func (w *fixture) blobs() (all []string) {
	w.t.Helper()
	w.must(w.code.List(w.t.Context(), "", func(i blob.Info) error {
		all = append(all, i.Key)
		return nil
	}))
	return all
}

// left returns what is there of any function.
func (w *fixture) left() (all []string) {
	w.t.Helper()
	ctx, rows := w.t.Context(), functionstore.In(w.db.Read())
	add := func(what string, n int, err error) {
		w.t.Helper()
		w.must(err)
		if n > 0 {
			all = append(all, fmt.Sprintf("%d %s", n, what))
		}
	}
	functions, err := rows.Functions(ctx, "", "")
	add("functions", len(functions), err)
	versions, err := rows.Versions(ctx, "", "")
	add("versions", len(versions), err)
	for what, table := range map[string]any{"machines": (*functionstore.Machine)(nil),
		"runs": (*functionstore.Run)(nil), "aliases": (*functionstore.Alias)(nil),
		"log lines": (*store.AppLogLine)(nil)} {
		n, err := w.db.Read().DB().NewSelect().Model(table).Count(ctx)
		add("rows of "+what, int(n), err)
	}
	boxes, err := w.db.Read().Sandboxes(ctx, store.SandboxQuery{})
	add("sandboxes", len(boxes), err)
	snaps, err := w.host.Snapshots(ctx)
	add("snapshots", len(snaps), err)
	add("machines", len(w.machines()), nil)
	add("blobs", len(w.blobs()), nil)
	files, err := filepath.Glob(filepath.Join(w.dir, "bundle-*"))
	add("uploads", len(files), err)
	slices.Sort(all)
	return all
}

// gone checks that nothing is left of any function.
func (w *fixture) gone(when string) {
	w.t.Helper()
	if all := w.left(); len(all) > 0 {
		w.t.Errorf("%s: there are %s", when, strings.Join(all, ", "))
	}
}

// named describes what rows of functions name, and what there is.
func (w *fixture) named() (named, have string) {
	w.t.Helper()
	ctx, rows := w.t.Context(), functionstore.In(w.db.Read())
	versions, err := rows.Versions(ctx, "", "")
	w.must(err)
	snapshots, bundles := map[string]bool{}, map[string]bool{}
	for _, v := range versions {
		bundles[v.Digest] = true
		for _, id := range []string{v.Snapshot, v.Layer} {
			if id != "" {
				snapshots[id] = true
			}
		}
	}
	machines, err := w.db.Read().DB().NewSelect().Model((*functionstore.Machine)(nil)).Count(ctx)
	w.must(err)
	snaps, err := w.host.Snapshots(ctx)
	w.must(err)
	for _, s := range snaps {
		if !snapshots[string(s.ID)] {
			w.t.Errorf("no version has snapshot %+v", s)
		}
	}
	describe := func(snapshots, bundles, machines int) string {
		return fmt.Sprintf("%d snapshots, %d bundles, %d machines", snapshots, bundles, machines)
	}
	return describe(len(snapshots), len(bundles), int(machines)),
		describe(len(snaps), len(w.blobs()), len(w.machines()))
}

// run runs the service until the test ends or stop is called.
func (w *fixture) run() (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	s := w.Service
	go func() { done <- s.Run(ctx) }()
	return func() {
		cancel()
		w.must(<-done)
		w.must(errors.Join(w.code.Close(), w.db.Close()))
		w.start()
	}
}
