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

// stagedDockerfile builds two stages and copies between them; %d makes every step of it another.
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

// stagedSpec answers the n-th build of its kind: nothing of another serves it as a layer.
func (w *fixture) stagedSpec(n int) (build.Spec, map[string]string) {
	ref := fmt.Sprintf("img:%d", n)
	w.mu.Lock()
	w.images[ref] = image{digest: "sha256:" + ref, files: map[string]string{"etc/os": "img"}}
	w.mu.Unlock()
	return dockerfileOf("app", fmt.Sprintf(stagedDockerfile, n)), map[string]string{"app.txt": "app\n"}
}

// trap is laid at one of the operations that builds ask of the host.
type trap struct {
	mu     sync.Mutex
	at     int // operations until it snaps; negative: it has
	count  int
	op     string // it snapped at
	action func(ctx context.Context) error
	always error // of all operations after it
	after  bool  // the operation has happened when it snaps
}

// setTrap puts a trap at the operation at of the builds that follow. Operations that sweeping and people ask for
// do not count: their contexts have no deadline. With names only operations of those names do.
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

// countOperations counts what a build asks of the host, with names only operations of those names, and with after
// only those that go well.
func (w *fixture) countOperations(after bool, only ...string) int {
	w.t.Helper()
	tr := w.setTrap(-1, after, nil, only...)
	w.mustBuild(w.stagedSpec(0))
	w.h.SetHook(nil)
	if tr.count < 10 {
		w.t.Fatalf("the build asked the host %d times only", tr.count)
	}
	return tr.count
}

// rebuild builds what a fault struck once more, from the layers that are left.
func (w *fixture) rebuild(n int) {
	w.t.Helper()
	w.h.SetHook(nil)
	w.checkLeftovers()
	spec, files := w.stagedSpec(n)
	spec.NoCache = false
	if b := w.enqueue(spec, files); !b.Reused {
		if b, log := w.wait(b.ID); b.Status != api.BuildDone || !strings.Contains(log, "is ready") {
			w.t.Fatalf("once more: %+v\n%s", b, log)
		}
	}
	if got := w.readFile("app", "/srv/copied"); got != "app\ntool\n" {
		w.t.Fatalf("the template holds %q", got)
	}
	w.checkLeftovers()
}

// TestFaultAtEveryOperation lets each operation of a build fail once, before it happens and after.
func TestFaultAtEveryOperation(t *testing.T) {
	for _, after := range []bool{false, true} {
		w := newFixture(t, nil)
		all := w.countOperations(after)
		for at := range all {
			n := at + 1
			tr := w.setTrap(at, after, func(context.Context) error { return errors.New("a fault of the host") })
			b, log := w.wait(w.enqueue(w.stagedSpec(n)).ID)
			if tr.firedAt() == "" {
				t.Fatalf("operation %d did not come", at)
			}
			where := fmt.Sprintf("operation %d, %s, after %v", at, tr.firedAt(), after)
			switch {
			case b.Status == api.BuildDone && at < all-8:
				t.Errorf("%s: the build is done all the same\n%s", where, log)
			case b.Status == api.BuildDone: // its template stood: only clean-up failed
				w.CollectGarbage(t.Context())
			case b.Code == "" || b.Error == "" || b.EndedAt == nil:
				t.Errorf("%s: %+v", where, b)
			}
			if w.rebuild(n); t.Failed() {
				t.Fatalf("after %s", where)
			}
		}
	}
}

// TestFullDiskAtEveryOperation lets the disk of the host be full from each operation on.
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
			t.Errorf("%s: %s: %q", tr.firedAt(), b.Code, b.Error)
		}
		if w.rebuild(1 + at); t.Failed() {
			t.Fatalf("after operation %d, %s", at, tr.firedAt())
		}
	}
}

// TestKilledAtEveryOperation ends the process at each operation without another word to host or store, and
// lets the next one go on.
func TestKilledAtEveryOperation(t *testing.T) {
	w := newFixture(t, nil)
	for at := range w.countOperations(false) {
		killed := make(chan struct{})
		var tr *trap
		tr = w.setTrap(at, false, func(context.Context) error {
			tr.mu.Lock()
			tr.always = errors.New("the process is gone")
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
			t.Errorf("after operation %d, %s: %+v\n%s", at, tr.firedAt(), got, log)
		}
		w.CollectGarbage(t.Context())
		if w.rebuild(1 + at); t.Failed() {
			t.Fatalf("after operation %d, %s", at, tr.firedAt())
		}
	}
}

// TestStoppedAtEveryOperation stops the process cleanly at each operation.
func TestStoppedAtEveryOperation(t *testing.T) {
	w := newFixture(t, nil)
	for at := range w.countOperations(false) {
		told := make(chan struct{})
		tr := w.setTrap(at, false, func(ctx context.Context) error {
			w.interrupt()
			close(told)
			if end, _ := ctx.Deadline(); time.Until(end) < time.Hour {
				return nil // the cleanup is not interrupted
			}
			<-ctx.Done()
			return context.Cause(ctx)
		})
		b := w.enqueue(w.stagedSpec(1 + at))
		<-told
		w.stop()
		w.checkLeftovers() // a stop has the time to clean up
		w.h.SetHook(nil)
		w.start()
		if got, log := w.wait(b.ID); got.Status != api.BuildDone || got.Attempt != 1 {
			t.Errorf("after operation %d, %s: %+v\n%s", at, tr.firedAt(), got, log)
		}
		if w.rebuild(1 + at); t.Failed() {
			t.Fatalf("after operation %d, %s", at, tr.firedAt())
		}
	}
}

// TestCancelledAtEveryOperation cancels a build at each operation.
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
				return nil // what tidies up is not told to stop
			}
			<-ctx.Done()
			return context.Cause(ctx)
		})
		b := w.enqueue(w.stagedSpec(1 + at))
		ids <- b.ID
		err := <-cancelled
		got, log := w.wait(b.ID)
		switch {
		case got.Status == api.BuildDone && api.CodeOf(err) == api.WrongState: // its template stood
			w.CollectGarbage(t.Context())
		case err != nil || got.Code != api.Canceled || got.Error == "":
			t.Errorf("at operation %d, %s: %v, %+v\n%s", at, tr.firedAt(), err, got, log)
		}
		if w.rebuild(1 + at); t.Failed() {
			t.Fatalf("after operation %d, %s", at, tr.firedAt())
		}
	}
}

// TestFaultAtEveryStep lets each step of a build's life fail, between what it asks of the host.
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
				return errors.New("a fault of ours")
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
			t.Errorf("%s: %+v\n%s", all[n], b, log)
		}
		mu.Lock()
		at = -1
		mu.Unlock()
		if w.rebuild(n + 1); t.Failed() {
			t.Fatalf("after step %d, %s", n, all[n])
		}
	}
}
