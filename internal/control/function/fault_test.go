package function_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
)

// faultInjector lets steps of host, store and builds fail: the step with number at, counted from 0, and with dead all
// steps after it, as if the program were gone.
type faultInjector struct {
	dead bool
	quit context.CancelFunc // of those who wait for a program that is gone; nil: none

	mu    sync.Mutex
	at, n int
	hit   bool
}

var errCut = errors.New("cut here")

func (c *faultInjector) step() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.n
	c.n++
	if n != c.at && (!c.dead || n < c.at) {
		return nil
	}
	c.hit = true
	if c.dead && c.quit != nil {
		c.quit()
	}
	return errCut
}

// kill makes all further steps fail.
func (c *faultInjector) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.n
}

func (c *faultInjector) install(w *fixture) {
	quiet := map[string]bool{"capacity": true, "console": true, "usage": true, "templates": true, "guest": true}
	w.host.SetHook(hosttest.Hook(func(_ context.Context, op, _ string, _ bool) error {
		if quiet[op] {
			return nil
		}
		return c.step()
	}))
	w.hook(hooks{steps: func(string) error { return c.step() }, blob: c.step,
		fault: func(op string, _ bool) error {
			if op == "app log" { // it is written at any time
				return nil
			}
			return c.step()
		}})
}

func (c *faultInjector) remove(w *fixture) {
	w.host.SetHook(nil)
	w.hook(hooks{})
}

// settle compares everything with the host, as a program that has started does, until nothing is left to do.
func (w *fixture) settle() {
	w.t.Helper()
	for range 2 {
		w.must(w.boxes.Reconcile(w.t.Context()))
		w.Attend(w.t.Context())
	}
}

// operation is something of several steps that may be cut anywhere, on a function whose version 1 is served.
type operation struct {
	name   string
	do     func(w *fixture, ctx context.Context) error
	change func(*api.CreateFunctionRequest)
	want   []string // code that may be served afterwards; nil: the function is gone
}

func deployTwo(w *fixture, ctx context.Context) error {
	bundle := w.archive("handler.py", code{Name: "two"}.String(), "requirements.txt", "flask\n")
	_, err := w.Deploy(ctx, alice, "fn", strings.NewReader(bundle), "", false)
	w.Attend(ctx)
	return err
}

func invokeOnce(w *fixture, ctx context.Context) error {
	_, err := w.Invoke(ctx, alice, "fn", api.InvokeRequest{IdempotencyKey: "key"})
	return err
}

var operations = []operation{
	{"deploy", deployTwo, nil, []string{"one", "two"}},
	{"variables", func(w *fixture, ctx context.Context) error {
		_, err := w.Update(ctx, alice, "fn", api.UpdateFunctionRequest{Env: &map[string]string{"KEY": "new"}})
		w.Attend(ctx)
		return err
	}, nil, []string{"one"}},
	{"invoke", invokeOnce, nil, []string{"one"}},
	{"invoke-shared", invokeOnce, shared, []string{"one"}},
	{"delete", func(w *fixture, ctx context.Context) error {
		return w.Delete(ctx, alice, "fn")
	}, nil, nil},
}

// TestFailureAtEveryStep fails or kills every operation before and after each call of the host, each commit, and in the
// build. Afterwards the program, started again if it was killed, looks at all functions. Then the function serves one
// of the versions that it may, and each snapshot and machine is named by a row. Of a deleted function nothing is left.
func TestFailureAtEveryStep(t *testing.T) {
	for _, op := range operations {
		for _, dead := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s-%v", op.name, map[bool]string{true: "killed", false: "failed"}[dead]),
				func(t *testing.T) {
					for at := 0; ; at++ {
						c := &faultInjector{at: at, dead: dead}
						failOnce(t, op, c)
						if t.Failed() {
							t.Fatalf("after a cut at step %d", at)
						}
						if c.hit {
							continue
						}
						if at < 3 {
							t.Errorf("only %d steps were cut: the test sees nothing", at)
						}
						t.Logf("cut at %d steps", at)
						return
					}
				})
		}
	}
}

func failOnce(t *testing.T, op operation, c *faultInjector) {
	t.Helper()
	w := newFixture(t)
	change := op.change
	if change == nil {
		change = func(*api.CreateFunctionRequest) {}
	}
	w.made(change)
	w.live(code{Name: "one"})
	ctx, quit := context.WithCancel(t.Context())
	defer quit()
	c.quit = quit
	c.install(w)
	err := op.do(w, ctx) // what became of it is seen below
	if c.dead {
		w.end()
	}
	c.remove(w)
	if c.dead {
		w.start()
	}
	w.settle()
	if op.want == nil {
		if _, e := w.Get(t.Context(), alice, "fn"); e == nil {
			if err == nil {
				t.Error("the function was deleted and is there")
			}
			w.must(w.Delete(t.Context(), alice, "fn"))
		}
		w.settle()
		w.gone(op.name)
		return
	}
	got, ok := w.call("").Code, false
	for _, name := range op.want {
		ok = ok || got == name
	}
	if !ok {
		t.Errorf("response is %q, want one of %q", got, op.want)
	}
	if fn := w.get(); !fn.IsReady || fn.Status == api.FunctionBuilding {
		t.Errorf("%+v", fn)
	}
	w.whole(op)
	w.must(w.Delete(t.Context(), alice, "fn"))
	w.settle()
	w.gone(op.name + ", deleted")
}

// whole checks that nothing is there that no row names.
func (w *fixture) whole(op operation) {
	w.t.Helper()
	if op.change == nil {
		w.quiet()
		w.settle()
	}
	named, have := w.named()
	if named != have {
		w.t.Errorf("%s: rows name %s, there are %s", op.name, named, have)
	}
}
