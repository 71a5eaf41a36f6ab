package function

import (
	"cmp"
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/function/limit"
	"github.com/pandastack/pandastack/internal/control/function/pool"
	"github.com/pandastack/pandastack/internal/control/function/program"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
)

// attempt is what one attempt at an invocation needs.
type attempt struct {
	row      functionstore.Function
	version  functionstore.Version
	settings settings
	spec     pool.Spec
}

// prepare reads what an attempt needs.
func (s *Service) prepare(ctx context.Context, fn api.FunctionID, number int64) (a attempt, err error) {
	if a.row, err = s.read().Function(ctx, string(fn)); err == nil && a.row.State != functionstore.Active ||
		errors.Is(err, store.ErrNotFound) {
		return a, notFound(string(fn))
	}
	if err != nil {
		return a, err
	}
	if err := s.quotas.CheckActive(ctx, api.Workspace(a.row.Workspace)); err != nil {
		return a, err
	}
	a.version, err = s.read().Version(ctx, a.row.ID, number)
	if errors.Is(err, store.ErrNotFound) || err == nil && a.version.State != functionstore.VersionReady {
		return a, noVersion(number)
	}
	if err != nil {
		return a, err
	}
	if a.settings.FunctionSettings, err = decode[api.FunctionSettings](a.row.Settings); err != nil {
		return a, err
	}
	built, err := decode[api.FunctionSettings](a.version.Settings)
	if err != nil {
		return a, err
	}
	env, err := decode[map[string]string](a.row.Env)
	if err != nil {
		return a, err
	}
	set := &a.settings
	a.spec = pool.Spec{
		Function: fn, Workspace: api.Workspace(a.row.Workspace), Version: number, Revision: a.row.Revision,
		Snapshot: api.SnapshotID(a.version.Snapshot), Env: env, Network: built.Network, Lifetime: set.timeout(),
		Concurrency: set.concurrency(), Idle: set.idle(),
		Machines: (set.maxConcurrency() + set.concurrency() - 1) / set.concurrency(),
	}
	return a, nil
}

// place is a machine that an attempt has.
type place struct {
	*pool.Machine
	cold  bool
	alone bool              // nothing else runs in the machine, which is removed
	leave func(broken bool) // gives everything back
}

// after gives the place back when the attempt has ended, or returns what does so when its outcome is written: the
// removal of a machine takes processor time and writes of its own, which the caller would wait for.
func (p *place) after(broken bool) (leave func()) {
	if p.alone {
		return func() { p.leave(broken) }
	}
	p.leave(broken)
	return func() {}
}

// place waits for the attempt's turn and returns a machine.
func (s *Service) place(ctx context.Context, a *attempt, wait time.Duration) (place, error) {
	for {
		at, err := s.turn(ctx, a, wait)
		if err == nil || !ended(err) {
			return at, err
		}
		// The snapshot may have been replaced by one with other variables since it was read.
		now, e := s.prepare(ctx, a.spec.Function, a.spec.Version)
		if e != nil {
			return place{}, e
		}
		if now.spec.Snapshot == a.spec.Snapshot {
			return place{}, api.Wrap(api.Unavailable, err, "the function's machine could not be restored: "+err.Error())
		}
		*a = now
	}
}

// turn does the same with the snapshot that was read.
func (s *Service) turn(ctx context.Context, a *attempt, wait time.Duration) (place, error) {
	fn := a.spec.Function
	release, err := s.limits.Acquire(ctx, limit.Request{Workspace: a.spec.Workspace, Function: fn,
		Limit: a.settings.maxConcurrency(), Wait: wait})
	if err != nil {
		return place{}, err
	}
	done := func() {
		release()
		s.async().Poke(fn)
	}
	if !a.settings.shared() {
		m, err := s.pool.Fresh(ctx, a.spec)
		if err != nil {
			done()
			return place{}, err
		}
		// The place is given back when the machine is gone, so that there are no more of them than are allowed.
		return place{m, true, true, func(bool) { s.pool.Discard(ctx, m, done) }}, nil
	}
	l, err := s.pool.Shared(ctx, a.spec)
	if err != nil {
		done()
		return place{}, err
	}
	return place{l.Machine, l.Cold, false, func(broken bool) {
		l.Release(broken)
		done()
	}}, nil
}

// maxPlaces is how many machines are tried that turn out not to run.
const maxPlaces = 3

// Do implements Invoker.
func (s *Service) Do(ctx context.Context, call Call) (Outcome, error) {
	out, leave, err := s.hold(ctx, call)
	leave()
	return out, err
}

