package database_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/database"
	"github.com/pandastack/pandastack/internal/lib/scram"
)

// branched makes a database with the rows "one" and "two", and a branch with "one" and "own".
func (w *fixture) branched() (d, b api.Database) {
	w.t.Helper()
	ctx := w.t.Context()
	d = w.made()
	w.insert(d.ID, "one")
	b, err := w.Clone(ctx, alice, d.ID, api.CloneDatabaseRequest{})
	w.must(err)
	w.must(w.Reconcile(ctx))
	w.insert(d.ID, "two")
	w.insert(b.ID, "own")
	w.must(w.Reconcile(ctx)) // the backups begin
	return w.get(d.ID), w.get(b.ID)
}

// wantBranch checks that a branch has rows, and still its id, URL and credentials.
func (w *fixture) wantBranch(b api.Database, rows ...string) {
	w.t.Helper()
	got := w.get(b.ID)
	if got.Password != b.Password || got.ConnectionURL != b.ConnectionURL || got.BrokerToken != b.BrokerToken {
		w.t.Errorf("the connection is %+v, want that of %+v", got, b)
	}
	s := w.state(b.ID)
	if !slices.Equal(s.Rows, rows) {
		w.t.Errorf("the branch has rows %q, want %q", s.Rows, rows)
	}
	v, err := scram.ParseVerifier(s.Roles[database.RoleName])
	w.must(err)
	if _, ok, err := v.Check(b.Password); !ok || err != nil {
		w.t.Errorf("the branch has another password: %v", err)
	}
	w.sizes(b.ID)
}

func TestReset(t *testing.T) {
	r := newRecorder()
	w := newFixture(t, withBackups(r))
	ctx := t.Context()
	d, b := w.branched()
	_, err := w.Suspend(ctx, alice, d.ID)
	w.must(err)
	r.take()
	got, err := w.Reset(ctx, alice, b.ID, api.ResetDatabaseRequest{})
	if err != nil || got.Status != api.DatabaseRestoring || got.Password != b.Password {
		t.Fatalf("begun: %+v, %v", got, err)
	}
	w.must(w.Reconcile(ctx))
	if calls := r.take(); !strings.HasPrefix(calls, "flush end remove begin") {
		t.Errorf("the backups got the calls %q, want those of the old server, and then of the new one", calls)
	}
	w.wantBranch(b, "one", "two")
	w.whole("after a reset", 2)

	// A branch that sleeps, to a moment of the past.
	_, err = w.Suspend(ctx, alice, b.ID)
	w.must(err)
	at := time.Now().Add(-time.Minute)
	_, err = w.Reset(ctx, alice, b.ID, api.ResetDatabaseRequest{TargetTime: &at})
	w.wants("without a base backup", err, api.WrongState)
	r.based, r.rows = at, []string{"one"}
	_, err = w.Reset(ctx, alice, b.ID, api.ResetDatabaseRequest{TargetTime: &at})
	w.must(err)
	w.must(w.Reconcile(ctx))
	if r.restored.From != string(d.ID) || !r.restored.Target.Time.Equal(at) {
		t.Errorf("restored %+v, want the time %v of %s", r.restored, at, d.ID)
	}
	w.wantBranch(b, "one")
	w.whole("after two resets", 2)
	w.must(w.Delete(ctx, alice, d.ID))
	w.wantBranch(b, "one")
	_, err = w.Reset(ctx, alice, b.ID, api.ResetDatabaseRequest{})
	w.wants("a branch of a database that was deleted", err, api.WrongState)
	w.must(w.Delete(ctx, alice, b.ID))
	w.empty("deleted")
}

