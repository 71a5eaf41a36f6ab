package store

import (
	"context"

	"github.com/uptrace/bun"
)

// DatabaseBackups is a row of database_backups: what is due when for the backups of a database, and what became of it.
// Times are microseconds.
type DatabaseBackups struct {
	bun.BaseModel `bun:"table:database_backups"`
	Database      string `bun:"database_id,pk"`
	BaseDue       int64  `bun:"base_due"`
	Based         int64  `bun:"based"`
	BaseError     string `bun:"base_error"`
	CollectDue    int64  `bun:"collect_due"`
	ScrubDue      int64  `bun:"scrub_due"`
	Scrubbed      int64  `bun:"scrubbed"`
	ScrubError    string `bun:"scrub_error"`
	Fence         int64  `bun:"fence"`
}

// InsertDatabaseBackups adds a row. One that exists stays as it is.
func (t *Tx) InsertDatabaseBackups(ctx context.Context, b *DatabaseBackups) error {
	_, err := t.db.NewInsert().Model(b).On("CONFLICT DO NOTHING").Exec(ctx)
	return err
}

// DatabaseBackups reads the row of a database.
func (t *Tx) DatabaseBackups(ctx context.Context, database string) (DatabaseBackups, error) {
	b := DatabaseBackups{Database: database}
	err := t.db.NewSelect().Model(&b).WherePK().Scan(ctx)
	return b, notFound(err, "backups of database", database)
}

// AllDatabaseBackups reads all rows.
func (t *Tx) AllDatabaseBackups(ctx context.Context) ([]DatabaseBackups, error) {
	rows := []DatabaseBackups{}
	err := t.db.NewSelect().Model(&rows).OrderBy("database_id", bun.OrderAsc).Scan(ctx)
	return rows, err
}

// UpdateDatabaseBackups writes columns of a row. A missing row is no error.
func (t *Tx) UpdateDatabaseBackups(ctx context.Context, b *DatabaseBackups, columns ...string) error {
	_, err := t.db.NewUpdate().Model(b).WherePK().Column(columns...).Exec(ctx)
	return err
}

// DeleteDatabaseBackups removes a row. A missing row is no error.
func (t *Tx) DeleteDatabaseBackups(ctx context.Context, database string) error {
	_, err := t.db.NewDelete().Model((*DatabaseBackups)(nil)).Where("database_id = ?", database).Exec(ctx)
	return err
}