// hold is Do, but the attempt keeps its machine until leave is called, which must be called in any case.
func (s *Service) hold(ctx context.Context, call Call) (out Outcome, leave func(), err error) {
	ctx, exit := s.enter(ctx, call.Function)
	defer exit()
	out, leave, err = s.do(ctx, call)
	if because := context.Cause(ctx); err != nil && because != nil {
		err = because
	}
	return out, leave, asError(err)
}

func (s *Service) do(ctx context.Context, call Call) (out Outcome, leave func(), err error) {
	leave = func() {}
	a, err := s.prepare(ctx, call.Function, call.Version)
	if err != nil {
		return out, leave, err
	}
	if most := a.settings.maxPayload(); int64(len(call.Event)) > most {
		return out, leave, api.Errorf(api.TooLarge, "input: has %d bytes: use at most %d, or send where it is stored",
			len(call.Event), most).With("field", "input")
	}
	if len(call.Event) == 0 {
		call.Event = []byte("null")
	}
	for n := 1; ; n++ {
		at, err := s.place(ctx, &a, call.Wait)
		if failed, ok := errors.AsType[*program.Failed](err); ok {
			out = Outcome{Status: api.RunError, Failure: viewFailure(&failed.Failure), Began: time.Now()}
			return out, leave, nil
		}
		if err != nil {
			return Outcome{}, leave, err
		}
		out = Outcome{Sandbox: at.Sandbox, Cold: at.cold, Began: time.Now()}
		res, err := at.Program.Event(ctx, a.call(&call), call.Event)
		out.Wall = time.Since(out.Began)
		if _, ok := errors.AsType[*program.UnreachableError](err); ok && n < maxPlaces && ctx.Err() == nil {
			at.leave(true)
			continue // the machine has ended while it was idle
		}
		leave = at.after(err != nil)
		err = out.end(ctx, &a, res, err)
		return out, leave, err
	}
}

// call returns the call as the program gets it.
func (a *attempt) call(c *Call) program.Call {
	deadline := time.Now().Add(a.settings.timeout())
	if !c.Deadline.IsZero() && c.Deadline.Before(deadline) {
		deadline = c.Deadline
	}
	return program.Call{Run: c.Run, Attempt: c.Attempt, Name: a.row.Name, Version: a.version.Number,
		Deadline: deadline, Scheduled: c.Scheduled, Queue: c.Queue, Trace: c.Trace, MaxResult: a.settings.maxPayload()}
}

// The types of failures that are not the handler's own.
const (
	failureTimeout = "Timeout"
	failureMachine = "MachineEnded"
)

// end completes an outcome. The error says that the caller has left, or that the function was deleted.
func (o *Outcome) end(ctx context.Context, a *attempt, res program.Result, err error) error {
	o.Summary = res.Summary
	switch {
	case errors.Is(err, program.ErrOvertime):
		o.Status = api.RunTimeout
		o.Failure = &api.FunctionError{Type: failureTimeout,
			Message: "the handler did not end within " + a.settings.timeout().String()}
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		o.Status = api.RunError
		o.Failure = &api.FunctionError{Type: failureMachine,
			Message: "the machine ended before the handler returned; it may have run out of memory"}
	case res.Failure == nil:
		o.Status, o.Result = api.RunSuccess, res.Body
	default:
		o.Status, o.Failure = api.RunError, viewFailure(res.Failure)
		if res.Summary.TimedOut {
			o.Status = api.RunTimeout
		}
	}
	return nil
}

func viewFailure(f *program.Failure) *api.FunctionError {
	return &api.FunctionError{Type: f.Type, Message: f.Message, Stack: f.Stack}
}

// canceled is the failure of an invocation whose caller has not waited for its end.
var canceled = &api.FunctionError{Type: "Canceled", Message: "the client left before the response ended"}

// keyLifetime is how long an idempotency key stands for its run.
const keyLifetime = 24 * time.Hour

