package build_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/build"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
)

// createGate blocks the creation of the machines of builds until it is opened.
type createGate struct {
	mu      sync.Mutex
	waiting int
	arrived chan struct{} // receives one value for each blocked creation
	open    chan struct{}
}

func (w *fixture) blockCreates() *createGate {
	g := &createGate{arrived: make(chan struct{}, 100), open: make(chan struct{})}
	w.h.SetHook(func(ctx context.Context, op, _ string, after bool) error {
		if op != "create" || after {
			return nil
		}
		g.mu.Lock()
		g.waiting++
		g.mu.Unlock()
		g.arrived <- struct{}{}
		select {
		case <-g.open:
		case <-ctx.Done():
		}
		g.mu.Lock()
		g.waiting--
		g.mu.Unlock()
		return context.Cause(ctx)
	})
	return g
}

func (g *createGate) blocked() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waiting
}

func echoSpec(name string, n int) build.Spec {
	return dockerfileOf(fmt.Sprintf("%s%d", name, n), fmt.Sprintf("FROM base\nRUN echo %s %d\n", name, n))
}

func TestConcurrencyLimits(t *testing.T) {
	w := newFixture(t, func(c *build.Config) { c.Parallel, c.PerWorkspace = 3, 2 })
	g := w.blockCreates()
	var all []api.BuildID
	for n := range 4 {
		all = append(all, w.enqueue(echoSpec("a", n), nil).ID)
	}
	<-g.arrived
	<-g.arrived
	other, err := w.Start(t.Context(), eve, echoSpec("e", 0), nil)
	if err != nil {
		t.Fatal(err)
	}
	<-g.arrived // the build of the other workspace: the first workspace is at its limit
	list, err := w.List(t.Context(), alice, "")
	if err != nil || len(list) != 4 {
		t.Fatalf("List = %+v, %v; want 4 builds", list, err)
	}
	count := map[api.BuildStatus]int{}
	for _, b := range list {
		count[b.Status]++
	}
	if count[api.BuildQueued] != 2 || count[api.BuildRunning] != 2 || g.blocked() != 3 {
		t.Errorf("got %v of the first workspace and %d machines at a time; want 2 queued, 2 running, 3 machines",
			count, g.blocked())
	}
	close(g.open)
	for _, id := range all {
		if b, log := w.wait(id); b.Status != api.BuildDone {
			t.Errorf("got %+v, want done\n%s", b, log)
		}
	}
	w.WaitIdle(other.ID)
	if b, err := w.Get(t.Context(), eve, other.ID); err != nil || b.Status != api.BuildDone {
		t.Errorf("the build of the other workspace: got %+v, %v; want done", b, err)
	}
	w.checkClean(5)
}

func TestQueueIsBounded(t *testing.T) {
	w := newFixture(t, func(c *build.Config) { c.Parallel = 1 })
	w.allow(alice, quota.Builds, 2)
	g := w.blockCreates()
	first := w.enqueue(echoSpec("a", 0), nil)
	<-g.arrived
	second := w.enqueue(echoSpec("a", 1), map[string]string{"x": "y"})
	u := w.files(map[string]string{"x": "y"})
	_, err := w.Start(t.Context(), alice, echoSpec("a", 2), u)
	if api.CodeOf(err) != api.QuotaExceeded || !strings.Contains(err.Error(), "cancel builds") || u.Close() != nil {
		t.Errorf("Start of a third build: got %v, want quota_exceeded with a remedy", err)
	}
	if _, err := w.templates.Get(t.Context(), alice, "a2"); api.CodeOf(err) != api.NotFound {
		t.Errorf("the template of the refused build: got %v, want not_found", err)
	}
	// An equivalent build is running: it is reused and does not count.
	if again := w.enqueue(echoSpec("a", 0), nil); again.ID != first.ID || !again.Reused {
		t.Errorf("the same build again: got %+v, want build %s reused", again, first.ID)
	}
	if b, err := w.Cancel(t.Context(), alice, second.ID); err != nil || b.Code != api.Canceled {
		t.Errorf("Cancel of a queued build = %+v, %v; want canceled", b, err)
	}
	third := w.enqueue(echoSpec("a", 2), nil)
	close(g.open)
	for _, id := range []api.BuildID{first.ID, third.ID} {
		if b, log := w.wait(id); b.Status != api.BuildDone {
			t.Errorf("got %+v, want done\n%s", b, log)
		}
	}
	w.checkClean(2)
}

