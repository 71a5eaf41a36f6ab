package function_test

import (
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
)

func TestDeploy(t *testing.T) {
	w := newFixture(t)
	fn := w.made()
	if fn.Status != api.FunctionEmpty || fn.IsReady || fn.Template != "base" || fn.Entrypoint != "handler.py" {
		t.Errorf("made: %+v", fn)
	}
	_, err := w.Invoke(t.Context(), alice, "fn", api.InvokeRequest{})
	w.wants("an invocation without code", err, api.PreconditionFailed)
	if n := w.live(code{Name: "one"}); n != 1 {
		t.Errorf("the first version is %d", n)
	}
	if got := w.call("").Code; got != "one" {
		t.Errorf("response is %q, want %q", got, "one")
	}
	w.live(code{Name: "two"})
	for _, bad := range []struct {
		code  code
		err   string
		lines []string // of the log
	}{
		{code{Name: "bad", Build: "no such package"}, "no such package", []string{"no such package"}},
		{code{Name: "bad", Load: "SyntaxError"}, "SyntaxError", []string{"unpacked bad", "first", "second"}},
	} {
		v := w.deploy(bad.code.String())
		if v.Status != api.FunctionFailed || !strings.Contains(v.Error, bad.err) {
			t.Errorf("%+v: version %+v", bad.code, v)
		}
		log, err := w.BuildLog(t.Context(), alice, "fn", v.Number)
		w.must(err)
		for _, line := range bad.lines {
			if !slices.Contains(log, line) {
				t.Errorf("%+v: the log has no %q: %q", bad.code, line, log)
			}
		}
		if fn := w.get(); fn.Version != 2 || fn.Latest != v.Number || !fn.IsReady || fn.Error == "" {
			t.Errorf("%+v: function %+v", bad.code, fn)
		}
		if got := w.call("").Code; got != "two" {
			t.Errorf("after %+v, response is %q, want %q", bad.code, got, "two")
		}
	}
	if got := w.answer(w.invoke(api.InvokeRequest{Version: 1})).Code; got != "one" {
		t.Errorf("response of version 1 is %q, want %q", got, "one")
	}
	r, size, err := w.Code(t.Context(), alice, "fn", 1)
	w.must(err)
	data, err := io.ReadAll(r)
	if want := (code{Name: "one"}).String(); err != nil || string(data) != want || size != int64(len(want)) {
		t.Errorf("the code is %q, %d bytes, %v", data, size, err)
	}
	w.must(r.Close())
	_, err = w.Deploy(t.Context(), bob, string(w.get().ID), strings.NewReader("x"), "", false)
	w.wants("a deployment of another workspace", err, api.NotFound)
	_, err = w.Deploy(t.Context(), alice, "fn", strings.NewReader(""), "", false)
	w.wants("an empty bundle", err, api.Invalid)
	w.quiet()
	if snaps, err := w.host.Snapshots(t.Context()); err != nil || len(snaps) != 2 {
		t.Errorf("%d snapshots of two ready versions: %v", len(snaps), err)
	}
}

// TestDeployWaits checks what a caller gets that waits for the build, while the service runs as in a server.
func TestDeployWaits(t *testing.T) {
	w := newFixture(t)
	w.made()
	stop := w.run()
	fn, err := w.Deploy(t.Context(), alice, "fn", strings.NewReader(code{Name: "one"}.String()), "", true)
	if err != nil || fn.Version != 1 || fn.Status != api.FunctionReady {
		t.Errorf("deployed: %+v, %v", fn, err)
	}
	_, err = w.Deploy(t.Context(), alice, "fn", strings.NewReader(code{Build: "no such package"}.String()), "", true)
	if e := w.wants("bad code", err, api.Invalid); !strings.Contains(e.Message, "no such package") {
		t.Errorf("bad code: %v", e)
	}
	_, err = w.Create(t.Context(), alice, api.CreateFunctionRequest{Name: "second", Runtime: api.RuntimeNode,
		Code: []byte(code{Name: "second"}.String())})
	w.must(err)
	stop()
}

