package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/pandastack/pandastack/internal/control/store"
)

func previews(t *testing.T, db *store.DB) {
	ctx := t.Context()
	row := func(id, sandbox string, created, expires int64) *store.Preview {
		return &store.Preview{
			ID: id, Workspace: "w1", Sandbox: sandbox, Port: 80, Paths: "/a,/b", Key: "pds_1",
			Created: created, Expires: expires,
		}
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(
			tx.InsertPreview(ctx, row("p1", "s1", 1, 100)), tx.InsertPreview(ctx, row("p2", "s1", 2, 20)),
			tx.InsertPreview(ctx, row("p3", "s2", 3, 100)),
		)
	})
	err := db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error {
		return tx.InsertPreview(ctx, row("p1", "s1", 1, 100))
	})
	if !errors.Is(err, store.ErrExists) {
		t.Errorf("inserted twice: %v, want ErrExists", err)
	}
	if got, err := db.Read().Preview(ctx, "p1"); err != nil || got != *row("p1", "s1", 1, 100) {
		t.Errorf("read %+v, %v", got, err)
	}
	for after, want := range map[int64]int{0: 2, 20: 1, 100: 0} {
		if rows, err := db.Read().Previews(ctx, "s1", after); err != nil || len(rows) != want {
			t.Errorf("after %d: %+v, %v; want %d rows", after, rows, err, want)
		}
	}
	for _, at := range []int64{7, 8} { // the first revocation counts
		write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.RevokePreview(ctx, "p1", at) })
	}
	if got, err := db.Read().Preview(ctx, "p1"); err != nil || got.Revoked != 7 {
		t.Errorf("revoked: %+v, %v", got, err)
	}
	err = db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error { return tx.RevokePreview(ctx, "p9", 1) })
	if !errors.Is(err, store.ErrNotFound) {
		t.Errorf("revoking none: %v, want ErrNotFound", err)
	}
	write(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.DeletePreviews(ctx, 21) })
	if _, err := db.Read().Preview(ctx, "p2"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("expired preview: %v, want ErrNotFound", err)
	}
}
