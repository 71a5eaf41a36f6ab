//go:build root

package store_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/lib/ballast"
	"github.com/pandastack/pandastack/internal/os/disk/disktest"
)

// TestWritesOnAFullFileSystem fills the file system of a store: writes still succeed, many of them, and a reopened
// store reads what they wrote.
func TestWritesOnAFullFileSystem(t *testing.T) {
	dir := disktest.Dir(t, 512<<20)
	weight, err := ballast.In(dir)
	if err != nil {
		t.Fatal(err)
	}
	if taken, err := weight.Take(); err != nil || !taken {
		t.Fatalf("Take() = %v, %v; want true", taken, err)
	}
	cfg := store.Config{DSN: filepath.Join(dir, "control.db"), MakeSpace: func() bool {
		made, err := weight.Release()
		return err == nil && made
	}}
	db, err := store.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // before its file system is unmounted, also when the test fails
	disktest.FillUp(t, dir)
	const rows = 500
	for i := range rows {
		err := db.Write(t.Context(), "fill", func(ctx context.Context, tx *store.Tx) error {
			return tx.PutSetting(ctx, fmt.Sprint("name", i), fmt.Sprintf("%04000d", i))
		})
		if err != nil {
			t.Fatalf("write %d on a full file system: %v, want none", i, err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if db, err = store.Open(t.Context(), cfg); err != nil {
		t.Fatalf("open on a full file system: %v, want none", err)
	}
	for i := range rows {
		got, err := db.Read().Setting(t.Context(), fmt.Sprint("name", i))
		if err != nil || got != fmt.Sprintf("%04000d", i) {
			t.Fatalf("setting %d = %.20q, %v; want what was written", i, got, err)
		}
	}
}
