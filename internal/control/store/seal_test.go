package store_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/internal/control/store"
)

// secretWord stands in every value that must not be readable in a file of the store.
const secretWord = "hunter2hunter2"

// insertSecrets adds a row of every table that holds secrets.
func insertSecrets(t *testing.T, db *store.DB) {
	t.Helper()
	env, metadata := store.Pairs{"TOKEN": secretWord}, store.Pairs{"secret.key": secretWord, "purpose": "test"}
	err := db.Write(t.Context(), "test", func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(
			tx.InsertSandbox(ctx, &store.Sandbox{
				ID: "sbx1", Workspace: "w", State: "running", Phases: "[]", Env: env, Metadata: metadata,
				Injected: secretWord,
			}),
			tx.InsertSnapshot(ctx, &store.Snapshot{ID: "snp1", Env: env, Metadata: metadata, Injected: secretWord}),
			tx.PutTombstone(ctx, &store.Tombstone{Sandbox: "sbx0", Metadata: metadata, Processes: "[]"}),
			tx.InsertVersion(ctx, &store.Version{ID: "ver1", Env: env}),
			tx.InsertBuild(ctx, &store.Build{ID: "bld1", State: "queued", Spec: secretWord}),
			tx.InsertJob(ctx, &store.Job{ID: "job1", Kind: "k", UniqueKey: "u", State: "queued", Payload: secretWord}),
			tx.InsertDatabase(ctx, &store.Database{
				ID: "dbs1", State: store.DatabaseReady, Password: secretWord, Verifier: secretWord,
				BrokerToken: secretWord,
			}),
			tx.SetDatabaseRoles(ctx, "dbs1", []store.DatabaseRole{{Name: "r", Verifier: secretWord}}),
		)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// wantSecrets reads the rows of insertSecrets in every way.
func wantSecrets(t *testing.T, db *store.DB) {
	t.Helper()
	ctx, tx := t.Context(), db.Read()
	check := func(what string, env, metadata store.Pairs, text string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		if env != nil && env["TOKEN"] != secretWord || text != secretWord ||
			metadata != nil && !maps.Equal(metadata, store.Pairs{"secret.key": secretWord, "purpose": "test"}) {
			t.Errorf("%s = %q, %q, %q; want the plain text", what, env, metadata, text)
		}
	}
	box, err := tx.Sandbox(ctx, "sbx1")
	check("Sandbox", box.Env, box.Metadata, box.Injected, err)
	boxes, err := tx.Sandboxes(ctx, store.SandboxQuery{Metadata: map[string]string{"purpose": "test"}})
	if err != nil || len(boxes) != 1 {
		t.Fatalf("Sandboxes = %d rows, %v; want 1", len(boxes), err)
	}
	check("Sandboxes", boxes[0].Env, boxes[0].Metadata, boxes[0].Injected, err)
	snapshot, err := tx.Snapshot(ctx, "snp1")
	check("Snapshot", snapshot.Env, snapshot.Metadata, snapshot.Injected, err)
	snapshots, err := tx.Snapshots(ctx, store.SnapshotQuery{})
	if err != nil || len(snapshots) != 1 {
		t.Fatalf("Snapshots = %d rows, %v; want 1", len(snapshots), err)
	}
	check("Snapshots", snapshots[0].Env, snapshots[0].Metadata, snapshots[0].Injected, err)
	stone, err := tx.Tombstone(ctx, "sbx0")
	check("Tombstone", nil, stone.Metadata, secretWord, err)
	version, err := tx.Version(ctx, "ver1")
	check("Version", version.Env, nil, secretWord, err)
	versions, err := tx.Versions(ctx, "")
	if err != nil || len(versions) != 1 {
		t.Fatalf("Versions = %d rows, %v; want 1", len(versions), err)
	}
	check("Versions", versions[0].Env, nil, secretWord, err)
	build, err := tx.Build(ctx, "bld1")
	check("Build", nil, nil, build.Spec, err)
	database, err := tx.Database(ctx, "dbs1")
	check("Database password", nil, nil, database.Password, err)
	check("Database verifier", nil, nil, database.Verifier, err)
	check("Database token", nil, nil, database.BrokerToken, err)
	role, err := tx.DatabaseRole(ctx, "dbs1", "r")
	check("DatabaseRole", nil, nil, role.Verifier, err)
	builds, err := tx.Builds(ctx, store.BuildQuery{})
	if err != nil || len(builds) != 1 {
		t.Fatalf("Builds = %d rows, %v; want 1", len(builds), err)
	}
	check("Builds", nil, nil, builds[0].Spec, err)
	job, err := tx.Job(ctx, "job1")
	check("Job", nil, nil, job.Payload, err)
	active, err := tx.ActiveJob(ctx, "k", "u")
	check("ActiveJob", nil, nil, active.Payload, err)
	jobs, err := tx.Jobs(ctx, store.JobQuery{})
	if err != nil || len(jobs) != 1 {
		t.Fatalf("Jobs = %d rows, %v; want 1", len(jobs), err)
	}
	check("Jobs", nil, nil, jobs[0].Payload, err)
}

// wantUnreadable fails if a file of the store contains the secret.
func wantUnreadable(t *testing.T, dir string) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(data, []byte(secretWord)) {
			t.Errorf("%s contains the secret in plain text", f.Name())
		}
	}
}

