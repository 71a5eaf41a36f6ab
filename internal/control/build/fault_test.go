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

// staged builds two stages and copies between them; %d makes every step of it another.
const staged = `FROM img:%[1]d AS tools
RUN echo tool > /tool
FROM base
ENV N=%[1]d
WORKDIR /srv
COPY app.txt ./
COPY --from=tools /tool /opt/
RUN cat app.txt /opt/tool > copied
CMD ["echo", "up"]
`

// staged answers the n-th build of its kind: nothing of another serves it as a layer.
func (w *world) staged(n int) (build.Spec, map[string]string) {
	ref := fmt.Sprintf("img:%d", n)
	w.mu.Lock()
	w.images[ref] = image{digest: "sha256:" + ref, files: map[string]string{"etc/os": "img"}}
	w.mu.Unlock()
	return dockerfileOf("app", fmt.Sprintf(staged, n)), map[string]string{"app.txt": "app\n"}
}

// trap is laid at one of the operations that builds ask of the host.
type trap struct {
	mu     sync.Mutex
	at     int // operations until it snaps; negative: it has
	count  int
	op     string // it snapped at
	snap   func(ctx context.Context) error
	always error // of all operations after it
	after  bool  // the operation has happened when it snaps
}

// lay puts a trap at the operation at of the builds that follow. Operations that sweeping and people ask for
// do not count: their contexts have no deadline. With names only operations of those names do.
func (w *world) lay(at int, after bool, snap func(ctx context.Context) error, only ...string) *trap {
	tr := &trap{at: at, after: after, snap: snap}
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
		return tr.snap(ctx)
	})
	w.t.Cleanup(func() { w.h.SetHook(nil) })
	return tr
}

func (tr *trap) snapped() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.op
}

// operations counts what a build asks of the host, with names only operations of those names, and with after
// only those that go well.
func (w *world) operations(after bool, only ...string) int {
	w.t.Helper()
	tr := w.lay(-1, after, nil, only...)
	w.built(w.staged(0))
	w.h.SetHook(nil)
	if tr.count < 10 {
		w.t.Fatalf("the build asked the host %d times only", tr.count)
	}
	return tr.count
}

// again builds what a fault struck once more, from the layers that are left.
func (w *world) again(n int) {
	w.t.Helper()
	w.h.SetHook(nil)
	w.left()
	spec, files := w.staged(n)
	spec.NoCache = false
	if b := w.begin(spec, files); !b.Reused {
		if b, log := w.ended(b.ID); b.Status != api.BuildDone || !strings.Contains(log, "is ready") {
			w.t.Fatalf("once more: %+v\n%s", b, log)
		}
	}
	if got := w.holds("app", "/srv/copied"); got != "app\ntool\n" {
		w.t.Fatalf("the template holds %q", got)
	}
	w.left()
}

// TestFaultAtEveryOperation lets each operation of a build fail once, before it happens and after.
func TestFaultAtEveryOperation(t *testing.T) {
	for _, after := range []bool{false, true} {
		w := newWorld(t, nil)
		all := w.operations(after)
		for at := range all {
			n := at + 1
			tr := w.lay(at, after, func(context.Context) error { return errors.New("a fault of the host") })
			b, log := w.ended(w.begin(w.staged(n)).ID)
			if tr.snapped() == "" {
				t.Fatalf("operation %d did not come", at)
			}
			where := fmt.Sprintf("operation %d, %s, after %v", at, tr.snapped(), after)
			switch {
			case b.Status == api.BuildDone && at < all-8:
				t.Errorf("%s: the build is done all the same\n%s", where, log)
			case b.Status == api.BuildDone: // its template stood: only clean-up failed
				w.Sweep(t.Context())
			case b.Code == "" || b.Error == "" || b.EndedAt == nil:
				t.Errorf("%s: %+v", where, b)
			}
			if w.again(n); t.Failed() {
				t.Fatalf("after %s", where)
			}
		}
	}
}

