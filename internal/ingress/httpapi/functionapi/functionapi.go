// Package functionapi are the calls on functions and queues as the API offers them: their routes, and what the routes
// do.
//
// It checks names, hides the values of variables and the secret of a function from callers that may not run commands,
// reads bundles from forms, and sends runs as streams; the services do the rest. It must not know how callers are
// authorized or bodies are decoded.
package functionapi

import (
	"context"
	"io"
	"maps"
	"net/http"
	"strconv"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/apiroute"
)

// Functions are the methods of the service for functions that this API uses. fn is an id or a name.
type Functions interface {
	Create(ctx context.Context, p auth.Principal, req api.CreateFunctionRequest) (api.Function, error)
	List(ctx context.Context, p auth.Principal) ([]api.Function, error)
	Get(ctx context.Context, p auth.Principal, fn string) (api.Function, error)
	Update(ctx context.Context, p auth.Principal, fn string, req api.UpdateFunctionRequest) (api.Function, error)
	Delete(ctx context.Context, p auth.Principal, fn string) error
	Metrics(ctx context.Context, p auth.Principal, fn string, hours int) (api.FunctionMetrics, error)

	Versions
	Runs
}

// Versions are the versions of functions and the names of versions.
type Versions interface {
	// Deploy makes a version of a bundle, which it stores as it came. With wait it returns when the version is ready.
	Deploy(
		ctx context.Context,
		p auth.Principal,
		fn string,
		bundle io.Reader,
		entrypoint string,
		wait bool,
	) (api.Function, error)
	// Code returns the bundle of a version, of the newest one if version is 0, and its size.
	Code(ctx context.Context, p auth.Principal, fn string, version int64) (io.ReadCloser, int64, error)
	Versions(ctx context.Context, p auth.Principal, fn string) ([]api.FunctionVersion, error)
	DeleteVersion(ctx context.Context, p auth.Principal, fn string, version int64) error
	BuildLog(ctx context.Context, p auth.Principal, fn string, version int64) ([]string, error)
	Rollback(ctx context.Context, p auth.Principal, fn string, version int64) (api.Function, error)

	Aliases(ctx context.Context, p auth.Principal, fn string) ([]api.FunctionAlias, error)
	SetAlias(
		ctx context.Context,
		p auth.Principal,
		fn, name string,
		req api.SetAliasRequest,
	) (api.FunctionAlias, error)
	DeleteAlias(ctx context.Context, p auth.Principal, fn, name string) error
}

// Runs are the invocations of functions.
type Runs interface {
	// Invoke invokes a function and returns when the run has ended.
	Invoke(ctx context.Context, p auth.Principal, fn string, req api.InvokeRequest) (api.FunctionRun, error)
	Runs(ctx context.Context, p auth.Principal, fn string, f api.RunFilter) ([]api.FunctionRun, error)
	GetRun(ctx context.Context, p auth.Principal, fn string, id api.InvocationID) (api.FunctionRun, error)
	RecordRun(ctx context.Context, p auth.Principal, fn string, req api.RecordRunRequest) (api.FunctionRun, error)
	// FollowRuns yields the last runs that have ended, oldest first, and then each that ends, until ctx ends.
	FollowRuns(ctx context.Context, p auth.Principal, fn string, last int, yield func(api.FunctionRun) error) error
}

