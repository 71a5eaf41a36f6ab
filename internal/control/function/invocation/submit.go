package invocation

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/function"
	"github.com/pandastack/pandastack/internal/control/schedule"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
)

// Defaults of functionstore.Function.Settings.
const (
	defaultAttempts = 3
	defaultAge      = 6 * time.Hour
)

// policy is what the settings of a function say of its asynchronous invocations.
type policy struct {
	attempts             int64
	age                  time.Duration
	payload              int
	concurrency          int
	onSuccess, onFailure *api.Destination
}

func policyOf(fn *functionstore.Function) (policy, error) {
	var set api.FunctionSettings
	if err := json.Unmarshal([]byte(cmp.Or(fn.Settings, "{}")), &set); err != nil {
		return policy{}, fmt.Errorf("settings of function %s cannot be read: %w", fn.ID, err)
	}
	out := policy{
		attempts: defaultAttempts, age: defaultAge, payload: cmp.Or(set.MaxPayloadBytes, api.MaxFunctionPayload),
		concurrency: set.MaxConcurrency, onSuccess: set.OnSuccess, onFailure: set.OnFailure,
	}
	if r := set.Retry; r != nil {
		out.attempts = int64(cmp.Or(r.MaxAttempts, defaultAttempts))
		out.age = time.Duration(cmp.Or(r.MaxAgeSeconds, int64(defaultAge/time.Second))) * time.Second
	}
	return out, nil
}

// newRun returns a queued run of a function.
func newRun(fn *functionstore.Function, pol policy, origin string, input []byte, now time.Time) functionstore.Run {
	if len(input) == 0 {
		input = []byte("null")
	}
	return functionstore.Run{
		ID: string(api.NewInvocationID()), Function: fn.ID, Workspace: fn.Workspace, Origin: origin,
		State: store.RunQueued, Attempts: pol.attempts, Due: store.Micros(now), Input: string(input),
		Expires: store.Micros(now.Add(pol.age)), Created: store.Micros(now),
	}
}

// Submit adds an invocation of a function, by id or name, and returns it as it is queued. With an idempotency key that
// an invocation of the function has had in the last 24 hours, it returns that one.
func (s *Service) Submit(
	ctx context.Context,
	p auth.Principal,
	fn string,
	req api.InvokeRequest,
) (api.FunctionRun, error) {
	if err := req.Validate(); err != nil {
		return api.FunctionRun{}, err
	}
	row, pol, version, err := s.target(ctx, p, fn, req.Alias, req.Version)
	if err != nil {
		return api.FunctionRun{}, api.AsError(err)
	}
	if len(req.Input) > pol.payload {
		return api.FunctionRun{}, tooLarge("input", len(req.Input), pol.payload)
	}
	now := s.now()
	run := newRun(&row, pol, function.OriginAsync, req.Input, now.Add(time.Duration(req.DelaySeconds)*time.Second))
	run.Created, run.Version, run.Alias, run.Trace = store.Micros(now), version, req.Alias, req.Trace
	if req.IdempotencyKey != "" {
		run.Dedupe = &req.IdempotencyKey
	}
	var found *functionstore.Run
	err = s.db.Write(ctx, "invocation submit", func(ctx context.Context, tx *store.Tx) (err error) {
		found = nil
		in := functionstore.In(tx)
		if run.Dedupe != nil {
			if found, err = byKey(ctx, in, row.ID, *run.Dedupe, now); err != nil || found != nil {
				return err
			}
		}
		if err := s.admit(ctx, in, row.Workspace, 1); err != nil {
			return err
		}
		return in.InsertRun(ctx, &run)
	})
	if errors.Is(err, store.ErrExists) && run.Dedupe != nil { // another one with the key was faster
		other, rerr := functionstore.In(s.db.Read()).RunByKey(ctx, row.ID, *run.Dedupe)
		found, err = &other, rerr
	}
	if err != nil {
		return api.FunctionRun{}, api.AsError(err)
	}
	if found != nil {
		return function.View(found), nil
	}
	s.wake()
	return function.View(&run), nil
}

// target reads the function of a call, and picks the version.
func (s *Service) target(
	ctx context.Context,
	p auth.Principal,
	fn, alias string,
	version int64,
) (functionstore.Function, policy, int64, error) {
	row, err := s.invoker.Find(ctx, p, fn)
	if err != nil {
		return row, policy{}, 0, err
	}
	pol, err := policyOf(&row)
	if err != nil {
		return row, pol, 0, err
	}
	version, err = s.invoker.Pick(ctx, &row, alias, version)
	return row, pol, version, err
}

// byKey reads the run that has an idempotency key. One that is too old loses it.
func byKey(
	ctx context.Context,
	in functionstore.Tx,
	fn, key string,
	now time.Time,
) (*functionstore.Run, error) {
	if err := in.FreeKey(ctx, fn, key, store.Micros(now.Add(-keyAge))); err != nil {
		return nil, err
	}
	run, err := in.RunByKey(ctx, fn, key)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return &run, err
}

// admit refuses n more runs of a workspace of which too many wait.
func (s *Service) admit(ctx context.Context, in functionstore.Tx, workspace string, n int) error {
	has, err := in.CountQueued(ctx, workspace, s.cfg.MaxQueued)
	if err != nil || has+n <= s.cfg.MaxQueued {
		return err
	}
	return api.Errorf(api.RateLimited, "%d invocations of the workspace wait, and there can be %d: try again later",
		has, s.cfg.MaxQueued).With("retry_after_seconds", 5)
}

