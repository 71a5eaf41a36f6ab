package database_test

import (
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/store"
)

// TestStorage fills the storage of a database: it grows to its limit, is read-only then, and recovers.
func TestStorage(t *testing.T) {
	w := newFixture(t, func(w *fixture) { w.cfg.MeasureInterval = 1 })
	ctx := t.Context()
	d, err := w.Create(ctx, alice, api.CreateDatabaseRequest{StorageMaxMB: 16000})
	w.must(err)
	w.must(w.Reconcile(ctx))
	for _, step := range []struct {
		usedMiB  int64
		sizeMiB  int
		readOnly bool
	}{
		{100, 8192, false}, {6200, 12288, false}, {9000, 12288, false}, {9300, 16000, false}, {14000, 16000, false},
		{14800, 16000, true}, {14000, 16000, true}, {13000, 16000, false},
	} {
		w.fake.SetUsed(step.usedMiB << 20)
		w.must(w.Reconcile(ctx))
		rows, err := w.db.Read().Volumes(ctx, store.VolumeQuery{})
		w.must(err)
		if rows[0].SizeMiB != step.sizeMiB || w.fake.ReadOnly() != step.readOnly {
			t.Errorf("with %d MiB used: size %d MiB, read-only %v; want %d MiB, %v", step.usedMiB, rows[0].SizeMiB,
				w.fake.ReadOnly(), step.sizeMiB, step.readOnly)
		}
	}
	w.must(w.Delete(ctx, alice, d.ID))
	w.empty("deleted")
}
