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
	"github.com/pandastack/pandastack/internal/control/store"
)

// createGate holds the machines of builds back until it is opened.
type createGate struct {
	mu      sync.Mutex
	waiting int
	arrived chan struct{} // one for each that waits
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
	<-g.arrived // of the other workspace: its own may have no more
	list, err := w.List(t.Context(), alice, "")
	if err != nil || len(list) != 4 {
		t.Fatalf("%+v, %v", list, err)
	}
	count := map[api.BuildStatus]int{}
	for _, b := range list {
		count[b.Status]++
	}
	if count[api.BuildQueued] != 2 || count[api.BuildRunning] != 2 || g.blocked() != 3 {
		t.Errorf("of alice %v, %d at once", count, g.blocked())
	}
	close(g.open)
	for _, id := range all {
		if b, log := w.wait(id); b.Status != api.BuildDone {
			t.Errorf("%+v\n%s", b, log)
		}
	}
	w.WaitIdle(other.ID)
	if b, err := w.Get(t.Context(), eve, other.ID); err != nil || b.Status != api.BuildDone {
		t.Errorf("%+v, %v", b, err)
	}
	w.checkClean(5)
}

func TestQueueIsBounded(t *testing.T) {
	w := newFixture(t, func(c *build.Config) { c.MaxQueued, c.Parallel = 2, 1 })
	g := w.blockCreates()
	first := w.enqueue(echoSpec("a", 0), nil)
	<-g.arrived
	second := w.enqueue(echoSpec("a", 1), map[string]string{"x": "y"})
	u := w.files(map[string]string{"x": "y"})
	_, err := w.Start(t.Context(), alice, echoSpec("a", 2), u)
	if api.CodeOf(err) != api.QuotaExceeded || !strings.Contains(err.Error(), "cancel one") || u.Close() != nil {
		t.Errorf("a third build: %v", err)
	}
	if _, err := w.templates.Get(t.Context(), alice, "a2"); api.CodeOf(err) != api.NotFound {
		t.Errorf("the template that was not to be: %v", err)
	}
	// The same as one under way is that one, and takes no place.
	if again := w.enqueue(echoSpec("a", 0), nil); again.ID != first.ID || !again.Reused {
		t.Errorf("the same again: %+v", again)
	}
	if b, err := w.Cancel(t.Context(), alice, second.ID); err != nil || b.Code != api.Canceled {
		t.Errorf("cancel in the queue: %+v, %v", b, err)
	}
	third := w.enqueue(echoSpec("a", 2), nil)
	close(g.open)
	for _, id := range []api.BuildID{first.ID, third.ID} {
		if b, log := w.wait(id); b.Status != api.BuildDone {
			t.Errorf("%+v\n%s", b, log)
		}
	}
	w.checkClean(2)
}

// TestCancelInEveryState: those under way are cancelled by TestCancelledAtEveryOperation.
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
			t.Errorf("%s, by another: %v", what, err)
		}
		for range 2 { // the second time changes nothing
			if b, err := w.Cancel(t.Context(), alice, id); err != nil || b.Status != api.BuildFailed ||
				b.Code != api.Canceled ||
				b.EndedAt == nil {
				t.Errorf("%s: %+v, %v", what, b, err)
			}
		}
	}
	if err := w.StartReserved(t.Context(), alice, waiting.ID,
		func(s *build.Spec) { s.FromTemplate, s.OnBase = "base", true }); api.CodeOf(
		err,
	) != api.WrongState {
		t.Errorf("launch of what was cancelled: %v", err)
	}
	close(g.open)
	done, _ := w.mustBuild(echoSpec("a", 2), nil)
	if b, err := w.Cancel(t.Context(), alice, done.ID); api.CodeOf(err) != api.WrongState {
		t.Errorf("done: %+v, %v", b, err)
	}
	w.checkClean(1)
}

