package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/uptrace/bun"
)

// The states of the rows of runs.
const (
	RunQueued   = "queued"
	RunRunning  = "running"
	RunSuccess  = "success"
	RunError    = "error"
	RunTimeout  = "timeout"
	RunSkipped  = "skipped"
	RunCanceled = "canceled"
)

// Schedule is a row of schedules. Times are microseconds.
type Schedule struct {
	bun.BaseModel `bun:"table:schedules"`
	ID            string `bun:"id,pk"`
	Workspace     string `bun:"workspace"`
	Name          string `bun:"name"`
	Cron          string `bun:"cron"`
	Target        string `bun:"target"`
	Options       string `bun:"options"`
	Secret        string `bun:"secret"`
	Paused        bool   `bun:"paused"`
	Next          int64  `bun:"next"`
	Created       int64  `bun:"created"`
	Changed       int64  `bun:"changed"`
}

func (s *Schedule) place() string { return "schedules/" + s.ID }

func (s *Schedule) visit(v visitor) error {
	return errors.Join(v.text("target", &s.Target), v.text("secret", &s.Secret))
}

// InsertSchedule adds a row; ErrExists if the id, or the name in the workspace, is taken.
func (t *Tx) InsertSchedule(ctx context.Context, s *Schedule) error {
	row, err := sealed(t, s)
	if err != nil {
		return err
	}
	_, err = t.db.NewInsert().Model(row).Exec(ctx)
	return exists(err, "schedule", s.Name)
}

// Schedule reads one row.
func (t *Tx) Schedule(ctx context.Context, id string) (Schedule, error) {
	s := Schedule{ID: id}
	if err := t.db.NewSelect().Model(&s).WherePK().Scan(ctx); err != nil {
		return s, notFound(err, "schedule", id)
	}
	return s, opened(t, &s)
}

// LockSchedule is Schedule for a transaction that adds runs, or ends their wait: others that lock it wait for its end.
func (t *Tx) LockSchedule(ctx context.Context, id string) (Schedule, error) {
	s := Schedule{ID: id}
	q := t.db.NewSelect().Model(&s).WherePK()
	if t.postgres { // SQLite has one transaction that writes at a time
		q = q.For("NO KEY UPDATE")
	}
	if err := q.Scan(ctx); err != nil {
		return s, notFound(err, "schedule", id)
	}
	return s, opened(t, &s)
}

// Schedules reads the schedules of a workspace by name.
func (t *Tx) Schedules(ctx context.Context, workspace string) ([]Schedule, error) {
	rows := []Schedule{}
	err := t.db.NewSelect().Model(&rows).Where("workspace = ?", workspace).OrderBy("name", bun.OrderAsc).Scan(ctx)
	return openedList[Schedule](t, rows, err)
}

// DueSchedules reads up to limit schedules whose next moment has come, the longest due first.
func (t *Tx) DueSchedules(ctx context.Context, now int64, limit int) ([]Schedule, error) {
	rows := []Schedule{}
	err := t.db.NewSelect().Model(&rows).Where("next > 0").Where("next <= ?", now).
		OrderBy("next", bun.OrderAsc).OrderBy("id", bun.OrderAsc).Limit(int64(limit)).Scan(ctx)
	return openedList[Schedule](t, rows, err)
}

// NextSchedule reads the first moment of all schedules; 0 if there is none.
func (t *Tx) NextSchedule(ctx context.Context) (int64, error) {
	var next int64
	err := t.db.NewSelect().Model((*Schedule)(nil)).ColumnExpr("COALESCE(MIN(next), 0)").Where("next > 0").
		Scan(ctx, &next)
	return next, err
}

// AdvanceSchedule sets the next moment of a schedule whose next moment was was; else ErrNotFound.
func (t *Tx) AdvanceSchedule(ctx context.Context, id string, was, next int64) error {
	res, err := t.db.NewUpdate().Model((*Schedule)(nil)).Set("next = ?", next).Where("id = ?", id).
		Where("next = ?", was).Exec(ctx)
	return changed(res, err, "schedule", id)
}

// UpdateSchedule writes a row that was last changed at a time; ErrNotFound if it was changed since.
//
// ErrExists says that another schedule of the workspace has the name.
func (t *Tx) UpdateSchedule(ctx context.Context, s *Schedule, was int64) error {
	row, err := sealed(t, s)
	if err != nil {
		return err
	}
	n, err := t.db.NewSelect().Model((*Schedule)(nil)).Where("workspace = ?", s.Workspace).Where("name = ?", s.Name).
		Where("id <> ?", s.ID).Count(ctx)
	if err != nil {
		return err
	}
	if n > 0 {
		return fmt.Errorf("schedule %s: %w", s.Name, ErrExists)
	}
	res, err := t.db.NewUpdate().Model(row).WherePK().Where("changed = ?", was).Exec(ctx)
	return changed(res, err, "schedule", s.ID)
}

