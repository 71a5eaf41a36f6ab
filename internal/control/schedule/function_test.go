package schedule_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/fnruntime"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/function"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
)

// functions are one function, whose attempts take a time and fail at first.
type functions struct {
	row functionstore.Function

	mu    sync.Mutex // guards what follows
	takes time.Duration
	fails int
	calls map[string]int // by moment and attempt
	event string         // of the last call
}

func newFunctions(f *fixture) *functions {
	x := &functions{calls: map[string]int{}, row: functionstore.Function{
		ID: string(api.NewFunctionID()), Workspace: string(user.Workspace), Name: "f", State: functionstore.Active,
		Version: 1, Settings: "{}",
	}}
	err := f.db.Write(f.Context(), "test", func(ctx context.Context, tx *store.Tx) error {
		return functionstore.In(tx).InsertFunction(ctx, &x.row)
	})
	if err != nil {
		f.Fatal(err)
	}
	return x
}

func (x *functions) Find(_ context.Context, p auth.Principal, name string) (functionstore.Function, error) {
	if name != x.row.ID || p.Workspace != user.Workspace {
		return functionstore.Function{}, api.Errorf(api.NotFound, "function %s not found", name)
	}
	return x.row, nil
}

func (x *functions) Pick(context.Context, *functionstore.Function, string, int64) (int64, error) {
	return 1, nil
}

func (x *functions) Do(ctx context.Context, c function.Call) (function.Outcome, error) {
	x.mu.Lock()
	x.calls[fmt.Sprintf("%s %s %d", c.Run, c.Scheduled.Format(time.TimeOnly), c.Attempt)]++
	x.event = string(c.Event)
	takes, fails := x.takes, x.fails
	x.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return function.Outcome{}, context.Cause(ctx)
	}
	out := function.Outcome{Status: api.RunSuccess, Summary: fnruntime.Summary{Stdout: "printed"}, Sandbox: "sbx"}
	if c.Attempt <= fails {
		out.Status, out.Failure = api.RunError, &api.FunctionError{Type: "E", Message: "bad"}
	}
	return out, nil
}

// set makes the first attempts of runs fail, and all take some time.
func (x *functions) set(fails int, takes time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.fails, x.takes = fails, takes
}

// count returns how many different calls were made.
func (x *functions) count() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.calls)
}

// last returns the last event.
func (x *functions) last() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.event
}

// check reports calls that were made twice.
func (x *functions) check(t testing.TB) {
	t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	for call, n := range x.calls {
		if n != 1 {
			t.Errorf("call %s was made %d times", call, n)
		}
	}
}

func withFunctions(t *testing.T, do func(f *fixture)) {
	t.Helper()
	test(t, func(f *fixture) {
		f.functions = newFunctions(f)
		do(f)
		f.functions.check(f)
	})
}

// createFunction creates a schedule as the published SDK does.
func (f *fixture) createFunction(s process, name, cron string, o api.ScheduleOptions) api.Schedule {
	f.Helper()
	out, err := s.Create(f.Context(), user, api.CreateScheduleRequest{
		Name: name, FunctionID: api.FunctionID(f.functions.row.ID), Cron: cron, Options: o,
	})
	if err != nil {
		f.Fatal(err)
	}
	return out
}

func TestFunction(t *testing.T) {
	withFunctions(t, func(f *fixture) {
		s := f.start(f.db)
		c := f.createFunction(s, "a", "*/10 * * * * *", api.ScheduleOptions{MaxAttempts: 2})
		if c.FunctionID != api.FunctionID(f.functions.row.ID) || c.Target.FunctionID != c.FunctionID {
			t.Errorf("schedule %+v", c)
		}
		f.functions.set(1, 0)
		after(25 * time.Second)
		f.want("runs", states(f.runs(s, c.ID)), "10 success, 20 success")
		last := f.runs(s, c.ID)[1]
		if last.FunctionID != c.FunctionID || last.Attempt != 2 || last.Stdout != "printed" ||
			last.SandboxID != "sbx" || last.StartedAt == nil || last.EndedAt == nil || last.Error != "" {
			t.Errorf("run %+v", last)
		}
		var event struct {
			Schedule string    `json:"schedule_id"`
			For      time.Time `json:"scheduled_for"`
		}
		if err := json.Unmarshal([]byte(f.functions.last()), &event); err != nil || event.Schedule != string(c.ID) ||
			!event.For.Equal(last.ScheduledFor) {
			t.Errorf("event %s", f.functions.last())
		}
		f.functions.set(9, 0)
		run, err := s.Trigger(f.Context(), user, c.ID)
		if err != nil || run.FunctionID != c.FunctionID || run.Status != api.RunQueued || run.Trigger != "manual" {
			t.Errorf("triggered: %+v, %v", run, err)
		}
		after(4 * time.Second)
		if all := f.runs(s, c.ID); all[2].Status != api.RunError || all[2].Error != "E: bad" || all[2].Attempt != 2 {
			t.Errorf("a run that fails: %+v", all[2])
		}
		rows, err := functionstore.In(f.db.Read()).Runs(f.Context(), functionstore.RunQuery{Schedule: string(c.ID)})
		if err != nil || len(rows) != 3 || rows[0].Origin != "schedule" || rows[0].Moment == 0 {
			t.Errorf("runs of the function: %+v, %v", rows, err)
		}
	})
}

