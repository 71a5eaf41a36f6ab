package store

import (
	"context"
	"errors"

	"github.com/uptrace/bun"
)

// Workspace is a row of workspaces.
type Workspace struct {
	bun.BaseModel `bun:"table:workspaces"`
	ID            string `bun:"id,pk"`
	Name          string `bun:"name"`
	Created       int64  `bun:"created"`
	Suspended     int64  `bun:"suspended"` // since when; 0: it is active
}

// PutWorkspace adds a row; an existing one stays as it is.
func (t *Tx) PutWorkspace(ctx context.Context, w *Workspace) error {
	_, err := t.db.NewInsert().Model(w).On("CONFLICT (id) DO NOTHING").Exec(ctx)
	return err
}

// InsertWorkspace adds a row; ErrExists if the id is taken.
func (t *Tx) InsertWorkspace(ctx context.Context, w *Workspace) error {
	_, err := t.db.NewInsert().Model(w).Exec(ctx)
	return exists(err, "workspace", w.ID)
}

// Workspace reads one row.
func (t *Tx) Workspace(ctx context.Context, id string) (Workspace, error) {
	w := Workspace{ID: id}
	err := t.db.NewSelect().Model(&w).WherePK().Scan(ctx)
	return w, notFound(err, "workspace", id)
}

// LockWorkspace reads the row with the id of w, or adds w if there is none.
//
// Until the transaction ends, other transactions that lock the workspace wait.
func (t *Tx) LockWorkspace(ctx context.Context, w *Workspace) error {
	err := t.lockedWorkspace(ctx, w)
	if !errors.Is(err, ErrNotFound) {
		return err
	}
	if err := t.PutWorkspace(ctx, w); err != nil {
		return err
	}
	return t.lockedWorkspace(ctx, w)
}

func (t *Tx) lockedWorkspace(ctx context.Context, w *Workspace) error {
	found := Workspace{ID: w.ID}
	q := t.db.NewSelect().Model(&found).WherePK()
	if t.postgres { // SQLite has one transaction that writes at a time
		q = q.For("NO KEY UPDATE")
	}
	err := notFound(q.Scan(ctx), "workspace", w.ID)
	if err == nil {
		*w = found
	}
	return err
}

// WorkspaceQuery selects rows, by id. Zero fields select everything.
type WorkspaceQuery struct {
	Suspended bool
	AfterID   string // of the last row of the page before
	Limit     int
}

// Workspaces reads the rows that q selects.
func (t *Tx) Workspaces(ctx context.Context, q WorkspaceQuery) ([]Workspace, error) {
	var rows []Workspace
	s := t.db.NewSelect().Model(&rows).OrderBy("id", bun.OrderAsc)
	if q.Suspended {
		s = s.Where("suspended > 0")
	}
	if q.AfterID != "" {
		s = s.Where("id > ?", q.AfterID)
	}
	if q.Limit > 0 {
		s = s.Limit(int64(q.Limit))
	}
	return rows, s.Scan(ctx)
}

// DeleteWorkspace removes a row with its quotas. A missing row is no error; one that has keys cannot be removed.
func (t *Tx) DeleteWorkspace(ctx context.Context, id string) error {
	if _, err := t.db.NewDelete().Model((*Quota)(nil)).Where("workspace = ?", id).Exec(ctx); err != nil {
		return err
	}
	_, err := t.db.NewDelete().Model((*Workspace)(nil)).Where("id = ?", id).Exec(ctx)
	return err
}

// SetSuspended writes since when a workspace is suspended, 0 for not.
//
// ErrNotFound if there is no such workspace.
func (t *Tx) SetSuspended(ctx context.Context, id string, since int64) error {
	res, err := t.db.NewUpdate().Model((*Workspace)(nil)).Set("suspended = ?", since).Where("id = ?", id).Exec(ctx)
	return changed(res, err, "workspace", id)
}

// Quota is a row of quotas: what a workspace may have of a kind in place of the default.
type Quota struct {
	bun.BaseModel `bun:"table:quotas"`
	Workspace     string `bun:"workspace,pk"`
	Kind          string `bun:"kind,pk"`
	Allowed       int64  `bun:"allowed"`
}

// PutQuota adds a row or replaces it.
func (t *Tx) PutQuota(ctx context.Context, q *Quota) error {
	_, err := t.db.NewInsert().Model(q).On("CONFLICT (workspace, kind) DO UPDATE").
		Set("allowed = EXCLUDED.allowed").Exec(ctx)
	return err
}

// DeleteQuota removes a row. A missing row is no error.
func (t *Tx) DeleteQuota(ctx context.Context, workspace, kind string) error {
	_, err := t.db.NewDelete().Model((*Quota)(nil)).Where("workspace = ?", workspace).Where("kind = ?", kind).Exec(ctx)
	return err
}

// QuotasOf reads the rows of a kind, by workspace.
func (t *Tx) QuotasOf(ctx context.Context, kind string) (map[string]int64, error) {
	var rows []Quota
	err := t.db.NewSelect().Model(&rows).Where("kind = ?", kind).Scan(ctx)
	own := make(map[string]int64, len(rows))
	for _, r := range rows {
		own[r.Workspace] = r.Allowed
	}
	return own, err
}

// Quotas reads the rows of a workspace, by kind.
func (t *Tx) Quotas(ctx context.Context, workspace string) (map[string]int64, error) {
	var rows []Quota
	err := t.db.NewSelect().Model(&rows).Where("workspace = ?", workspace).Scan(ctx)
	own := make(map[string]int64, len(rows))
	for _, r := range rows {
		own[r.Kind] = r.Allowed
	}
	return own, err
}
