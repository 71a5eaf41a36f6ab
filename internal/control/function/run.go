package function

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
)

// Finish makes a row one of an attempt that has ended. When the attempt was started stays what it is.
func Finish(row *functionstore.Run, out Outcome, now time.Time) {
	sum := &out.Summary
	row.State, row.Result, row.Error = string(out.Status), string(out.Result), ""
	if out.Failure != nil {
		row.Error, _ = encode(out.Failure) // strings can be encoded
	}
	row.Stdout, row.Stderr, row.Truncated, row.ExitCode = sum.Stdout, sum.Stderr, sum.Truncated, sum.ExitCode
	row.Sandbox, row.Cold, row.Memory = string(out.Sandbox), out.Cold, sum.Memory
	if row.Duration = sum.Micros; row.Duration == 0 {
		row.Duration = out.Wall.Microseconds()
	}
	row.Ended = store.Micros(now)
}

// View returns a run as users see it.
func View(row *functionstore.Run) api.FunctionRun {
	out := api.FunctionRun{
		ID: api.InvocationID(row.ID), Workspace: api.Workspace(row.Workspace),
		FunctionID: api.FunctionID(row.Function), Version: row.Version, Alias: row.Alias,
		ScheduleID: api.ScheduleID(row.Schedule), SandboxID: api.SandboxID(row.Sandbox), Trigger: row.Origin,
		Status: api.RunStatus(row.State), Attempt: int(row.Attempt), Cold: row.Cold, ExitCode: row.ExitCode,
		Stdout: row.Stdout, Stderr: row.Stderr, Truncated: row.Truncated,
		DurationMS: float64(row.Duration) / 1000, MemoryPeakMB: float64(row.Memory) / (1 << 20),
		TraceID: row.Trace, CreatedAt: store.Time(row.Created),
	}
	if row.Ended == 0 && row.State != store.RunRunning {
		out.Status = api.RunQueued
	}
	if json.Valid([]byte(row.Result)) {
		out.Result = json.RawMessage(row.Result)
	}
	if row.Error != "" {
		out.Error = &api.FunctionError{}
		if json.Unmarshal([]byte(row.Error), out.Error) != nil {
			out.Error.Message = row.Error
		}
	}
	if row.Started > 0 {
		at := store.Time(row.Started)
		out.StartedAt, out.QueueMS = &at, float64(row.Started-row.Created)/1000
	}
	if row.Ended > 0 {
		at := store.Time(row.Ended)
		out.EndedAt = &at
	}
	return out
}

// Bounds of lists of runs.
const (
	defaultRuns = 100
	maxRuns     = 1000
)

// Runs returns runs of a function, newest first.
func (s *Service) Runs(ctx context.Context, p auth.Principal, fn string, f api.RunFilter) ([]api.FunctionRun, error) {
	row, err := s.Find(ctx, p, fn)
	if err != nil {
		return nil, err
	}
	if f.Limit < 0 || f.Limit > maxRuns {
		return nil, api.Errorf(api.Invalid, "limit: %d is out of range: use 1 to %d", f.Limit, maxRuns).
			With("field", "limit")
	}
	q := functionstore.RunQuery{Function: row.ID, Version: f.Version, Limit: f.Limit}
	if q.Limit == 0 {
		q.Limit = defaultRuns
	}
	if f.Status != "" {
		q.States = []string{string(f.Status)}
	}
	if f.Status == api.RunQueued {
		q.States = append(q.States, functionstore.RunHeld)
	}
	if f.Before != "" {
		before, err := s.run(ctx, row.ID, f.Before)
		if err != nil {
			return nil, err
		}
		q.Before, q.BeforeID = before.Created, before.ID
	}
	rows, err := s.read().Runs(ctx, q)
	out := make([]api.FunctionRun, 0, len(rows))
	for i := range rows {
		out = append(out, View(&rows[i]))
	}
	return out, asError(err)
}

// run reads a run of a function.
func (s *Service) run(ctx context.Context, fn string, id api.InvocationID) (functionstore.Run, error) {
	row, err := s.read().Run(ctx, string(id))
	if errors.Is(err, store.ErrNotFound) || err == nil && row.Function != fn {
		return row, api.Errorf(api.NotFound, "run %.60q not found: list them at /v1/functions/{id}/runs", id)
	}
	return row, asError(err)
}

// GetRun returns a run of a function.
func (s *Service) GetRun(
	ctx context.Context,
	p auth.Principal,
	fn string,
	id api.InvocationID,
) (api.FunctionRun, error) {
	row, err := s.Find(ctx, p, fn)
	if err != nil {
		return api.FunctionRun{}, err
	}
	run, err := s.run(ctx, row.ID, id)
	if err != nil {
		return api.FunctionRun{}, err
	}
	return View(&run), nil
}

