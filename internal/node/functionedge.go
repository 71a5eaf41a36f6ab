package node

import (
	"context"
	"net/http"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/function"
	"github.com/pandastack/pandastack/internal/control/function/invocation"
	"github.com/pandastack/pandastack/internal/control/job"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/ingress/e2b"
	"github.com/pandastack/pandastack/internal/ingress/functionedge"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/functionapi"
)

// invocations creates what runs functions asynchronously.
func (n *node) invocations(f *functions, deps functionDeps, jobs *job.Queue) error {
	allowed, err := n.Config.Schedules.Allowed()
	if err != nil {
		return err
	}
	f.jobs, err = invocation.New(
		invocation.Config{
			Concurrency: n.Config.Functions.Concurrency, Networks: allowed, Exclusive: !deps.store.Shared(),
		},
		invocation.Deps{
			Store: deps.store, Jobs: jobs, Invoker: f.service, Log: n.Log,
			Ended: func(run api.FunctionRun) { f.service.Recorded(run.FunctionID) },
		},
	)
	if err == nil {
		f.service.SetQueue(f.jobs)
	}
	return err
}

// functionEdge creates the edge of functions.
func (n *node) functionEdge(f *functions, guard *access.Guard) {
	limits := n.Config.RateLimit
	f.edge = functionedge.New(functionedge.Config{
		Functions: edgeFunctions{f.service}, Guard: guard, Suffix: f.suffix, IsKey: e2b.IsKey, Log: n.Log,
		Limits: access.NewPortLimits(access.PortConfig{PortRate: limits.Port, AddressRate: limits.PortAddress}),
	})
}

// edgeFunctions implements functionedge.Functions.
type edgeFunctions struct{ service *function.Service }

// Target implements functionedge.Functions.
func (e edgeFunctions) Target(ctx context.Context, fn api.FunctionID) (functionedge.Target, error) {
	t, err := e.service.Lookup(ctx, fn)
	return functionedge.Target{Function: t.Function, Workspace: t.Workspace, Auth: t.Auth, Secret: t.Secret,
		MaxBody: t.MaxPayload}, err
}

// Named implements functionedge.Functions.
func (e edgeFunctions) Named(ctx context.Context, p auth.Principal, name string) (api.FunctionID, error) {
	row, err := e.service.Find(ctx, p, name)
	return api.FunctionID(row.ID), err
}

// Serve implements functionedge.Functions.
func (e edgeFunctions) Serve(
	w http.ResponseWriter,
	r *http.Request,
	fn api.FunctionID,
	alias string,
	fail functionedge.Fail,
) {
	e.service.Serve(w, r, fn, alias, fail)
}

// api returns what the API offers of functions.
func (f functions) api() functionapi.API {
	return functionapi.API{Functions: f.service, Jobs: f.jobs, Edge: f.edge}
}
