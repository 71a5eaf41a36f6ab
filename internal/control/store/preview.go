package store

import (
	"context"

	"github.com/uptrace/bun"
)

// Preview is a row of previews: a signed preview URL without its token.
type Preview struct {
	bun.BaseModel `bun:"table:previews"`
	ID            string `bun:"id,pk"`
	Workspace     string `bun:"workspace"`
	Sandbox       string `bun:"sandbox"`
	Port          int    `bun:"port"` // 0: all previews of the sandbox that have no rows
	Paths         string `bun:"paths"`
	Key           string `bun:"key"`
	Created       int64  `bun:"created"`
	Expires       int64  `bun:"expires"`
	Revoked       int64  `bun:"revoked"` // 0: it was not
}

// InsertPreview adds a row; ErrExists if the id is taken.
func (t *Tx) InsertPreview(ctx context.Context, p *Preview) error {
	_, err := t.db.NewInsert().Model(p).Exec(ctx)
	return exists(err, "preview", p.ID)
}

// Preview reads one row.
func (t *Tx) Preview(ctx context.Context, id string) (Preview, error) {
	p := Preview{ID: id}
	err := t.db.NewSelect().Model(&p).WherePK().Scan(ctx)
	return p, notFound(err, "preview", id)
}

// Previews reads the rows of a sandbox that expire after the given time, newest first.
func (t *Tx) Previews(ctx context.Context, sandbox string, after int64) ([]Preview, error) {
	var rows []Preview
	err := t.db.NewSelect().Model(&rows).Where("sandbox = ?", sandbox).Where("expires > ?", after).
		OrderBy("created", bun.OrderDesc).OrderBy("id", bun.OrderAsc).Scan(ctx)
	return rows, err
}

// RevokePreview writes when a row was revoked, unless it was before; ErrNotFound if there is none.
func (t *Tx) RevokePreview(ctx context.Context, id string, at int64) error {
	res, err := t.db.NewUpdate().Model((*Preview)(nil)).
		Set("revoked = CASE WHEN revoked = 0 THEN ? ELSE revoked END", at).Where("id = ?", id).Exec(ctx)
	return changed(res, err, "preview", id)
}

// DeletePreviews removes the rows that expired before the given time.
func (t *Tx) DeletePreviews(ctx context.Context, before int64) error {
	_, err := t.db.NewDelete().Model((*Preview)(nil)).Where("expires < ?", before).Exec(ctx)
	return err
}