// TestCancelInEveryState cancels builds that are queued, deferred, running and done. TestCancelledAtEveryOperation
// cancels running ones at every moment.
func TestCancelInEveryState(t *testing.T) {
	w := newFixture(t, func(c *build.Config) { c.Parallel = 1 })
	g := w.blockCreates()
	running := w.enqueue(echoSpec("a", 0), nil)
	<-g.arrived
	queued := w.enqueue(echoSpec("a", 1), nil)
	waiting, err := w.Reserve(t.Context(), alice, api.BuildRequest{Name: "later"})
	if err != nil {
		t.Fatal(err)
	}
	for what, id := range map[string]api.BuildID{"queued": queued.ID, "waiting": waiting.ID, "running": running.ID} {
		if _, err := w.Cancel(t.Context(), eve, id); api.CodeOf(err) != api.NotFound {
			t.Errorf("Cancel of a %s build by another workspace: got %v, want not_found", what, err)
		}
		for range 2 { // the second time changes nothing
			if b, err := w.Cancel(t.Context(), alice, id); err != nil || b.Status != api.BuildFailed ||
				b.Code != api.Canceled ||
				b.EndedAt == nil {
				t.Errorf("Cancel of a %s build = %+v, %v; want canceled", what, b, err)
			}
		}
	}
	if err := w.StartReserved(t.Context(), alice, waiting.ID,
		func(s *build.Spec) { s.FromTemplate, s.OnBase = "base", true }); api.CodeOf(
		err,
	) != api.WrongState {
		t.Errorf("StartReserved of a cancelled build: got %v, want wrong_state", err)
	}
	close(g.open)
	done, _ := w.mustBuild(echoSpec("a", 2), nil)
	if b, err := w.Cancel(t.Context(), alice, done.ID); api.CodeOf(err) != api.WrongState {
		t.Errorf("Cancel of a done build = %+v, %v; want wrong_state", b, err)
	}
	w.checkClean(1)
}

func TestRetry(t *testing.T) {
	w := newFixture(t, nil)
	spec := dockerfileOf("app", "FROM base\nCOPY app.txt /\nRUN echo kept\nRUN false\n")
	w.h.Fail("takesnapshot", fmt.Errorf("injected fault of the host"))
	failed, _ := w.wait(w.enqueue(spec, map[string]string{"app.txt": "app\n"}).ID)
	if failed.Status != api.BuildFailed || failed.Code != api.Internal ||
		strings.Contains(failed.Error, "injected fault") {
		t.Fatalf("got %+v, want code internal without the internal text", failed)
	}
	again, err := w.Retry(t.Context(), alice, failed.ID, nil)
	if err != nil || again.ID == failed.ID {
		t.Fatalf("Retry(%s) = %+v, %v; want a new build", failed.ID, again, err)
	}
	b, log := w.wait(again.ID)
	if b.Status != api.BuildFailed || b.Code != api.Invalid || b.Step != "3/3 RUN false" || b.StepsDone != 2 ||
		!strings.Contains(log, "kept") {
		t.Errorf("got %+v, want failed in step 3 after 2\n%s", b, log)
	}
	if _, err := w.Retry(t.Context(), eve, b.ID, nil); api.CodeOf(err) != api.NotFound {
		t.Errorf("Retry by another workspace: got %v, want not_found", err)
	}
	done, _ := w.mustBuild(echoSpec("a", 0), nil)
	if _, err := w.Retry(t.Context(), alice, done.ID, nil); api.CodeOf(err) != api.WrongState {
		t.Errorf("Retry of a done build: got %v, want wrong_state", err)
	}
	if err := os.RemoveAll(filepath.Join(w.cfg.Dir, "inputs", string(b.ID))); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Retry(t.Context(), alice, b.ID, nil); api.CodeOf(err) != api.Gone ||
		!strings.Contains(err.Error(), "send them again") {
		t.Errorf("Retry without its inputs: got %v, want gone with a remedy", err)
	}
	w.checkClean(1)
}

