package store

import (
	"context"
	"maps"
	"slices"

	"github.com/uptrace/bun"
)

// SandboxSums are what rows of sandboxes add up to.
type SandboxSums struct {
	Count, VCPUs, MemoryMiB, DiskMiB int64
}

// SandboxSums adds up the sandboxes of a workspace in one of the states; without states, in any.
func (t *Tx) SandboxSums(ctx context.Context, workspace string, states ...string) (SandboxSums, error) {
	var sums SandboxSums
	q := t.db.NewSelect().Model((*Sandbox)(nil)).ColumnExpr("count(*)")
	for _, column := range []string{"vcpus", "memory_mib", "disk_mib"} {
		q = q.ColumnExpr("CAST(COALESCE(SUM(?), 0) AS BIGINT)", bun.Ident(column))
	}
	q = q.Where("workspace = ?", workspace)
	if len(states) > 0 {
		q = q.Where("state IN (?)", bun.List(states))
	}
	return sums, q.Scan(ctx, &sums.Count, &sums.VCPUs, &sums.MemoryMiB, &sums.DiskMiB)
}

// SandboxDiskBytes adds up what the disks of a workspace's sandboxes take, as measured last.
func (t *Tx) SandboxDiskBytes(ctx context.Context, workspace string) (int64, error) {
	var bytes int64
	err := t.db.NewSelect().Model((*Sandbox)(nil)).ColumnExpr("CAST(COALESCE(SUM(disk_bytes), 0) AS BIGINT)").
		Where("workspace = ?", workspace).Scan(ctx, &bytes)
	return bytes, err
}

// PutDiskBytes writes what the disks of sandboxes take, by id. Missing sandboxes are skipped.
func (t *Tx) PutDiskBytes(ctx context.Context, all map[string]int64) error {
	for _, id := range slices.Sorted(maps.Keys(all)) {
		_, err := t.db.NewUpdate().Model((*Sandbox)(nil)).Set("disk_bytes = ?", all[id]).Where("id = ?", id).Exec(ctx)
		if err != nil {
			return err
		}
	}
	return nil
}

// DataDisks reads the data disks of the sandboxes of a workspace that have some, each as JSON.
func (t *Tx) DataDisks(ctx context.Context, workspace string) ([]string, error) {
	var all []string
	err := t.db.NewSelect().Model((*Sandbox)(nil)).Column("data_disks").
		Where("workspace = ?", workspace).Where("data_disks <> ''").Scan(ctx, &all)
	return all, err
}

// SnapshotSums counts the snapshots of a workspace, in any state, and adds up their bytes.
func (t *Tx) SnapshotSums(ctx context.Context, workspace string) (count, bytes int64, err error) {
	err = t.db.NewSelect().Model((*Snapshot)(nil)).ColumnExpr("count(*)").
		ColumnExpr("CAST(COALESCE(SUM(bytes), 0) AS BIGINT)").
		Where("workspace = ?", workspace).Scan(ctx, &count, &bytes)
	return count, bytes, err
}

// CountTemplates counts the templates of a workspace.
func (t *Tx) CountTemplates(ctx context.Context, workspace string) (int64, error) {
	n, err := t.db.NewSelect().Model((*Template)(nil)).Where("workspace = ?", workspace).Count(ctx)
	return int64(n), err
}

// VersionBytes adds up the bytes of all versions of a workspace's templates.
func (t *Tx) VersionBytes(ctx context.Context, workspace string) (int64, error) {
	var bytes int64
	err := t.db.NewSelect().Model((*Version)(nil)).ColumnExpr("CAST(COALESCE(SUM(bytes), 0) AS BIGINT)").
		Where("template IN (SELECT id FROM templates WHERE workspace = ?)", workspace).Scan(ctx, &bytes)
	return bytes, err
}

// CountBuilds counts the builds of a workspace in one of the states.
func (t *Tx) CountBuilds(ctx context.Context, workspace string, states []string) (int64, error) {
	n, err := t.db.NewSelect().Model((*Build)(nil)).Where("workspace = ?", workspace).
		Where("state IN (?)", bun.List(states)).Count(ctx)
	return int64(n), err
}

// Upload is a row of uploads: disk space of build inputs that is charged to a workspace.
type Upload struct {
	bun.BaseModel `bun:"table:uploads"`
	ID            string `bun:"id,pk"`
	Dir           string `bun:"dir"` // id of the directory that has the files
	Workspace     string `bun:"workspace"`
	Bytes         int64  `bun:"bytes"`
	Changed       int64  `bun:"changed"`
}

// PutUpload adds a row or replaces its bytes.
func (t *Tx) PutUpload(ctx context.Context, u *Upload) error {
	_, err := t.db.NewInsert().Model(u).On("CONFLICT (id) DO UPDATE").
		Set("bytes = EXCLUDED.bytes").Set("changed = EXCLUDED.changed").Exec(ctx)
	return err
}

// DeleteUpload removes a row. A missing row is no error.
func (t *Tx) DeleteUpload(ctx context.Context, id string) error {
	_, err := t.db.NewDelete().Model((*Upload)(nil)).Where("id = ?", id).Exec(ctx)
	return err
}

// Uploads reads the rows of a directory, by id.
func (t *Tx) Uploads(ctx context.Context, dir string) ([]Upload, error) {
	var rows []Upload
	err := t.db.NewSelect().Model(&rows).Where("dir = ?", dir).OrderBy("id", bun.OrderAsc).Scan(ctx)
	return rows, err
}

// UploadBytes adds up the bytes of a workspace's uploads.
func (t *Tx) UploadBytes(ctx context.Context, workspace string) (int64, error) {
	var bytes int64
	err := t.db.NewSelect().Model((*Upload)(nil)).ColumnExpr("CAST(COALESCE(SUM(bytes), 0) AS BIGINT)").
		Where("workspace = ?", workspace).Scan(ctx, &bytes)
	return bytes, err
}