func TestRetry(t *testing.T) {
	w := newFixture(t, nil)
	spec := dockerfileOf("app", "FROM base\nCOPY app.txt /\nRUN echo kept\nRUN false\n")
	w.h.Fail("takesnapshot", fmt.Errorf("a fault of the host"))
	failed, _ := w.wait(w.enqueue(spec, map[string]string{"app.txt": "app\n"}).ID)
	if failed.Status != api.BuildFailed || failed.Code != api.Internal ||
		strings.Contains(failed.Error, "a fault of the host") {
		t.Fatalf("%+v", failed)
	}
	again, err := w.Retry(t.Context(), alice, failed.ID, nil)
	if err != nil || again.ID == failed.ID {
		t.Fatalf("%+v, %v", again, err)
	}
	b, log := w.wait(again.ID)
	if b.Status != api.BuildFailed || b.Code != api.Invalid || b.Step != "3/3 RUN false" || b.StepsDone != 2 ||
		!strings.Contains(log, "kept") {
		t.Errorf("%+v\n%s", b, log)
	}
	if _, err := w.Retry(t.Context(), eve, b.ID, nil); api.CodeOf(err) != api.NotFound {
		t.Errorf("by another: %v", err)
	}
	done, _ := w.mustBuild(echoSpec("a", 0), nil)
	if _, err := w.Retry(t.Context(), alice, done.ID, nil); api.CodeOf(err) != api.WrongState {
		t.Errorf("of what is done: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(w.cfg.Dir, "inputs", string(b.ID))); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Retry(t.Context(), alice, b.ID, nil); api.CodeOf(err) != api.Gone ||
		!strings.Contains(err.Error(), "send them again") {
		t.Errorf("without its files: %v", err)
	}
	w.checkClean(1)
}

func TestWorkspaceIsolation(t *testing.T) {
	w := newFixture(t, nil)
	spec := dockerfileOf("app", "FROM base\nCOPY app.txt /\nRUN echo one\n")
	files := map[string]string{"app.txt": "app\n"}
	first, _ := w.mustBuild(spec, files)
	// Another user of the workspace, by another key.
	carol := auth.Principal{Workspace: alice.Workspace, KeyPrefix: "carol"}
	b, err := w.Start(t.Context(), carol, spec, w.files(files))
	if err != nil || !b.Reused || b.ID != first.ID {
		t.Errorf("the same by another user: %+v, %v", b, err)
	}
	b, err = w.Start(t.Context(), carol, dockerfileOf("hers", spec.Dockerfile+"RUN echo two\n"), w.files(files))
	if err != nil {
		t.Fatal(err)
	}
	if b, log := w.wait(b.ID); b.StepsCached != 2 || b.Status != api.BuildDone {
		t.Errorf("by another user: %+v\n%s", b, log)
	}
	b, err = w.Start(t.Context(), eve, spec, w.files(files))
	if err != nil || b.Reused {
		t.Fatalf("another workspace: %+v, %v", b, err)
	}
	w.WaitIdle(b.ID)
	eventually(t, func() bool { b, err = w.Get(t.Context(), eve, b.ID); return err != nil || b.Status.Ended() })
	if w.WaitIdle(b.ID); err != nil || b.Status != api.BuildDone || b.StepsCached != 0 {
		t.Errorf("another workspace: %+v, %v", b, err)
	}
	if _, err := w.Get(t.Context(), eve, first.ID); api.CodeOf(err) != api.NotFound {
		t.Errorf("a build of another workspace: %v", err)
	}
	if err := w.Logs(t.Context(), eve, first.ID, 0, false, func(api.BuildLine) error { return nil }); api.CodeOf(
		err,
	) != api.NotFound {
		t.Errorf("its log: %v", err)
	}
	if _, err := w.templates.Get(t.Context(), eve, "hers"); api.CodeOf(err) != api.NotFound {
		t.Errorf("its template: %v", err)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal("it did not come in a minute")
		}
	}
}

func TestDeadlines(t *testing.T) {
	w := newFixture(t, nil)
	// The first step is done before there is a limit that it could reach itself.
	if b, log := w.wait(w.enqueue(dockerfileOf("app", "FROM base\nRUN echo before\n"),
		nil).ID); b.Status != api.BuildDone {
		t.Fatalf("%+v\n%s", b, log)
	}
	spec := dockerfileOf("app", "FROM base\nRUN echo before\nRUN echo out && sleep 1000\n")
	spec.StepSeconds = 1
	b, log := w.wait(w.enqueue(spec, nil).ID)
	if b.Code != api.Timeout || b.Step != "2/2 RUN echo out && sleep 1000" ||
		!strings.Contains(b.Error, "longer than 1s") ||
		!strings.Contains(b.Error, "out") ||
		b.StepsDone != 1 {
		t.Errorf("a step that hangs: %+v\n%s", b, log)
	}
	w.checkClean(1)
	w.cfg.BuildTimeout = time.Second
	w.restart()
	b, log = w.wait(w.enqueue(dockerfileOf("app", "FROM base\nRUN sleep 1000\n"), nil).ID)
	if b.Code != api.Timeout || !strings.Contains(b.Error, "the build took longer than 1s") {
		t.Errorf("a build that hangs: %+v\n%s", b, log)
	}
	w.checkClean(1)
}

// TestTooManyRestarts: a build that its process never survives ends.
func TestTooManyRestarts(t *testing.T) {
	w := newFixture(t, func(c *build.Config) { c.MaxAttempts = 2 })
	b := api.Build{}
	for n := range 2 {
		g := w.blockCreates()
		if n == 0 {
			b = w.enqueue(echoSpec("a", 0), nil)
		}
		<-g.arrived
		_ = w.db.Close() // as if the process were killed
		w.restart()
	}
	w.h.SetHook(nil)
	got, log := w.wait(b.ID)
	if got.Status != api.BuildFailed || got.Code != api.Unavailable || !strings.Contains(got.Error, "restarted") {
		t.Errorf("%+v\n%s", got, log)
	}
	w.CollectGarbage(t.Context())
	w.checkClean(0)
	if again, err := w.Retry(t.Context(), alice, b.ID, nil); err != nil {
		t.Error(err)
	} else if got, log := w.wait(again.ID); got.Status != api.BuildDone {
		t.Errorf("%+v\n%s", got, log)
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
		t.Fatalf("%d layers within both limits", layers(w))
	}
	w.stop()
	// By space: each layer of this host is of some size, and one may stay.
	rows, err := w.db.Read().Layers(t.Context(), "")
	if err != nil || rows[0].Bytes == 0 {
		t.Fatalf("%+v, %v", rows, err)
	}
	w.cfg.MaxLayerBytes, w.cfg.StepTimeout = rows[0].Bytes+rows[0].Bytes/2, time.Nanosecond
	if w.start(); layers(w) > 3 {
		t.Fatal("there are more layers than before")
	}
	if w.CollectGarbage(t.Context()); layers(w) != 1 {
		t.Errorf("%d layers beyond the space for one", layers(w))
	}
	if kept, err := w.db.Read().Layers(t.Context(), ""); err != nil || len(kept) != 1 || kept[0].Name != rows[2].Name {
		t.Errorf("%+v stays, not the one used last of %+v, %v", kept, rows, err)
	}
	w.checkLeftovers()
	// By age.
	w.cfg.MaxLayerBytes, w.cfg.KeepLayers = 0, time.Nanosecond
	w.restart()
	if w.CollectGarbage(t.Context()); layers(w) != 0 {
		t.Errorf("%d layers that nobody used for long", layers(w))
	}
	w.checkClean(2)
	w.cfg.KeepLayers, w.cfg.StepTimeout = 0, 0
	w.restart()
	if b, _ := w.mustBuild(dockerfileOf("app", "FROM base\nRUN echo 1\nRUN echo 4\n"), nil); b.StepsCached != 0 {
		t.Errorf("%+v", b)
	}
}

// TestBuildGC: what ended long ago goes with its log, and with it a template that never was.
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
		t.Errorf("inputs %v, %v", list, err)
	}
	w.cfg.KeepBuilds = time.Nanosecond
	w.restart()
	w.CollectGarbage(t.Context())
	for _, id := range []api.BuildID{done.ID, failed.ID} {
		if _, err := w.Get(t.Context(), alice, id); api.CodeOf(err) != api.NotFound {
			t.Errorf("build %s: %v", id, err)
		}
	}
	if rows, err := w.db.Read().Templates(t.Context(), string(alice.Workspace)); err != nil || len(rows) != 1 ||
		rows[0].Name != "a0" {
		t.Errorf("templates %+v, %v", rows, err)
	}
	if got := w.readFile("a0", "/none"); strings.Contains(got, "template") {
		t.Errorf("a sandbox of what is left: %s", got)
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