func TestLayerIsReused(t *testing.T) {
	w := newFixture(t)
	w.made()
	installs := 0
	w.hook(hooks{steps: func(step string) error {
		if step == "layer" {
			installs++
		}
		return nil
	}})
	for n, name := range []string{"one", "two", "three"} {
		packages := "flask\n"
		if n == 2 {
			packages = "django\n"
		}
		v := w.deploy(w.archive("handler.py", code{Name: name}.String(), "requirements.txt", packages))
		if want := 1 + n/2; v.Status != api.FunctionReady || installs != want {
			t.Errorf("version %+v; dependencies were installed %d times, want %d", v, installs, want)
		}
		if got := w.call("").Code; got != name {
			t.Errorf("response is %q, want %q", got, name)
		}
	}
	w.must(w.DeleteVersion(t.Context(), alice, "fn", 1))
	w.must(w.DeleteVersion(t.Context(), alice, "fn", 2))
	w.quiet()
	w.Attend(t.Context()) // removes the versions
	w.Attend(t.Context()) // removes the layer that none has any more
	snaps, err := w.host.Snapshots(t.Context())
	if err != nil || len(snaps) != 2 {
		t.Errorf("%d snapshots of one version with a layer: %v", len(snaps), err)
	}
	if all := w.blobs(); len(all) != 1 {
		t.Errorf("blobs of one version: %v", all)
	}
	var logs []string
	w.must(w.db.Read().DB().NewSelect().Model((*store.AppLogLine)(nil)).Distinct().Column("deployment").
		Scan(t.Context(), &logs))
	if len(logs) != 1 || !strings.HasSuffix(logs[0], "/3") {
		t.Errorf("logs of version 3: %v", logs)
	}
}

func TestAliases(t *testing.T) {
	w := newFixture(t)
	w.made()
	w.live(code{Name: "one"})
	w.live(code{Name: "two"})
	set := func(name string, versions ...api.FunctionWeight) error {
		_, err := w.SetAlias(t.Context(), alice, "fn", name, api.SetAliasRequest{Versions: versions})
		return err
	}
	w.wants("weights that do not add up", set("x", api.FunctionWeight{Version: 1, Weight: 50}), api.Invalid)
	w.wants("a version that is not there", set("x", api.FunctionWeight{Version: 9, Weight: 100}), api.NotFound)
	w.must(set("stable", api.FunctionWeight{Version: 1, Weight: 100}))
	w.must(set("canary", api.FunctionWeight{Version: 1, Weight: 70}, api.FunctionWeight{Version: 2, Weight: 30}))
	if got := w.answer(w.invoke(api.InvokeRequest{Alias: "stable"})).Code; got != "one" {
		t.Errorf("response of the alias is %q, want %q", got, "one")
	}
	row, err := w.Find(t.Context(), alice, "fn")
	w.must(err)
	picked := map[int64]int{}
	for range 1000 { // that one of them is left out has the probability 0.7^1000
		n, err := w.Pick(t.Context(), &row, "canary", 0)
		w.must(err)
		picked[n]++
	}
	if len(picked) != 2 || picked[1] == 0 || picked[2] == 0 {
		t.Errorf("of 1000 invocations: %v", picked)
	}
	if got := w.call("").Code; got != "two" {
		t.Errorf("response without an alias is %q, want %q", got, "two")
	}
	w.must(set("live", api.FunctionWeight{Version: 1, Weight: 100}))
	if got := w.call("").Code; got != "one" {
		t.Errorf("response with the alias live is %q, want %q", got, "one")
	}
	w.wants("deleting a version of an alias", w.DeleteVersion(t.Context(), alice, "fn", 1), api.Conflict)
	_, err = w.Invoke(t.Context(), alice, "fn", api.InvokeRequest{Alias: "other"})
	w.wants("an alias that is not there", err, api.NotFound)
	for _, name := range []string{"live", "stable", "canary"} {
		w.must(w.DeleteAlias(t.Context(), alice, "fn", name))
	}
	w.wants("deleting an alias again", w.DeleteAlias(t.Context(), alice, "fn", "live"), api.NotFound)
	w.must(w.DeleteVersion(t.Context(), alice, "fn", 1))
	if all := w.get().Aliases; len(all) > 0 {
		t.Errorf("aliases %+v", all)
	}
}

