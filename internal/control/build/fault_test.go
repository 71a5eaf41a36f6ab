package build_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/build"
)

// stagedDockerfile builds two stages and copies between them; its number makes every step unique.
const stagedDockerfile = `FROM img:%[1]d AS tools
RUN echo tool > /tool
FROM base
ENV N=%[1]d
WORKDIR /srv
COPY app.txt ./
COPY --from=tools /tool /opt/
RUN cat app.txt /opt/tool > copied
CMD ["echo", "up"]
`

// stagedSpec returns the n-th build of its kind, which shares no layer with the others.
func (w *fixture) stagedSpec(n int) (build.Spec, map[string]string) {
	ref := fmt.Sprintf("img:%d", n)
	w.mu.Lock()
	w.images[ref] = image{digest: "sha256:" + ref, files: map[string]string{"etc/os": "img"}}
	w.mu.Unlock()
	return dockerfileOf("app", fmt.Sprintf(stagedDockerfile, n)), map[string]string{"app.txt": "app\n"}
}

// trap runs an action at one of the operations that builds call on the host.
type trap struct {
	mu     sync.Mutex
	at     int // operations until it fires; negative: it has fired
	count  int
	op     string // the operation at which it fired
	action func(ctx context.Context) error
	always error // error of all operations after it
	after  bool  // it fires after the operation
}

// setTrap sets a trap at the operation with number at of the builds that follow. Operations of garbage collection and
// of users do not count: their contexts have no deadline. With names, only operations of these names count.
func (w *fixture) setTrap(at int, after bool, snap func(ctx context.Context) error, only ...string) *trap {
	tr := &trap{at: at, after: after, action: snap}
	w.h.SetHook(func(ctx context.Context, op, _ string, after bool) error {
		if _, ofBuild := ctx.Deadline(); !ofBuild {
			return nil
		}
		tr.mu.Lock()
		if after != tr.after || len(only) > 0 && !slices.Contains(only, op) {
			defer tr.mu.Unlock()
			return tr.always
		}
		tr.count++
		if tr.at--; tr.at != -1 {
			defer tr.mu.Unlock()
			return tr.always
		}
		tr.op = op
		tr.mu.Unlock()
		return tr.action(ctx)
	})
	w.t.Cleanup(func() { w.h.SetHook(nil) })
	return tr
}

func (tr *trap) firedAt() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.op
}

// countOperations counts the operations of a build on the host: with names only those, with after only successful ones.
func (w *fixture) countOperations(after bool, only ...string) int {
	w.t.Helper()
	tr := w.setTrap(-1, after, nil, only...)
	w.mustBuild(w.stagedSpec(0))
	w.h.SetHook(nil)
	if tr.count < 10 {
		w.t.Fatalf("got %d operations of a build on the host, want at least 10", tr.count)
	}
	return tr.count
}

// rebuild repeats a build after a fault, from the layers that remain, and checks its result.
func (w *fixture) rebuild(n int) {
	w.t.Helper()
	w.h.SetHook(nil)
	w.checkLeftovers()
	spec, files := w.stagedSpec(n)
	spec.NoCache = false
	if b := w.enqueue(spec, files); !b.Reused {
		if b, log := w.wait(b.ID); b.Status != api.BuildDone || !strings.Contains(log, "is ready") {
			w.t.Fatalf("got build %+v after the fault, want it done\n%s", b, log)
		}
	}
	if got := w.readFile("app", "/srv/copied"); got != "app\ntool\n" {
		w.t.Fatalf("got %q in the template, want %q", got, "app\ntool\n")
	}
	w.checkLeftovers()
}

// TestFaultAtEveryOperation fails each host operation of a build once, before it happens and after it.
func TestFaultAtEveryOperation(t *testing.T) {
	for _, after := range []bool{false, true} {
		w := newFixture(t, nil)
		all := w.countOperations(after)
		for at := range all {
			n := at + 1
			tr := w.setTrap(at, after, func(context.Context) error { return errors.New("injected fault of the host") })
			b, log := w.wait(w.enqueue(w.stagedSpec(n)).ID)
			if tr.firedAt() == "" {
				t.Fatalf("operation %d was not called", at)
			}
			where := fmt.Sprintf("operation %d, %s, after %v", at, tr.firedAt(), after)
			switch {
			case b.Status == api.BuildDone && at < all-8:
				t.Errorf("%s: got build done, want failed\n%s", where, log)
			case b.Status == api.BuildDone: // it was committed: only the cleanup failed
				w.CollectGarbage(t.Context())
			case b.Code == "" || b.Error == "" || b.EndedAt == nil:
				t.Errorf("%s: got %+v, want code, error and end", where, b)
			}
			if w.rebuild(n); t.Failed() {
				t.Fatalf("after %s", where)
			}
		}
	}
}

// TestFullDiskAtEveryOperation fails each writing host operation of a build with a full disk.
func TestFullDiskAtEveryOperation(t *testing.T) {
	w := newFixture(t, nil)
	writes := []string{"importimage", "create", "takesnapshot", "publish"}
	for at := range w.countOperations(false, writes...) {
		tr := w.setTrap(
			at,
			false,
			func(context.Context) error { return fmt.Errorf("write: %w", hostapi.ErrNoSpace) },
			writes...)
		b, _ := w.wait(w.enqueue(w.stagedSpec(1 + at)).ID)
		if b.Code != api.NoSpace || !strings.Contains(b.Error, "no disk space") ||
			!strings.Contains(b.Error, "delete") {
			t.Errorf("%s: got %s %q, want no_space with a remedy", tr.firedAt(), b.Code, b.Error)
		}
		if w.rebuild(1 + at); t.Failed() {
			t.Fatalf("after operation %d, %s", at, tr.firedAt())
		}
	}
}

