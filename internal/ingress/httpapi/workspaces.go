package httpapi

import (
	"context"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/services"
)

func (rq *request) workspaces() (services.Workspaces, error) {
	if rq.s.deps.Workspaces == nil {
		return nil, api.Errorf(api.Unsupported, "this server does not manage workspaces")
	}
	return rq.s.deps.Workspaces, nil
}

// onWorkspace calls a method for the workspace in the path.
func onWorkspace(
	rq *request,
	do func(services.Workspaces, context.Context, auth.Principal, api.Workspace) (api.WorkspaceInfo, error),
) (api.WorkspaceInfo, error) {
	w, err := rq.workspaces()
	if err != nil {
		return api.WorkspaceInfo{}, err
	}
	return do(w, rq.r.Context(), rq.p, api.Workspace(rq.r.PathValue("workspace")))
}

func ownWorkspace(rq *request) (api.WorkspaceInfo, error) {
	w, err := rq.workspaces()
	if err != nil {
		return api.WorkspaceInfo{}, err
	}
	return w.Own(rq.r.Context(), rq.p)
}

func getWorkspace(rq *request) (api.WorkspaceInfo, error) {
	return onWorkspace(rq, services.Workspaces.Get)
}

func suspendWorkspace(rq *request) (api.WorkspaceInfo, error) {
	return onWorkspace(rq, services.Workspaces.Suspend)
}

func resumeWorkspace(rq *request) (api.WorkspaceInfo, error) {
	return onWorkspace(rq, services.Workspaces.Resume)
}

func setQuotas(rq *request, patch api.QuotaPatch) (api.WorkspaceInfo, error) {
	w, err := rq.workspaces()
	if err != nil {
		return api.WorkspaceInfo{}, err
	}
	return w.SetQuotas(rq.r.Context(), rq.p, api.Workspace(rq.r.PathValue("workspace")), patch)
}

func createWorkspace(rq *request, req api.WorkspaceRequest) (api.WorkspaceCreated, error) {
	w, err := rq.workspaces()
	if err != nil {
		return api.WorkspaceCreated{}, err
	}
	return w.Create(rq.r.Context(), rq.p, req)
}

// listWorkspaces returns a page; the last id of a full page leads to the next.
func listWorkspaces(rq *request) (api.WorkspaceList, error) {
	w, err := rq.workspaces()
	if err != nil {
		return api.WorkspaceList{}, err
	}
	limit, err := rq.intParam("limit", 1, 1000, 0)
	if err != nil {
		return api.WorkspaceList{}, err
	}
	items, err := w.List(rq.r.Context(), rq.p, api.Workspace(rq.r.URL.Query().Get("cursor")), int(limit))
	if err != nil {
		return api.WorkspaceList{}, err
	}
	if limit > 0 && len(items) == int(limit) {
		rq.w.Header().Set("X-Next-Cursor", string(items[len(items)-1].ID))
	}
	return api.WorkspaceList{Items: items}, nil
}
