package app_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
)

// operation is something of several steps that may be cut anywhere, on an app that shows "version one".
type operation struct {
	name string
	do   func(w *fixture, ctx context.Context, a api.App) error
	want []string // versions that the app may show afterwards; nil: it is gone
}

var operations = []operation{
	{"deploy", func(w *fixture, ctx context.Context, a api.App) error {
		_, err := w.Deploy(ctx, alice, "site", api.DeployRequest{GitRef: "new"})
		return errors.Join(err, w.Reconcile(ctx))
	}, []string{"two", "new"}},
	{"rollback", func(w *fixture, ctx context.Context, a api.App) error {
		_, err := w.Rollback(ctx, alice, "site", api.RollbackRequest{})
		return errors.Join(err, w.Reconcile(ctx))
	}, []string{"two", "one"}},
	{"scale", func(w *fixture, ctx context.Context, a api.App) error {
		return w.Wake(ctx, a.ID, 2)
	}, []string{"two"}},
	{"delete", func(w *fixture, ctx context.Context, a api.App) error {
		return w.Delete(ctx, alice, "site")
	}, nil},
}

// faultInjector lets steps of host, store and builder fail: the step with number at, counted from 0, and with dead all
// steps after it, as if the program were gone.
type faultInjector struct {
	mu        sync.Mutex
	at, n     int
	dead, hit bool
}

var errCut = errors.New("cut here")

func (c *faultInjector) step() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.n
	c.n++
	if n == c.at || c.dead && n > c.at {
		c.hit = true
		return errCut
	}
	return nil
}

func (c *faultInjector) install(w *fixture) {
	quiet := map[string]bool{"capacity": true, "console": true, "usage": true, "templates": true, "guest": true}
	w.host.SetHook(hosttest.Hook(func(_ context.Context, op, _ string, _ bool) error {
		if quiet[op] {
			return nil
		}
		return c.step()
	}))
	w.builder.steps = c.step
	w.fault = func(op string, _ bool) error {
		if op == "app log" { // it is written at any time
			return nil
		}
		return c.step()
	}
}

func (c *faultInjector) remove(w *fixture) {
	w.host.SetHook(nil)
	w.builder.steps = nil
	w.fault = nil
}

// TestFailureAtEveryStep fails or kills every operation before and after each call of the host, each commit, and in the
// build. Afterwards the program, started again if it was killed, reconciles. Then the app shows one of the versions
// that it may, every machine is a replica's, every snapshot is a deployment's, and of a deleted app nothing is left.
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
						if t.Failed() {
							t.Fatalf("after a cut at step %d", at)
						}
					}
				})
		}
	}
}

func failOnce(t *testing.T, op operation, c *faultInjector) {
	t.Helper()
	w := newFixture(t)
	ctx := t.Context()
	a := w.made(func(r *api.CreateAppRequest) { r.Scale = &api.AppScale{Max: 3} })
	w.live(a, "one")
	w.live(a, "two")
	c.install(w)
	err := op.do(w, ctx, a) // what became of it is seen below
	c.remove(w)
	if c.dead {
		w.restart()
	}
	w.settle()
	if op.want == nil {
		if api.CodeOf(func() error { _, err := w.Get(ctx, alice, "site"); return err }()) != api.NotFound {
			if err == nil {
				t.Error("the app was deleted and is there")
			}
			w.must(w.Delete(ctx, alice, "site"))
		}
		w.settle()
		w.empty(op.name)
		return
	}
	w.whole(op.name)
	got, ok := w.page(a, ""), false
	for _, version := range op.want {
		ok = ok || got == "version "+version
	}
	if !ok {
		t.Errorf("response is %q, want one of %q", got, op.want)
	}
	if live := w.get(a); live.Status != api.AppRunning || live.ActiveDeploymentID == "" {
		t.Errorf("%+v", live)
	}
	w.must(w.Delete(ctx, alice, "site"))
	w.settle()
	w.empty(op.name + ", deleted")
}

// settle compares everything with the host, as a program that has started does, until nothing is left to do.
func (w *fixture) settle() {
	w.t.Helper()
	for range 2 {
		w.must(w.boxes.Reconcile(w.t.Context()))
		w.must(w.Reconcile(w.t.Context()))
	}
}