// Jobs are the invocations that callers do not wait for, and queues.
type Jobs interface {
	// Submit accepts an asynchronous invocation, and returns its queued run.
	Submit(ctx context.Context, p auth.Principal, fn string, req api.InvokeRequest) (api.FunctionRun, error)
	Cancel(ctx context.Context, p auth.Principal, fn string, id api.InvocationID) (api.FunctionRun, error)
	// Map yields what has ended, and returns when all has.
	Map(
		ctx context.Context,
		p auth.Principal,
		fn string,
		req api.MapRequest,
		yield func(api.MapProgress) error,
	) error

	CreateQueue(ctx context.Context, p auth.Principal, req api.CreateQueueRequest) (api.Queue, error)
	Queues(ctx context.Context, p auth.Principal) ([]api.Queue, error)
	Queue(ctx context.Context, p auth.Principal, name string) (api.Queue, error)
	UpdateQueue(ctx context.Context, p auth.Principal, name string, req api.UpdateQueueRequest) (api.Queue, error)
	DeleteQueue(ctx context.Context, p auth.Principal, name string) error
	Send(ctx context.Context, p auth.Principal, name string, req api.SendRequest) (api.SendResponse, error)
	Receive(ctx context.Context, p auth.Principal, name string, req api.ReceiveRequest) (api.ReceiveResponse, error)
	Ack(ctx context.Context, p auth.Principal, name string, req api.AckRequest) error
	Extend(ctx context.Context, p auth.Principal, name string, req api.ExtendRequest) error
}

// Edge serves requests for functions, whose callers it authorizes.
type Edge interface {
	// ForwardFunction serves r, whose path is that of the handler. prefix is what precedes the path in the URL of the
	// client, whose origin the function shares with this API. fn is an id, or a name in the workspace of the request's
	// key. It returns the caller and the function, as far as they are known.
	ForwardFunction(
		w http.ResponseWriter,
		r *http.Request,
		fn, prefix string,
		fail func(w http.ResponseWriter, r *http.Request, err *api.Error),
	) (auth.Principal, api.FunctionID)
}

// API has the services; nil ones are unsupported.
type API struct {
	Functions Functions
	Jobs      Jobs
	Edge      Edge
}

// Call is one authorized request of a route.
type Call = apiroute.Call

// functionIn returns the id or the name in the path. What can be neither is not found.
func functionIn(c *Call) (string, error) {
	name := c.R.PathValue("function")
	if !api.ValidFunctionName(name) {
		return "", api.Errorf(api.NotFound, "function %.60q not found", name)
	}
	return name, nil
}

func (a API) functions() (Functions, error) {
	if a.Functions == nil {
		return nil, api.Errorf(api.Unsupported, "this server has no functions")
	}
	return a.Functions, nil
}

// on returns the service and the function in the path.
func (a API) on(c *Call) (Functions, string, error) {
	s, err := a.functions()
	if err != nil {
		return nil, "", err
	}
	fn, err := functionIn(c)
	return s, fn, err
}

func (a API) jobs() (Jobs, error) {
	if a.Jobs == nil {
		return nil, api.Errorf(api.Unsupported, "this server has no asynchronous invocations and no queues")
	}
	return a.Jobs, nil
}

// versionIn returns the number of a version in the path.
func versionIn(c *Call) (int64, error) {
	text := c.R.PathValue("version")
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, api.Errorf(api.NotFound, "version %.60q not found: versions are numbers from 1 on", text)
	}
	return n, nil
}

// number returns a whole number of the query, or fallback if there is none.
func number(c *Call, name string, low, high, fallback int64) (int64, error) {
	text := c.R.URL.Query().Get(name)
	if text == "" {
		return fallback, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low || n > high {
		return 0, api.Errorf(api.Invalid, "%s: %.60q is not a number from %d to %d", name, text, low, high).
			With("field", name)
	}
	return n, nil
}

// shown returns a function as the caller may see it. Values of variables are masked by the service; the secret is for
// callers that may run commands.
func shown(c *Call, fn api.Function) api.Function {
	if !c.Principal.Scopes.Has(api.ScopeExec) {
		fn.Secret = ""
	}
	fn.Env = maps.Clone(fn.Env)
	for name := range fn.Env {
		fn.Env[name] = api.MaskedValue
	}
	if fn.Env == nil {
		fn.Env = map[string]string{}
	}
	if fn.Aliases == nil {
		fn.Aliases = []api.FunctionAlias{}
	}
	return fn
}

// some returns a list that is [] in JSON if it is empty.
func some[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
