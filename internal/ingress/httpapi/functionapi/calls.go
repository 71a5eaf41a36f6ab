package functionapi

import (
	"strings"

	"github.com/pandastack/pandastack/api"
)

func (a API) create(c *Call, req api.CreateFunctionRequest) (out api.Function, err error) {
	s, err := a.functions()
	if err != nil {
		return out, err
	}
	out, err = s.Create(c.Context(), c.Principal, req)
	c.Target = string(out.ID)
	return shown(c, out), err
}

func (a API) list(c *Call) ([]api.Function, error) {
	s, err := a.functions()
	if err != nil {
		return nil, err
	}
	all, err := s.List(c.Context(), c.Principal)
	if err != nil {
		return nil, err
	}
	out := make([]api.Function, 0, len(all))
	for _, one := range all {
		one = shown(c, one)
		one.Secret = ""
		out = append(out, one)
	}
	return out, nil
}

func (a API) get(c *Call) (out api.Function, err error) {
	s, fn, err := a.on(c)
	if err != nil {
		return out, err
	}
	out, err = s.Get(c.Context(), c.Principal, fn)
	return shown(c, out), err
}

func (a API) update(c *Call, req api.UpdateFunctionRequest) (out api.Function, err error) {
	s, fn, err := a.on(c)
	if err != nil {
		return out, err
	}
	out, err = s.Update(c.Context(), c.Principal, fn, req)
	return shown(c, out), err
}

func (a API) remove(c *Call) error {
	s, fn, err := a.on(c)
	if err != nil {
		return err
	}
	return s.Delete(c.Context(), c.Principal, fn)
}

func (a API) metrics(c *Call) (out api.FunctionMetrics, err error) {
	s, fn, err := a.on(c)
	if err != nil {
		return out, err
	}
	const month = 30 * 24
	hours, err := number(c, "period", 1, month, 24)
	if err != nil {
		return out, err
	}
	return s.Metrics(c.Context(), c.Principal, fn, int(hours))
}

func (a API) rollback(c *Call, req api.FunctionRollbackRequest) (out api.Function, err error) {
	s, fn, err := a.on(c)
	if err != nil {
		return out, err
	}
	out, err = s.Rollback(c.Context(), c.Principal, fn, req.Version)
	return shown(c, out), err
}

func (a API) versions(c *Call) ([]api.FunctionVersion, error) {
	s, fn, err := a.on(c)
	if err != nil {
		return nil, err
	}
	all, err := s.Versions(c.Context(), c.Principal, fn)
	return some(all), err
}

// onVersion returns the service, the function and the version in the path.
func (a API) onVersion(c *Call) (s Functions, fn string, n int64, err error) {
	if s, fn, err = a.on(c); err == nil {
		n, err = versionIn(c)
	}
	return s, fn, n, err
}

func (a API) version(c *Call) (out api.FunctionVersion, err error) {
	s, fn, n, err := a.onVersion(c)
	if err != nil {
		return out, err
	}
	all, err := s.Versions(c.Context(), c.Principal, fn)
	if err != nil {
		return out, err
	}
	for _, one := range all {
		if one.Number == n {
			return one, nil
		}
	}
	return out, api.Errorf(api.NotFound, "version %d of %s not found: it may have been deleted", n, fn)
}

func (a API) deleteVersion(c *Call) error {
	s, fn, n, err := a.onVersion(c)
	if err != nil {
		return err
	}
	return s.DeleteVersion(c.Context(), c.Principal, fn, n)
}

func (a API) buildLog(c *Call) error {
	s, fn, n, err := a.onVersion(c)
	if err != nil {
		return err
	}
	lines, err := s.BuildLog(c.Context(), c.Principal, fn, n)
	if err != nil {
		return err
	}
	c.W.Header().Set("Content-Type", "text/plain; charset=utf-8")
	c.W.Header().Set("Cache-Control", "no-store")
	for _, line := range lines {
		if _, err := c.W.Write([]byte(strings.ToValidUTF8(line, "\ufffd") + "\n")); err != nil {
			return nil //nolint:nilerr // the client has gone
		}
	}
	return nil
}

func (a API) aliases(c *Call) ([]api.FunctionAlias, error) {
	s, fn, err := a.on(c)
	if err != nil {
		return nil, err
	}
	all, err := s.Aliases(c.Context(), c.Principal, fn)
	return some(all), err
}

// onAlias returns the service, the function and the alias in the path.
func (a API) onAlias(c *Call) (s Functions, fn, name string, err error) {
	if s, fn, err = a.on(c); err != nil {
		return nil, "", "", err
	}
	if name = c.R.PathValue("alias"); !api.ValidFunctionName(name) {
		return nil, "", "", api.Errorf(api.Invalid, "alias: %.60q is no name: use letters, digits, dots, dashes and _",
			name).With("field", "alias")
	}
	return s, fn, name, nil
}

func (a API) setAlias(c *Call, req api.SetAliasRequest) (out api.FunctionAlias, err error) {
	s, fn, name, err := a.onAlias(c)
	if err != nil {
		return out, err
	}
	return s.SetAlias(c.Context(), c.Principal, fn, name, req)
}

func (a API) deleteAlias(c *Call) error {
	s, fn, name, err := a.onAlias(c)
	if err != nil {
		return err
	}
	return s.DeleteAlias(c.Context(), c.Principal, fn, name)
}

// httpInvoke sends a request to a function. The edge authorizes it, as the function's settings say.
func (a API) httpInvoke(c *Call) error {
	c.Action = "function"
	if a.Edge == nil {
		return api.Errorf(api.Unsupported, "this server forwards to no functions")
	}
	fn, err := functionIn(c)
	if err != nil {
		return err
	}
	r, prefix, err := c.Inner()
	if err != nil {
		return err
	}
	if list := c.R.Header.Values("Authorization"); len(list) > 0 {
		r.Header["Authorization"] = list // the edge reads it, and removes it if it is a key
	}
	p, id := a.Edge.ForwardFunction(c.W, r, fn, prefix, c.Fail)
	c.Principal, c.Target = p, string(id)
	return nil
}
