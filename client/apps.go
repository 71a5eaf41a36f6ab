package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/pandastack/pandastack/api"
)

// Apps are the calls on apps. An app is named by its id or its name.
type Apps struct{ c *Client }

func appPath(app string, below ...string) string {
	return apiPath(append([]string{"apps", app}, below...)...)
}

func (a *Apps) app(ctx context.Context, rq call) (api.App, error) {
	var out api.App
	err := a.c.do(ctx, rq, &out)
	return out, err
}

func (a *Apps) deployment(ctx context.Context, rq call) (api.Deployment, error) {
	var out api.Deployment
	err := a.c.do(ctx, rq, &out)
	return out, err
}

// Create creates an app, which is not deployed yet.
func (a *Apps) Create(ctx context.Context, req api.CreateAppRequest) (api.App, error) {
	return a.app(ctx, post(apiPath("apps"), req))
}

// List returns all apps, newest first.
func (a *Apps) List(ctx context.Context) ([]api.App, error) {
	var out []api.App
	err := a.c.do(ctx, get(apiPath("apps")), &out)
	return out, err
}

// Get returns one app.
func (a *Apps) Get(ctx context.Context, app string) (api.App, error) {
	return a.app(ctx, get(appPath(app)))
}

// Update changes an app; absent fields stay.
func (a *Apps) Update(ctx context.Context, app string, req api.UpdateAppRequest) (api.App, error) {
	return a.app(ctx, call{method: http.MethodPatch, path: appPath(app), in: req})
}

// Delete deletes an app with all its deployments.
func (a *Apps) Delete(ctx context.Context, app string) error {
	rq := del(appPath(app))
	rq.idempotent = false // a second response would be not_found
	return a.c.do(ctx, rq, nil)
}

// Stats returns what an app did lately.
func (a *Apps) Stats(ctx context.Context, app string) (api.AppStats, error) {
	var out api.AppStats
	err := a.c.do(ctx, get(appPath(app, "stats")), &out)
	return out, err
}

// Upload sends the files of an app, a tar stream that may be compressed with gzip. It is read once.
func (a *Apps) Upload(ctx context.Context, app string, archive io.Reader) (api.AppUpload, error) {
	var out api.AppUpload
	rq := call{method: http.MethodPost, path: appPath(app, "uploads"), body: archive, size: -1}
	err := a.c.do(ctx, rq, &out)
	return out, err
}

// Deploy begins to deploy an app. DeployLogs follows it.
func (a *Apps) Deploy(ctx context.Context, app string, req api.DeployRequest) (api.Deployment, error) {
	return a.deployment(ctx, post(appPath(app, "deploys"), req))
}

// Deployments returns the deployments of an app, newest first.
func (a *Apps) Deployments(ctx context.Context, app string) ([]api.Deployment, error) {
	var out []api.Deployment
	err := a.c.do(ctx, get(appPath(app, "deploys")), &out)
	return out, err
}

// Deployment returns one deployment.
func (a *Apps) Deployment(ctx context.Context, app string, id api.DeploymentID) (api.Deployment, error) {
	return a.deployment(ctx, get(appPath(app, "deploys", string(id))))
}

// Cancel cancels a deployment that is not live yet.
func (a *Apps) Cancel(ctx context.Context, app string, id api.DeploymentID) (api.Deployment, error) {
	return a.deployment(ctx, post(appPath(app, "deploys", string(id), "cancel"), nil))
}

// Rollback goes back to an earlier deployment, or to the one before the live one if id is empty.
func (a *Apps) Rollback(ctx context.Context, app string, id api.DeploymentID) (api.Deployment, error) {
	return a.deployment(ctx, post(appPath(app, "rollback"), api.RollbackRequest{DeploymentID: id}))
}

// DeployLogs calls yield for the lines of a deployment's log with numbers above after.
//
// With follow it returns when the deployment has ended. A connection that is cut is an error; call DeployLogs again
// with the number of the last line.
func (a *Apps) DeployLogs(
	ctx context.Context,
	app string,
	id api.DeploymentID,
	after int64,
	follow bool,
	yield func(api.AppLogLine) error,
) error {
	rq := get(appPath(app, "deploys", string(id), "logs"))
	rq.query = url.Values{"format": {"json"}}
	if after > 0 {
		rq.query.Set("after", strconv.FormatInt(after, 10))
	}
	if !follow {
		rq.query.Set("follow", "0")
	}
	return logLines(ctx, a.c, rq, yield)
}

