package store

import (
	"context"
	"slices"

	"github.com/uptrace/bun"
)

// Event is a row of events: Seq counts from 1 within a sandbox.
type Event struct {
	bun.BaseModel `bun:"table:events"`
	Sandbox       string `bun:"sandbox,pk"`
	Seq           int64  `bun:"seq,pk"`
	Workspace     string `bun:"workspace"`
	At            int64  `bun:"at"`
	Type          string `bun:"type"`
	Payload       string `bun:"payload"` // JSON
}

// AppendEvent adds an event behind the last one of its sandbox and sets its Seq.
func (t *Tx) AppendEvent(ctx context.Context, e *Event) error {
	if t.postgres { // two transactions would take the same number; SQLite has one at a time
		if _, err := t.db.ExecContext(ctx, "SELECT pg_advisory_xact_lock(hashtext(?))", e.Sandbox); err != nil {
			return err
		}
	}
	var last int64
	err := t.db.NewSelect().
		Model((*Event)(nil)).
		ColumnExpr("coalesce(max(seq), 0)").
		Where("sandbox = ?", e.Sandbox).
		Scan(ctx, &last)
	if err != nil {
		return err
	}
	e.Seq = last + 1
	_, err = t.db.NewInsert().Model(e).Exec(ctx)
	return exists(err, "event of sandbox", e.Sandbox)
}

// Events reads the events of a sandbox after a Seq, oldest first; of more than limit the last ones. A
// limit of 0 is none.
func (t *Tx) Events(ctx context.Context, sandbox string, after int64, limit int) ([]Event, error) {
	var rows []Event
	q := t.db.NewSelect().
		Model(&rows).
		Where("sandbox = ?", sandbox).
		Where("seq > ?", after).
		OrderBy("seq", bun.OrderDesc)
	if limit > 0 {
		q = q.Limit(int64(limit))
	}
	err := q.Scan(ctx)
	slices.Reverse(rows)
	return rows, err
}

// TrimEvents keeps the last so many events of a sandbox.
func (t *Tx) TrimEvents(ctx context.Context, sandbox string, last int64, keep int64) error {
	_, err := t.db.NewDelete().Model((*Event)(nil)).Where("sandbox = ?", sandbox).Where("seq <= ?", last-keep).Exec(ctx)
	return err
}
