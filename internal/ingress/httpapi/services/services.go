// Package services has the methods of the control plane that the API calls.
package services

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/build"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
)

// Sandboxes are the methods of *sandbox.Service that this API uses.
type Sandboxes interface {
	sandboxVerbs
	snapshotVerbs
	observeVerbs
}

type sandboxVerbs interface {
	Create(ctx context.Context, p auth.Principal, req api.CreateRequest) (api.Sandbox, error)
	List(ctx context.Context, p auth.Principal, f api.SandboxFilter) (sandbox.Page, error)
	Get(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error)
	Delete(ctx context.Context, p auth.Principal, id api.SandboxID) error
	Pause(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error)
	Resume(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error)
	Hibernate(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error)
	Wake(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error)
	Lifecycle(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Lifecycle, error)
	SetLifecycle(
		ctx context.Context,
		p auth.Principal,
		id api.SandboxID,
		patch api.LifecyclePatch,
	) (api.Lifecycle, error)
	Network(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Network, error)
	SetNetwork(ctx context.Context, p auth.Principal, id api.SandboxID, n api.Network) (api.Network, error)
	Guest(ctx context.Context, p auth.Principal, id api.SandboxID) (guestapi.Guest, error)
	GuestAndSandbox(ctx context.Context, p auth.Principal, id api.SandboxID) (guestapi.Guest, api.Sandbox, error)
}

type snapshotVerbs interface {
	TakeSnapshot(ctx context.Context, p auth.Principal, id api.SandboxID, req api.SnapshotRequest) (api.Snapshot, error)
	Snapshots(ctx context.Context, p auth.Principal, f api.SnapshotFilter) (sandbox.SnapshotPage, error)
	Snapshot(ctx context.Context, p auth.Principal, id api.SnapshotID) (api.Snapshot, error)
	DeleteSnapshot(ctx context.Context, p auth.Principal, id api.SnapshotID) error
	PushSnapshot(ctx context.Context, p auth.Principal, id api.SnapshotID) (api.TransferResult, error)
	PullSnapshot(
		ctx context.Context,
		p auth.Principal,
		id api.SnapshotID,
		req api.PullRequest,
	) (api.TransferResult, error)
	DeletePushed(ctx context.Context, p auth.Principal, id api.SnapshotID) error
	Fork(ctx context.Context, p auth.Principal, id api.SandboxID, req api.ForkRequest) (api.ForkResponse, error)
	ForkTree(ctx context.Context, p auth.Principal, id api.SandboxID, req api.ForkTreeRequest) (api.ForkTree, error)
	Promote(ctx context.Context, p auth.Principal, id api.SandboxID, req api.PromoteRequest) (api.Promotion, error)
}

type observeVerbs interface {
	Ports(ctx context.Context, p auth.Principal, id api.SandboxID) ([]api.Port, error)
	DeclarePort(ctx context.Context, p auth.Principal, id api.SandboxID, req api.PortRequest) (api.Port, error)
	RemovePort(ctx context.Context, p auth.Principal, id api.SandboxID, port int) error
	Usage(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Usage, error)
	Logs(ctx context.Context, p auth.Principal, id api.SandboxID) (sandbox.Logs, error)
	Events(ctx context.Context, p auth.Principal, id api.SandboxID, q sandbox.EventQuery) ([]sandbox.Event, error)
	FollowEvents(
		ctx context.Context,
		p auth.Principal,
		id api.SandboxID,
		q sandbox.EventQuery,
		yield func(sandbox.Event) error,
	) error
	Capacity(ctx context.Context) (api.Capacity, error)
	Counts(ctx context.Context) (map[api.Status]int, error)
}

// Templates are the methods of *template.Service that this API uses.
type Templates interface {
	List(ctx context.Context, p auth.Principal) ([]api.Template, error)
	Get(ctx context.Context, p auth.Principal, name string) (api.Template, error)
	Bake(ctx context.Context, p auth.Principal, name string, req api.BakeRequest) (api.Template, error)
	Delete(ctx context.Context, p auth.Principal, name string) error
	Tag(ctx context.Context, p auth.Principal, name string, req api.TagRequest) (api.Template, error)
	Untag(ctx context.Context, p auth.Principal, name, tag string) error
}

// Keys are the methods of *auth.Keys that this API uses.
type Keys interface {
	access.Keys
	Create(ctx context.Context, p auth.Principal, req auth.KeyRequest) (auth.Key, string, error)
	List(ctx context.Context, p auth.Principal) ([]auth.Key, error)
	Revoke(ctx context.Context, p auth.Principal, prefix string) error
	Rotate(
		ctx context.Context,
		p auth.Principal,
		prefix string,
		overlap time.Duration,
	) (key auth.Key, token string, until time.Time, err error)
}

// Previews are the methods of *preview.Previews that this API uses.
type Previews interface {
	Record(ctx context.Context, p auth.Principal, sandbox api.SandboxID, info api.PreviewInfo) error
	List(ctx context.Context, sandbox api.SandboxID) ([]api.PreviewInfo, error)
	Revoke(ctx context.Context, sandbox api.SandboxID, id string) error
	RevokeAll(ctx context.Context, p auth.Principal, sandbox api.SandboxID, earlier string) error
	IsRevoked(ctx context.Context, id string) bool
}

// UsageHistory returns what sandboxes used over time; *metricshistory.History does.
type UsageHistory interface {
	HostUsage(ctx context.Context, p auth.Principal, id api.SandboxID) (api.HostUsage, error)
	Series(ctx context.Context, p auth.Principal, id api.SandboxID, q url.Values) (api.Series, error)
}

// Forwarder forwards a request to a port of a sandbox; *proxy.Proxy does.
type Forwarder interface {
	Forward(w http.ResponseWriter, r *http.Request, rt proxy.Route)
}

// Builds are the methods of *build.Service that this API uses.
type Builds interface {
	NewUpload(ctx context.Context, p auth.Principal, files bool) (*build.Upload, error)
	Start(ctx context.Context, p auth.Principal, spec build.Spec, input *build.Upload) (api.Build, error)
	Get(ctx context.Context, p auth.Principal, id api.BuildID) (api.Build, error)
	List(ctx context.Context, p auth.Principal, name string) ([]api.Build, error)
	Logs(
		ctx context.Context,
		p auth.Principal,
		id api.BuildID,
		after int64,
		follow bool,
		yield func(api.BuildLine) error,
	) error
	Cancel(ctx context.Context, p auth.Principal, id api.BuildID) (api.Build, error)
	Retry(ctx context.Context, p auth.Principal, id api.BuildID, who *api.RegistryAuth) (api.Build, error)
}

// Workspaces are the methods of *workspace.Service that this API uses.
type Workspaces interface {
	Own(ctx context.Context, p auth.Principal) (api.WorkspaceInfo, error)
	Get(ctx context.Context, p auth.Principal, id api.Workspace) (api.WorkspaceInfo, error)
	List(ctx context.Context, p auth.Principal, after api.Workspace, limit int) ([]api.WorkspaceInfo, error)
	Create(ctx context.Context, p auth.Principal, req api.WorkspaceRequest) (api.WorkspaceCreated, error)
	SetQuotas(
		ctx context.Context,
		p auth.Principal,
		id api.Workspace,
		patch api.QuotaPatch,
	) (api.WorkspaceInfo, error)
	Suspend(ctx context.Context, p auth.Principal, id api.Workspace) (api.WorkspaceInfo, error)
	Resume(ctx context.Context, p auth.Principal, id api.Workspace) (api.WorkspaceInfo, error)
}
