package volume_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
)

// lab is what an operation works on: a volume "data" with the file f, "one", a snapshot of then, and f, "two". A
// sandbox has it if the operation wants that, and another sandbox has nothing.
type lab struct {
	*fixture
	box   api.SandboxID // that has data; "": none
	other api.SandboxID
	snap  api.VolumeSnapshotID
}

// operation is something of several steps that may be cut anywhere. want are the contents of f that data may have
// afterwards; "gone": the volume may be deleted.
type operation struct {
	name     string
	attached bool
	do       func(w *lab, ctx context.Context) error
	want     []string
}

var operations = []operation{
	{"create", false, func(w *lab, ctx context.Context) error {
		_, err := w.Create(ctx, alice, api.CreateVolumeRequest{Name: "new"})
		return err
	}, []string{"two"}},
	{"clone", true, func(w *lab, ctx context.Context) error {
		_, err := w.Clone(ctx, alice, "data", api.VolumeCloneRequest{Name: "new"})
		return err
	}, []string{"two"}},
	{"snapshot", true, func(w *lab, ctx context.Context) error {
		_, err := w.Snapshot(ctx, alice, "data", api.VolumeSnapshotRequest{})
		return err
	}, []string{"two"}},
	{"restore", false, func(w *lab, ctx context.Context) error {
		_, err := w.Restore(ctx, alice, "data", api.VolumeRestoreRequest{Snapshot: w.snap})
		return err
	}, []string{"one", "two"}},
	{"resize", true, func(w *lab, ctx context.Context) error {
		_, err := w.Update(ctx, alice, "data", api.VolumePatch{SizeMB: 512})
		return err
	}, []string{"two"}},
	{"attach", false, func(w *lab, ctx context.Context) error {
		_, err := w.Attach(ctx, alice, w.other, api.VolumeMount{Name: "data"})
		return err
	}, []string{"two"}},
	{"detach", true, func(w *lab, ctx context.Context) error {
		_, err := w.Detach(ctx, alice, w.box, "data", false)
		return err
	}, []string{"two"}},
	{"create-with-volume", false, func(w *lab, ctx context.Context) error {
		_, err := w.boxes.Create(ctx, alice, api.CreateRequest{Template: "base", Volumes: mounts("data")})
		return err
	}, []string{"two"}},
	{"delete-sandbox", true, func(w *lab, ctx context.Context) error {
		return w.boxes.Delete(ctx, alice, w.box)
	}, []string{"two"}},
	{"fork", true, func(w *lab, ctx context.Context) error {
		_, err := w.boxes.Fork(ctx, alice, w.box, api.ForkRequest{Count: 2})
		return err
	}, []string{"two"}},
	{"write-file", false, func(w *lab, ctx context.Context) error {
		g, release, err := w.Files(ctx, alice, "data", true)
		if err != nil {
			return err
		}
		defer release()
		_, err = g.Write(ctx, "f", guestapi.WriteOptions{Size: -1}, strings.NewReader("three"))
		return err
	}, []string{"two", "three"}},
	{"delete-snapshot", false, func(w *lab, ctx context.Context) error {
		return w.DeleteSnapshot(ctx, alice, "data", w.snap)
	}, []string{"two"}},
	{"delete", false, func(w *lab, ctx context.Context) error {
		return w.Delete(ctx, alice, "data", true)
	}, []string{"two", "gone"}},
}

// faultInjector lets steps of host and store fail: the step with number at, counted from 0, and with dead all steps
// after it, as if the program were gone.
type faultInjector struct {
	at, n     int
	dead, hit bool
}

var errCut = errors.New("cut here")

func (c *faultInjector) step() error {
	n := c.n
	c.n++
	if n == c.at || c.dead && n > c.at {
		c.hit = true
		return errCut
	}
	return nil
}

func (c *faultInjector) install(w *fixture) {
	quiet := map[string]bool{"capacity": true, "console": true, "usage": true, "templates": true, "volumes": true}
	w.host.SetHook(hosttest.Hook(func(_ context.Context, op, _ string, _ bool) error {
		if quiet[op] {
			return nil
		}
		return c.step()
	}))
	w.fault = func(string, bool) error { return c.step() }
}

func (c *faultInjector) remove(w *fixture) {
	w.host.SetHook(nil)
	w.fault = nil
}

// TestFailureAtEveryStep fails or kills every operation before and after each call of the host and each commit.
// Afterwards the program, started again if it was killed, reconciles; then store and host must agree, nothing may be
// left half done, and what was in the volume must be there.
func TestFailureAtEveryStep(t *testing.T) {
	for _, op := range operations {
		for _, dead := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s-%v", op.name, map[bool]string{true: "killed", false: "failed"}[dead]),
				func(t *testing.T) {
					for at := 0; ; at++ {
						c := &faultInjector{at: at, dead: dead}
						failOnce(t, op, c)
						if !c.hit {
							if at < 3 {
								t.Errorf("only %d steps were cut: the test sees nothing", at)
							}
							t.Logf("cut at %d steps", at)
							return
						}
					}
				})
		}
	}
}

func failOnce(t *testing.T, op operation, c *faultInjector) {
	w := &lab{fixture: newFixture(t)}
	ctx := t.Context()
	when := fmt.Sprintf("cut at %d", c.at)
	w.volume("data")
	w.putFile("data", "/f", "one")
	snap, err := w.Snapshot(ctx, alice, "data", api.VolumeSnapshotRequest{})
	w.must(err)
	w.snap = snap.ID
	w.putFile("data", "/f", "two")
	w.must(w.helpers.Yield(ctx, "alice", hostapi.Owner{}, mounts("data")))
	w.other = w.newBox()
	if op.attached {
		w.box = w.newBox("data")
	}
	c.install(w.fixture)
	err = op.do(w, ctx)
	c.remove(w.fixture)
	if c.hit && c.dead && err == nil && c.at < 2 {
		t.Errorf("%s: no error", when)
	}
	if c.dead {
		w.restart()
	}
	w.helpers.EndIdle(ctx)
	for range 2 { // the second finds nothing to do
		w.reconcile()
	}
	w.clean(when)
	if got := w.content(); !strings.Contains(strings.Join(op.want, " "), got) {
		t.Errorf("%s: the volume holds %q, want one of %q", when, got, op.want)
	}
	if got := w.content(); got == "gone" {
		return
	}
	// Its sandbox can detach it, and then it can be deleted.
	page, err := w.boxes.List(ctx, alice, api.SandboxFilter{})
	w.must(err)
	for _, b := range page.Sandboxes {
		w.end(b.ID)
	}
	w.must(w.Delete(ctx, alice, "data", true))
	w.helpers.EndIdle(ctx)
	w.clean(when + ", deleted")
	if all := w.host.Machines(); len(all) != 0 {
		t.Errorf("%s: machines are left: %+v", when, all)
	}
}

// content returns what f of the volume holds.
func (w *lab) content() string {
	w.t.Helper()
	g, release, err := w.Files(w.t.Context(), alice, "data", false)
	if api.CodeOf(err) == api.NotFound {
		return "gone"
	}
	w.must(err)
	defer w.helpers.EndIdle(w.t.Context())
	defer release()
	return w.read(g, "/f")
}
