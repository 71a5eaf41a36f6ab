package database_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/database"
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

// sizes returns the sizes of the volumes of databases in MiB.
func (w *fixture) sizes(ids ...api.DatabaseID) []int {
	w.t.Helper()
	var all []int
	for _, id := range ids {
		rows, err := w.db.Read().Volumes(w.t.Context(), store.VolumeQuery{
			OwnedBy: hostapi.Owner{Kind: database.OwnerKind, ID: string(id)}.String()})
		w.must(err)
		if len(rows) != 1 || rows[0].Holder == "" {
			w.t.Fatalf("database %s has the volumes %+v, want one that its machine holds", id, rows)
		}
		all = append(all, rows[0].SizeMiB)
	}
	return all
}

// TestStorageOfBranch lets the storage of a branch grow, which is its own.
func TestStorageOfBranch(t *testing.T) {
	w := newFixture(t, func(w *fixture) { w.cfg.MeasureInterval = 1 })
	ctx := t.Context()
	d := w.made()
	w.insert(d.ID, "one")
	b, err := w.Clone(ctx, alice, d.ID, api.CloneDatabaseRequest{})
	w.must(err)
	w.must(w.Reconcile(ctx))
	_, err = w.Suspend(ctx, alice, d.ID)
	w.must(err)
	if got := w.sizes(d.ID, b.ID); !slices.Equal(got, []int{8192, 8192}) {
		t.Errorf("sizes %v", got)
	}
	w.fake.SetUsed(7000 << 20)
	w.must(w.Reconcile(ctx))
	if got := w.sizes(d.ID, b.ID); !slices.Equal(got, []int{8192, 12288}) {
		t.Errorf("sizes %v, want the branch's to have grown", got)
	}
	w.whole("with a branch", 2)
	w.must(w.Delete(ctx, alice, d.ID))
	_, err = w.Suspend(ctx, alice, b.ID)
	w.must(err)
	if s := w.state(b.ID); !slices.Equal(s.Rows, []string{"one"}) {
		t.Errorf("the branch has rows %q", s.Rows)
	}
	w.must(w.Delete(ctx, alice, b.ID))
	w.empty("deleted")
}

// TestBranchWithoutVolume makes a volume of the storage of a branch whose machine has it as a private copy, as earlier
// releases made them, whatever commit fails.
func TestBranchWithoutVolume(t *testing.T) {
	for _, failed := range []string{"", "volume create begin", "volume create end", "database volume"} {
		w := newFixture(t, func(w *fixture) { w.cfg.MeasureInterval = 1 })
		ctx := t.Context()
		d := w.made()
		p := auth.Principal{Workspace: "alice", Owner: hostapi.Owner{Kind: database.OwnerKind, ID: string(d.ID)}}
		forked, err := w.boxes.Fork(ctx, p, d.SandboxID, api.ForkRequest{Count: 1, Persistent: new(true)})
		w.must(err)
		row, err := w.db.Read().Database(ctx, string(d.ID))
		w.must(err)
		row.ID, row.ClonedFrom = string(api.NewDatabaseID()), row.ID
		child, to := forked.Children[0].ID, hostapi.Owner{Kind: database.OwnerKind, ID: row.ID}
		w.must(w.boxes.SetOwner(ctx, p, child, to))
		w.must(w.db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error {
			m := store.DatabaseMember{ID: string(child), Database: row.ID, Role: store.MemberPrimary,
				State: store.MemberReady, Sandbox: string(child), Timeline: 1, Created: row.Created}
			return errors.Join(tx.InsertDatabase(ctx, &row), tx.InsertDatabaseMember(ctx, &m))
		}))
		w.fault = func(op string, committed bool) error {
			if op == failed && !committed {
				failed = ""
				return errCut
			}
			return nil
		}
		w.fake.SetUsed(7000 << 20)
		for range 3 {
			_ = w.Reconcile(ctx) // the one that fails is repeated
			w.must(w.volumes.Reconcile(ctx))
			w.must(w.boxes.Reconcile(ctx))
		}
		if got := w.sizes(d.ID, api.DatabaseID(row.ID)); !slices.Equal(got, []int{12288, 12288}) {
			t.Errorf("sizes %v", got)
		}
		w.whole("with a branch", 2)
		w.must(w.Delete(ctx, alice, d.ID))
		w.must(w.Delete(ctx, alice, api.DatabaseID(row.ID)))
		w.empty("deleted")
	}
}