// Invoke calls a function with an event and returns the run when it has ended.
func (s *Service) Invoke(
	ctx context.Context,
	p auth.Principal,
	fn string,
	req api.InvokeRequest,
) (api.FunctionRun, error) {
	if err := req.Validate(); err != nil {
		return api.FunctionRun{}, err
	}
	row, err := s.Find(ctx, p, fn)
	if err != nil {
		return api.FunctionRun{}, err
	}
	run := functionstore.Run{ID: string(api.NewInvocationID()), Function: row.ID, Workspace: row.Workspace,
		Alias: req.Alias, Origin: OriginInvoke, State: store.RunRunning, Instance: s.instance, Attempt: 1,
		Lease: math.MaxInt64, Created: store.Micros(time.Now()), Trace: traceID(req.Trace)}
	if req.IdempotencyKey != "" {
		known, err := s.claim(ctx, &run, req.IdempotencyKey)
		if err != nil || known != nil {
			return orZero(known), asError(err)
		}
	}
	if run.Version, err = s.Pick(ctx, &row, req.Alias, req.Version); err != nil {
		s.unclaim(ctx, &run)
		return api.FunctionRun{}, err
	}
	out, leave, err := s.hold(ctx, Call{Function: api.FunctionID(row.ID), Version: run.Version,
		Run: api.InvocationID(run.ID), Attempt: 1, Event: req.Input, Trace: req.Trace, Wait: s.cfg.Wait})
	defer leave()
	if err != nil && out.Sandbox == "" {
		s.unclaim(ctx, &run)
		return api.FunctionRun{}, err
	}
	if err != nil { // the handler was called: its key is not for another call
		out.Status, out.Failure = api.RunError, canceled
	}
	run.Started = store.Micros(out.Began)
	Finish(&run, out, time.Now())
	if e := s.record(ctx, &run); e != nil || err != nil {
		return api.FunctionRun{}, api.AsError(cmp.Or(err, e))
	}
	return View(&run), nil
}

func orZero(run *api.FunctionRun) api.FunctionRun {
	if run == nil {
		return api.FunctionRun{}
	}
	return *run
}

// traceID returns the trace of a traceparent.
func traceID(parent string) string {
	if parts := strings.Split(parent, "-"); len(parts) >= 3 && len(parts[1]) == 32 {
		return parts[1]
	}
	return ""
}

// claim writes a run under an idempotency key. If the key has a run already, that is returned when it has ended.
func (s *Service) claim(ctx context.Context, run *functionstore.Run, key string) (*api.FunctionRun, error) {
	run.Dedupe = &key
	changed, cancel := s.hub.Subscribe(run.Function)
	defer cancel()
	tick := time.NewTicker(time.Second) // another process may have the run
	defer tick.Stop()
	for {
		var known functionstore.Run
		err := s.write(ctx, "function run claim", func(ctx context.Context, tx functionstore.Tx) (err error) {
			known, err = tx.RunByKey(ctx, run.Function, key)
			if err == nil && time.Since(store.Time(known.Created)) >= keyLifetime {
				old := known
				old.Dedupe = nil
				err = tx.UpdateRun(ctx, &old, old.State, "dedupe")
				known = functionstore.Run{}
			} else if err == nil {
				return nil
			}
			if err != nil && !errors.Is(err, store.ErrNotFound) {
				return err
			}
			return tx.InsertRun(ctx, run)
		})
		if err != nil && !errors.Is(err, store.ErrExists) {
			return nil, err
		}
		if err == nil && known.ID == "" {
			return nil, nil
		}
		// A run of another process that has ended is not taken over: whether the handler ran is unknown.
		if known.Ended > 0 || known.Origin != "" && known.Origin != OriginInvoke {
			return new(View(&known)), nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-changed:
		case <-tick.C:
		}
	}
}

// unclaim removes the run of an invocation that has not begun, so that its key can be used again.
func (s *Service) unclaim(ctx context.Context, run *functionstore.Run) {
	if run.Dedupe == nil {
		return
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	err := s.write(ctx, "function run unclaim", func(ctx context.Context, tx functionstore.Tx) error {
		return tx.DeleteRun(ctx, run.ID)
	})
	if err != nil { // it is ended as lost by a sweep
		s.log.Warn("the run of a key is not removed", "run", run.ID, "err", err)
	}
	s.Recorded(api.FunctionID(run.Function))
}

// record writes a run that has ended.
func (s *Service) record(ctx context.Context, run *functionstore.Run) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	err := s.write(ctx, "function run", func(ctx context.Context, tx functionstore.Tx) error {
		if _, err := tx.Function(ctx, run.Function); errors.Is(err, store.ErrNotFound) {
			return errDeleted // with its runs
		} else if err != nil {
			return err
		}
		if run.Dedupe != nil {
			return tx.UpdateRun(ctx, run, store.RunRunning, "version", "state", "result", "error", "stdout",
				"stderr", "truncated", "exit_code", "sandbox", "cold", "memory", "duration", "started", "ended")
		}
		return tx.InsertRun(ctx, run)
	})
	s.Recorded(api.FunctionID(run.Function))
	return err
}
