package store

import (
	"context"

	"github.com/uptrace/bun"
)

// Workspace is a row of workspaces.
type Workspace struct {
	bun.BaseModel `bun:"table:workspaces"`
	ID            string `bun:"id,pk"`
	Name          string `bun:"name"`
	Created       int64  `bun:"created"`
	MaxSandboxes  int    `bun:"max_sandboxes"` // 0: the configured default
}

// PutWorkspace adds a row; an existing one stays as it is.
func (t *Tx) PutWorkspace(ctx context.Context, w *Workspace) error {
	_, err := t.db.NewInsert().Model(w).On("CONFLICT (id) DO NOTHING").Exec(ctx)
	return err
}

// Workspace reads one row.
func (t *Tx) Workspace(ctx context.Context, id string) (Workspace, error) {
	w := Workspace{ID: id}
	err := t.db.NewSelect().Model(&w).WherePK().Scan(ctx)
	return w, notFound(err, "workspace", id)
}

// SetMaxSandboxes changes the bound of a workspace; 0 is the configured default.
func (t *Tx) SetMaxSandboxes(ctx context.Context, id string, n int) error {
	res, err := t.db.NewUpdate().Model((*Workspace)(nil)).Set("max_sandboxes = ?", n).Where("id = ?", id).Exec(ctx)
	return changed(res, err, "workspace", id)
}
