package store

import (
	"context"

	"github.com/uptrace/bun"
)

// WebhookDelivery is a row of webhook_deliveries: a delivery that was taken. Times are microseconds.
type WebhookDelivery struct {
	bun.BaseModel `bun:"table:webhook_deliveries"`
	ID            string `bun:"id,pk"`
	Created       int64  `bun:"created"`
}

// InsertWebhookDelivery adds a row; ErrExists if the delivery was taken before.
func (t *Tx) InsertWebhookDelivery(ctx context.Context, d *WebhookDelivery) error {
	_, err := t.db.NewInsert().Model(d).Exec(ctx)
	return exists(err, "delivery", d.ID)
}

// DeleteWebhookDelivery removes a row, so that the delivery can be taken again. A missing row is no error.
func (t *Tx) DeleteWebhookDelivery(ctx context.Context, id string) error {
	_, err := t.db.NewDelete().Model((*WebhookDelivery)(nil)).Where("id = ?", id).Exec(ctx)
	return err
}

// DeleteWebhookDeliveries removes the rows of deliveries before a time.
func (t *Tx) DeleteWebhookDeliveries(ctx context.Context, before int64) error {
	_, err := t.db.NewDelete().Model((*WebhookDelivery)(nil)).Where("created < ?", before).Exec(ctx)
	return err
}

// PreviewRepo is a row of preview_repos: a repository whose pull requests get previews in a workspace.
type PreviewRepo struct {
	bun.BaseModel `bun:"table:preview_repos"`
	Workspace     string `bun:"workspace,pk"`
	Repository    int64  `bun:"repository,pk"`
	Name          string `bun:"name"`
	Enabled       bool   `bun:"enabled"`
	Created       int64  `bun:"created"`
}

// PutPreviewRepo adds or replaces a row.
func (t *Tx) PutPreviewRepo(ctx context.Context, r *PreviewRepo) error {
	_, err := t.db.NewInsert().Model(r).On("CONFLICT (workspace, repository) DO UPDATE").
		Set("name = EXCLUDED.name").Set("enabled = EXCLUDED.enabled").Exec(ctx)
	return err
}

// PreviewRepo reads one row.
func (t *Tx) PreviewRepo(ctx context.Context, workspace string, repository int64) (PreviewRepo, error) {
	r := PreviewRepo{Workspace: workspace, Repository: repository}
	err := t.db.NewSelect().Model(&r).WherePK().Scan(ctx)
	return r, notFound(err, "repository", r.Name)
}

// PreviewRepos reads the rows of a workspace by name.
func (t *Tx) PreviewRepos(ctx context.Context, workspace string) ([]PreviewRepo, error) {
	rows := []PreviewRepo{}
	err := t.db.NewSelect().Model(&rows).Where("workspace = ?", workspace).OrderBy("name", bun.OrderAsc).
		OrderBy("repository", bun.OrderAsc).Scan(ctx)
	return rows, err
}

// DeletePreviewRepo removes a row; ErrNotFound if there is none.
func (t *Tx) DeletePreviewRepo(ctx context.Context, workspace string, repository int64) error {
	res, err := t.db.NewDelete().Model((*PreviewRepo)(nil)).Where("workspace = ?", workspace).
		Where("repository = ?", repository).Exec(ctx)
	return changed(res, err, "repository", "")
}