// RecordRun adds a run that a client has made itself.
func (s *Service) RecordRun(
	ctx context.Context,
	p auth.Principal,
	fn string,
	req api.RecordRunRequest,
) (api.FunctionRun, error) {
	if err := req.Validate(); err != nil {
		return api.FunctionRun{}, err
	}
	row, err := s.Find(ctx, p, fn)
	if err != nil {
		return api.FunctionRun{}, err
	}
	now := time.Now()
	began, ended := now, now
	if req.StartedAt != nil && req.StartedAt.Before(now) {
		began = *req.StartedAt
	}
	if req.EndedAt != nil && req.EndedAt.Before(now) && !req.EndedAt.Before(began) {
		ended = *req.EndedAt
	}
	run := functionstore.Run{ID: string(api.NewInvocationID()), Function: row.ID, Workspace: row.Workspace,
		Version: row.Version, Schedule: string(req.ScheduleID), Origin: OriginRecorded, State: string(req.Status),
		Attempt: 1, Result: string(req.Result), Stdout: req.Stdout, Stderr: req.Stderr, ExitCode: req.ExitCode,
		Sandbox: string(req.SandboxID), Duration: int64(math.Round(req.DurationMS * 1000)),
		Created: store.Micros(began), Started: store.Micros(began), Ended: store.Micros(ended)}
	if run.State == "" {
		run.State = store.RunSuccess
	}
	if err := s.record(ctx, &run); err != nil {
		return api.FunctionRun{}, api.AsError(err)
	}
	return View(&run), nil
}

// Metrics returns figures of the invocations of the last hours.
func (s *Service) Metrics(ctx context.Context, p auth.Principal, fn string, hours int) (api.FunctionMetrics, error) {
	if hours < 1 || hours > maxPeriod {
		return api.FunctionMetrics{}, api.Errorf(api.Invalid, "period: %d is out of range: use 1 to %d hours", hours,
			maxPeriod).With("field", "period")
	}
	row, err := s.Find(ctx, p, fn)
	if err != nil {
		return api.FunctionMetrics{}, err
	}
	since := store.Micros(time.Now().Add(-time.Duration(hours) * time.Hour))
	figures, err := s.read().Figures(ctx, row.ID, since, maxFigures)
	if err != nil {
		return api.FunctionMetrics{}, api.AsError(err)
	}
	out := api.FunctionMetrics{Period: hours, Total: int64(len(figures))}
	var cold int64
	durations := make([]int64, 0, len(figures))
	for _, f := range figures {
		if f.State != store.RunSuccess {
			out.Errors++
		}
		if f.Cold {
			cold++
		}
		durations = append(durations, f.Duration)
	}
	if out.Total == 0 {
		return out, nil
	}
	slices.Sort(durations)
	out.ErrorRate, out.ColdStartRate = float64(out.Errors)/float64(out.Total), float64(cold)/float64(out.Total)
	out.P50MS, out.P95MS, out.P99MS = quantile(durations, .5), quantile(durations, .95), quantile(durations, .99)
	return out, nil
}

// Bounds of metrics.
const (
	maxPeriod  = 31 * 24 // hours
	maxFigures = 100_000 // runs; older ones are left out
)

// quantile returns the smallest duration that a share q of all does not exceed, in milliseconds.
func quantile(sorted []int64, q float64) float64 {
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return float64(sorted[max(i, 0)]) / 1000
}

// late is how much later than others a run may be written that has ended earlier.
const late = 10 * time.Second

// FollowRuns yields the last runs of a function that have ended, oldest first, and each that ends.
//
// It returns when ctx ends, or with the error of yield.
func (s *Service) FollowRuns(
	ctx context.Context,
	p auth.Principal,
	fn string,
	last int,
	yield func(api.FunctionRun) error,
) error {
	row, err := s.Find(ctx, p, fn)
	if err != nil {
		return err
	}
	changed, cancel := s.hub.Subscribe(row.ID)
	defer cancel()
	began := store.Micros(time.Now().Add(-late))
	before, err := s.read().EndedRuns(ctx, row.ID, 0, maxRuns)
	if err != nil {
		return api.AsError(err)
	}
	seen := map[string]int64{}
	for _, r := range before {
		seen[r.ID] = r.Ended
	}
	last = min(max(last, 0), len(before))
	slices.Reverse(before)
	for i := range before[len(before)-last:] {
		if err := yield(View(&before[len(before)-last+i])); err != nil {
			return err
		}
	}
	tick := time.NewTicker(time.Second) // other processes write runs, too
	defer tick.Stop()
	for {
		rows, err := s.read().EndedRuns(ctx, row.ID, began, maxRuns)
		if err != nil {
			return api.AsError(err)
		}
		slices.Reverse(rows)
		for i := range rows {
			if _, known := seen[rows[i].ID]; known {
				continue
			}
			seen[rows[i].ID] = rows[i].Ended
			if err := yield(View(&rows[i])); err != nil {
				return err
			}
			began = max(began, rows[i].Ended-late.Microseconds())
		}
		for id, ended := range seen {
			if ended < began {
				delete(seen, id)
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		case <-tick.C:
		}
	}
}