// TestFullDiskAtEveryOperation lets the disk of the host be full from each operation on.
func TestFullDiskAtEveryOperation(t *testing.T) {
	w := newWorld(t, nil)
	writes := []string{"importimage", "create", "takesnapshot", "publish"}
	for at := range w.operations(false, writes...) {
		tr := w.lay(
			at,
			false,
			func(context.Context) error { return fmt.Errorf("write: %w", hostapi.ErrNoSpace) },
			writes...)
		b, _ := w.ended(w.begin(w.staged(1 + at)).ID)
		if b.Code != api.NoSpace || !strings.Contains(b.Error, "no disk space") ||
			!strings.Contains(b.Error, "delete") {
			t.Errorf("%s: %s: %q", tr.snapped(), b.Code, b.Error)
		}
		if w.again(1 + at); t.Failed() {
			t.Fatalf("after operation %d, %s", at, tr.snapped())
		}
	}
}

// TestKilledAtEveryOperation ends the process at each operation without another word to host or store, and
// lets the next one go on.
func TestKilledAtEveryOperation(t *testing.T) {
	w := newWorld(t, nil)
	for at := range w.operations(false) {
		killed := make(chan struct{})
		var tr *trap
		tr = w.lay(at, false, func(context.Context) error {
			tr.mu.Lock()
			tr.always = errors.New("the process is gone")
			tr.mu.Unlock()
			defer close(killed)
			return errors.Join(tr.always, w.db.Close())
		})
		b := w.begin(w.staged(1 + at))
		<-killed
		w.stop()
		w.h.SetHook(nil)
		w.start()
		got, log := w.ended(b.ID)
		if got.Status != api.BuildDone || got.Attempt > 2 {
			t.Errorf("after operation %d, %s: %+v\n%s", at, tr.snapped(), got, log)
		}
		w.Sweep(t.Context())
		if w.again(1 + at); t.Failed() {
			t.Fatalf("after operation %d, %s", at, tr.snapped())
		}
	}
}

// TestStoppedAtEveryOperation stops the process cleanly at each operation.
func TestStoppedAtEveryOperation(t *testing.T) {
	w := newWorld(t, nil)
	for at := range w.operations(false) {
		told := make(chan struct{})
		tr := w.lay(at, false, func(ctx context.Context) error {
			w.halt()
			close(told)
			return context.Cause(ctx)
		})
		b := w.begin(w.staged(1 + at))
		<-told
		w.stop()
		w.left() // a stop has the time to clean up
		w.h.SetHook(nil)
		w.start()
		if got, log := w.ended(b.ID); got.Status != api.BuildDone || got.Attempt != 1 {
			t.Errorf("after operation %d, %s: %+v\n%s", at, tr.snapped(), got, log)
		}
		if w.again(1 + at); t.Failed() {
			t.Fatalf("after operation %d, %s", at, tr.snapped())
		}
	}
}

// TestCancelledAtEveryOperation cancels a build at each operation.
func TestCancelledAtEveryOperation(t *testing.T) {
	w := newWorld(t, nil)
	for at := range w.operations(false) {
		ids := make(chan api.BuildID, 1)
		cancelled := make(chan error, 1)
		tr := w.lay(at, false, func(ctx context.Context) error {
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
		b := w.begin(w.staged(1 + at))
		ids <- b.ID
		err := <-cancelled
		got, log := w.ended(b.ID)
		switch {
		case got.Status == api.BuildDone && api.CodeOf(err) == api.WrongState: // its template stood
			w.Sweep(t.Context())
		case err != nil || got.Code != api.Canceled || got.Error == "":
			t.Errorf("at operation %d, %s: %v, %+v\n%s", at, tr.snapped(), err, got, log)
		}
		if w.again(1 + at); t.Failed() {
			t.Fatalf("after operation %d, %s", at, tr.snapped())
		}
	}
}

// TestFaultAtEveryStep lets each step of a build's life fail, between what it asks of the host.
func TestFaultAtEveryStep(t *testing.T) {
	var mu sync.Mutex
	var steps []string
	at := -1
	w := newWorld(t, func(c *build.Config) {
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
	w.built(w.staged(0))
	all := steps
	for n := range all {
		mu.Lock()
		steps, at = nil, n
		mu.Unlock()
		b, log := w.ended(w.begin(w.staged(n + 1)).ID)
		if b.Status != api.BuildFailed && all[n] != "commit" || b.Status == api.BuildFailed && b.Code != api.Internal {
			t.Errorf("%s: %+v\n%s", all[n], b, log)
		}
		mu.Lock()
		at = -1
		mu.Unlock()
		if w.again(n + 1); t.Failed() {
			t.Fatalf("after step %d, %s", n, all[n])
		}
	}
}