// TestKilledAtEveryOperation kills the process at each host operation: nothing after it reaches host or store. The next
// process finishes the build.
func TestKilledAtEveryOperation(t *testing.T) {
	w := newFixture(t, nil)
	for at := range w.countOperations(false) {
		killed := make(chan struct{})
		var tr *trap
		tr = w.setTrap(at, false, func(context.Context) error {
			tr.mu.Lock()
			tr.always = errors.New("the process was killed")
			tr.mu.Unlock()
			defer close(killed)
			return errors.Join(tr.always, w.db.Close())
		})
		b := w.enqueue(w.stagedSpec(1 + at))
		<-killed
		w.stop()
		w.h.SetHook(nil)
		w.start()
		got, log := w.wait(b.ID)
		if got.Status != api.BuildDone || got.Attempt > 2 {
			t.Errorf("after operation %d, %s: got %+v, want done in 2 attempts\n%s", at, tr.firedAt(), got, log)
		}
		w.CollectGarbage(t.Context())
		if w.rebuild(1 + at); t.Failed() {
			t.Fatalf("after operation %d, %s", at, tr.firedAt())
		}
	}
}

// TestStoppedAtEveryOperation shuts the process down cleanly at each host operation.
func TestStoppedAtEveryOperation(t *testing.T) {
	w := newFixture(t, nil)
	for at := range w.countOperations(false) {
		interrupted := make(chan struct{})
		tr := w.setTrap(at, false, func(ctx context.Context) error {
			w.interrupt()
			close(interrupted)
			if end, _ := ctx.Deadline(); time.Until(end) < time.Hour {
				return nil // the cleanup is not interrupted
			}
			<-ctx.Done()
			return context.Cause(ctx)
		})
		b := w.enqueue(w.stagedSpec(1 + at))
		<-interrupted
		w.stop()
		w.checkLeftovers() // a clean shutdown removes everything
		w.h.SetHook(nil)
		w.start()
		if got, log := w.wait(b.ID); got.Status != api.BuildDone || got.Attempt != 1 {
			t.Errorf("after operation %d, %s: got %+v, want done in 1 attempt\n%s", at, tr.firedAt(), got, log)
		}
		if w.rebuild(1 + at); t.Failed() {
			t.Fatalf("after operation %d, %s", at, tr.firedAt())
		}
	}
}

// TestCancelledAtEveryOperation cancels a build at each host operation.
func TestCancelledAtEveryOperation(t *testing.T) {
	w := newFixture(t, nil)
	for at := range w.countOperations(false) {
		ids := make(chan api.BuildID, 1)
		cancelled := make(chan error, 1)
		tr := w.setTrap(at, false, func(ctx context.Context) error {
			id := <-ids
			go func() {
				_, err := w.Cancel(context.WithoutCancel(ctx), alice, id)
				cancelled <- err
			}()
			if end, _ := ctx.Deadline(); time.Until(end) < time.Hour {
				return nil // the cleanup is not interrupted
			}
			<-ctx.Done()
			return context.Cause(ctx)
		})
		b := w.enqueue(w.stagedSpec(1 + at))
		ids <- b.ID
		err := <-cancelled
		got, log := w.wait(b.ID)
		switch {
		case got.Status == api.BuildDone && api.CodeOf(err) == api.WrongState: // it was committed before
			w.CollectGarbage(t.Context())
		case err != nil || got.Code != api.Canceled || got.Error == "":
			t.Errorf("at operation %d, %s: Cancel: %v, got %+v, want canceled\n%s", at, tr.firedAt(), err, got, log)
		}
		if w.rebuild(1 + at); t.Failed() {
			t.Fatalf("after operation %d, %s", at, tr.firedAt())
		}
	}
}

// TestFaultAtEveryStep fails each internal step of a build, between its host operations.
func TestFaultAtEveryStep(t *testing.T) {
	var mu sync.Mutex
	var steps []string
	at := -1
	w := newFixture(t, func(c *build.Config) {
		c.OnStep = func(step string) error {
			mu.Lock()
			defer mu.Unlock()
			steps = append(steps, step)
			if len(steps)-1 == at {
				return errors.New("injected internal fault")
			}
			return nil
		}
	})
	w.mustBuild(w.stagedSpec(0))
	all := steps
	for n := range all {
		mu.Lock()
		steps, at = nil, n
		mu.Unlock()
		b, log := w.wait(w.enqueue(w.stagedSpec(n + 1)).ID)
		if b.Status != api.BuildFailed && all[n] != "commit" || b.Status == api.BuildFailed && b.Code != api.Internal {
			t.Errorf("%s: got %+v, want failed with code internal\n%s", all[n], b, log)
		}
		mu.Lock()
		at = -1
		mu.Unlock()
		if w.rebuild(n + 1); t.Failed() {
			t.Fatalf("after step %d, %s", n, all[n])
		}
	}
}