func TestWorkspaceIsolation(t *testing.T) {
	w := newFixture(t, nil)
	spec := dockerfileOf("app", "FROM base\nCOPY app.txt /\nRUN echo one\n")
	files := map[string]string{"app.txt": "app\n"}
	first, _ := w.mustBuild(spec, files)
	// carol is another key of the same workspace.
	carol := auth.Principal{Workspace: alice.Workspace, KeyPrefix: "carol"}
	b, err := w.Start(t.Context(), carol, spec, w.files(files))
	if err != nil || !b.Reused || b.ID != first.ID {
		t.Errorf("the same build with another key = %+v, %v; want build %s reused", b, err, first.ID)
	}
	b, err = w.Start(t.Context(), carol, dockerfileOf("hers", spec.Dockerfile+"RUN echo two\n"), w.files(files))
	if err != nil {
		t.Fatal(err)
	}
	if b, log := w.wait(b.ID); b.StepsCached != 2 || b.Status != api.BuildDone {
		t.Errorf("a larger build with another key: got %+v, want 2 cached steps\n%s", b, log)
	}
	b, err = w.Start(t.Context(), eve, spec, w.files(files))
	if err != nil || b.Reused {
		t.Fatalf("the same build in another workspace = %+v, %v; want a new build", b, err)
	}
	w.WaitIdle(b.ID)
	eventually(t, func() bool { b, err = w.Get(t.Context(), eve, b.ID); return err != nil || b.Status.Ended() })
	if w.WaitIdle(b.ID); err != nil || b.Status != api.BuildDone || b.StepsCached != 0 {
		t.Errorf("the build in another workspace: got %+v, %v; want done without cached steps", b, err)
	}
	if _, err := w.Get(t.Context(), eve, first.ID); api.CodeOf(err) != api.NotFound {
		t.Errorf("Get of a build of another workspace: got %v, want not_found", err)
	}
	if err := w.Logs(t.Context(), eve, first.ID, 0, false, func(api.BuildLine) error { return nil }); api.CodeOf(
		err,
	) != api.NotFound {
		t.Errorf("Logs of a build of another workspace: got %v, want not_found", err)
	}
	if _, err := w.templates.Get(t.Context(), eve, "hers"); api.CodeOf(err) != api.NotFound {
		t.Errorf("a template of another workspace: got %v, want not_found", err)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal("the condition did not hold within a minute")
		}
	}
}

func TestDeadlines(t *testing.T) {
	w := newFixture(t, nil)
	// The first step is built without a limit, so that only the second one can exceed it.
	if b, log := w.wait(w.enqueue(dockerfileOf("app", "FROM base\nRUN echo before\n"),
		nil).ID); b.Status != api.BuildDone {
		t.Fatalf("got %+v, want done\n%s", b, log)
	}
	spec := dockerfileOf("app", "FROM base\nRUN echo before\nRUN echo out && sleep 1000\n")
	spec.StepSeconds = 1
	b, log := w.wait(w.enqueue(spec, nil).ID)
	if b.Code != api.Timeout || b.Step != "2/2 RUN echo out && sleep 1000" ||
		!strings.Contains(b.Error, "longer than 1s") ||
		!strings.Contains(b.Error, "out") ||
		b.StepsDone != 1 {
		t.Errorf("a step that hangs: got %+v, want timeout in step 2 with its output\n%s", b, log)
	}
	w.checkClean(1)
	w.cfg.BuildTimeout = time.Second
	w.restart()
	b, log = w.wait(w.enqueue(dockerfileOf("app", "FROM base\nRUN sleep 1000\n"), nil).ID)
	if b.Code != api.Timeout || !strings.Contains(b.Error, "the build took longer than 1s") {
		t.Errorf("a build that hangs: got %+v, want timeout\n%s", b, log)
	}
	w.checkClean(1)
}

// TestTooManyRestarts kills the process in every attempt of a build: it fails.
func TestTooManyRestarts(t *testing.T) {
	w := newFixture(t, func(c *build.Config) { c.MaxAttempts = 2 })
	b := api.Build{}
	for n := range 2 {
		g := w.blockCreates()
		if n == 0 {
			b = w.enqueue(echoSpec("a", 0), nil)
		}
		<-g.arrived
		_ = w.db.Close() // nothing after this reaches the store, as if the process were killed
		w.restart()
	}
	w.h.SetHook(nil)
	got, log := w.wait(b.ID)
	if got.Status != api.BuildFailed || got.Code != api.Unavailable || !strings.Contains(got.Error, "restarted") {
		t.Errorf("got %+v, want failed with code unavailable\n%s", got, log)
	}
	w.CollectGarbage(t.Context())
	w.checkClean(0)
	if again, err := w.Retry(t.Context(), alice, b.ID, nil); err != nil {
		t.Error(err)
	} else if got, log := w.wait(again.ID); got.Status != api.BuildDone {
		t.Errorf("the retried build: got %+v, want done\n%s", got, log)
	}
}

