package function

import (
	"context"
	"encoding/json"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/function/program"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
)

// OwnerKind is the kind of owner that the sandboxes and snapshots of functions have.
const OwnerKind = "function"

// LiveAlias is the alias that takes the invocations that name none, if there is one.
const LiveAlias = "live"

// The origins of invocations.
const (
	OriginInvoke      = "invoke"
	OriginHTTP        = "http"
	OriginAsync       = "async"
	OriginSchedule    = "schedule"
	OriginMap         = "map"
	OriginQueue       = "queue"
	OriginDestination = "destination"
	OriginRecorded    = "recorded"
)

// Call is one attempt at an invocation with an event.
type Call struct {
	Function api.FunctionID
	Version  int64 // as Pick returned it
	Run      api.InvocationID
	Attempt  int    // 1, 2, ...
	Event    []byte // JSON
	// Deadline is when the attempt must have ended. Zero stands for the function's time limit, counted from when the
	// handler begins.
	Deadline  time.Time
	Scheduled time.Time // moment of a schedule, for the handler "scheduled"; zero: none
	Queue     string    // name of a queue: the event is a batch, for the handler "queue"
	Trace     string    // traceparent; "": none
	// Wait is how long the call may wait for its turn; then it fails with api.RateLimited. Zero: not at all.
	Wait time.Duration
}

// Outcome is how an attempt ended. The handler was called if Status is set; otherwise Do has returned an error.
type Outcome struct {
	Status  api.RunStatus // success, error or timeout
	Result  json.RawMessage
	Failure *api.FunctionError // of those that did not succeed
	Summary program.Summary
	Sandbox api.SandboxID
	Cold    bool          // the machine was restored for it
	Began   time.Time     // when the machine had the call
	Wall    time.Duration // from then to the end
}

// Invoker makes attempts. *Service is one.
type Invoker interface {
	// Do makes one attempt. An error, an *api.Error, means that the handler has not been called, or that it is unknown
	// whether it was: RateLimited if the function or its workspace has too many under way, Unavailable if no machine
	// could be had, NotFound if the function or the version is gone. A handler that fails is no error.
	Do(ctx context.Context, call Call) (Outcome, error)
	// Pick chooses the version for an invocation: version if it is not 0, or one of the alias by its weights.
	// The function must be active.
	Pick(ctx context.Context, fn *functionstore.Function, alias string, version int64) (int64, error)
	// Find reads an active function of the caller's workspace by id or name.
	Find(ctx context.Context, p auth.Principal, idOrName string) (functionstore.Function, error)
}

// Queue has the asynchronous invocations. Package invocation implements it.
type Queue interface {
	// Poke says that an invocation of a function has ended, so that there may be room for others.
	Poke(fn api.FunctionID)
	// Forget removes what belongs to a function that is being deleted beside its rows. It may be called again.
	Forget(ctx context.Context, fn api.FunctionID) error
}