// TestSecretsAreSealed checks that no file of a store holds a secret in plain text, while rows read and written again
// keep theirs.
func TestSecretsAreSealed(t *testing.T) {
	dir := t.TempDir()
	db := open(t, filepath.Join(dir, "c.db"))
	insertSecrets(t, db)
	wantSecrets(t, db)
	wantUnreadable(t, dir)
	err := db.Write(t.Context(), "test", func(ctx context.Context, tx *store.Tx) error {
		box, err := tx.Sandbox(ctx, "sbx1")
		snapshot, err1 := tx.Snapshot(ctx, "snp1")
		build, err2 := tx.Build(ctx, "bld1")
		job, err3 := tx.Job(ctx, "job1")
		return errors.Join(err, err1, err2, err3,
			tx.UpdateSandbox(ctx, &box, "running"), tx.UpdateSnapshot(ctx, &snapshot, ""),
			tx.UpdateBuild(ctx, &build, []string{"queued"}), tx.UpdateJob(ctx, &job, "queued", 0, "payload"))
	})
	if err != nil {
		t.Fatal(err)
	}
	wantSecrets(t, db)
	wantUnreadable(t, dir)
}

// TestSecretMetadataIsNotSearchable checks that a filter is no way to guess a secret.
func TestSecretMetadataIsNotSearchable(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "c.db"))
	insertSecrets(t, db)
	rows, err := db.Read().Sandboxes(t.Context(),
		store.SandboxQuery{Metadata: map[string]string{"secret.key": secretWord}})
	if err != nil || len(rows) != 0 {
		t.Errorf("a filter by secret metadata found %d rows, %v; want none", len(rows), err)
	}
}

// TestPlainStoreIsSealed opens a store that was written without a key. Its rows are sealed, and nothing of the plain
// text is left in its files.
func TestPlainStoreIsSealed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "c.db")
	plain, err := store.Open(t.Context(), store.Config{DSN: path})
	if err != nil {
		t.Fatal(err)
	}
	insertSecrets(t, plain)
	if err := plain.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second Open finds it sealed
		db, err := store.Open(t.Context(), store.Config{DSN: path, Key: key})
		if err != nil {
			t.Fatal(err)
		}
		wantSecrets(t, db)
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		wantUnreadable(t, dir)
	}
}

// TestWrongKey checks that a store is opened only with its key.
func TestWrongKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.db")
	db, err := store.Open(t.Context(), store.Config{DSN: path, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for name, other := range map[string][]byte{"another": bytes.Repeat([]byte{2}, store.KeyBytes), "none": nil} {
		db, err := store.Open(t.Context(), store.Config{DSN: path, Key: other})
		if _, ok := errors.AsType[*store.WrongKeyError](err); !ok {
			t.Errorf("Open with key %s = %v, want a WrongKeyError", name, err)
		}
		if err == nil {
			_ = db.Close() // the test has failed already
		}
	}
	if db, err := store.Open(t.Context(), store.Config{DSN: path, Key: []byte("short")}); err == nil {
		t.Error("Open with a short key succeeded, want an error")
		_ = db.Close() // the test has failed already
	}
}

// TestSealedValueIsBoundToItsRow moves a sealed value to another row, where it must not be decrypted.
func TestSealedValueIsBoundToItsRow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.db")
	db := open(t, path)
	insertSecrets(t, db)
	raw, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if _, err := raw.ExecContext(t.Context(), "UPDATE snapshots SET env = (SELECT env FROM sandboxes)"); err != nil {
		t.Fatal(err)
	}
	if got, err := db.Read().Snapshot(t.Context(), "snp1"); err == nil {
		t.Errorf("a value of another row was decrypted: %q", got.Env)
	}
}