func TestRollback(t *testing.T) {
	w := newFixture(t)
	w.made()
	w.live(code{Name: "one"})
	_, err := w.Rollback(t.Context(), alice, "fn", 0)
	w.wants("a rollback of the first version", err, api.Conflict)
	w.deploy(code{Name: "bad", Load: "SyntaxError"}.String())
	w.live(code{Name: "three"})
	fn, err := w.Rollback(t.Context(), alice, "fn", 0)
	if err != nil || fn.Version != 1 || fn.Latest != 3 || w.call("").Code != "one" {
		t.Errorf("rolled back to %+v, %v", fn, err)
	}
	_, err = w.Rollback(t.Context(), alice, "fn", 2)
	w.wants("a rollback to a version that has failed", err, api.Conflict)
	fn, err = w.Rollback(t.Context(), alice, "fn", 3)
	if err != nil || fn.Version != 3 || w.call("").Code != "three" {
		t.Errorf("forward again: %+v, %v", fn, err)
	}
	_, err = w.Rollback(t.Context(), bob, "fn", 1)
	w.wants("a rollback of another workspace", err, api.NotFound)
}

func TestVariables(t *testing.T) {
	w := newFixture(t)
	w.made(func(r *api.CreateFunctionRequest) {
		r.Env = map[string]string{"KEY": "old-value", "KEEP": "kept-value"}
	})
	w.live(code{Name: "one", Needs: "KEY"})
	log, err := w.BuildLog(t.Context(), alice, "fn", 1)
	if err != nil || strings.Contains(strings.Join(log, "\n"), "old-value") {
		t.Errorf("log %q, %v", log, err)
	}
	if got := w.get().Env; got["KEY"] != api.MaskedValue {
		t.Errorf("variables %v", got)
	}
	_, err = w.Update(t.Context(), alice, "fn", api.UpdateFunctionRequest{
		Env: &map[string]string{"KEY": "new-value", "KEEP": api.MaskedValue}})
	w.must(err)
	was, now := map[string]string{"KEY": "old-value", "KEEP": "kept-value"},
		map[string]string{"KEY": "new-value", "KEEP": "kept-value"}
	if a := w.call(""); !maps.Equal(a.Env, now) || !maps.Equal(a.Loaded, was) {
		t.Errorf("at once, the handler has %v and was loaded with %v", a.Env, a.Loaded)
	}
	w.quiet()
	w.Attend(t.Context())
	if a := w.call(""); !maps.Equal(a.Env, now) || !maps.Equal(a.Loaded, now) {
		t.Errorf("later, the handler has %v and was loaded with %v", a.Env, a.Loaded)
	}
	if all, err := w.Versions(t.Context(), alice, "fn"); err != nil || len(all) != 1 {
		t.Errorf("versions %+v, %v", all, err)
	}
	// Variables with which the handler cannot be loaded fail invocations, and the version stays.
	_, err = w.Update(t.Context(), alice, "fn", api.UpdateFunctionRequest{Env: &map[string]string{}})
	w.must(err)
	w.Attend(t.Context())
	if run := w.invoke(api.InvokeRequest{}); run.Status != api.RunError || run.Error.Type != "KeyError" {
		t.Errorf("without its variable: %+v, %+v", run, run.Error)
	}
	_, err = w.Update(t.Context(), alice, "fn", api.UpdateFunctionRequest{Env: &now})
	w.must(err)
	if a := w.call(""); !maps.Equal(a.Env, now) {
		t.Errorf("with it again: %v", a.Env)
	}
	w.quiet()
	w.Attend(t.Context())
	if snaps, err := w.host.Snapshots(t.Context()); err != nil || len(snaps) != 1 {
		t.Errorf("%d snapshots of one version: %v", len(snaps), err)
	}
}

