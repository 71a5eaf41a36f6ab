package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/pandastack/pandastack/internal/control/store"
)

func database(id, workspace string) *store.Database {
	return &store.Database{
		ID: id, Workspace: workspace, State: store.DatabaseReady, Size: "1g", Extensions: "[]", Networks: "[]",
		Password: "p", Verifier: "v", BrokerToken: "t", Created: 1,
	}
}

func rehearsal(state string) *store.DatabaseRehearsal {
	return &store.DatabaseRehearsal{ID: "r1", Database: "dbs1", State: state}
}

func databases(t *testing.T, db *store.DB) {
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		branch := database("dbs2", "w1")
		branch.ClonedFrom, branch.Expires = "dbs1", 100
		return errors.Join(
			tx.InsertDatabase(ctx, database("dbs1", "w1")), tx.InsertDatabase(ctx, branch),
			tx.InsertDatabase(ctx, database("dbs3", "w2")))
	})
	ctx, tx := t.Context(), db.Read()
	if got, err := tx.Database(ctx, "dbs1"); err != nil || got != *database("dbs1", "w1") {
		t.Errorf("Database = %+v, %v", got, err)
	}
	for _, c := range []struct {
		q    store.DatabaseQuery
		want int
	}{
		{store.DatabaseQuery{}, 3}, {store.DatabaseQuery{Workspace: "w1"}, 2},
		{store.DatabaseQuery{ClonedFrom: "dbs1"}, 1}, {store.DatabaseQuery{ExpiredBy: 99}, 0},
		{store.DatabaseQuery{ExpiredBy: 100}, 1}, {store.DatabaseQuery{State: store.DatabaseFailed}, 0},
	} {
		if got, err := tx.Databases(ctx, c.q); err != nil || len(got) != c.want {
			t.Errorf("Databases(%+v) = %d rows, %v; want %d", c.q, len(got), err, c.want)
		}
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		d, err := tx.Database(ctx, "dbs1")
		if err != nil {
			return err
		}
		if err := tx.UpdateDatabase(ctx, &d, store.DatabaseFailed, "label"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("UpdateDatabase in another state = %v, want ErrNotFound", err)
		}
		d.Label, d.Password, d.State = "new", "changed", store.DatabaseDeleting
		return tx.UpdateDatabase(ctx, &d, store.DatabaseReady, "state", "label")
	})
	d, err := db.Read().Database(ctx, "dbs1")
	if err != nil || d.Label != "new" || d.Password != "p" {
		t.Errorf("after an update of the label: label %q, password %q, %v", d.Label, d.Password, err)
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(tx.TouchDatabase(ctx, "dbs1", 7), tx.TouchDatabase(ctx, "dbs1", 5),
			tx.SetDatabaseRoles(ctx, "dbs1", []store.DatabaseRole{
				{Name: "a", Verifier: "1"}, {Name: "b", Verifier: "2"},
			}),
			tx.SetDatabaseRoles(ctx, "dbs1", []store.DatabaseRole{{Name: "b", Verifier: "3"}}),
			tx.PutDatabaseRehearsal(ctx, rehearsal(store.RehearsalRunning)),
			tx.PutDatabaseRehearsal(ctx, rehearsal(store.RehearsalPassed)))
	})
	if d, err := db.Read().Database(ctx, "dbs1"); err != nil || d.Used != 7 {
		t.Errorf("used = %d, %v; want 7", d.Used, err)
	}
	if r, err := db.Read().DatabaseRole(ctx, "dbs1", "b"); err != nil || r.Verifier != "3" {
		t.Errorf("DatabaseRole = %+v, %v", r, err)
	}
	if _, err := db.Read().DatabaseRole(ctx, "dbs1", "a"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("DatabaseRole of a role that was replaced = %v, want ErrNotFound", err)
	}
	if got, err := db.Read().DatabaseRehearsals(ctx, "dbs1", 5); err != nil || len(got) != 1 ||
		got[0].State != store.RehearsalPassed {
		t.Errorf("DatabaseRehearsals = %+v, %v", got, err)
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(tx.DeleteDatabase(ctx, "dbs1"), tx.DeleteDatabase(ctx, "dbs2")) // dbs2 is ready: it stays
	})
	if n, err := db.Read().CountDatabases(ctx, "w1"); err != nil || n != 1 {
		t.Errorf("CountDatabases = %d, %v; want 1", n, err)
	}
	if got, err := db.Read().DatabaseRehearsals(ctx, "", 5); err != nil || len(got) != 0 {
		t.Errorf("DatabaseRehearsals of a deleted database = %+v, %v", got, err)
	}
}

func databaseMembers(t *testing.T, db *store.DB) {
	member := func(id, role string) *store.DatabaseMember {
		return &store.DatabaseMember{ID: id, Database: "dbs1", Role: role, State: store.MemberCreating}
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(tx.InsertDatabaseMember(ctx, member("m2", store.MemberReplica)),
			tx.InsertDatabaseMember(ctx, member("m1", store.MemberPrimary)))
	})
	ctx := t.Context()
	err := db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error {
		return tx.InsertDatabaseMember(ctx, member("m3", store.MemberPrimary))
	})
	if !errors.Is(err, store.ErrExists) {
		t.Errorf("InsertDatabaseMember of a second primary = %v, want ErrExists", err)
	}
	got, err := db.Read().DatabaseMembers(ctx, "dbs1")
	if err != nil || len(got) != 2 || got[0].ID != "m1" {
		t.Fatalf("DatabaseMembers = %+v, %v; want the primary first", got, err)
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		m := got[0]
		m.State, m.Sandbox = store.MemberReady, "sbx1"
		if err := tx.UpdateDatabaseMember(ctx, &m, store.MemberReady); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("UpdateDatabaseMember in another state = %v, want ErrNotFound", err)
		}
		return errors.Join(tx.UpdateDatabaseMember(ctx, &m, store.MemberCreating), tx.DeleteDatabaseMember(ctx, "m2"))
	})
	if got, err := db.Read().DatabaseMembers(ctx, ""); err != nil || len(got) != 1 || got[0].Sandbox != "sbx1" {
		t.Errorf("DatabaseMembers = %+v, %v", got, err)
	}
}
