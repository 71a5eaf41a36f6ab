package functionstore_test

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
)

func open(t *testing.T) *store.DB {
	t.Helper()
	key := bytes.Repeat([]byte{7}, store.KeyBytes)
	db, err := store.Open(t.Context(), store.Config{DSN: filepath.Join(t.TempDir(), "control.db"), Key: key})
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	return db
}

func write(t *testing.T, db *store.DB, f func(ctx context.Context, tx functionstore.Tx) error) error {
	t.Helper()
	return db.Write(t.Context(), "test", func(ctx context.Context, tx *store.Tx) error {
		return f(ctx, functionstore.In(tx))
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Secrets of rows are encrypted in the store and read back as they were.
func TestSecretsAreSealed(t *testing.T) {
	db := open(t)
	f := functionstore.Function{ID: "fun1", Workspace: "w", Name: "a", State: functionstore.Active,
		Env: `{"KEY":"hidden"}`, Secret: "hidden"}
	r := functionstore.Run{ID: "inv1", Function: "fun1", Input: "hidden", Result: "hidden", Error: "hidden",
		Stdout: "hidden", Stderr: "hidden"}
	must(t, write(t, db, func(ctx context.Context, tx functionstore.Tx) error {
		return errors.Join(tx.InsertFunction(ctx, &f), tx.InsertRun(ctx, &r))
	}))
	in := functionstore.In(db.Read())
	gotF, err := in.Function(t.Context(), "fun1")
	must(t, err)
	gotR, err := in.Run(t.Context(), "inv1")
	must(t, err)
	if gotF != f || gotR.Input != "hidden" || gotR.Stderr != "hidden" {
		t.Fatalf("read %+v %+v", gotF, gotR)
	}
	for _, column := range []string{
		"SELECT env || secret FROM functions",
		"SELECT input || result || error || stdout || stderr FROM function_runs",
	} {
		var raw string
		must(t, db.Read().DB().NewRaw(column).Scan(t.Context(), &raw))
		if strings.Contains(raw, "hidden") || !strings.Contains(raw, "sealed:1:") {
			t.Fatalf("%s: %q", column, raw)
		}
	}
}

// A name is unique in a workspace among functions that are not being deleted; the rows of a deleted one all go.
func TestDeleteFunction(t *testing.T) {
	db := open(t)
	f := functionstore.Function{ID: "fun1", Workspace: "w", Name: "a", State: functionstore.Active, Numbered: 1}
	must(t, write(t, db, func(ctx context.Context, tx functionstore.Tx) error {
		return errors.Join(tx.InsertFunction(ctx, &f),
			tx.InsertVersion(ctx, &functionstore.Version{Function: "fun1", Number: 1, Digest: "d"}),
			tx.PutAlias(ctx, &functionstore.Alias{Function: "fun1", Name: "live"}),
			tx.PutAlias(ctx, &functionstore.Alias{Function: "fun1", Name: "live", Versions: "[]"}),
			tx.InsertMachine(ctx, &functionstore.Machine{ID: "m", Function: "fun1"}),
			tx.InsertRun(ctx, &functionstore.Run{ID: "inv1", Function: "fun1"}))
	}))
	twin := functionstore.Function{ID: "fun2", Workspace: "w", Name: "a", State: functionstore.Active}
	insert := func(ctx context.Context, tx functionstore.Tx) error { return tx.InsertFunction(ctx, &twin) }
	if err := write(t, db, insert); !errors.Is(err, store.ErrExists) {
		t.Fatalf("second function with the name: %v", err)
	}
	latest, err := functionstore.In(db.Read()).LatestVersions(t.Context(), "w")
	must(t, err)
	if latest["fun1"].Digest != "d" {
		t.Fatalf("latest versions: %+v", latest)
	}
	f.State = functionstore.Deleting
	must(t, write(t, db, func(ctx context.Context, tx functionstore.Tx) error {
		return tx.UpdateFunction(ctx, &f, "state")
	}))
	must(t, write(t, db, insert))
	must(t, write(t, db, func(ctx context.Context, tx functionstore.Tx) error {
		return tx.DeleteFunction(ctx, "fun1")
	}))
	for _, table := range []string{"function_versions", "function_aliases", "function_machines", "function_runs"} {
		var n int
		must(t, db.Read().DB().NewRaw("SELECT COUNT(*) FROM "+table).Scan(t.Context(), &n))
		if n != 0 {
			t.Errorf("%s has %d rows", table, n)
		}
	}
}
