package appapi

import (
	"strings"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/execstream"
)

func (a API) create(c *Call, req api.CreateAppRequest) (out api.App, err error) {
	s, err := a.apps()
	if err != nil {
		return out, err
	}
	out, err = s.Create(c.Context(), c.Principal, req)
	c.Target = string(out.ID)
	return shown(c, out), err
}

func (a API) list(c *Call) ([]api.App, error) {
	s, err := a.apps()
	if err != nil {
		return nil, err
	}
	all, err := s.List(c.Context(), c.Principal)
	if err != nil {
		return nil, err
	}
	out := make([]api.App, 0, len(all))
	for _, one := range all {
		out = append(out, shown(c, one))
	}
	return out, nil
}

func (a API) get(c *Call) (out api.App, err error) {
	s, app, err := a.service(c)
	if err != nil {
		return out, err
	}
	out, err = s.Get(c.Context(), c.Principal, app)
	return shown(c, out), err
}

func (a API) update(c *Call, req api.UpdateAppRequest) (out api.App, err error) {
	s, app, err := a.service(c)
	if err != nil {
		return out, err
	}
	out, err = s.Update(c.Context(), c.Principal, app, req)
	return shown(c, out), err
}

func (a API) remove(c *Call) error {
	s, app, err := a.service(c)
	if err != nil {
		return err
	}
	return s.Delete(c.Context(), c.Principal, app)
}

func (a API) stats(c *Call) (out api.AppStats, err error) {
	s, app, err := a.service(c)
	if err != nil {
		return out, err
	}
	return s.Stats(c.Context(), c.Principal, app)
}

// found returns the app in the path, which the caller may use.
func (a API) found(c *Call) (out api.App, err error) {
	s, app, err := a.service(c)
	if err != nil {
		return out, err
	}
	return s.Get(c.Context(), c.Principal, app)
}

func (a API) upload(c *Call) (out api.AppUpload, err error) {
	if a.Uploads == nil {
		return out, api.Errorf(api.Unsupported, "this server takes no uploads: deploy from git")
	}
	app, err := a.found(c)
	if err != nil {
		return out, err
	}
	return a.Uploads.Upload(c.Context(), c.Principal, app, c.R.Body)
}

func (a API) deploy(c *Call, req api.DeployRequest) (out api.Deployment, err error) {
	s, app, err := a.service(c)
	if err != nil {
		return out, err
	}
	out, err = s.Deploy(c.Context(), c.Principal, app, req)
	c.Target = string(out.ID)
	return out, err
}

func (a API) deployments(c *Call) ([]api.Deployment, error) {
	s, app, err := a.service(c)
	if err != nil {
		return nil, err
	}
	all, err := s.Deployments(c.Context(), c.Principal, app)
	if all == nil {
		all = []api.Deployment{}
	}
	return all, err
}

// selected returns the service, the app, and the deployment in the path.
func (a API) selected(c *Call) (s Apps, app string, id api.DeploymentID, err error) {
	if s, app, err = a.service(c); err == nil {
		id, err = api.ParseDeploymentID(c.R.PathValue("deployment"))
	}
	return s, app, id, err
}

func (a API) deployment(c *Call) (out api.Deployment, err error) {
	s, app, id, err := a.selected(c)
	if err != nil {
		return out, err
	}
	return s.Deployment(c.Context(), c.Principal, app, id)
}

func (a API) cancel(c *Call) (out api.Deployment, err error) {
	s, app, id, err := a.selected(c)
	if err != nil {
		return out, err
	}
	return s.CancelDeployment(c.Context(), c.Principal, app, id)
}

func (a API) rollback(c *Call, req api.RollbackRequest) (out api.Deployment, err error) {
	s, app, err := a.service(c)
	if err != nil {
		return out, err
	}
	return s.Rollback(c.Context(), c.Principal, app, req)
}

func (a API) run(c *Call) error {
	var req api.AppRunRequest
	if err := c.Decode(&req); err != nil {
		return err
	}
	s, app, err := a.service(c)
	if err != nil {
		return err
	}
	g, command, end, err := s.RunCommand(c.Context(), c.Principal, app, req)
	if err != nil {
		return err
	}
	defer end()
	return execstream.ToSSE(c.Context(), g, command, func() *execstream.SSE { return execstream.NewSSE(c.W) })
}

func (a API) proxy(c *Call) error {
	c.Action = "app"
	app, err := a.found(c)
	if err != nil {
		return err
	}
	if a.Edge == nil {
		return api.Errorf(api.Unsupported, "this server forwards to no apps")
	}
	r, prefix, err := c.Inner()
	if err != nil {
		return err
	}
	a.Edge.ForwardApp(c.W, r, app, prefix, c.Fail)
	return nil
}

func (a API) listDomains(c *Call) (out api.AppDomains, err error) {
	s, app, err := a.domains(c)
	if err != nil {
		return out, err
	}
	out, err = s.Domains(c.Context(), c.Principal, app)
	if out.Domains == nil {
		out.Domains = []api.AppDomain{}
	}
	return out, err
}

func (a API) addDomain(c *Call, req api.AddDomainRequest) (out api.AppDomain, err error) {
	s, app, err := a.domains(c)
	if err != nil {
		return out, err
	}
	out, err = s.AddDomain(c.Context(), c.Principal, app, req)
	c.Target = out.Domain
	return out, err
}

// oneDomain returns the service, the app and the domain in the path. What is no domain is not found.
func (a API) oneDomain(c *Call) (s Domains, app, domain string, err error) {
	if s, app, err = a.domains(c); err != nil {
		return nil, "", "", err
	}
	domain = strings.ToLower(c.R.PathValue("domain"))
	if !api.ValidDomain(domain) {
		return nil, "", "", api.Errorf(api.NotFound, "domain %.60q not found", domain)
	}
	return s, app, domain, nil
}

func (a API) domain(c *Call) (out api.AppDomain, err error) {
	s, app, domain, err := a.oneDomain(c)
	if err != nil {
		return out, err
	}
	return s.Domain(c.Context(), c.Principal, app, domain)
}

func (a API) deleteDomain(c *Call) error {
	s, app, domain, err := a.oneDomain(c)
	if err != nil {
		return err
	}
	c.Target = domain
	return s.DeleteDomain(c.Context(), c.Principal, app, domain)
}
