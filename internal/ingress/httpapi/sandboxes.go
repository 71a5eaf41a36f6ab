package httpapi

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// Limits of a list. Clients without support for pages get everything, up to maxList.
const (
	maxPage = 1000
	maxList = 10_000
)

func createSandbox(rq *request, req api.CreateRequest) (api.Sandbox, error) {
	req.IdempotencyKey = rq.r.Header.Get("Idempotency-Key")
	// The header is set after the body was validated.
	if err := req.Validate(); err != nil {
		return api.Sandbox{}, err
	}
	limit := waitLimit(rq.r.Header.Get("Prefer"))
	ctx, cancel := context.WithTimeoutCause(rq.r.Context(), limit, errWaitExpired)
	defer cancel()
	box, err := rq.s.deps.Sandboxes.Create(ctx, rq.p, req)
	if err != nil && errors.Is(context.Cause(ctx), errWaitExpired) {
		err = rq.notReady(req.Template, limit, err)
	}
	rq.s.met.Created(box, err)
	if err == nil {
		rq.s.boots.Record(box.BootMode, float64(box.BootMS))
	}
	return box, err
}

// Limits of how long a create may take. The published SDKs give up after 30 seconds and report a lost connection, so
// the response comes before that. Clients that wait longer say so.
const (
	defaultWait = 25 * time.Second
	maxWait     = time.Hour
)

// errWaitExpired is a deadline, so that what it ends is no fault of the server.
var errWaitExpired = fmt.Errorf("the caller does not wait longer: %w", context.DeadlineExceeded)

// waitLimit reads the header Prefer: wait=seconds (RFC 7240).
func waitLimit(prefer string) time.Duration {
	for part := range strings.SplitSeq(prefer, ",") {
		text, ok := strings.CutPrefix(strings.TrimSpace(part), "wait=")
		if n, err := strconv.Atoi(text); ok && err == nil && n > 0 {
			return min(time.Duration(n)*time.Second, maxWait)
		}
	}
	return defaultWait
}

// notReady returns why a create did not finish in time. A template that is not baked yet keeps baking.
func (rq *request) notReady(name string, limit time.Duration, cause error) error {
	list, err := rq.s.deps.Templates.List(rq.r.Context(), rq.p)
	if err != nil {
		return err
	}
	if t, err := rq.s.deps.Templates.Get(rq.r.Context(), rq.p, name); err == nil && name != "" {
		list = []api.Template{t} // by the name that it was found under, which may be another one
	}
	for _, t := range list {
		if t.Bake != nil && t.Bake.State == "running" {
			return api.Wrap(api.Unavailable, cause, fmt.Sprintf(
				"template %s is being baked, which is done once (%s, %d %%): retry; "+
					"GET /v1/templates/%s returns the progress",
				t.Name, t.Bake.Step, t.Bake.Percent, t.Name)).
				With("bake", t.Bake)
		}
	}
	return api.Wrap(
		api.Unavailable,
		cause,
		fmt.Sprintf(
			"the sandbox was not ready after %s: retry, or wait longer with the header Prefer: wait=seconds",
			limit,
		),
	)
}

func listSandboxes(rq *request) ([]api.Sandbox, error) {
	f := api.SandboxFilter{Metadata: map[string]string{}}
	for key, values := range rq.r.URL.Query() {
		name, ok := strings.CutPrefix(key, "metadata.")
		switch {
		case ok && len(values) > 0:
			f.Metadata[name] = values[0]
		case key == "status" || key == "state":
			for _, v := range values {
				for st := range strings.SplitSeq(v, ",") {
					if !api.Status(st).Valid() {
						return nil, api.Errorf(api.Invalid,
							"%s: %q is no state: use one of %v", key, truncate(st), api.Statuses()).
							With("field", key)
					}
					f.Statuses = append(f.Statuses, api.Status(st))
				}
			}
		}
	}
	f.Template = rq.r.URL.Query().Get("template")
	if err := orderParams(rq, &f); err != nil {
		return nil, err
	}
	if err := pageParams(rq, &f.Limit, &f.Cursor); err != nil {
		return nil, err
	}
	return rq.allSandboxes(f)
}