// TestFunctionOverlap has runs that take longer than the time between them.
func TestFunctionOverlap(t *testing.T) {
	for overlap, want := range map[api.Overlap]string{
		api.OverlapAllow:   "10 success, 20 success, 30 running, 40 running",
		api.OverlapForbid:  "10 success, 20 skipped, 30 running, 40 skipped",
		api.OverlapReplace: "10 canceled, 20 canceled, 30 canceled, 40 running",
		api.OverlapQueue:   "10 success, 20 success, 30 running, 40 queued",
	} {
		withFunctions(t, func(f *fixture) {
			f.functions.set(0, 15*time.Second)
			s := f.start(f.db)
			c := f.createFunction(s, "a", "*/10 * * * * *", api.ScheduleOptions{Overlap: overlap})
			after(44 * time.Second)
			f.want(string(overlap), states(f.runs(s, c.ID)), want)
			if err := s.Delete(f.Context(), user, c.ID); err != nil {
				t.Fatal(err)
			}
			rows, err := functionstore.In(f.db.Read()).Runs(f.Context(),
				functionstore.RunQuery{Schedule: string(c.ID), States: []string{store.RunQueued, store.RunRunning}})
			if err != nil || len(rows) > 0 {
				t.Errorf("%s: runs of a schedule that was deleted: %+v, %v", overlap, rows, err)
			}
		})
	}
}

func TestFunctionGone(t *testing.T) {
	withFunctions(t, func(f *fixture) {
		s := f.start(f.db)
		_, err := s.Create(f.Context(), user, api.CreateScheduleRequest{
			Name: "x", Cron: "@daily", FunctionID: api.NewFunctionID(),
		})
		if e := api.AsError(err); err == nil || e.Code != api.Invalid || e.Details["field"] != "target.function_id" {
			t.Errorf("a function that does not exist: %v", err)
		}
		c := f.createFunction(s, "a", "*/10 * * * * *", api.ScheduleOptions{})
		err = f.db.Write(f.Context(), "test", func(ctx context.Context, tx *store.Tx) error {
			f.functions.row.State = functionstore.Deleting
			return functionstore.In(tx).UpdateFunction(ctx, &f.functions.row, "state")
		})
		if err != nil {
			t.Fatal(err)
		}
		after(15 * time.Second)
		f.want("runs", states(f.runs(s, c.ID)), "10 error")
	})
}

// TestFunctionKilled kills the process after each write, before and after it is committed, and starts another one.
func TestFunctionKilled(t *testing.T) {
	kill := errors.New("killed")
	for _, op := range []string{"schedule due", "invocation claim", "invocation settle"} {
		for _, committed := range []bool{false, true} {
			withFunctions(t, func(f *fixture) {
				var mu sync.Mutex
				dead, died := false, false
				db := f.open(func(what string, after bool) error {
					mu.Lock()
					defer mu.Unlock()
					if dead || what == op && after == committed {
						dead, died = true, true
						return kill
					}
					return nil
				})
				s := f.start(f.db)
				c := f.createFunction(s, "x", "0 1 * * * *", api.ScheduleOptions{MaxAttempts: 5})
				s.stop()
				first := f.start(db)
				after(65 * time.Second)
				mu.Lock()
				if !died {
					f.Errorf("%q was never written", op)
				}
				mu.Unlock()
				first.stop()
				s = f.start(f.db)
				after(50 * time.Second) // the lease ends
				if got := states(f.runs(s, c.ID)); got != "60 success" {
					f.Errorf("%q, committed %v: runs = %s", op, committed, got)
				}
			})
		}
	}
}

// TestSchedulesAtScale has 1,000 schedules of a function at the same second, and two processes over one store.
func TestSchedulesAtScale(t *testing.T) {
	const n = 1000
	withFunctions(t, func(f *fixture) {
		f.schedules = n
		s := f.start(f.db)
		var ids []api.ScheduleID
		for i := range n {
			ids = append(ids, f.createFunction(s, fmt.Sprint(i), "0 * * * * *", api.ScheduleOptions{}).ID)
		}
		f.start(f.open(nil))
		after(119 * time.Second)
		count := map[string]int{}
		for _, id := range ids {
			count[states(f.runs(s, id))]++
		}
		if count["60 success"] != n {
			t.Errorf("runs: %v", count)
		}
		if got := f.functions.count(); got != n {
			t.Errorf("%d calls, want %d", got, n)
		}
	})
}
