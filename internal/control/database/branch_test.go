package database_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/database"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/lib/scram"
)

func TestBranch(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	d := w.made()
	w.insert(d.ID, "one")
	_, err := w.Suspend(ctx, alice, d.ID)
	w.must(err)
	begun, err := w.Clone(ctx, alice, d.ID, api.CloneDatabaseRequest{Label: "try", TTLSeconds: 3600})
	if err != nil || begun.Status != api.DatabaseProvisioning || begun.ClonedFrom != d.ID || begun.ExpiresAt == nil {
		t.Fatalf("begun: %+v, %v", begun, err)
	}
	e := w.wants("deleting what is being branched", w.Delete(ctx, alice, d.ID), api.Conflict)
	if e.Details["database_id"] != string(begun.ID) {
		t.Errorf("details %v, want the branch", e.Details)
	}
	w.must(w.Reconcile(ctx))
	b := w.get(begun.ID)
	if b.Status != api.DatabaseRunning || b.Version != "16.14" || b.Label != "try" || b.Password == d.Password ||
		b.BrokerToken == d.BrokerToken {
		t.Errorf("the branch: %+v", b)
	}
	for id, password := range map[api.DatabaseID]string{b.ID: b.Password, d.ID: d.Password} {
		w.state(id) // wakes it
		verifier, err := w.endpoint(id).Verifier(ctx, database.RoleName)
		w.must(err)
		v, err := scram.ParseVerifier(verifier)
		w.must(err)
		if _, ok, err := v.Check(password); !ok || err != nil {
			t.Errorf("database %s has not the password that is shown: %v", id, err)
		}
	}
	w.insert(b.ID, "two")
	w.insert(d.ID, "three")
	if s := w.state(b.ID); !slices.Equal(s.Rows, []string{"one", "two"}) {
		t.Errorf("the branch has rows %q", s.Rows)
	}
	_, err = w.boxes.Guest(ctx, auth.Principal{Workspace: "alice"}, b.SandboxID)
	w.wants("the machine of the branch", err, api.Forbidden)
	w.must(w.Delete(ctx, alice, d.ID))
	_, err = w.Suspend(ctx, alice, b.ID)
	w.must(err)
	if s := w.state(b.ID); !slices.Equal(s.Rows, []string{"one", "two"}) {
		t.Errorf("without its parent the branch has rows %q", s.Rows)
	}
	w.must(w.Delete(ctx, alice, b.ID))
	w.empty("deleted")
}

func TestBranchRefusals(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	d := w.made()
	for name, test := range map[string]struct {
		req  api.CloneDatabaseRequest
		code api.Code
	}{
		"past":   {api.CloneDatabaseRequest{TargetTime: new(time.Now())}, api.Unsupported},
		"schema": {api.CloneDatabaseRequest{SchemaOnly: true, TargetXID: 7}, api.Invalid},
		"size":   {api.CloneDatabaseRequest{Size: api.Database4G}, api.Invalid},
	} {
		_, err := w.Clone(ctx, alice, d.ID, test.req)
		w.wants(name, err, test.code)
	}
	_, err := w.Clone(ctx, bob, d.ID, api.CloneDatabaseRequest{})
	w.wants("a database of another workspace", err, api.NotFound)

	// What cannot be branched fails, and its database stays as it is.
	w.fake.Fail("CHECKPOINT", errors.New("no"))
	b, err := w.Clone(ctx, alice, d.ID, api.CloneDatabaseRequest{})
	w.must(err)
	w.must(w.Reconcile(ctx))
	if got := w.get(b.ID); got.Status != api.DatabaseFailed || got.Error == "" {
		t.Errorf("a server that fails: %+v", got)
	}
	w.whole("after it failed", 1)
	rows, err := w.db.Read().Databases(ctx, store.DatabaseQuery{ClonedFrom: string(d.ID)})
	if err != nil || len(rows) != 1 {
		t.Errorf("rows %+v, %v", rows, err)
	}
	w.must(w.Delete(ctx, alice, d.ID))
}

// TestSchemaOnly makes a branch without rows, resets it, and branches it.
func TestSchemaOnly(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	d := w.made()
	w.insert(d.ID, "secret")
	b, err := w.Clone(ctx, alice, d.ID, api.CloneDatabaseRequest{SchemaOnly: true})
	w.must(err)
	w.must(w.Reconcile(ctx))
	b = w.get(b.ID)
	if b.Status != api.DatabaseRunning || !b.SchemaOnly || b.ClonedFrom != d.ID || b.Version != "16.14" {
		t.Fatalf("the branch: %+v", b)
	}
	w.wantBranch(b)
	w.insert(b.ID, "own")
	if s := w.state(d.ID); !slices.Equal(s.Rows, []string{"secret"}) {
		t.Errorf("the database has rows %q", s.Rows)
	}
	again, err := w.Clone(ctx, alice, b.ID, api.CloneDatabaseRequest{})
	w.must(err)
	w.must(w.Reconcile(ctx))
	if got := w.get(again.ID); got.SchemaOnly {
		t.Errorf("a branch with rows of one without: %+v", got)
	}
	_, err = w.Reset(ctx, alice, b.ID, api.ResetDatabaseRequest{TargetTime: new(time.Now())})
	w.wants("reset to a time", err, api.Invalid)
	_, err = w.Reset(ctx, alice, b.ID, api.ResetDatabaseRequest{})
	w.must(err)
	w.must(w.Reconcile(ctx))
	w.wantBranch(b)
	w.wantBranch(w.get(again.ID), "own")
	w.whole("after a reset", 3)
	for _, one := range []api.Database{d, b, again} {
		w.must(w.Delete(ctx, alice, one.ID))
	}
	w.empty("deleted")
}