func TestResetRefusals(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	d, b := w.branched()
	_, err := w.Reset(ctx, alice, d.ID, api.ResetDatabaseRequest{})
	w.wants("a database that is no branch", err, api.WrongState)
	_, err = w.Reset(ctx, bob, b.ID, api.ResetDatabaseRequest{})
	w.wants("a branch of another workspace", err, api.NotFound)
	_, err = w.Reset(ctx, alice, b.ID, api.ResetDatabaseRequest{TargetTime: new(time.Now())})
	w.wants("the past without backups", err, api.Unsupported)
	again, err := w.Clone(ctx, alice, b.ID, api.CloneDatabaseRequest{})
	w.must(err)
	e := w.wants("a branch that is being branched", func() error {
		_, err := w.Reset(ctx, alice, b.ID, api.ResetDatabaseRequest{})
		return err
	}(), api.Conflict)
	if e.Details["database_id"] != string(again.ID) {
		t.Errorf("details %v, want the branch", e.Details)
	}
	w.must(w.Reconcile(ctx))

	// One that cannot be reset stays as it is, and says why.
	w.fake.Fail("CHECKPOINT", errors.New("no"))
	_, err = w.Reset(ctx, alice, b.ID, api.ResetDatabaseRequest{})
	w.must(err)
	w.must(w.Reconcile(ctx))
	if got := w.get(b.ID); got.Status != api.DatabaseHibernated || !strings.Contains(got.Error, "the reset failed") {
		t.Errorf("a reset that failed: %s, %q", got.Status, got.Error)
	}
	w.wantBranch(b, "one", "own")
	_, err = w.Reset(ctx, alice, b.ID, api.ResetDatabaseRequest{})
	w.must(err)
	w.must(w.Reconcile(ctx))
	if got := w.get(b.ID); got.Error != "" {
		t.Errorf("a reset that succeeded: %q", got.Error)
	}
	w.wantBranch(b, "one", "two") // without backups
	w.whole("after a reset", 3)
}

// TestResetAtEveryStep fails or kills a reset as TestFailureAtEveryStep does. Afterwards the branch has what it had, or
// what its database has, on one server with its credentials; and it can be reset.
func TestResetAtEveryStep(t *testing.T) {
	for _, dead := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed=%v", dead), func(t *testing.T) {
			for at := 0; ; at++ {
				c := &faultInjector{at: at, dead: dead}
				resetOnce(t, c)
				if t.Failed() {
					t.Fatalf("after a cut at step %d", at)
				}
				if !c.hit {
					if at < 20 {
						t.Errorf("only %d steps were cut: the test sees nothing", at)
					}
					t.Logf("cut at %d steps", at)
					return
				}
			}
		})
	}
}

func resetOnce(t *testing.T, c *faultInjector) {
	t.Helper()
	r := newRecorder()
	w := newFixture(t, withBackups(r), func(w *fixture) { w.cfg.EndTimeout = time.Millisecond })
	ctx := t.Context()
	d, b := w.branched()
	c.install(w)
	r.step = c.step
	_, err := w.Reset(ctx, alice, b.ID, api.ResetDatabaseRequest{})
	_ = errors.Join(err, w.Reconcile(ctx)) // what became of it is seen below
	r.step = nil
	c.remove(w)
	if c.dead {
		w.restart()
	}
	w.reconcile()
	got := w.get(b.ID)
	if got.Status == api.DatabaseRestoring {
		t.Errorf("the branch is %s: %s", got.Status, got.Error)
	}
	w.whole("a reset that was cut", 2)
	if got.SandboxID == b.SandboxID {
		w.wantBranch(b, "one", "own")
		_, err := w.Reset(ctx, alice, b.ID, api.ResetDatabaseRequest{})
		w.must(err)
		w.reconcile()
	}
	w.wantBranch(b, "one", "two")
	if s := w.state(d.ID); !slices.Equal(s.Rows, []string{"one", "two"}) {
		t.Errorf("the database has rows %q", s.Rows)
	}
	w.must(w.Delete(ctx, alice, d.ID))
	w.must(w.Delete(ctx, alice, b.ID))
	w.empty("deleted")
}
