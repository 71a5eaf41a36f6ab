// Package appapi are the calls on apps as the API offers them: their routes, and what the routes do.
//
// It checks ids, hides the values of variables from callers that may not run commands, and sends logs and the output of
// commands as streams; the services do the rest. It must not know how callers are authorized or bodies are decoded.
package appapi

import (
	"context"
	"io"
	"maps"
	"net/http"
	"regexp"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/apiroute"
)

// Apps are the methods of the service for apps that this API uses. app is an id or a name.
type Apps interface {
	Create(ctx context.Context, p auth.Principal, req api.CreateAppRequest) (api.App, error)
	List(ctx context.Context, p auth.Principal) ([]api.App, error)
	Get(ctx context.Context, p auth.Principal, app string) (api.App, error)
	Update(ctx context.Context, p auth.Principal, app string, req api.UpdateAppRequest) (api.App, error)
	Delete(ctx context.Context, p auth.Principal, app string) error
	Stats(ctx context.Context, p auth.Principal, app string) (api.AppStats, error)

	Deploy(ctx context.Context, p auth.Principal, app string, req api.DeployRequest) (api.Deployment, error)
	Deployments(ctx context.Context, p auth.Principal, app string) ([]api.Deployment, error)
	Deployment(ctx context.Context, p auth.Principal, app string, id api.DeploymentID) (api.Deployment, error)
	CancelDeployment(ctx context.Context, p auth.Principal, app string, id api.DeploymentID) (api.Deployment, error)
	Rollback(ctx context.Context, p auth.Principal, app string, req api.RollbackRequest) (api.Deployment, error)

	Logs
	Variables

	// RunCommand prepares a machine of the live deployment for a command. end removes the machine.
	RunCommand(
		ctx context.Context,
		p auth.Principal,
		app string,
		req api.AppRunRequest,
	) (g guestapi.Guest, command api.ExecRequest, end func(), err error)
}

// Logs are the logs of apps and of their deployments.
type Logs interface {
	// BuildLog yields the lines of a deployment with higher numbers than after, and with follow those that come until
	// the deployment has ended.
	BuildLog(
		ctx context.Context,
		p auth.Principal,
		app string,
		id api.DeploymentID,
		after int64,
		follow bool,
		yield func(api.AppLogLine) error,
	) error
	// RuntimeLog yields what the replicas printed lately, and with follow what they print until ctx ends. It wakes
	// none.
	RuntimeLog(ctx context.Context, p auth.Principal, app string, follow bool, yield func(api.AppOutput) error) error
}

// Variables are the environment variables of apps.
type Variables interface {
	Env(ctx context.Context, p auth.Principal, app string) (api.AppEnv, error)
	SetVariable(
		ctx context.Context,
		p auth.Principal,
		app, key string,
		req api.SetVariableRequest,
	) (api.SetVariableResponse, error)
	DeleteVariable(ctx context.Context, p auth.Principal, app, key string, scope api.EnvScope) error
	ImportEnv(
		ctx context.Context,
		p auth.Principal,
		app string,
		req api.ImportEnvRequest,
	) (api.ImportEnvResponse, error)
}

// Domains are the custom domains of apps.
type Domains interface {
	Domains(ctx context.Context, p auth.Principal, app string) (api.AppDomains, error)
	AddDomain(ctx context.Context, p auth.Principal, app string, req api.AddDomainRequest) (api.AppDomain, error)
	Domain(ctx context.Context, p auth.Principal, app, domain string) (api.AppDomain, error)
	DeleteDomain(ctx context.Context, p auth.Principal, app, domain string) error
}

// Uploads keep archives with the files of apps until they are deployed.
type Uploads interface {
	Upload(ctx context.Context, p auth.Principal, app api.App, archive io.Reader) (api.AppUpload, error)
}

// Edge forwards requests to apps.
type Edge interface {
	// ForwardApp forwards r, whose path is that of the app, to a replica of the app. prefix is what precedes the path
	// in the URL of the client, whose origin the app shares with this API.
	ForwardApp(
		w http.ResponseWriter,
		r *http.Request,
		app api.App,
		prefix string,
		fail func(w http.ResponseWriter, r *http.Request, err *api.Error),
	)
}

// Hooks are what repositories at other servers notify: how, whose pull requests get previews, and the variables of
// these previews.
type Hooks interface {
	// Webhook returns what a repository is to notify, with a new secret.
	Webhook(ctx context.Context, p auth.Principal, app string) (api.AppWebhook, error)
	PreviewRepos(ctx context.Context, p auth.Principal) (api.PreviewRepos, error)
	EnablePreviewRepo(ctx context.Context, p auth.Principal, repo api.PreviewRepo) (api.PreviewRepo, error)
	DisablePreviewRepo(ctx context.Context, p auth.Principal, repo int64) error
	PreviewEnv(ctx context.Context, p auth.Principal, repo int64) (api.AppEnv, error)
	SetPreviewVariable(
		ctx context.Context,
		p auth.Principal,
		repo int64,
		key string,
		req api.SetVariableRequest,
	) (api.SetVariableResponse, error)
	DeletePreviewVariable(ctx context.Context, p auth.Principal, repo int64, key string) error
	ImportPreviewEnv(
		ctx context.Context,
		p auth.Principal,
		repo int64,
		req api.ImportEnvRequest,
	) (api.ImportEnvResponse, error)
}

// API has the services; nil ones are unsupported.
type API struct {
	Apps    Apps
	Domains Domains
	Uploads Uploads
	Edge    Edge
	Hooks   Hooks
}

// Call is one authorized request of a route.
type Call = apiroute.Call

var appInPath = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// appIn returns the id or the name in the path. What can be neither is not found.
func appIn(c *Call) (string, error) {
	name := c.R.PathValue("app")
	if !appInPath.MatchString(name) {
		return "", api.Errorf(api.NotFound, "app %.60q not found", name)
	}
	return name, nil
}

func (a API) apps() (Apps, error) {
	if a.Apps == nil {
		return nil, api.Errorf(api.Unsupported, "this server has no apps")
	}
	return a.Apps, nil
}

// service returns the service and the app in the path.
func (a API) service(c *Call) (Apps, string, error) {
	s, err := a.apps()
	if err != nil {
		return nil, "", err
	}
	app, err := appIn(c)
	return s, app, err
}

func (a API) domains(c *Call) (Domains, string, error) {
	if a.Domains == nil {
		return nil, "", api.Errorf(api.Unsupported, "this server has no custom domains")
	}
	app, err := appIn(c)
	return a.Domains, app, err
}

func (a API) hooks() (Hooks, error) {
	if a.Hooks == nil {
		return nil, api.Errorf(api.Unsupported, "this server has no webhooks and previews")
	}
	return a.Hooks, nil
}

// maySeeValues reports whether the caller may see the values of variables: who may run commands in machines can read
// them there.
func maySeeValues(c *Call) bool { return c.Principal.Scopes.Has(api.ScopeExec) }

// shown returns an app as the caller may see it.
func shown(c *Call, app api.App) api.App {
	if maySeeValues(c) || len(app.Env) == 0 {
		return app
	}
	app.Env = maps.Clone(app.Env)
	for name := range app.Env {
		app.Env[name] = api.MaskedValue
	}
	return app
}

// shownEnv returns variables as the caller may see them.
func shownEnv(c *Call, env api.AppEnv) api.AppEnv {
	out := api.AppEnv{Env: make([]api.AppVariable, 0, len(env.Env))}
	for _, v := range env.Env {
		if v.Secret || !maySeeValues(c) {
			v.Value = api.MaskedValue
		}
		out.Env = append(out.Env, v)
	}
	return out
}