func TestDelete(t *testing.T) {
	w := newFixture(t)
	w.made(shared)
	w.deploy(w.archive("handler.py", code{Name: "one"}.String(), "requirements.txt", "flask\n"))
	w.live(code{Name: "two"})
	_, err := w.SetAlias(t.Context(), alice, "fn", "x", api.SetAliasRequest{Versions: []api.FunctionWeight{{Version: 1,
		Weight: 100}}})
	w.must(err)
	w.call("")
	w.invoke(api.InvokeRequest{Alias: "x", IdempotencyKey: "key"})
	under := w.begin(t.Context(), api.InvokeRequest{Input: input("wait")})
	<-w.runtime.entered
	_, err = w.Deploy(t.Context(), alice, "fn", strings.NewReader(code{Name: "three"}.String()), "", false)
	w.must(err)
	w.wants("another workspace deletes it", w.Delete(t.Context(), bob, "fn"), api.NotFound)
	w.must(w.Delete(t.Context(), alice, "fn"))
	_, err = under.end()
	w.wants("an invocation of a function that was deleted", err, api.NotFound)
	<-w.runtime.gone
	w.gone("deleted")
	w.wants("deleted again", w.Delete(t.Context(), alice, "fn"), api.NotFound)
	fn := w.made() // the name is free
	w.must(w.Delete(t.Context(), alice, string(fn.ID)))
}

// TestDeleteBeforeTheRunIsWritten deletes a function between the end of an invocation and its row.
func TestDeleteBeforeTheRunIsWritten(t *testing.T) {
	for _, key := range []string{"", "key"} {
		w := newFixture(t)
		w.made()
		w.live(code{Name: "one"})
		w.hook(hooks{fault: func(op string, committed bool) error {
			if op == "function run" && !committed {
				w.hook(hooks{})
				return w.Delete(t.Context(), alice, "fn")
			}
			return nil
		}})
		_, err := w.Invoke(t.Context(), alice, "fn", api.InvokeRequest{IdempotencyKey: key})
		w.wants("the invocation", err, api.NotFound)
		w.gone("deleted")
	}
}

// TestDeleteDuringBuild deletes a function in the middle of a build.
func TestDeleteDuringBuild(t *testing.T) {
	w := newFixture(t)
	w.made()
	begun, deleted := make(chan struct{}), make(chan error, 1)
	w.hook(hooks{steps: func(step string) error {
		if step == "serve" {
			close(begun)
			return <-deleted
		}
		return nil
	}})
	_, err := w.Deploy(t.Context(), alice, "fn", strings.NewReader(code{Name: "one"}.String()), "", false)
	w.must(err)
	built := make(chan struct{})
	go func() {
		defer close(built)
		w.Attend(t.Context())
	}()
	<-begun
	ended := make(chan error, 1)
	go func() { ended <- w.Delete(t.Context(), alice, "fn") }()
	w.until("the function is being deleted", func() bool {
		_, err := w.Get(t.Context(), alice, "fn")
		return api.CodeOf(err) == api.NotFound
	})
	deleted <- nil
	w.must(<-ended)
	<-built
	w.gone("deleted")
}

func TestQuota(t *testing.T) {
	w := newFixture(t, func(w *fixture) { w.quotas = map[quota.Kind]int64{quota.Functions: 1} })
	w.made()
	_, err := w.Create(t.Context(), alice, api.CreateFunctionRequest{Name: "more", Runtime: api.RuntimePython})
	w.wants("a second function", err, api.QuotaExceeded)
	w.must(w.Delete(t.Context(), alice, "fn"))
	w.made()
}

