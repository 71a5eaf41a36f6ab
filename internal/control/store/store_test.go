package store_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/storetest"
)

// key encrypts the stores of most tests.
var key = bytes.Repeat([]byte{1}, store.KeyBytes)

func open(t *testing.T, dsn string) *store.DB {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{DSN: dsn, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func TestSQLite(t *testing.T) {
	storetest.Run(t, func(t *testing.T) *store.DB { return open(t, filepath.Join(t.TempDir(), "control #1.db")) })
}

func TestReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.db")
	first, err := store.Open(t.Context(), store.Config{DSN: path})
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if second := open(t, path); second.ID() != first.ID() {
		t.Errorf("store is called %s after a restart, was %s", second.ID(), first.ID())
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600: keys and environments are in it", info.Mode(), err)
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.db")
	db, err := store.Open(t.Context(), store.Config{DSN: path})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	raw, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := raw.ExecContext(t.Context(),
		"INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, true)"); err != nil {
		t.Fatal(err)
	}
	if err := raw.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = store.Open(t.Context(), store.Config{DSN: path})
	if newer, ok := errors.AsType[*store.NewerError](err); !ok || newer.Has != 9999 {
		t.Errorf("open: %v, want NewerError with 9999", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage.db")
	if err := os.WriteFile(garbage,
		[]byte("this is no database, whatever its name says, and it is long enough to be read as one"),
		0o600); err != nil {
		t.Fatal(err)
	}
	for name, dsn := range map[string]string{"empty": "", "directory": dir, "missing": filepath.Join(dir, "no",
		"dir", "x.db"), "garbage": garbage} {
		if db, err := store.Open(t.Context(), store.Config{DSN: dsn}); err == nil {
			t.Errorf("%s: no error", name)
			_ = db.Close() // the test has failed already
		}
	}
}

func TestInjectedFaults(t *testing.T) {
	boom := errors.New("boom")
	var at string
	db, err := store.Open(
		t.Context(),
		store.Config{DSN: filepath.Join(t.TempDir(), "c.db"), Fault: func(op string, committed bool) error {
			if (op == at+"+") == committed && op == at || committed && op+"+" == at {
				return boom
			}
			return nil
		}},
	)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	put := func() error {
		return db.Write(
			t.Context(),
			"put",
			func(ctx context.Context, tx *store.Tx) error { return tx.PutSetting(ctx, "x", "1") },
		)
	}
	at = "put"
	if err := put(); !errors.Is(err, boom) {
		t.Errorf("before: %v, want boom", err)
	}
	if _, err := db.Read().Setting(t.Context(), "x"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a write that failed before it began left something: %v", err)
	}
	at = "put+"
	if err := put(); !errors.Is(err, boom) {
		t.Errorf("after: %v, want boom", err)
	}
	if v, err := db.Read().Setting(t.Context(), "x"); err != nil || v != "1" {
		t.Errorf("a write that failed after its commit left %q, %v", v, err)
	}
}

// TestCurrentStore checks that a store that must be current is neither made nor changed.
func TestCurrentStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.db")
	if _, err := store.Open(t.Context(), store.Config{DSN: path, Current: true}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing store: %v, want that it does not exist", err)
	}
	db, err := store.Open(t.Context(), store.Config{DSN: path})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	beside, err := store.Open(t.Context(), store.Config{DSN: path, Current: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := beside.Close(); err != nil {
		t.Error(err)
	}
	raw, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	last := "SELECT max(version_id) FROM goose_db_version"
	_, err = raw.ExecContext(t.Context(), "DELETE FROM goose_db_version WHERE version_id = ("+last+")")
	if err != nil {
		t.Fatal(err)
	}
	_, err = store.Open(t.Context(), store.Config{DSN: path, Current: true})
	if older, ok := errors.AsType[*store.SchemaError](err); !ok || older.Has >= older.Knows {
		t.Errorf("a store of an earlier release: %v, want SchemaError", err)
	}
}