func TestLayerGC(t *testing.T) {
	layers := func(w *fixture) int {
		rows, err := w.db.Read().Layers(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		return len(rows)
	}
	w := newFixture(t, nil)
	w.mustBuild(dockerfileOf("app", "FROM base\nRUN echo 1\nRUN echo 2\n"), nil)
	w.mustBuild(dockerfileOf("app", "FROM base\nRUN echo 1\nRUN echo 3\n"), nil)
	if w.CollectGarbage(t.Context()); layers(w) != 3 {
		t.Fatalf("got %d layers within both limits, want 3", layers(w))
	}
	w.stop()
	// By size: the limit has room for one layer.
	rows, err := w.db.Read().Layers(t.Context(), "")
	if err != nil || rows[0].Bytes == 0 {
		t.Fatalf("got layers %+v, %v; want them with sizes", rows, err)
	}
	w.cfg.MaxLayerBytes, w.cfg.StepTimeout = rows[0].Bytes+rows[0].Bytes/2, time.Nanosecond
	if w.start(); layers(w) > 3 {
		t.Fatalf("got %d layers after a restart, want at most 3", layers(w))
	}
	if w.CollectGarbage(t.Context()); layers(w) != 1 {
		t.Errorf("got %d layers with room for one, want 1", layers(w))
	}
	if kept, err := w.db.Read().Layers(t.Context(), ""); err != nil || len(kept) != 1 || kept[0].Name != rows[2].Name {
		t.Errorf("got layer %+v, %v; want the most recently used of %+v", kept, err, rows)
	}
	w.checkLeftovers()
	// By age.
	w.cfg.MaxLayerBytes, w.cfg.KeepLayers = 0, time.Nanosecond
	w.restart()
	if w.CollectGarbage(t.Context()); layers(w) != 0 {
		t.Errorf("got %d layers that are unused for long, want 0", layers(w))
	}
	w.checkClean(2)
	w.cfg.KeepLayers, w.cfg.StepTimeout = 0, 0
	w.restart()
	if b, _ := w.mustBuild(dockerfileOf("app", "FROM base\nRUN echo 1\nRUN echo 4\n"), nil); b.StepsCached != 0 {
		t.Errorf("got %+v, want no cached steps", b)
	}
}

// TestBuildGC removes old builds with their logs, and templates that never had a version.
func TestBuildGC(t *testing.T) {
	w := newFixture(t, nil)
	done, _ := w.mustBuild(echoSpec("a", 0), nil)
	failed, _ := w.wait(
		w.enqueue(dockerfileOf("never", "FROM base\nCOPY x /\nRUN false\n"), map[string]string{"x": "y"}).ID,
	)
	w.cfg.KeepInputs = time.Nanosecond
	w.restart()
	w.CollectGarbage(t.Context())
	if list, err := os.ReadDir(filepath.Join(w.cfg.Dir, "inputs")); err != nil || len(list) != 0 {
		t.Errorf("got inputs %v, %v; want none", list, err)
	}
	w.cfg.KeepBuilds = time.Nanosecond
	w.restart()
	w.CollectGarbage(t.Context())
	for _, id := range []api.BuildID{done.ID, failed.ID} {
		if _, err := w.Get(t.Context(), alice, id); api.CodeOf(err) != api.NotFound {
			t.Errorf("Get(%s) of an old build: got %v, want not_found", id, err)
		}
	}
	if rows, err := w.db.Read().Templates(t.Context(), string(alice.Workspace)); err != nil || len(rows) != 1 ||
		rows[0].Name != "a0" {
		t.Errorf("got templates %+v, %v; want a0", rows, err)
	}
	if got := w.readFile("a0", "/none"); strings.Contains(got, "template") {
		t.Errorf("a sandbox of the template that stays: got %q, want only the file to be missing", got)
	}
}

// TestBuildsOfEarlierVersion starts on a store whose builds have no jobs: a program without a job queue wrote it.
func TestBuildsOfEarlierVersion(t *testing.T) {
	f := newFixture(t, func(c *build.Config) { c.MaxAttempts = 3 })
	f.blockCreates()
	ids := map[string]api.BuildID{}
	for n, name := range []string{"queued", "running", "lost"} {
		ids[name] = f.enqueue(echoSpec(name, n), nil).ID
	}
	f.stop()
	f.h.SetHook(nil)
	err := f.db.Write(t.Context(), "test", func(ctx context.Context, tx *store.Tx) error {
		var all error
		for name, id := range ids {
			row := store.Build{ID: string(id), State: "queued", Owner: "earlier", Step: "1/2", Done: 1}
			if name != "queued" {
				row.State, row.Attempt, row.Started = "running", 1, 1
			}
			if name == "lost" {
				row.Attempt = 3
			}
			all = errors.Join(all, tx.DeleteJob(ctx, string(id)),
				tx.UpdateBuild(ctx, &row, []string{"queued"}, "state", "owner", "attempt", "started", "step", "done"))
		}
		return all
	})
	if err != nil {
		t.Fatal(err)
	}
	f.start()
	for name, want := range map[string]api.Build{
		"queued":  {Status: api.BuildDone, Attempt: 1},
		"running": {Status: api.BuildDone, Attempt: 2},
		"lost":    {Status: api.BuildFailed, Attempt: 3, Code: api.Unavailable},
	} {
		got, log := f.wait(ids[name])
		if got.Status != want.Status || got.Attempt != want.Attempt || got.Code != want.Code {
			t.Errorf("build %s: got %s after %d attempts, code %q; want %s after %d, code %q\n%s",
				name, got.Status, got.Attempt, got.Code, want.Status, want.Attempt, want.Code, log)
		}
	}
	f.CollectGarbage(t.Context())
	f.checkClean(2)
}