// TestRestart kills a process in the middle of builds and invocations.
func TestRestart(t *testing.T) {
	w := newFixture(t)
	w.made()
	w.live(code{Name: "one"})
	_, err := w.Deploy(t.Context(), alice, "fn", strings.NewReader(code{Name: "two"}.String()), "", false)
	w.must(err)
	w.kill(func() { w.Attend(t.Context()) }, "serve")
	if fn := w.get(); fn.Version != 1 || fn.Status != api.FunctionBuilding {
		t.Errorf("after the restart: %+v", fn)
	}
	w.settle()
	if fn := w.get(); fn.Version != 2 || w.call("").Code != "two" {
		t.Errorf("built again: %+v", fn)
	}

	w.quiet() // the machine of an invocation is removed after its response

	// An invocation with a key has a row while it is under way, and its machine is there after the process has ended.
	under := w.begin(t.Context(), api.InvokeRequest{Input: input("wait"), IdempotencyKey: "key"})
	<-w.runtime.entered
	id := w.machines()[0]
	cut := &faultInjector{dead: true}
	cut.install(w)
	w.runtime.release <- struct{}{}
	if _, err := under.end(); err == nil {
		t.Error("an invocation whose end could not be written has no error")
	}
	w.end()
	cut.remove(w)
	if all := w.machines(); !slices.Equal(all, []hostapi.MachineID{id}) {
		t.Errorf("machines of the process that was killed: %v, want %v", all, id)
	}
	w.start()
	w.settle()
	run := w.invoke(api.InvokeRequest{IdempotencyKey: "key"})
	if run.Status != api.RunError || run.Error == nil || run.Error.Type != "ServerEnded" {
		t.Errorf("the lost run is %+v: %+v", run, run.Error)
	}
	if all := w.machines(); len(all) > 0 {
		t.Errorf("machines %v", all)
	}

	// A version with which the process ends each time is given up.
	_, err = w.Deploy(t.Context(), alice, "fn", strings.NewReader(code{Name: "three"}.String()), "", false)
	w.must(err)
	for range 3 {
		w.kill(func() { w.Attend(t.Context()) }, "serve")
	}
	w.settle()
	if fn := w.get(); fn.Version != 2 || fn.Latest != 3 || !strings.Contains(fn.Error, "3 times") {
		t.Errorf("given up: %+v", fn)
	}
	w.must(w.Delete(t.Context(), alice, "fn"))
	w.settle()
	w.gone("deleted")
}

// kill runs f in a process that is killed when a build has made a step. Its end has to follow.
func (w *fixture) kill(f func(), at string) {
	cut := &faultInjector{dead: true, at: 1 << 30}
	cut.install(w)
	all := *w.hooks.Load()
	all.steps = func(step string) error {
		if step == at {
			cut.kill()
		}
		return cut.step()
	}
	w.hook(all)
	f()
	w.end()
	cut.remove(w)
	w.start()
}

// TestVersionRows checks that rows of a build name what it made.
func TestVersionRows(t *testing.T) {
	w := newFixture(t)
	w.made()
	w.live(code{Name: "one"})
	row, err := w.Find(t.Context(), alice, "fn")
	w.must(err)
	v, err := functionstore.In(w.db.Read()).Version(t.Context(), row.ID, 1)
	w.must(err)
	snap, err := w.db.Read().Snapshot(t.Context(), v.Snapshot)
	if err != nil || v.Layer != "" || v.Style != "event" {
		t.Errorf("version %+v, snapshot %+v, %v", v, snap, err)
	}
	if page, err := w.boxes.Snapshots(t.Context(), alice, api.SnapshotFilter{}); err != nil || len(page.Snapshots) > 0 {
		t.Error("users see the snapshot of a version")
	}
}
