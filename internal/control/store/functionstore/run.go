package functionstore

import (
	"context"
	"math"

	"github.com/uptrace/bun"

	"github.com/pandastack/pandastack/internal/control/store"
)

// Run is a row of function_runs. Times are microseconds.
type Run struct {
	bun.BaseModel `bun:"table:function_runs"`
	ID            string  `bun:"id,pk"`
	Function      string  `bun:"function"`
	Workspace     string  `bun:"workspace"`
	Version       int64   `bun:"version"`
	Alias         string  `bun:"alias"`
	Schedule      string  `bun:"schedule"`
	Moment        int64   `bun:"moment"`
	Origin        string  `bun:"origin"`
	Batch         string  `bun:"batch"`
	Place         int64   `bun:"place"`
	Dedupe        *string `bun:"dedupe"`
	State         string  `bun:"state"`
	Instance      string  `bun:"instance"`
	Lease         int64   `bun:"lease"`
	Attempt       int64   `bun:"attempt"`
	Attempts      int64   `bun:"attempts"`
	Due           int64   `bun:"due"`
	Expires       int64   `bun:"expires"`
	Input         string  `bun:"input"`
	Result        string  `bun:"result"`
	Error         string  `bun:"error"`
	Stdout        string  `bun:"stdout"`
	Stderr        string  `bun:"stderr"`
	Truncated     bool    `bun:"truncated"`
	ExitCode      *int    `bun:"exit_code"`
	Sandbox       string  `bun:"sandbox"`
	Cold          bool    `bun:"cold"`
	Memory        int64   `bun:"memory"`
	Duration      int64   `bun:"duration"`
	Trace         string  `bun:"trace"`
	Created       int64   `bun:"created"`
	Started       int64   `bun:"started"`
	Ended         int64   `bun:"ended"`
}

func (r *Run) place() string { return "function_runs/" + r.ID }

func (r *Run) secrets() []secret {
	return []secret{
		{"input", &r.Input}, {"result", &r.Result}, {"error", &r.Error}, {"stdout", &r.Stdout}, {"stderr", &r.Stderr},
	}
}

// InsertRun adds a row. It returns ErrExists if the id, or the idempotency key of the function, is taken.
func (t Tx) InsertRun(ctx context.Context, r *Run) error {
	_, err := t.db.NewInsert().Model(sealed(t, r)).Exec(ctx)
	return store.Exists(err, "invocation", r.ID)
}

// Run reads one row.
func (t Tx) Run(ctx context.Context, id string) (Run, error) {
	r := Run{ID: id}
	if err := t.db.NewSelect().Model(&r).WherePK().Scan(ctx); err != nil {
		return r, store.NotFound(err, "invocation", id)
	}
	return r, opened(t, &r)
}

// RunByKey reads the run of a function with an idempotency key.
func (t Tx) RunByKey(ctx context.Context, function, key string) (Run, error) {
	var r Run
	err := t.db.NewSelect().Model(&r).Where("function = ?", function).Where("dedupe = ?", key).Scan(ctx)
	if err != nil {
		return r, store.NotFound(err, "invocation with the key", key)
	}
	return r, opened(t, &r)
}

// RunQuery selects runs. Zero fields select everything.
type RunQuery struct {
	Function string
	Schedule string
	States   []string
	Since    int64  // created at or after it
	Before   int64  // created before it,
	BeforeID string // or at it with a smaller id
	Version  int64
	Limit    int
}

// Runs reads the runs that q selects, newest first.
func (t Tx) Runs(ctx context.Context, q RunQuery) ([]Run, error) {
	rows := []Run{}
	s := t.db.NewSelect().Model(&rows)
	if q.Function != "" {
		s = s.Where("function = ?", q.Function)
	}
	if q.Schedule != "" {
		s = s.Where("schedule = ?", q.Schedule)
	}
	if len(q.States) > 0 {
		s = s.Where("state IN (?)", bun.List(q.States))
	}
	if q.Since > 0 {
		s = s.Where("created >= ?", q.Since)
	}
	if q.Before > 0 {
		s = s.Where("created < ? OR created = ? AND id < ?", q.Before, q.Before, q.BeforeID)
	}
	if q.Version > 0 {
		s = s.Where("version = ?", q.Version)
	}
	if q.Limit > 0 {
		s = s.Limit(int64(q.Limit))
	}
	err := s.OrderBy("created", bun.OrderDesc).OrderBy("id", bun.OrderDesc).Scan(ctx)
	return openedList[Run](t, rows, err)
}

// UpdateRun writes the named columns of a run that is in state was; ErrNotFound if it is not.
func (t Tx) UpdateRun(ctx context.Context, r *Run, was string, columns ...string) error {
	res, err := t.db.NewUpdate().Model(sealed(t, r)).WherePK().Where("state = ?", was).Column(columns...).Exec(ctx)
	return store.Changed(res, err, "invocation", r.ID)
}

// Figure is what metrics need of a run.
type Figure struct {
	State    string `bun:"state"`
	Duration int64  `bun:"duration"`
	Cold     bool   `bun:"cold"`
}

// Figures reads figures of the newest ended runs of a function since a time.
func (t Tx) Figures(ctx context.Context, function string, since int64, limit int) ([]Figure, error) {
	rows := []Figure{}
	err := t.db.NewSelect().Model((*Run)(nil)).Column("state", "duration", "cold").
		Where("function = ?", function).Where("created >= ?", since).Where("ended > 0").
		OrderBy("created", bun.OrderDesc).Limit(int64(limit)).Scan(ctx, &rows)
	return rows, err
}

// EndedRuns reads the runs of a function that have ended at or after a time, the last first.
func (t Tx) EndedRuns(ctx context.Context, function string, since int64, limit int) ([]Run, error) {
	rows := []Run{}
	err := t.db.NewSelect().Model(&rows).Where("function = ?", function).Where("ended > 0").
		Where("ended >= ?", since).OrderBy("ended", bun.OrderDesc).OrderBy("id", bun.OrderDesc).
		Limit(int64(limit)).Scan(ctx)
	return openedList[Run](t, rows, err)
}

// SynchronousRuns reads the runs under way whose lease has no end, as callers wait for them.
func (t Tx) SynchronousRuns(ctx context.Context) ([]Run, error) {
	rows := []Run{}
	err := t.db.NewSelect().Model(&rows).Where("state = ?", store.RunRunning).
		Where("lease = ?", int64(math.MaxInt64)).Scan(ctx)
	return openedList[Run](t, rows, err)
}

// DeleteRun removes a row. A missing row is no error.
func (t Tx) DeleteRun(ctx context.Context, id string) error {
	_, err := t.db.NewDelete().Model((*Run)(nil)).Where("id = ?", id).Exec(ctx)
	return err
}
