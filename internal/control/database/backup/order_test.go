package backup_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/backup"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
	"github.com/pandastack/pandastack/internal/lib/keyring"
)

// idle returns a keeper that does not run, its store with a database, and a channel that gets something whenever a
// rehearsal was recorded.
func idle(t *testing.T) (*backup.Keeper, *store.DB, <-chan struct{}) {
	t.Helper()
	dir, recorded := t.TempDir(), make(chan struct{}, 100)
	db, err := store.Open(t.Context(), store.Config{
		DSN: filepath.Join(dir, "store.db"), Fault: func(op string, committed bool) error {
			if committed && op == "record rehearsal" {
				recorded <- struct{}{}
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return tx.InsertDatabase(ctx, &store.Database{ID: "dbs1", Workspace: "wsp1", State: store.DatabaseReady})
	})
	ring, err := keyring.New(bytes.Repeat([]byte{1}, keyring.KeyBytes))
	if err != nil {
		t.Fatal(err)
	}
	k, err := backup.New(backup.Config{
		Store: db, Blobs: blobtest.NewMemory(), Ring: ring, Dir: dir, Log: slog.New(slog.DiscardHandler),
		Interval: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	return k, db, recorded
}

func write(t *testing.T, db *store.DB, do func(context.Context, *store.Tx) error) {
	t.Helper()
	if err := db.Write(t.Context(), "test", do); err != nil {
		t.Fatal(err)
	}
}

// A base backup that is ordered is due in the store, so that an end of the process does not lose it.
func TestOrder(t *testing.T) {
	k, db, _ := idle(t)
	if err := k.Order(t.Context(), "dbs1"); !errors.Is(err, backup.ErrNotRunning) {
		t.Errorf("Order without backups = %v, want ErrNotRunning", err)
	}
	later := time.Now().Add(time.Hour)
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return tx.InsertDatabaseBackups(ctx, &store.DatabaseBackups{
			Database: "dbs1", BaseDue: later.UnixMicro(), BaseError: "the last one failed",
		})
	})
	if err := k.Order(t.Context(), "dbs1"); err != nil {
		t.Fatal(err)
	}
	s, err := k.Status(t.Context(), "dbs1")
	if err != nil || s.BaseDue.After(time.Now()) || s.BaseError == "" {
		t.Errorf("after Order: %+v, %v; want a base backup that is due, and nothing else changed", s, err)
	}
}

// A rehearsal that is ordered is made by Run, one of a database at a time and not too many of all. One whose database
// was deleted meanwhile leaves no row.
func TestOrderRehearsal(t *testing.T) {
	k, db, recorded := idle(t)
	ids := []string{"dbs1"}
	for i := range 16 {
		ids = append(ids, "dbsx"+string(rune('a'+i)))
		write(t, db, func(ctx context.Context, tx *store.Tx) error {
			return tx.InsertDatabase(ctx, &store.Database{ID: ids[i+1], State: store.DatabaseDeleting})
		})
	}
	if _, err := k.OrderRehearsal(t.Context(), "dbs2"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("OrderRehearsal of no database = %v, want ErrNotFound", err)
	}
	for _, one := range ids[:16] {
		row, err := k.OrderRehearsal(t.Context(), one)
		if err != nil || row.State != store.RehearsalRunning || row.Database != one {
			t.Fatalf("OrderRehearsal of %s = %+v, %v; want one that runs", one, row, err)
		}
	}
	if _, err := k.OrderRehearsal(t.Context(), "dbs1"); !errors.Is(err, backup.ErrRehearsing) {
		t.Errorf("OrderRehearsal again = %v, want ErrRehearsing", err)
	}
	if _, err := k.OrderRehearsal(t.Context(), ids[16]); !errors.Is(err, backup.ErrBusy) {
		t.Errorf("OrderRehearsal of one too many = %v, want ErrBusy", err)
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.DeleteDatabase(ctx, ids[1]) })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	wait := func(of string) {
		t.Helper()
		for range recorded {
			rows, err := db.Read().DatabaseRehearsals(t.Context(), of, 1)
			if err != nil {
				t.Fatal(err)
			}
			if len(rows) == 1 && strings.Contains(rows[0].Error, "no machines") {
				if rows[0].State != store.RehearsalFailed || rows[0].Ended == 0 {
					t.Errorf("got %+v, want one that failed", rows[0])
				}
				return
			}
		}
	}
	wait(ids[15]) // those before have made room
	if _, err := k.OrderRehearsal(t.Context(), ids[16]); err != nil {
		t.Fatal(err)
	}
	wait(ids[16])
	rows, err := db.Read().DatabaseRehearsals(t.Context(), ids[1], 1)
	if err != nil || len(rows) != 0 {
		t.Errorf("a deleted database has the rehearsals %+v, %v; want none", rows, err)
	}
}
