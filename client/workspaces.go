package client

import (
	"context"
	"net/url"
	"strconv"

	"github.com/pandastack/pandastack/api"
)

// Workspaces are the calls on workspaces. All but Own need an operator's key.
type Workspaces struct{ c *Client }

// Own returns the workspace of the key, with what it uses and may have.
func (w *Workspaces) Own(ctx context.Context) (api.WorkspaceInfo, error) {
	var out api.WorkspaceInfo
	err := w.c.do(ctx, get(apiPath("workspace")), &out)
	return out, err
}

// workspacePage is how many workspaces List asks for at once.
const workspacePage = 500

// List returns all workspaces, by id.
func (w *Workspaces) List(ctx context.Context) ([]api.WorkspaceInfo, error) {
	var all []api.WorkspaceInfo
	for {
		rq := get(apiPath("workspaces"))
		rq.query = url.Values{"limit": {strconv.Itoa(workspacePage)}}
		if len(all) > 0 {
			rq.query.Set("cursor", string(all[len(all)-1].ID))
		}
		var page api.WorkspaceList
		if err := w.c.do(ctx, rq, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if len(page.Items) < workspacePage {
			return all, nil
		}
	}
}

// Create creates a workspace and its first key, which is shown only once.
func (w *Workspaces) Create(ctx context.Context, req api.WorkspaceRequest) (api.WorkspaceCreated, error) {
	var out api.WorkspaceCreated
	err := w.c.do(ctx, post(apiPath("workspaces"), req), &out)
	return out, err
}

// Get returns a workspace, with what it uses and may have.
func (w *Workspaces) Get(ctx context.Context, id api.Workspace) (api.WorkspaceInfo, error) {
	var out api.WorkspaceInfo
	err := w.c.do(ctx, get(apiPath("workspaces", string(id))), &out)
	return out, err
}

// SetQuotas changes quotas of a workspace: 0 is unlimited, nil is the default.
func (w *Workspaces) SetQuotas(
	ctx context.Context,
	id api.Workspace,
	quotas map[string]*int64,
) (api.WorkspaceInfo, error) {
	var out api.WorkspaceInfo
	rq := post(apiPath("workspaces", string(id), "quotas"), api.QuotaPatch{Quotas: quotas})
	rq.method = "PATCH"
	err := w.c.do(ctx, rq, &out)
	return out, err
}

// Suspend refuses the requests of a workspace, cancels its builds and hibernates its sandboxes.
func (w *Workspaces) Suspend(ctx context.Context, id api.Workspace) (api.WorkspaceInfo, error) {
	var out api.WorkspaceInfo
	err := w.c.do(ctx, post(apiPath("workspaces", string(id), "suspend"), nil), &out)
	return out, err
}

// Resume makes a suspended workspace active again.
func (w *Workspaces) Resume(ctx context.Context, id api.Workspace) (api.WorkspaceInfo, error) {
	var out api.WorkspaceInfo
	err := w.c.do(ctx, post(apiPath("workspaces", string(id), "resume"), nil), &out)
	return out, err
}