func tooLarge(field string, has, most int) error {
	return api.Errorf(api.Invalid, "%s: has %d bytes: use at most %d", field, has, most).With("field", field)
}

// Cancel ends a run that has not ended. An attempt under way is interrupted.
func (s *Service) Cancel(
	ctx context.Context,
	p auth.Principal,
	fn string,
	id api.InvocationID,
) (api.FunctionRun, error) {
	row, err := s.invoker.Find(ctx, p, fn)
	if err != nil {
		return api.FunctionRun{}, api.AsError(err)
	}
	run, err := functionstore.In(s.db.Read()).Run(ctx, string(id))
	if errors.Is(err, store.ErrNotFound) || err == nil && run.Function != row.ID {
		return api.FunctionRun{}, api.Errorf(api.NotFound, "run %.60s of the function not found", id)
	}
	if err == nil {
		run, err = s.cancel(ctx, string(id))
	}
	if err != nil {
		return api.FunctionRun{}, api.AsError(err)
	}
	return function.View(&run), nil
}

// cancel ends a run that has not ended, and returns it as it is then.
func (s *Service) cancel(ctx context.Context, id string) (functionstore.Run, error) {
	var run functionstore.Run
	ended := false
	err := s.db.Write(ctx, "invocation cancel", func(ctx context.Context, tx *store.Tx) (err error) {
		if run, err = functionstore.In(tx).Run(ctx, id); err != nil || run.Ended > 0 {
			return err
		}
		ended = true
		return s.cancelTx(ctx, tx, &run)
	})
	if err != nil {
		return run, err
	}
	if ended {
		s.interrupt(id)
		s.announce([]functionstore.Run{run})
	}
	return run, nil
}

// cancelTx writes a run that has not ended as canceled.
func (s *Service) cancelTx(ctx context.Context, tx *store.Tx, run *functionstore.Run) error {
	was := run.State
	run.State, run.Instance, run.Lease, run.Ended = store.RunCanceled, "", 0, s.micros()
	if err := functionstore.In(tx).UpdateRun(ctx, run, was, outcomeColumns...); err != nil {
		return err
	}
	if was == functionstore.RunHeld { // it had no place that another one could get
		return nil
	}
	return s.follow(ctx, tx, run)
}

// Forget cancels the runs of a function that is being deleted, and takes it from its queues. It may be called again.
func (s *Service) Forget(ctx context.Context, fn api.FunctionID) error {
	err := s.db.Write(ctx, "invocation forget", func(ctx context.Context, tx *store.Tx) error {
		return functionstore.In(tx).DetachQueues(ctx, string(fn))
	})
	if err != nil {
		return err
	}
	for {
		ids, err := functionstore.In(s.db.Read()).ActiveRuns(ctx, string(fn), 500)
		if err != nil || len(ids) == 0 {
			return err
		}
		for _, id := range ids {
			_, err := s.cancel(ctx, id)
			if err != nil && !errors.Is(err, store.ErrNotFound) { // it was running and has ended, or the other way
				return err
			}
		}
	}
}

// EnqueueTx adds a run of a schedule in a transaction of the caller. Call Notify after its commit. It does nothing
// if the function has a run with the key. The error wraps store.ErrNotFound if the function is gone.
func (s *Service) EnqueueTx(ctx context.Context, tx *store.Tx, in schedule.FunctionRun) error {
	fn, err := functionstore.In(tx).Function(ctx, string(in.Function))
	if err == nil && (fn.State != functionstore.Active || fn.Workspace != string(in.Workspace)) {
		err = fmt.Errorf("function %s: %w", fn.ID, store.ErrNotFound)
	}
	if err != nil {
		return err
	}
	pol, err := policyOf(&fn)
	if err != nil {
		return err
	}
	pol.attempts = int64(in.Attempts)
	run := newRun(&fn, pol, function.OriginSchedule, in.Input, in.Due)
	run.Created, run.Schedule, run.Moment = s.micros(), string(in.Schedule), store.Micros(in.Moment)
	run.Dedupe = &in.Run
	switch _, err := functionstore.In(tx).RunByKey(ctx, fn.ID, in.Run); {
	case err == nil:
		return nil
	case !errors.Is(err, store.ErrNotFound):
		return err
	}
	return functionstore.In(tx).InsertRun(ctx, &run)
}

// CancelTx ends the run of a function with a key in a transaction of the caller, unless it has ended. The caller passes
// the id to Interrupt after the commit; it is "" if nothing was ended.
func (s *Service) CancelTx(ctx context.Context, tx *store.Tx, fn api.FunctionID, key string) (string, error) {
	run, err := functionstore.In(tx).RunByKey(ctx, string(fn), key)
	if err != nil || run.Ended > 0 {
		return "", ignore(err, store.ErrNotFound)
	}
	return run.ID, s.cancelTx(ctx, tx, &run)
}

// Interrupt ends the attempts at runs that CancelTx has ended.
func (s *Service) Interrupt(ids ...string) {
	for _, id := range ids {
		s.interrupt(id)
	}
}

// Check returns an error if the workspace has no function with the id.
func (s *Service) Check(ctx context.Context, p auth.Principal, id api.FunctionID) error {
	_, err := s.invoker.Find(ctx, p, string(id))
	return err
}
