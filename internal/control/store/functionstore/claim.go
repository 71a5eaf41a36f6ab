package functionstore

import (
	"context"
	"database/sql"
	"errors"
	"slices"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/pandastack/pandastack/internal/control/store"
)

// RunHeld is the state of a run of a map that waits until others of the map have ended.
const RunHeld = "held"

// postgres reports whether the engine is PostgreSQL, where transactions run at the same time.
func (t Tx) postgres() bool { return t.db.Dialect().Name() == dialect.PG }

// Load says how many runs of a function are due.
type Load struct {
	Workspace string `bun:"workspace"`
	Function  string `bun:"function"`
	Runs      int    `bun:"runs"`
}

// DueFunctions reads the functions that have queued runs that are due.
func (t Tx) DueFunctions(ctx context.Context, now int64) ([]Load, error) {
	rows := []Load{}
	err := t.db.NewSelect().Model((*Run)(nil)).Column("workspace", "function").ColumnExpr("COUNT(*) AS runs").
		Where("state = 'queued'").Where("due <= ?", now).Group("workspace", "function").
		OrderBy("workspace", bun.OrderAsc).OrderBy("function", bun.OrderAsc).Scan(ctx, &rows)
	return rows, err
}

// DueRuns reads up to limit queued runs of a function that are due, the longest due first.
func (t Tx) DueRuns(ctx context.Context, function string, now int64, limit int) ([]Run, error) {
	rows := []Run{}
	err := t.db.NewSelect().Model(&rows).Where("function = ?", function).Where("state = 'queued'").
		Where("due <= ?", now).OrderBy("due", bun.OrderAsc).OrderBy("place", bun.OrderAsc).
		OrderBy("id", bun.OrderAsc).Limit(int64(limit)).Scan(ctx)
	return openedList[Run](t, rows, err)
}

// NextRun reads when the first queued run after a moment is due; 0 if there is none.
func (t Tx) NextRun(ctx context.Context, after int64) (int64, error) {
	var next int64
	err := t.db.NewSelect().Model((*Run)(nil)).ColumnExpr("COALESCE(MIN(due), 0)").
		Where("state = 'queued'").Where("due > ?", after).Scan(ctx, &next)
	return next, err
}

// NextLease reads when the first lease after a moment ends; 0 if there is none.
func (t Tx) NextLease(ctx context.Context, after int64) (int64, error) {
	var next int64
	err := t.db.NewSelect().Model((*Run)(nil)).ColumnExpr("COALESCE(MIN(lease), 0)").
		Where("state = 'running'").Where("lease > ?", after).Scan(ctx, &next)
	return next, err
}

// LeasedRuns reads up to limit running runs whose lease has ended by a time, by id, after an id.
func (t Tx) LeasedRuns(ctx context.Context, until int64, after string, limit int) ([]Run, error) {
	rows := []Run{}
	err := t.db.NewSelect().Model(&rows).Where("state = 'running'").Where("lease <= ?", until).
		Where("id > ?", after).OrderBy("id", bun.OrderAsc).Limit(int64(limit)).Scan(ctx)
	return openedList[Run](t, rows, err)
}

// ClaimRun writes a queued run as running: its instance, lease, attempt and start. ErrNotFound says that it is
// not queued, or that another attempt was made since it was read.
func (t Tx) ClaimRun(ctx context.Context, r *Run) error {
	res, err := t.db.NewUpdate().Model(r).WherePK().Where("state = 'queued'").Where("attempt = ?", r.Attempt-1).
		Column("state", "instance", "lease", "attempt", "started").Exec(ctx)
	return store.Changed(res, err, "invocation", r.ID)
}

// ExtendRuns sets the lease of running runs of an instance. It returns the ids of those that it has.
func (t Tx) ExtendRuns(ctx context.Context, instance string, ids []string, lease int64) ([]string, error) {
	kept := []string{}
	err := t.db.NewUpdate().Model((*Run)(nil)).Set("lease = ?", lease).Where("state = 'running'").
		Where("instance = ?", instance).Where("id IN (?)", bun.List(ids)).Returning("id").Scan(ctx, &kept)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return kept, err
}

// SettleRun writes the named columns of a running run that is as it was.
//
// It is so if it has the instance and attempt of was, and its lease unless that is 0; else ErrNotFound.
func (t Tx) SettleRun(ctx context.Context, r *Run, was Run, columns ...string) error {
	q := t.db.NewUpdate().Model(sealed(t, r)).WherePK().Where("state = 'running'").
		Where("instance = ?", was.Instance).Where("attempt = ?", was.Attempt).Column(columns...)
	if was.Lease != 0 {
		q = q.Where("lease = ?", was.Lease)
	}
	res, err := q.Exec(ctx)
	return store.Changed(res, err, "invocation", r.ID)
}

