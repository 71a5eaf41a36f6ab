package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/url"
	"slices"
	"strconv"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// environment is what a deployment adds to the environment of its build and its programs.
type environment struct {
	vars   []appspec.Variable
	linked string // hash of what linked databases add; "": nothing
}

// environmentOf reads the variables of a deployment as they are now.
func (s *Service) environmentOf(ctx context.Context, row *store.App, d *deployed) (env environment, err error) {
	if d.source.Untrusted {
		return env, nil
	}
	values := map[string]appspec.Variable{}
	add := func(app string, scopes ...api.EnvScope) {
		if err != nil {
			return
		}
		var rows []store.AppVariable
		rows, err = s.db.Read().AppVariables(ctx, app)
		for _, scope := range scopes {
			for _, v := range rows {
				if v.Scope == string(scope) {
					values[v.Name] = appspec.Variable{Name: v.Name, Value: v.Value, Secret: v.Secret}
				}
			}
		}
	}
	if row.PreviewOf != "" {
		add(row.PreviewOf, api.EnvAll, api.EnvPreview)
		if d.set.GitHubRepo != 0 {
			add(PreviewVariables(api.Workspace(row.Workspace), d.set.GitHubRepo), api.EnvAll, api.EnvPreview)
		}
		add(row.ID, api.EnvAll, api.EnvPreview)
	} else {
		add(row.ID, api.EnvAll, api.EnvProduction)
	}
	if err != nil {
		return env, err
	}
	linked, err := s.linkedTo(ctx, row, d.set.Databases)
	if err != nil {
		return env, err
	}
	for _, v := range linked {
		values[v.Name] = v
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		env.vars = append(env.vars, values[name])
	}
	env.linked = hashOf(linked)
	return env, nil
}

// PreviewVariables names the variables of previews of a repository, as app_variables has them.
func PreviewVariables(workspace api.Workspace, repository int64) string {
	return "preview-repo/" + string(workspace) + "/" + strconv.FormatInt(repository, 10)
}

// linkedTo returns the variables of linked databases.
func (s *Service) linkedTo(
	ctx context.Context,
	row *store.App,
	ids []api.DatabaseID,
) (vars []appspec.Variable, err error) {
	for i, id := range ids {
		if s.deps.Databases == nil {
			return nil, api.Errorf(api.Unsupported, "databases: this server has none").With("field", "databases")
		}
		user := auth.Principal{Workspace: api.Workspace(row.Workspace)}
		c, err := s.deps.Databases.Connection(ctx, user, id)
		if err != nil {
			return nil, err
		}
		name := "DATABASE_URL"
		if i > 0 {
			name += "_" + strconv.Itoa(i+1)
		}
		vars = append(vars, appspec.Variable{Name: name, Value: s.linkURL(id, c.ConnectionURL), Secret: true})
	}
	return vars, nil
}

// linkURL returns the URL by which machines reach a database: they do not reach the address of other clients, so it
// names the database in the options.
func (s *Service) linkURL(id api.DatabaseID, text string) string {
	u, err := url.Parse(text)
	if err != nil || s.cfg.DatabaseAddress == "" {
		return text
	}
	query := u.Query()
	query.Set("options", "endpoint="+string(id))
	u.Host, u.RawQuery = s.cfg.DatabaseAddress, query.Encode()
	return u.String()
}

// hashOf returns a hash of variables; "" if there are none.
func hashOf(vars []appspec.Variable) string {
	if len(vars) == 0 {
		return ""
	}
	h := sha256.New()
	for _, v := range vars {
		h.Write([]byte(v.Name + "\x00" + v.Value + "\x00"))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// secrets returns the values that are masked in logs.
func (e *environment) secrets(set *appspec.Settings) (values []string) {
	for _, v := range e.vars {
		if v.Secret {
			values = append(values, v.Value)
		}
	}
	if set.GitToken != "" {
		values = append(values, set.GitToken)
	}
	return values
}

// start returns the environment of the start command of a deployment.
func (e *environment) start(d *deployed) map[string]string {
	env := maps.Clone(d.result.Env)
	if env == nil {
		env = map[string]string{}
	}
	for _, v := range e.vars {
		env[v.Name] = v.Value
	}
	env["PORT"] = strconv.Itoa(int(d.port())) // requests go there
	return env
}