// RuntimeLogs calls yield for the lines that the replicas of an app printed lately.
//
// With follow it continues with new lines until ctx ends.
func (a *Apps) RuntimeLogs(ctx context.Context, app string, follow bool, yield func(api.AppOutput) error) error {
	rq := get(appPath(app, "runtime-logs"))
	rq.query = url.Values{"format": {"json"}}
	if follow {
		rq.query.Set("follow", "1")
	}
	return logLines(ctx, a.c, rq, yield)
}

// logLines calls yield for the lines of a log, which ends with the event done.
func logLines[T any](ctx context.Context, c *Client, rq call, yield func(T) error) error {
	ended := false
	err := c.events(ctx, rq, func(e event) error {
		if e.name == "done" {
			ended = true
			return nil
		}
		var line T
		if err := e.decode(&line); err != nil {
			return err
		}
		return yield(line)
	})
	if err == nil && !ended {
		err = transportError(ctx, io.ErrUnexpectedEOF)
	}
	return err
}

// Env returns the variables of an app. The values of secrets are masked.
func (a *Apps) Env(ctx context.Context, app string) ([]api.AppVariable, error) {
	var out api.AppEnv
	err := a.c.do(ctx, get(appPath(app, "env")), &out)
	return out.Env, err
}

// SetVariable sets a variable, for deployments to come.
func (a *Apps) SetVariable(ctx context.Context, app, key string, req api.SetVariableRequest) error {
	return a.c.do(ctx, call{
		method: http.MethodPut, path: appPath(app, "env", key), in: req, idempotent: true,
	}, nil)
}

// DeleteVariable removes a variable from one scope, or from all if scope is empty.
func (a *Apps) DeleteVariable(ctx context.Context, app, key string, scope api.EnvScope) error {
	rq := del(appPath(app, "env", key))
	if scope != "" {
		rq.query = url.Values{"scope": {string(scope)}}
	}
	return a.c.do(ctx, rq, nil)
}

// ImportEnv sets the variables of a dotenv file.
func (a *Apps) ImportEnv(ctx context.Context, app string, req api.ImportEnvRequest) (api.ImportEnvResponse, error) {
	var out api.ImportEnvResponse
	err := a.c.do(ctx, post(appPath(app, "env", "import"), req), &out)
	return out, err
}

// Domains returns the custom domains of an app.
func (a *Apps) Domains(ctx context.Context, app string) ([]api.AppDomain, error) {
	var out api.AppDomains
	err := a.c.do(ctx, get(appPath(app, "domains")), &out)
	return out.Domains, err
}

// AddDomain adds a custom domain. The response has the records to set.
func (a *Apps) AddDomain(ctx context.Context, app, domain string) (api.AppDomain, error) {
	var out api.AppDomain
	err := a.c.do(ctx, post(appPath(app, "domains"), api.AddDomainRequest{Domain: domain}), &out)
	return out, err
}

// Domain returns a custom domain with its state.
func (a *Apps) Domain(ctx context.Context, app, domain string) (api.AppDomain, error) {
	var out api.AppDomain
	err := a.c.do(ctx, get(appPath(app, "domains", domain)), &out)
	return out, err
}

// DeleteDomain removes a custom domain and its certificate.
func (a *Apps) DeleteDomain(ctx context.Context, app, domain string) error {
	return a.c.do(ctx, del(appPath(app, "domains", domain)), nil)
}

// Webhook returns what a repository at another server is to notify, with a new secret.
func (a *Apps) Webhook(ctx context.Context, app string) (api.AppWebhook, error) {
	var out api.AppWebhook
	err := a.c.do(ctx, post(appPath(app, "webhook"), nil), &out)
	return out, err
}

// Run runs a command once in a machine of the live deployment, and passes its output on as it comes.
//
// When ctx ends, the command is killed.
func (a *Apps) Run(ctx context.Context, app string, req api.AppRunRequest, out Output) (api.ExecExit, error) {
	return a.c.Sandboxes.follow(ctx, post(appPath(app, "run"), req), out)
}
