package app

import (
	"context"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// OwnerKind is the kind of owner that the sandboxes, snapshots and volumes of apps have.
const OwnerKind = "app"

// RoleKey is the key of the metadata by which the machines and snapshots of an app differ.
//
// The service removes machines with the roles that it gives when no row names them. It leaves those with other roles,
// such as "build" or "git", to whom they belong, until the app is deleted.
const RoleKey = "role"

// Log takes the lines of a deployment's log. Values of secrets are masked.
type Log interface {
	// Append adds a line. Level is info, warn or error; step names what is being done.
	Append(level, step, line string)
}

// Build is a deployment to be built.
type Build struct {
	Principal  auth.Principal // that acts for the app: machines made with it belong to the app
	App        store.App
	Deployment store.Deployment
	Settings   appspec.Settings
	Source     appspec.Source
	Variables  []appspec.Variable
	Log        Log
}

// Built is what a build left.
type Built struct {
	// Snapshot is of the build's machine, in which every process of the build has ended. The service removes it with
	// the deployment. It is empty if Result.Template is set, or if the app is static files alone.
	Snapshot api.SnapshotID
	Result   appspec.Result
}

// Builder builds deployments.
type Builder interface {
	// Build returns when a deployment is built. Errors that the user can do something about are *api.Error. Build is
	// called again for the same deployment if the process ended in it; what the earlier call left is used or removed.
	Build(ctx context.Context, b Build) (Built, error)
	// Forget removes all that builds of an app left outside of its machines, snapshots and volumes. It may be called
	// again.
	Forget(ctx context.Context, app api.AppID) error
}

// Edge is what the edge that serves the requests of apps knows of them.
type Edge interface {
	// Drain returns when no request of a deployment is under way, or when ctx ends. Long connections are ended.
	Drain(ctx context.Context, app api.AppID, deployment api.DeploymentID)
	// InFlight returns how many requests and connections of an app are under way or wait for a replica.
	InFlight(app api.AppID) int
	// LastUse returns when a request last began or ended; zero: not since the process started.
	LastUse(app api.AppID) time.Time
	// Stats returns what the edge has counted of an app.
	Stats(app api.AppID) api.AppStats
}

// Route says where requests for a host name go.
type Route struct {
	App        api.AppID
	Workspace  api.Workspace
	Name       string
	Deployment api.DeploymentID // "": the app has none that is live
	Generation int64            // grows with every change of the route
	Port       uint16
	Scale      api.AppScale
	Idle       time.Duration // without requests until the app sleeps; 0: never
	Static     *appspec.Static
	Machine    bool   // the deployment has a program; otherwise Static has all files
	Redirect   string // host name that the client is to use in place of the one of the request; "": none
	Domain     string // custom domain that the request is for; "": a name of the platform
	Error      string // why its replicas do not run
}

// The states of replicas, for the edge.
const (
	ReplicaReady    = store.ReplicaReady    // it takes requests
	ReplicaSleeping = store.ReplicaSleeping // it is being put to sleep; Wake makes it ready
	ReplicaAsleep   = store.ReplicaAsleep   // Wake makes it ready
	ReplicaStarting = store.ReplicaStarting // it will be ready
	ReplicaDraining = store.ReplicaDraining // it takes no further requests
)

// ReplicaView is a replica as the edge sees it.
type ReplicaView struct {
	Sandbox    api.SandboxID
	State      string
	Deployment api.DeploymentID
}
