package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Functions are the methods of *invocation.Service that runs of functions need.
type Functions interface {
	// Check returns an error if the caller's workspace has no function with the id.
	Check(ctx context.Context, p auth.Principal, id api.FunctionID) error
	// EnqueueTx adds an invocation. The error wraps store.ErrNotFound if the function is gone.
	EnqueueTx(ctx context.Context, tx *store.Tx, run FunctionRun) error
	// CancelTx ends the invocation of a run, and returns its id, or "" if it has ended before.
	CancelTx(ctx context.Context, tx *store.Tx, fn api.FunctionID, run string) (string, error)
	// Interrupt ends attempts at invocations that CancelTx has ended, after the commit.
	Interrupt(ids ...string)
	// Observe sets what is called in every transaction that changes the state of an invocation.
	Observe(f func(ctx context.Context, tx *store.Tx, state FunctionState) error)
	// Notify says that a transaction with EnqueueTx was committed.
	Notify()
}

// FunctionRun is a run that invokes a function.
type FunctionRun struct {
	Run         string // id of the run, which has one invocation
	Function    api.FunctionID
	Workspace   api.Workspace
	Schedule    api.ScheduleID
	Moment, Due time.Time
	Input       json.RawMessage
	Attempts    int // at most
}

// FunctionState is the state of the invocation of a run. Times are microseconds.
type FunctionState struct {
	Run            string
	State          string // as of store.ScheduleRun
	Attempt        int
	Sandbox        string
	ExitCode       *int
	Stdout, Stderr string
	Error          string // of the last attempt; "" if it did not fail
	Started, Ended int64  // 0: not yet
}

// event is what a function gets from a schedule that has no input for it.
type event struct {
	Schedule string    `json:"schedule_id"`
	Run      string    `json:"run_id"`
	For      time.Time `json:"scheduled_for"`
}

// enqueueFunction adds the invocation of a run. A run of a function that is gone ends.
func (s *Service) enqueueFunction(
	ctx context.Context,
	tx *store.Tx,
	run *store.ScheduleRun,
	target api.ScheduleTarget,
	options api.ScheduleOptions,
	begin time.Time,
) error {
	input := target.Input
	if len(input) == 0 {
		data, err := json.Marshal(event{Schedule: run.Schedule, Run: run.ID, For: store.Time(run.Moment)})
		if err != nil {
			return err
		}
		input = data
	}
	err := store.ErrNotFound
	if s.functions != nil {
		err = s.functions.EnqueueTx(ctx, tx, FunctionRun{
			Run: run.ID, Function: target.FunctionID, Workspace: api.Workspace(run.Workspace),
			Schedule: api.ScheduleID(run.Schedule), Moment: store.Time(run.Moment), Due: begin, Input: input,
			Attempts: options.MaxAttempts,
		})
	}
	if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	run.State, run.Ended = store.RunError, store.Micros(time.Now())
	run.Error = "function " + string(target.FunctionID) + " does not exist"
	return tx.UpdateScheduleRun(ctx, run, "state", "ended", "error")
}

// replaceFunction cancels the runs of the schedule of a run that are under way.
func (s *Service) replaceFunction(
	ctx context.Context,
	tx *store.Tx,
	run *store.ScheduleRun,
	fn api.FunctionID,
	replaced *[]string,
) error {
	active, err := tx.ScheduleRuns(ctx, store.ScheduleRunQuery{Schedule: run.Schedule, Active: true})
	if err != nil {
		return err
	}
	older := active[:0]
	for i := range active {
		if active[i].ID != run.ID {
			older = append(older, active[i])
		}
	}
	return s.cancelFunctions(ctx, tx, older, fn, replaced)
}

// cancelFunctions cancels the invocations of runs, and adds those that must be interrupted after the commit.
func (s *Service) cancelFunctions(
	ctx context.Context,
	tx *store.Tx,
	runs []store.ScheduleRun,
	fn api.FunctionID,
	stopped *[]string,
) error {
	if s.functions == nil {
		return nil
	}
	for i := range runs {
		id, err := s.functions.CancelTx(ctx, tx, fn, runs[i].ID)
		if err != nil {
			return err
		}
		if id != "" {
			*stopped = append(*stopped, id)
		}
	}
	return nil
}

// interrupt ends attempts at invocations that were canceled.
func (s *Service) interrupt(ids []string) {
	if len(ids) > 0 && s.functions != nil {
		s.functions.Interrupt(ids...)
	}
}

// functionChanged keeps a run in step with its invocation.
func (s *Service) functionChanged(ctx context.Context, tx *store.Tx, r FunctionState) error {
	run, err := tx.ScheduleRun(ctx, r.Run)
	if err != nil {
		return ignore(err, store.ErrNotFound)
	}
	run.State, run.Attempt, run.Sandbox, run.ExitCode = r.State, r.Attempt, r.Sandbox, r.ExitCode
	run.Stdout, run.Stderr, run.Error = output(r.Stdout), output(r.Stderr), text(r.Error)
	if run.Started == 0 {
		run.Started = r.Started
	}
	run.Ended = r.Ended
	err = tx.UpdateScheduleRun(ctx, &run, "state", "attempt", "sandbox", "exit_code", "stdout", "stderr", "error",
		"started", "ended")
	if err != nil || run.Ended == 0 {
		return ignore(err, store.ErrNotFound)
	}
	return s.promote(ctx, tx, run.Schedule)
}

// output is the end of an output of an invocation.
func output(s string) string { return text(s[max(0, len(s)-api.MaxRunOutput):]) }
