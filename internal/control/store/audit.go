package store

import (
	"context"

	"github.com/uptrace/bun"
)

// Audit is a row of audit: who did what, with what and when.
type Audit struct {
	bun.BaseModel `bun:"table:audit"`
	ID            string `bun:"id,pk"` // sorts by time
	At            int64  `bun:"at"`
	Workspace     string `bun:"workspace"`
	Key           string `bun:"key_name"`
	Action        string `bun:"action"`
	Target        string `bun:"target"`
	Outcome       string `bun:"outcome"`
	Remote        string `bun:"remote"`
	Request       string `bun:"request"`
	Took          int64  `bun:"took"`
}

// AppendAudit adds rows.
func (t *Tx) AppendAudit(ctx context.Context, rows []Audit) error {
	if len(rows) == 0 {
		return nil
	}
	_, err := t.db.NewInsert().Model(&rows).Exec(ctx)
	return err
}

// AuditQuery selects rows of a workspace, newest first unless it says otherwise.
type AuditQuery struct {
	Workspace    string // "": all
	Target       string // "": all
	Since, Until int64  // not before, and before; 0: all
	After        string // rows behind the one with this id, in the order of the query; "": from the first
	OldestFirst  bool
	Limit        int // 0: no bound
}

// Audits reads the rows that q selects.
func (t *Tx) Audits(ctx context.Context, q AuditQuery) ([]Audit, error) {
	var rows []Audit
	order, behind := bun.OrderDesc, "id < ?"
	if q.OldestFirst {
		order, behind = bun.OrderAsc, "id > ?"
	}
	s := t.db.NewSelect().Model(&rows).Where("at >= ?", q.Since).OrderBy("id", order)
	if q.Until > 0 {
		s = s.Where("at < ?", q.Until)
	}
	if q.After != "" {
		s = s.Where(behind, q.After)
	}
	if q.Workspace != "" {
		s = s.Where("workspace = ?", q.Workspace)
	}
	if q.Target != "" {
		s = s.Where("target = ?", q.Target)
	}
	if q.Limit > 0 {
		s = s.Limit(int64(q.Limit))
	}
	return rows, s.Scan(ctx)
}

// CountAudits returns how many rows each workspace has.
func (t *Tx) CountAudits(ctx context.Context) (map[string]int, error) {
	var rows []struct {
		Workspace string `bun:"workspace"`
		Count     int    `bun:"count"`
	}
	err := t.db.NewSelect().Model((*Audit)(nil)).ColumnExpr("workspace, COUNT(*) AS count").GroupExpr("workspace").
		Scan(ctx, &rows)
	counts := map[string]int{}
	for _, r := range rows {
		counts[r.Workspace] = r.Count
	}
	return counts, err
}

// DeleteAuditsBefore removes at most limit rows from before a time and returns their number.
func (t *Tx) DeleteAuditsBefore(ctx context.Context, at int64, limit int) (int, error) {
	old := t.db.NewSelect().Model((*Audit)(nil)).Column("id").Where("at < ?", at).Limit(int64(limit))
	return t.deleteAudits(ctx, old)
}

// DeleteOldestAudits removes the oldest rows of a workspace and returns their number.
func (t *Tx) DeleteOldestAudits(ctx context.Context, workspace string, limit int) (int, error) {
	oldest := t.db.NewSelect().Model((*Audit)(nil)).Column("id").Where("workspace = ?", workspace).
		OrderBy("id", bun.OrderAsc).Limit(int64(limit))
	return t.deleteAudits(ctx, oldest)
}

func (t *Tx) deleteAudits(ctx context.Context, ids *bun.SelectQuery) (int, error) {
	res, err := t.db.NewDelete().Model((*Audit)(nil)).Where("id IN (?)", ids).Exec(ctx)
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	return int(n), err
}
