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
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/lib/scram"
)

// branches returns the branches of a database.
func (w *fixture) branches(of api.DatabaseID) (all []api.Database) {
	w.t.Helper()
	list, err := w.List(w.t.Context(), alice)
	w.must(err)
	for _, one := range list {
		if one.ClonedFrom == of {
			all = append(all, one)
		}
	}
	return all
}

// wantLogin checks that the server of a database has the password that is shown.
func (w *fixture) wantLogin(id api.DatabaseID) {
	w.t.Helper()
	v, err := scram.ParseVerifier(w.state(id).Roles[database.RoleName])
	w.must(err)
	if _, ok, err := v.Check(w.get(id).Password); !ok || err != nil {
		w.t.Errorf("database %s has another password than is shown: %v", id, err)
	}
}

// wantUpgraded checks a database with the row "one" after an upgrade, and returns the branch that keeps what it had.
func (w *fixture) wantUpgraded(d api.Database) api.Database {
	w.t.Helper()
	got := w.get(d.ID)
	if got.Password != d.Password || got.ConnectionURL != d.ConnectionURL || got.BrokerToken != d.BrokerToken {
		w.t.Errorf("the connection is %+v, want that of %+v", got, d)
	}
	if got.Template != "postgres-17" || !strings.HasPrefix(got.Version, "17.") || got.Error != "" ||
		!slices.Equal(got.Extensions, []string{"hstore", "vector"}) {
		w.t.Errorf("upgraded: %+v", got)
	}
	w.wantLogin(d.ID)
	if s := w.state(d.ID); !slices.Equal(s.Rows, []string{"one"}) {
		w.t.Errorf("rows %q", s.Rows)
	}
	kept := w.branches(d.ID)
	if len(kept) != 1 {
		w.t.Fatalf("%d branches keep what the database had, want 1", len(kept))
	}
	k := w.get(kept[0].ID)
	if k.Template != "postgres-16" || k.Version != "16.14" || k.Password == d.Password || k.ExpiresAt == nil {
		w.t.Errorf("the branch that keeps what it had: %+v", k)
	}
	w.wantLogin(k.ID)
	if s := w.state(k.ID); !slices.Equal(s.Rows, []string{"one"}) {
		w.t.Errorf("the branch has rows %q", s.Rows)
	}
	return k
}

func TestUpgrade(t *testing.T) {
	r := newRecorder()
	w := newFixture(t, withBackups(r))
	ctx := t.Context()
	d := w.made()
	w.insert(d.ID, "one")
	w.must(w.Reconcile(ctx)) // the backups begin
	_, err := w.Suspend(ctx, alice, d.ID)
	w.must(err)
	r.take()
	got, err := w.Upgrade(ctx, alice, d.ID, api.UpgradeDatabaseRequest{KeepSeconds: 3600})
	w.must(err)
	if got.Status != api.DatabaseRestoring || !got.PreviousID.Valid() {
		t.Errorf("begun: %+v", got)
	}
	w.must(w.Reconcile(ctx))
	if calls := r.take(); !strings.Contains(calls, "remove begin") {
		t.Errorf("the backups got the calls %q, want them to begin again", calls)
	}
	k := w.wantUpgraded(d)
	if k.ID != got.PreviousID || time.Until(*k.ExpiresAt) > time.Hour || time.Until(*k.ExpiresAt) < 55*time.Minute {
		t.Errorf("the branch %s is kept until %v, want %s for an hour", k.ID, k.ExpiresAt, got.PreviousID)
	}
	w.whole("after an upgrade", 2)
	w.insert(k.ID, "old")
	w.insert(d.ID, "two")
	if s := w.state(d.ID); !slices.Equal(s.Rows, []string{"one", "two"}) {
		t.Errorf("rows %q", s.Rows)
	}
	_, err = w.Upgrade(ctx, alice, d.ID, api.UpgradeDatabaseRequest{})
	w.wants("the version that it has", err, api.PreconditionFailed)
	w.must(w.Delete(ctx, alice, d.ID))
	if s := w.state(k.ID); !slices.Equal(s.Rows, []string{"one", "old"}) {
		t.Errorf("the branch has rows %q", s.Rows)
	}
	w.must(w.Delete(ctx, alice, k.ID))
	w.empty("deleted")
}

