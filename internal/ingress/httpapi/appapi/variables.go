package appapi

import (
	"strconv"

	"github.com/pandastack/pandastack/api"
)

func (a API) env(c *Call) (out api.AppEnv, err error) {
	s, app, err := a.service(c)
	if err != nil {
		return out, err
	}
	out, err = s.Env(c.Context(), c.Principal, app)
	return shownEnv(c, out), err
}

func (a API) setVariable(c *Call, req api.SetVariableRequest) (out api.SetVariableResponse, err error) {
	s, app, err := a.service(c)
	if err != nil {
		return out, err
	}
	key := c.R.PathValue("key")
	if err := api.ValidateAppVariable(key, req.Value); err != nil {
		return out, err
	}
	return s.SetVariable(c.Context(), c.Principal, app, key, req)
}

func (a API) deleteVariable(c *Call) error {
	s, app, err := a.service(c)
	if err != nil {
		return err
	}
	scope := api.EnvScope(c.R.URL.Query().Get("scope"))
	if scope != "" && !scope.Valid() {
		return api.Errorf(api.Invalid, "scope: %.60q is not a scope: use all, production or preview", string(scope)).
			With("field", "scope")
	}
	return s.DeleteVariable(c.Context(), c.Principal, app, c.R.PathValue("key"), scope)
}

func (a API) importEnv(c *Call, req api.ImportEnvRequest) (out api.ImportEnvResponse, err error) {
	s, app, err := a.service(c)
	if err != nil {
		return out, err
	}
	return s.ImportEnv(c.Context(), c.Principal, app, req)
}

func (a API) webhook(c *Call) (out api.AppWebhook, err error) {
	s, err := a.hooks()
	if err != nil {
		return out, err
	}
	app, err := appIn(c)
	if err != nil {
		return out, err
	}
	return s.Webhook(c.Context(), c.Principal, app)
}

func (a API) previewRepos(c *Call) (out api.PreviewRepos, err error) {
	s, err := a.hooks()
	if err != nil {
		return out, err
	}
	out, err = s.PreviewRepos(c.Context(), c.Principal)
	if out.Repos == nil {
		out.Repos = []api.PreviewRepo{}
	}
	return out, err
}

func (a API) enablePreviewRepo(c *Call, req api.PreviewRepo) (out api.PreviewRepo, err error) {
	s, err := a.hooks()
	if err != nil {
		return out, err
	}
	req.Enabled = true
	c.Target = strconv.FormatInt(req.GitHubRepoID, 10)
	return s.EnablePreviewRepo(c.Context(), c.Principal, req)
}

// repo returns the service for previews and the number of the repository in the path.
func (a API) repo(c *Call) (Hooks, int64, error) {
	s, err := a.hooks()
	if err != nil {
		return nil, 0, err
	}
	text := c.R.PathValue("repo")
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return nil, 0, api.Errorf(api.NotFound, "repository %.60q not found: it is named by its number", text)
	}
	c.Target = text
	return s, n, nil
}

func (a API) disablePreviewRepo(c *Call) error {
	s, repo, err := a.repo(c)
	if err != nil {
		return err
	}
	return s.DisablePreviewRepo(c.Context(), c.Principal, repo)
}

func (a API) previewEnv(c *Call) (out api.AppEnv, err error) {
	s, repo, err := a.repo(c)
	if err != nil {
		return out, err
	}
	out, err = s.PreviewEnv(c.Context(), c.Principal, repo)
	return shownEnv(c, out), err
}

func (a API) setPreviewVariable(c *Call, req api.SetVariableRequest) (out api.SetVariableResponse, err error) {
	s, repo, err := a.repo(c)
	if err != nil {
		return out, err
	}
	key := c.R.PathValue("key")
	if err := api.ValidateAppVariable(key, req.Value); err != nil {
		return out, err
	}
	return s.SetPreviewVariable(c.Context(), c.Principal, repo, key, req)
}

func (a API) deletePreviewVariable(c *Call) error {
	s, repo, err := a.repo(c)
	if err != nil {
		return err
	}
	return s.DeletePreviewVariable(c.Context(), c.Principal, repo, c.R.PathValue("key"))
}

func (a API) importPreviewEnv(c *Call, req api.ImportEnvRequest) (out api.ImportEnvResponse, err error) {
	s, repo, err := a.repo(c)
	if err != nil {
		return out, err
	}
	return s.ImportPreviewEnv(c.Context(), c.Principal, repo, req)
}
