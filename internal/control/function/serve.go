package function

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/function/program"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
)

// Serve hands a request to a function and streams its response. The path and query are those that the handler sees.
//
// Fail writes the response in place of the handler if that was not called or has failed before its response began. If
// it fails later, Serve panics with http.ErrAbortHandler, which tells the client that the response is not complete.
func (s *Service) Serve(
	w http.ResponseWriter,
	r *http.Request,
	fn api.FunctionID,
	alias string,
	fail func(http.ResponseWriter, *http.Request, *api.Error),
) {
	parent := r.Header.Get("Traceparent")
	run := functionstore.Run{ID: string(api.NewInvocationID()), Function: string(fn), Alias: alias,
		Origin: OriginHTTP, Attempt: 1, Created: store.Micros(time.Now()), Trace: traceID(parent)}
	ctx, exit := s.enter(r.Context(), fn)
	defer exit()
	leave := func() {}
	defer func() { leave() }() // when the run is written
	answered, out, err := s.serve(ctx, &run, w, r, &leave)
	if err == nil || answered {
		if err != nil { // the client has left
			out.Status, out.Failure = api.RunError, canceled
		}
		run.Started = store.Micros(out.Began)
		Finish(&run, out, time.Now())
		if err := s.record(ctx, &run); err != nil {
			s.log.Error("a run of a function could not be written", "run", run.ID, "err", err)
		}
	}
	switch {
	case answered && (err != nil || out.Status != api.RunSuccess):
		panic(http.ErrAbortHandler)
	case answered:
	case err != nil:
		if because := context.Cause(ctx); because != nil {
			err = because
		}
		fail(w, r, api.AsError(err))
	default:
		fail(w, r, failure(&run, out))
	}
}

// failure is the error that a caller gets for a handler that has failed.
func failure(run *functionstore.Run, out Outcome) *api.Error {
	if out.Status == api.RunTimeout {
		return api.Errorf(api.Timeout, "%s", out.Failure.Message).With("run_id", run.ID)
	}
	return api.Errorf(api.Unreachable, "the function failed: %s: %s", out.Failure.Type, out.Failure.Message).
		With("run_id", run.ID)
}

// serve makes the attempt of Serve. An error without answered says that the handler was not called, or that the client
// has left. *leave becomes what gives the place back.
func (s *Service) serve(
	ctx context.Context,
	run *functionstore.Run,
	w http.ResponseWriter,
	r *http.Request,
	leave *func(),
) (answered bool, out Outcome, err error) {
	row, err := s.read().Function(ctx, run.Function)
	if errors.Is(err, store.ErrNotFound) {
		return false, out, notFound(run.Function)
	}
	if err != nil {
		return false, out, err
	}
	run.Workspace = row.Workspace
	if run.Version, err = s.Pick(ctx, &row, run.Alias, 0); err != nil {
		return false, out, err
	}
	a, err := s.prepare(ctx, api.FunctionID(run.Function), run.Version)
	if err != nil {
		return false, out, err
	}
	most := a.settings.maxPayload()
	if r.ContentLength > most {
		return false, out, api.Errorf(api.TooLarge, "the request has %d bytes: send at most %d", r.ContentLength, most)
	}
	r.Body = http.MaxBytesReader(w, r.Body, most)
	call := Call{Run: api.InvocationID(run.ID), Attempt: 1, Trace: r.Header.Get("Traceparent")}
	for n := 1; ; n++ {
		at, err := s.place(ctx, &a, s.cfg.Wait)
		if failed, ok := errors.AsType[*program.Failed](err); ok {
			return false, Outcome{Status: api.RunError, Failure: viewFailure(&failed.Failure), Began: time.Now()}, nil
		}
		if err != nil {
			return false, out, err
		}
		out = Outcome{Sandbox: at.Sandbox, Cold: at.cold, Began: time.Now()}
		res, answered, err := at.Program.Forward(ctx, a.call(&call), w, r)
		_, unreachable := errors.AsType[*program.UnreachableError](err)
		out.Wall = time.Since(out.Began)
		if unreachable && n < maxPlaces && ctx.Err() == nil && !answered {
			at.leave(true)
			continue // the machine has ended while it was idle; nothing of the body was read
		}
		*leave = at.after(err != nil && (unreachable || ctx.Err() == nil))
		if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok && !answered {
			return false, out, api.Errorf(api.TooLarge, "the request has more than %d bytes", tooLarge.Limit)
		}
		return answered, out, out.end(ctx, &a, res, err)
	}
}