// allSandboxes returns the page of a filter that asks for one, else all sandboxes.
func (rq *request) allSandboxes(f api.SandboxFilter) ([]api.Sandbox, error) {
	list := func(ctx context.Context, p auth.Principal) ([]api.Sandbox, string, error) {
		page, err := rq.s.deps.Sandboxes.List(ctx, p, f)
		return page.Sandboxes, page.Next, err
	}
	return collectPages(rq, &f.Limit, &f.Cursor, list)
}

// orderParams reads order and since from the query.
func orderParams(rq *request, f *api.SandboxFilter) (err error) {
	q := rq.r.URL.Query()
	switch order := q.Get("order"); order {
	case "", "desc":
	case "asc":
		f.Oldest = true
	default:
		return api.Errorf(api.Invalid, "order: %q is not asc or desc", truncate(order)).With("field", "order")
	}
	if text := q.Get("since"); text != "" {
		if f.Since, err = time.Parse(time.RFC3339, text); err != nil {
			return api.Errorf(api.Invalid, "since: %q is not a time such as 2026-01-02T15:04:05Z", truncate(text)).
				With("field", "since")
		}
	}
	return nil
}

// pageParams reads limit and cursor from the query.
func pageParams(rq *request, limit *int, cursor *string) error {
	n, err := rq.intParam("limit", 1, maxPage, 0)
	*limit, *cursor = int(n), rq.r.URL.Query().Get("cursor")
	return err
}

// collectPages returns one page if the client asked for one, else all pages. limit and cursor are those that next
// reads. The cursor of the rest goes into a header, because lists are bare arrays.
func collectPages[T any](
	rq *request,
	limit *int,
	cursor *string,
	next func(context.Context, auth.Principal) ([]T, string, error),
) ([]T, error) {
	all := []T{}
	single := *limit > 0 || *cursor != ""
	if !single {
		*limit = maxPage
	}
	for {
		items, more, err := next(rq.r.Context(), rq.p)
		if err != nil {
			return nil, err
		}
		all = append(all, items...)
		if more == "" || single || len(all) >= maxList {
			if more != "" {
				rq.w.Header().Set("X-Next-Cursor", more)
			}
			return all, nil
		}
		*cursor = more
	}
}

func getSandbox(rq *request) (api.Sandbox, error) {
	return onSandbox(rq, rq.s.deps.Sandboxes.Get)
}

// onSandbox calls a method for the sandbox in the path.
func onSandbox[T any](rq *request, verb func(context.Context, auth.Principal, api.SandboxID) (T, error)) (T, error) {
	id, err := rq.sandbox()
	if err != nil {
		var none T
		return none, err
	}
	return verb(rq.r.Context(), rq.p, id)
}

// onSandboxWith calls a method that takes a request for the sandbox in the path.
func onSandboxWith[In, Out any](
	rq *request,
	in In,
	verb func(context.Context, auth.Principal, api.SandboxID, In) (Out, error),
) (Out, error) {
	return onSandbox(rq, func(ctx context.Context, p auth.Principal, id api.SandboxID) (Out, error) {
		return verb(ctx, p, id, in)
	})
}

func deleteSandbox(rq *request) error {
	id, err := rq.sandbox()
	if err != nil {
		return err
	}
	return rq.s.deps.Sandboxes.Delete(rq.r.Context(), rq.p, id)
}

func pauseSandbox(rq *request) error {
	_, err := onSandbox(rq, rq.s.deps.Sandboxes.Pause)
	return err
}

func resumeSandbox(rq *request) error {
	_, err := onSandbox(rq, rq.s.deps.Sandboxes.Resume)
	return err
}

func hibernateSandbox(rq *request) (api.StatusResponse, error) {
	box, err := onSandbox(rq, rq.s.deps.Sandboxes.Hibernate)
	return api.StatusResponse{Status: box.Status}, err
}

func wakeSandbox(rq *request) (api.StatusResponse, error) {
	box, err := onSandbox(rq, rq.s.deps.Sandboxes.Wake)
	return api.StatusResponse{Status: box.Status}, err
}