func TestUpgradeRefusals(t *testing.T) {
	w := newFixture(t, func(w *fixture) { w.quotas = map[quota.Kind]int64{quota.Databases: 2} })
	ctx := t.Context()
	d := w.made()
	w.insert(d.ID, "one")
	up := func() error {
		_, err := w.Upgrade(ctx, alice, d.ID, api.UpgradeDatabaseRequest{})
		return err
	}
	_, err := w.Upgrade(ctx, bob, d.ID, api.UpgradeDatabaseRequest{})
	w.wants("a database of another workspace", err, api.NotFound)
	_, err = w.Upgrade(ctx, alice, d.ID, api.UpgradeDatabaseRequest{Template: "none"})
	w.wants("an unknown template", err, api.Invalid)
	_, err = w.Upgrade(ctx, alice, d.ID, api.UpgradeDatabaseRequest{Template: "postgres-16"})
	w.wants("the same version", err, api.PreconditionFailed)
	_, err = w.Upgrade(ctx, alice, d.ID, api.UpgradeDatabaseRequest{KeepSeconds: -1})
	w.wants("a negative time", err, api.Invalid)
	w.fake.SetExtensions([]string{"hstore", "pg_trgm", "postgis"}, "it has a prepared transaction: ", "tx 1")
	e := w.wants("extensions that the template lacks", up(), api.PreconditionFailed)
	for _, want := range []string{`"pg_trgm"`, `"postgis"`, `"tx 1"`, `"pandastack"`} {
		if !strings.Contains(e.Message, want) {
			t.Errorf("%q does not name %s", e.Message, want)
		}
	}
	if strings.Contains(e.Message, "hstore") {
		t.Errorf("%q names an extension that the template has", e.Message)
	}
	w.fake.SetExtensions([]string{"hstore"})
	branch, err := w.Clone(ctx, alice, d.ID, api.CloneDatabaseRequest{})
	w.must(err)
	w.wants("one that is being branched", up(), api.Conflict)
	w.must(w.Reconcile(ctx))
	w.wants("no room for the branch that keeps what it had", up(), api.QuotaExceeded)
	w.must(w.Delete(ctx, alice, branch.ID))

	// One that cannot be upgraded stays as it is, and says why.
	w.fault = func(op string, _ bool) error {
		if op == "copy" {
			return errors.New("no")
		}
		return nil
	}
	w.must(up())
	w.must(w.Reconcile(ctx))
	if got := w.get(d.ID); got.Status != api.DatabaseHibernated || got.Template != "postgres-16" ||
		!strings.Contains(got.Error, "the upgrade failed") || got.PreviousID != "" {
		t.Errorf("an upgrade that failed: %+v", got)
	}
	w.whole("after an upgrade that failed", 1)
	w.fault = nil
	w.must(up())
	w.must(w.Reconcile(ctx))
	k := w.wantUpgraded(d)
	w.must(w.Delete(ctx, alice, d.ID))
	w.must(w.Delete(ctx, alice, k.ID))
	w.empty("deleted")
}

// TestDeleteDuringUpgrade deletes a database whose upgrade was cut: what it has made goes with it.
func TestDeleteDuringUpgrade(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	d := w.made()
	w.insert(d.ID, "one")
	_, err := w.Upgrade(ctx, alice, d.ID, api.UpgradeDatabaseRequest{})
	w.must(err)
	w.fault = func(op string, _ bool) error {
		if op == "database failover switch" || op == "database failover undone" {
			return errors.New("no")
		}
		return nil
	}
	_ = w.Reconcile(ctx) // it cannot switch, and cannot be undone
	w.fault = nil
	w.must(w.Delete(ctx, alice, d.ID))
	w.empty("deleted")
}

// TestUpgradeAtEveryStep fails or kills an upgrade as TestFailureAtEveryStep does. Afterwards the database has what it
// had, on one server of one of the two versions, with its credentials; and it can be upgraded.
func TestUpgradeAtEveryStep(t *testing.T) {
	for _, dead := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed=%v", dead), func(t *testing.T) {
			for at := 0; ; at++ {
				c := &faultInjector{at: at, dead: dead}
				upgradeOnce(t, c)
				if t.Failed() {
					t.Fatalf("after a cut at step %d", at)
				}
				if !c.hit {
					if at < 30 {
						t.Errorf("only %d steps were cut: the test sees nothing", at)
					}
					t.Logf("cut at %d steps", at)
					return
				}
			}
		})
	}
}

func upgradeOnce(t *testing.T, c *faultInjector) {
	t.Helper()
	r := newRecorder()
	w := newFixture(t, withBackups(r), func(w *fixture) { w.cfg.EndTimeout = time.Millisecond })
	ctx := t.Context()
	d := w.made()
	w.insert(d.ID, "one")
	w.must(w.Reconcile(ctx)) // the backups begin
	_, err := w.Upgrade(ctx, alice, d.ID, api.UpgradeDatabaseRequest{})
	w.must(err)
	c.install(w)
	r.step = c.step
	_ = w.Reconcile(ctx) // what became of it is seen below
	r.step = nil
	c.remove(w)
	if c.dead {
		w.restart()
	}
	w.reconcile()
	got := w.get(d.ID)
	if got.Status == api.DatabaseRestoring {
		t.Errorf("the database is %s: %s", got.Status, got.Error)
	}
	if got.Template == "postgres-16" {
		w.whole("an upgrade that was cut", 1)
		if s := w.state(d.ID); !slices.Equal(s.Rows, []string{"one"}) {
			t.Errorf("rows %q", s.Rows)
		}
		w.wantLogin(d.ID)
		_, err := w.Upgrade(ctx, alice, d.ID, api.UpgradeDatabaseRequest{})
		w.must(err)
		w.reconcile()
	}
	w.whole("an upgrade", 2)
	k := w.wantUpgraded(d)
	w.must(w.Delete(ctx, alice, d.ID))
	w.must(w.Delete(ctx, alice, k.ID))
	w.empty("deleted")
}
