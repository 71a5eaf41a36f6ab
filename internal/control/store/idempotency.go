package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/uptrace/bun"
)

// Idempotency is a row of idempotency: the sandbox that a key of a workspace stands for.
type Idempotency struct {
	bun.BaseModel `bun:"table:idempotency"`
	Workspace     string `bun:"workspace,pk"`
	Name          string `bun:"name,pk"`
	Hash          string `bun:"hash"` // of the request
	Sandbox       string `bun:"sandbox"`
	Created       int64  `bun:"created"`
}

// InsertIdempotency adds a row; ErrExists if the key is taken.
func (t *Tx) InsertIdempotency(ctx context.Context, i *Idempotency) error {
	res, err := t.db.NewInsert().Model(i).On("CONFLICT (workspace, name) DO NOTHING").Exec(ctx)
	if err = changed(res, err, "idempotency key", i.Name); errors.Is(err, ErrNotFound) {
		return fmt.Errorf("idempotency key %s: %w", i.Name, ErrExists)
	}
	return err
}

// Idempotency reads one row.
func (t *Tx) Idempotency(ctx context.Context, workspace, name string) (Idempotency, error) {
	i := Idempotency{Workspace: workspace, Name: name}
	err := t.db.NewSelect().Model(&i).WherePK().Scan(ctx)
	return i, notFound(err, "idempotency key", name)
}

// DeleteIdempotency frees a key, if it stands for that sandbox.
func (t *Tx) DeleteIdempotency(ctx context.Context, workspace, name, sandbox string) error {
	_, err := t.db.NewDelete().Model((*Idempotency)(nil)).
		Where("workspace = ?", workspace).Where("name = ?", name).Where("sandbox = ?", sandbox).Exec(ctx)
	return err
}
