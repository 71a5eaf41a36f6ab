package store

import (
	"context"

	"github.com/uptrace/bun"
)

// The states of a snapshot's row.
const (
	SnapshotCreating = "creating"
	SnapshotReady    = "ready"
	SnapshotDeleting = "deleting"
)

// Snapshot is a row of snapshots.
type Snapshot struct {
	bun.BaseModel `bun:"table:snapshots"`
	ID            string `bun:"id,pk"`
	Workspace     string `bun:"workspace"`
	Sandbox       string `bun:"sandbox"`
	State         string `bun:"state"`
	Owner         string `bun:"owner"`
	Host          string `bun:"host"` // that has it; "": not known
	Name          string `bun:"name"`
	Template      string `bun:"template"`
	VCPUs         int    `bun:"vcpus"`
	MemoryMiB     int    `bun:"memory_mib"`
	DiskMiB       int    `bun:"disk_mib"`
	Bytes         int64  `bun:"bytes"`
	Metadata      Pairs  `bun:"metadata"`
	Env           Pairs  `bun:"env"`
	Injected      string `bun:"surroundings"` // JSON, of the sandbox it was taken of
	Limits        string `bun:"limits"`       // JSON, of the sandbox it was taken of
	User          string `bun:"user_name"`
	Workdir       string `bun:"workdir"`
	OwnedBy       string `bun:"owned_by"` // "kind/id" of the object of a service; "": a user's own
	Created       int64  `bun:"created"`
}

// InsertSnapshot adds a row; ErrExists if the id is taken.
func (t *Tx) InsertSnapshot(ctx context.Context, s *Snapshot) error {
	row, err := sealed(t, s)
	if err != nil {
		return err
	}
	_, err = t.db.NewInsert().Model(row).Exec(ctx)
	return exists(err, "snapshot", s.ID)
}

// Snapshot reads one row.
func (t *Tx) Snapshot(ctx context.Context, id string) (Snapshot, error) {
	s := Snapshot{ID: id}
	if err := t.db.NewSelect().Model(&s).WherePK().Scan(ctx); err != nil {
		return s, notFound(err, "snapshot", id)
	}
	return s, opened(t, &s)
}

// UpdateSnapshot writes a row that is still in state was; ErrNotFound if there is none.
func (t *Tx) UpdateSnapshot(ctx context.Context, s *Snapshot, was string) error {
	row, err := sealed(t, s)
	if err != nil {
		return err
	}
	res, err := t.db.NewUpdate().Model(row).WherePK().Where("state = ?", was).Exec(ctx)
	return changed(res, err, "snapshot", s.ID)
}

// DeleteSnapshot removes a row. A missing row is no error.
func (t *Tx) DeleteSnapshot(ctx context.Context, id string) error {
	_, err := t.db.NewDelete().Model((*Snapshot)(nil)).Where("id = ?", id).Exec(ctx)
	return err
}

// SnapshotQuery selects rows, newest first. Zero fields select everything.
type SnapshotQuery struct {
	Workspace, Sandbox, Name, State string
	Limit                           int
	BeforeCreated                   int64
	BeforeID                        string
	// OwnedBy is the service's object that they belong to, "" for those of users; nil: any.
	OwnedBy *string
}

// Snapshots reads the rows that q selects.
func (t *Tx) Snapshots(ctx context.Context, q SnapshotQuery) ([]Snapshot, error) {
	var rows []Snapshot
	s := t.db.NewSelect().Model(&rows).OrderBy("created", bun.OrderDesc).OrderBy("id", bun.OrderDesc)
	if q.Workspace != "" {
		s = s.Where("workspace = ?", q.Workspace)
	}
	if q.Sandbox != "" {
		s = s.Where("sandbox = ?", q.Sandbox)
	}
	if q.Name != "" {
		s = s.Where("name = ?", q.Name)
	}
	if q.State != "" {
		s = s.Where("state = ?", q.State)
	}
	if q.OwnedBy != nil {
		s = s.Where("owned_by = ?", *q.OwnedBy)
	}
	if q.BeforeID != "" {
		s = s.Where("(created < ? OR (created = ? AND id < ?))", q.BeforeCreated, q.BeforeCreated, q.BeforeID)
	}
	if q.Limit > 0 {
		s = s.Limit(int64(q.Limit))
	}
	return openedList(t, rows, s.Scan(ctx))
}