// ReleaseRuns queues up to n held runs of a map, in the order of their places.
func (t Tx) ReleaseRuns(ctx context.Context, batch string, n int, due int64) error {
	held := t.db.NewSelect().Model((*Run)(nil)).Column("id").Where("batch = ?", batch).
		Where("state = ?", RunHeld).OrderBy("place", bun.OrderAsc).Limit(int64(n))
	if t.postgres() { // two that end at once release two
		held = held.For("UPDATE SKIP LOCKED")
	}
	// As a part of the update it could be evaluated, and lock other rows, more than once.
	ids := []string{}
	if err := held.Scan(ctx, &ids); err != nil || len(ids) == 0 {
		return err
	}
	_, err := t.db.NewUpdate().Model((*Run)(nil)).Set("state = 'queued'").Set("due = ?", due).
		Where("id IN (?)", bun.List(ids)).Where("state = ?", RunHeld).Exec(ctx)
	return err
}

// BatchRun is what the progress of a map needs of a run.
type BatchRun struct {
	ID    string `bun:"id"`
	Place int    `bun:"place"`
}

// BatchRuns reads the runs of a batch that have ended, in that order.
func (t Tx) BatchRuns(ctx context.Context, batch string) ([]BatchRun, error) {
	rows := []BatchRun{}
	err := t.db.NewSelect().Model((*Run)(nil)).Column("id", "place").Where("batch = ?", batch).Where("ended > 0").
		OrderBy("ended", bun.OrderAsc).OrderBy("place", bun.OrderAsc).Scan(ctx, &rows)
	return rows, err
}

// CountActive counts the runs of a batch that have not ended.
func (t Tx) CountActive(ctx context.Context, batch string) (int64, error) {
	return t.db.NewSelect().Model((*Run)(nil)).Where("batch = ?", batch).Where("ended = 0").Count(ctx)
}

// ActiveRuns reads the ids of the runs of a function that have not ended, up to limit.
func (t Tx) ActiveRuns(ctx context.Context, function string, limit int) ([]string, error) {
	ids := []string{}
	err := t.db.NewSelect().Model((*Run)(nil)).Column("id").Where("function = ?", function).
		Where("ended = 0").OrderBy("created", bun.OrderAsc).Limit(int64(limit)).Scan(ctx, &ids)
	return ids, err
}

// FreeKey takes an idempotency key from the run of a function, if the run is older than a time.
func (t Tx) FreeKey(ctx context.Context, function, key string, before int64) error {
	_, err := t.db.NewUpdate().Model((*Run)(nil)).Set("dedupe = NULL").Where("function = ?", function).
		Where("dedupe = ?", key).Where("created < ?", before).Exec(ctx)
	return err
}

// CountQueued counts the queued and held runs of a workspace, up to limit.
func (t Tx) CountQueued(ctx context.Context, workspace string, limit int) (int, error) {
	some := t.db.NewSelect().Model((*Run)(nil)).ColumnExpr("1 AS one").Where("workspace = ?", workspace).
		Where("state IN ('queued', 'held')").Limit(int64(limit))
	var n int
	err := t.db.NewSelect().TableExpr("(?) AS waiting", some).ColumnExpr("COUNT(*)").Scan(ctx, &n)
	return n, err
}

// InsertRuns adds rows.
func (t Tx) InsertRuns(ctx context.Context, rows []Run) error {
	for part := range slices.Chunk(rows, 100) {
		out := make([]Run, 0, len(part))
		for i := range part {
			out = append(out, *sealed(t, &part[i]))
		}
		if _, err := t.db.NewInsert().Model(&out).Exec(ctx); err != nil {
			return store.Exists(err, "invocation", part[0].ID)
		}
	}
	return nil
}

// DeleteRuns removes up to limit runs that ended before a time, and returns how many it has removed.
func (t Tx) DeleteRuns(ctx context.Context, before int64, limit int) (int64, error) {
	old := t.db.NewSelect().Model((*Run)(nil)).Column("id").Where("ended > 0").Where("ended < ?", before).
		OrderBy("ended", bun.OrderAsc).Limit(int64(limit))
	res, err := t.db.NewDelete().Model((*Run)(nil)).Where("id IN (?)", old).Exec(ctx)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}
