package invocation

import (
	"encoding/json"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/function"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
)

// finish makes a row one of an attempt that has ended.
func finish(row *functionstore.Run, out function.Outcome, now time.Time) {
	sum := &out.Summary
	row.State, row.Result, row.Error = string(out.Status), string(out.Result), ""
	if out.Failure != nil {
		fail(row, out.Failure)
		row.State, row.Result = string(out.Status), string(out.Result)
	}
	row.Stdout, row.Stderr, row.Truncated, row.ExitCode = sum.Stdout, sum.Stderr, sum.Truncated, sum.ExitCode
	row.Sandbox, row.Cold, row.Memory, row.Duration = string(out.Sandbox), out.Cold, sum.Memory, sum.Micros
	row.Ended = store.Micros(now)
}

// view returns a run as users see it.
func view(row *functionstore.Run) api.FunctionRun {
	out := api.FunctionRun{
		ID: api.InvocationID(row.ID), Workspace: api.Workspace(row.Workspace),
		FunctionID: api.FunctionID(row.Function), Version: row.Version, Alias: row.Alias,
		ScheduleID: api.ScheduleID(row.Schedule), SandboxID: api.SandboxID(row.Sandbox), Trigger: row.Origin,
		Status: api.RunStatus(row.State), Attempt: int(row.Attempt), Cold: row.Cold, ExitCode: row.ExitCode,
		Stdout: row.Stdout, Stderr: row.Stderr, Truncated: row.Truncated,
		DurationMS: float64(row.Duration) / 1000, MemoryPeakMB: float64(row.Memory) / (1 << 20),
		TraceID: row.Trace, CreatedAt: store.Time(row.Created),
	}
	if row.State == functionstore.RunHeld {
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
