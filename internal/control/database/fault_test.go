package database_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/control/database"
	"github.com/pandastack/pandastack/internal/lib/scram"
)

// operation is something of several steps that may be cut anywhere, on a database with the row "one".
type operation struct {
	name  string
	sleep bool // the database sleeps before it
	do    func(w *fixture, ctx context.Context, id api.DatabaseID) error
}

var operations = []operation{
	{"create", false, func(w *fixture, ctx context.Context, _ api.DatabaseID) error {
		_, err := w.Create(ctx, alice, api.CreateDatabaseRequest{Label: "new"})
		return errors.Join(err, w.Reconcile(ctx))
	}},
	{"suspend", false, func(w *fixture, ctx context.Context, id api.DatabaseID) error {
		_, err := w.Suspend(ctx, alice, id)
		return err
	}},
	{"wake", true, func(w *fixture, ctx context.Context, id api.DatabaseID) error {
		_, err := w.Wake(ctx, alice, id)
		return err
	}},
	{"reset-credentials", false, func(w *fixture, ctx context.Context, id api.DatabaseID) error {
		_, err := w.ResetCredentials(ctx, alice, id)
		return err
	}},
	{"branch", false, func(w *fixture, ctx context.Context, id api.DatabaseID) error {
		_, err := w.Clone(ctx, alice, id, api.CloneDatabaseRequest{})
		return errors.Join(err, w.Reconcile(ctx))
	}},
	{"schema-only", false, func(w *fixture, ctx context.Context, id api.DatabaseID) error {
		_, err := w.Clone(ctx, alice, id, api.CloneDatabaseRequest{SchemaOnly: true})
		return errors.Join(err, w.Reconcile(ctx))
	}},
	{"delete", false, func(w *fixture, ctx context.Context, id api.DatabaseID) error {
		return w.Delete(ctx, alice, id)
	}},
	{"delete-asleep", true, func(w *fixture, ctx context.Context, id api.DatabaseID) error {
		return w.Delete(ctx, alice, id)
	}},
}

// faultInjector lets steps of host, store and server fail: the step with number at, counted from 0, and with dead all
// steps after it, as if the program were gone.
type faultInjector struct {
	mu        sync.Mutex
	at, n     int
	dead, hit bool
	quiet     bool // calls of the test itself
}

// watch calls f, whose steps do not fail and are not counted.
func (c *faultInjector) watch(f func()) {
	set := func(quiet bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.quiet = quiet
	}
	set(true)
	defer set(false)
	f()
}

var errCut = errors.New("cut here")

func (c *faultInjector) step() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.quiet {
		return nil
	}
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
	w.fake.SetHook(func(string, bool) error { return c.step() })
	w.fault = func(string, bool) error { return c.step() }
}

func (c *faultInjector) remove(w *fixture) {
	w.host.SetHook(nil)
	w.fake.SetHook(nil)
	w.fault = nil
}

// TestFailureAtEveryStep fails or kills every operation before and after each call of the host, each statement of the
// server and each commit. Afterwards the program, started again if it was killed, reconciles. Then every database has
// exactly one machine and one volume, its row is there, its password is the one that is shown, and what was deleted or
// could not be made has nothing.
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
	w := newFixture(t, func(w *fixture) { w.cfg.EndTimeout = time.Millisecond })
	ctx := t.Context()
	d := w.made()
	w.insert(d.ID, "one")
	if op.sleep {
		_, err := w.Suspend(ctx, alice, d.ID)
		w.must(err)
	}
	c.install(w)
	_ = op.do(w, ctx, d.ID) // what became of it is seen below
	c.remove(w)
	if c.dead {
		w.restart()
	}
	w.reconcile()
	all, err := w.List(ctx, alice)
	w.must(err)
	n := 0
	for _, one := range all {
		if one.Status == api.DatabaseFailed && one.ID != d.ID {
			continue // it has nothing
		}
		n++
		if one.ID == d.ID {
			if s := w.state(d.ID); !slices.Equal(s.Rows, []string{"one"}) {
				t.Errorf("rows %q", s.Rows)
			}
		}
		verifier, err := w.endpoint(one.ID).Verifier(ctx, database.RoleName)
		w.must(err)
		v, err := scram.ParseVerifier(verifier)
		w.must(err)
		if _, ok, err := v.Check(w.get(one.ID).Password); !ok || err != nil {
			t.Errorf("database %s has another password than is shown: %v", one.ID, err)
		}
	}
	w.whole(op.name, n)
	for _, one := range all {
		w.must(w.Delete(ctx, alice, one.ID))
	}
	w.empty(op.name + ", deleted")
}
