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

// AuditQuery selects rows of a workspace, newest first.
type AuditQuery struct {
	Workspace string // "": all
	Target    string // "": all
	Since     int64  // not before
	Limit     int    // 0: no bound
}

// Audits reads the rows that q selects.
func (t *Tx) Audits(ctx context.Context, q AuditQuery) ([]Audit, error) {
	var rows []Audit
	s := t.db.NewSelect().Model(&rows).Where("at >= ?", q.Since).OrderBy("id", bun.OrderDesc)
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
