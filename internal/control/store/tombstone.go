package store

import (
	"context"

	"github.com/uptrace/bun"
)

// Tombstone is a row of tombstones: what is known of a sandbox that ended.
type Tombstone struct {
	bun.BaseModel `bun:"table:tombstones"`
	Sandbox       string `bun:"sandbox,pk"`
	Workspace     string `bun:"workspace"`
	Template      string `bun:"template"`
	Reason        string `bun:"reason"`
	By            string `bun:"ended_by"`
	Message       string `bun:"message"`
	Created       int64  `bun:"created"`
	Ended         int64  `bun:"ended"`
	Metadata      Pairs  `bun:"metadata"`
	Processes     string `bun:"processes"` // JSON
	Console       string `bun:"console"`   // valid UTF-8 without zero bytes
	Usage         string `bun:"usage"`     // JSON, "" for none
}

// PutTombstone adds a row; an existing one stays as it is.
func (t *Tx) PutTombstone(ctx context.Context, s *Tombstone) error {
	row, err := sealed(t, s)
	if err != nil {
		return err
	}
	_, err = t.db.NewInsert().Model(row).On("CONFLICT (sandbox) DO NOTHING").Exec(ctx)
	return err
}

// AmendTombstone writes reason, message and console of a row.
//
// The row's reason must still be was; ErrNotFound if it is not.
func (t *Tx) AmendTombstone(ctx context.Context, s *Tombstone, was string) error {
	res, err := t.db.NewUpdate().
		Model(s).
		Column("reason", "message", "console").
		WherePK().
		Where("reason = ?", was).
		Exec(ctx)
	return changed(res, err, "tombstone", s.Sandbox)
}

// Tombstone reads one row.
func (t *Tx) Tombstone(ctx context.Context, sandbox string) (Tombstone, error) {
	s := Tombstone{Sandbox: sandbox}
	if err := t.db.NewSelect().Model(&s).WherePK().Scan(ctx); err != nil {
		return s, notFound(err, "tombstone", sandbox)
	}
	return s, opened(t, &s)
}

// DeleteExpired removes what is older than the given times and counts the removed tombstones.
//
// It removes at most 500 tombstones, with their events, and all expired idempotency keys and audit entries.
func (t *Tx) DeleteExpired(ctx context.Context, tombstones, idempotency, audit int64) (int, error) {
	var ids []string
	err := t.db.NewSelect().
		Model((*Tombstone)(nil)).
		Column("sandbox").
		Where("ended < ?", tombstones).
		Limit(500).
		Scan(ctx, &ids)
	if err != nil {
		return 0, err
	}
	if len(ids) > 0 {
		if _, err := t.db.NewDelete().Model((*Event)(nil)).Where("sandbox IN (?)",
			bun.List(ids)).Exec(ctx); err != nil {
			return 0, err
		}
		if _, err := t.db.NewDelete().Model((*Tombstone)(nil)).Where("sandbox IN (?)",
			bun.List(ids)).Exec(ctx); err != nil {
			return 0, err
		}
	}
	if _, err := t.db.NewDelete().Model((*Idempotency)(nil)).Where("created < ?", idempotency).Exec(ctx); err != nil {
		return 0, err
	}
	_, err = t.db.NewDelete().Model((*Audit)(nil)).Where("at < ?", audit).Exec(ctx)
	return len(ids), err
}