// DeleteSchedule removes a row with its runs. A missing row is no error.
func (t *Tx) DeleteSchedule(ctx context.Context, id string) error {
	// The schedule is first: a transaction that adds runs has locked it.
	if _, err := t.db.NewDelete().Model((*Schedule)(nil)).Where("id = ?", id).Exec(ctx); err != nil {
		return err
	}
	_, err := t.db.NewDelete().Model((*ScheduleRun)(nil)).Where("schedule = ?", id).Exec(ctx)
	return err
}

// CountSchedules counts the schedules of a workspace; workspace "" is all.
func (t *Tx) CountSchedules(ctx context.Context, workspace string) (int64, error) {
	q := t.db.NewSelect().Model((*Schedule)(nil))
	if workspace != "" {
		q = q.Where("workspace = ?", workspace)
	}
	n, err := q.Count(ctx)
	return int64(n), err
}

// ScheduleRun is a row of schedule_runs. Times are microseconds.
type ScheduleRun struct {
	bun.BaseModel `bun:"table:schedule_runs"`
	ID            string `bun:"id,pk"`
	Schedule      string `bun:"schedule"`
	Workspace     string `bun:"workspace"`
	Moment        int64  `bun:"moment"`
	Manual        bool   `bun:"manual"`
	State         string `bun:"state"`
	Waiting       bool   `bun:"waiting"`
	Attempt       int    `bun:"attempt"`
	Sandbox       string `bun:"sandbox"`
	ExitCode      *int   `bun:"exit_code"`
	Stdout        string `bun:"stdout"`
	Stderr        string `bun:"stderr"`
	Error         string `bun:"error"`
	Created       int64  `bun:"created"`
	Started       int64  `bun:"started"`
	Ended         int64  `bun:"ended"`
}

func (r *ScheduleRun) place() string { return "schedule_runs/" + r.ID }

func (r *ScheduleRun) visit(v visitor) error {
	return errors.Join(v.text("stdout", &r.Stdout), v.text("stderr", &r.Stderr))
}

// InsertScheduleRun adds a row. It returns ErrExists, and leaves the transaction usable, if the schedule has a run for
// that moment.
func (t *Tx) InsertScheduleRun(ctx context.Context, r *ScheduleRun) error {
	row, err := sealed(t, r)
	if err != nil {
		return err
	}
	res, err := t.db.NewInsert().Model(row).On("CONFLICT DO NOTHING").Exec(ctx)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && n == 0 {
		err = fmt.Errorf("run of schedule %s: %w", r.Schedule, ErrExists)
	}
	return err
}

// ScheduleRun reads one row.
func (t *Tx) ScheduleRun(ctx context.Context, id string) (ScheduleRun, error) {
	r := ScheduleRun{ID: id}
	if err := t.db.NewSelect().Model(&r).WherePK().Scan(ctx); err != nil {
		return r, notFound(err, "run", id)
	}
	return r, opened(t, &r)
}

// ScheduleRunQuery selects runs of a schedule. Zero fields select everything.
type ScheduleRunQuery struct {
	Schedule string
	Active   bool // they have not ended
	Waiting  bool // they wait for another run
	Limit    int
	Oldest   bool // oldest first
}

// ScheduleRuns reads the runs that q selects, newest first.
func (t *Tx) ScheduleRuns(ctx context.Context, q ScheduleRunQuery) ([]ScheduleRun, error) {
	rows := []ScheduleRun{}
	s := t.db.NewSelect().Model(&rows).Where("schedule = ?", q.Schedule)
	if q.Active {
		s = s.Where("ended = 0")
	}
	if q.Waiting {
		s = s.Where("waiting = ?", true)
	}
	if q.Limit > 0 {
		s = s.Limit(int64(q.Limit))
	}
	order := bun.OrderDesc
	if q.Oldest {
		order = bun.OrderAsc
	}
	err := s.OrderBy("moment", order).OrderBy("created", order).OrderBy("id", order).Scan(ctx)
	return openedList[ScheduleRun](t, rows, err)
}

// UpdateScheduleRun writes the named columns of a run that has not ended; ErrNotFound if it has.
func (t *Tx) UpdateScheduleRun(ctx context.Context, r *ScheduleRun, columns ...string) error {
	row, err := sealed(t, r)
	if err != nil {
		return err
	}
	res, err := t.db.NewUpdate().Model(row).WherePK().Where("ended = 0").Column(columns...).Exec(ctx)
	return changed(res, err, "run", r.ID)
}

// TrimScheduleRuns removes ended runs of a schedule but the newest.
func (t *Tx) TrimScheduleRuns(ctx context.Context, schedule string, keep int) error {
	_, err := t.db.NewDelete().Model((*ScheduleRun)(nil)).Where("schedule = ?", schedule).Where("ended > 0").
		Where("id NOT IN (SELECT id FROM schedule_runs WHERE schedule = ? ORDER BY created DESC, id DESC LIMIT ?)",
			schedule, keep).Exec(ctx)
	return err
}