func getLifecycle(rq *request) (api.Lifecycle, error) {
	return onSandbox(rq, rq.s.deps.Sandboxes.Lifecycle)
}

func setLifecycle(rq *request, patch api.LifecyclePatch) (api.Lifecycle, error) {
	return onSandboxWith(rq, patch, rq.s.deps.Sandboxes.SetLifecycle)
}

func getNetwork(rq *request) (api.Network, error) {
	return onSandbox(rq, rq.s.deps.Sandboxes.Network)
}

func setNetwork(rq *request, n api.Network) (api.Network, error) {
	return onSandboxWith(rq, n, rq.s.deps.Sandboxes.SetNetwork)
}

func forkSandbox(rq *request, req api.ForkRequest) (api.ForkResponse, error) {
	return onSandboxWith(rq, req, rq.s.deps.Sandboxes.Fork)
}

func forkTree(rq *request, req api.ForkTreeRequest) (api.ForkTree, error) {
	return onSandboxWith(rq, req, rq.s.deps.Sandboxes.ForkTree)
}

func promote(rq *request, req api.PromoteRequest) (api.Promotion, error) {
	return onSandboxWith(rq, req, rq.s.deps.Sandboxes.Promote)
}

func takeSnapshot(rq *request, req api.SnapshotRequest) (api.Snapshot, error) {
	return onSandboxWith(rq, req, rq.s.deps.Sandboxes.TakeSnapshot)
}

func listSnapshots(rq *request) ([]api.Snapshot, error) {
	f := api.SnapshotFilter{SandboxID: api.SandboxID(rq.r.URL.Query().Get("sandbox_id"))}
	if err := pageParams(rq, &f.Limit, &f.Cursor); err != nil {
		return nil, err
	}
	return rq.allSnapshots(f)
}

// allSnapshots returns the page of a filter that asks for one, else all snapshots.
func (rq *request) allSnapshots(f api.SnapshotFilter) ([]api.Snapshot, error) {
	return collectPages(
		rq,
		&f.Limit,
		&f.Cursor,
		func(ctx context.Context, p auth.Principal) ([]api.Snapshot, string, error) {
			page, err := rq.s.deps.Sandboxes.Snapshots(ctx, p, f)
			return page.Snapshots, page.Next, err
		},
	)
}

func getSnapshot(rq *request) (api.Snapshot, error) {
	id, err := api.ParseSnapshotID(rq.r.PathValue("snapshot"))
	if err != nil {
		return api.Snapshot{}, err
	}
	return rq.s.deps.Sandboxes.Snapshot(rq.r.Context(), rq.p, id)
}

func deleteSnapshot(rq *request) (api.SnapshotDeleted, error) {
	id, err := api.ParseSnapshotID(rq.r.PathValue("snapshot"))
	if err != nil {
		return api.SnapshotDeleted{}, err
	}
	return api.SnapshotDeleted{Deleted: id}, rq.s.deps.Sandboxes.DeleteSnapshot(rq.r.Context(), rq.p, id)
}

func pushSnapshot(rq *request) (api.TransferResult, error) {
	id, err := api.ParseSnapshotID(rq.r.PathValue("snapshot"))
	if err != nil {
		return api.TransferResult{}, err
	}
	return rq.s.deps.Sandboxes.PushSnapshot(rq.r.Context(), rq.p, id)
}

func pullSnapshot(rq *request, req api.PullRequest) (api.TransferResult, error) {
	id, err := api.ParseSnapshotID(rq.r.PathValue("snapshot"))
	if err != nil {
		return api.TransferResult{}, err
	}
	return rq.s.deps.Sandboxes.PullSnapshot(rq.r.Context(), rq.p, id, req)
}

func deletePushed(rq *request) (api.SnapshotDeleted, error) {
	id, err := api.ParseSnapshotID(rq.r.PathValue("snapshot"))
	if err != nil {
		return api.SnapshotDeleted{}, err
	}
	return api.SnapshotDeleted{Deleted: id}, rq.s.deps.Sandboxes.DeletePushed(rq.r.Context(), rq.p, id)
}
