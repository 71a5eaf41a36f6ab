package store

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"
)

// Job is a row of jobs. Times are microseconds. A job that has not ended has Ended 0.
type Job struct {
	bun.BaseModel `bun:"table:jobs"`
	ID            string `bun:"id,pk"`
	Kind          string `bun:"kind"`
	UniqueKey     string `bun:"unique_key"` // at most one active job of a kind has it; "" for none
	Owner         string `bun:"owner"`      // "kind/id" of the resource that the job works for
	Workspace     string `bun:"workspace"`
	Payload       string `bun:"payload"` // JSON
	State         string `bun:"state"`
	Attempts      int    `bun:"attempts"`
	MaxAttempts   int    `bun:"max_attempts"`
	RunAfter      int64  `bun:"run_after"`
	Deadline      int64  `bun:"deadline"`
	LeaseOwner    string `bun:"lease_owner"`
	Fence         int64  `bun:"fence"` // grows with every claim
	LeaseExpires  int64  `bun:"lease_expires"`
	Progress      string `bun:"progress"`
	LogPosition   int64  `bun:"log_position"`
	Error         string `bun:"error"`
	Code          string `bun:"code"`
	Result        string `bun:"result"` // JSON
	Created       int64  `bun:"created"`
	Started       int64  `bun:"started"`
	Ended         int64  `bun:"ended"`
}

// InsertJob adds a row. It returns ErrExists, and leaves the transaction usable, if the id or the unique key is taken.
func (t *Tx) InsertJob(ctx context.Context, j *Job) error {
	row, err := sealed(t, j)
	if err != nil {
		return err
	}
	res, err := t.db.NewInsert().Model(row).On("CONFLICT DO NOTHING").Exec(ctx)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && n == 0 {
		err = fmt.Errorf("job %s: %w", j.ID, ErrExists)
	}
	return err
}

// Job reads one row.
func (t *Tx) Job(ctx context.Context, id string) (Job, error) {
	j := Job{ID: id}
	if err := t.db.NewSelect().Model(&j).WherePK().Scan(ctx); err != nil {
		return j, notFound(err, "job", id)
	}
	return j, opened(t, &j)
}

// ActiveJob reads the job of a kind that has the unique key and has not ended.
func (t *Tx) ActiveJob(ctx context.Context, kind, key string) (Job, error) {
	var j Job
	err := t.db.NewSelect().Model(&j).Where("kind = ?", kind).Where("unique_key = ?", key).Where("ended = 0").Scan(ctx)
	if err != nil {
		return j, notFound(err, "job with key", key)
	}
	return j, opened(t, &j)
}

// JobQuery selects jobs, those that may run earliest first. Zero fields select everything.
type JobQuery struct {
	Kinds          []string
	States         []string
	Owner          string
	RunBefore      int64 // RunAfter is not later
	RunLater       int64 // RunAfter is later
	DeadlineBefore int64 // Deadline is set and not later
	EndedBefore    int64 // Ended is set and earlier
	// NotWorkspaces leaves out the jobs of these workspaces.
	NotWorkspaces []string
	Limit         int
}

// Jobs reads the rows that q selects.
func (t *Tx) Jobs(ctx context.Context, q JobQuery) ([]Job, error) {
	var rows []Job
	s := t.db.NewSelect().Model(&rows).
		OrderBy("run_after", bun.OrderAsc).OrderBy("created", bun.OrderAsc).OrderBy("id", bun.OrderAsc)
	if len(q.Kinds) > 0 {
		s = s.Where("kind IN (?)", bun.List(q.Kinds))
	}
	if len(q.States) > 0 {
		s = s.Where("state IN (?)", bun.List(q.States))
	}
	if q.Owner != "" {
		s = s.Where("owner = ?", q.Owner)
	}
	if q.RunBefore > 0 {
		s = s.Where("run_after <= ?", q.RunBefore)
	}
	if q.RunLater > 0 {
		s = s.Where("run_after > ?", q.RunLater)
	}
	if q.DeadlineBefore > 0 {
		s = s.Where("deadline > 0").Where("deadline <= ?", q.DeadlineBefore)
	}
	if q.EndedBefore > 0 {
		s = s.Where("ended > 0").Where("ended < ?", q.EndedBefore)
	}
	if len(q.NotWorkspaces) > 0 {
		s = s.Where("workspace NOT IN (?)", bun.List(q.NotWorkspaces))
	}
	if q.Limit > 0 {
		s = s.Limit(int64(q.Limit))
	}
	return openedList(t, rows, s.Scan(ctx))
}

// UpdateJob writes the named columns of a row that is in the state was and has the fence number given.
// It returns ErrNotFound if the row is not or has not.
func (t *Tx) UpdateJob(ctx context.Context, j *Job, was string, fence int64, columns ...string) error {
	row, err := sealed(t, j)
	if err != nil {
		return err
	}
	res, err := t.db.NewUpdate().Model(row).WherePK().Where("state = ?", was).Where("fence = ?", fence).
		Column(columns...).Exec(ctx)
	return changed(res, err, "job", j.ID)
}

// DeleteJob removes a row. It is no error if the row does not exist.
func (t *Tx) DeleteJob(ctx context.Context, id string) error {
	_, err := t.db.NewDelete().Model((*Job)(nil)).Where("id = ?", id).Exec(ctx)
	return err
}
