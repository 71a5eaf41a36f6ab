package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/joho/godotenv"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// shown returns the value of a variable as users see it.
func shown(v *store.AppVariable) string {
	if v.Secret {
		return api.MaskedValue
	}
	return v.Value
}

// Env returns the variables of an app.
func (s *Service) Env(ctx context.Context, p auth.Principal, app string) (api.AppEnv, error) {
	row, err := s.find(ctx, p, app)
	if err != nil {
		return api.AppEnv{}, api.AsError(err)
	}
	vars, err := s.db.Read().AppVariables(ctx, row.ID)
	if err != nil {
		return api.AppEnv{}, api.AsError(err)
	}
	out := api.AppEnv{Env: make([]api.AppVariable, 0, len(vars))}
	for _, v := range vars {
		out.Env = append(out.Env, api.AppVariable{Key: v.Name, Value: shown(&v), Secret: v.Secret,
			Scope: api.EnvScope(v.Scope), UpdatedAt: store.Time(v.Changed), CreatedBy: v.Creator})
	}
	return out, nil
}

// SetVariable sets a variable. The next deployment has it.
func (s *Service) SetVariable(
	ctx context.Context,
	p auth.Principal,
	app, key string,
	req api.SetVariableRequest,
) (api.SetVariableResponse, error) {
	if req.Scope == "" {
		req.Scope = api.EnvAll
	}
	err := req.Validate()
	if err == nil {
		err = s.putVariables(ctx, p, app, map[string]string{key: req.Value}, req.Secret, req.Scope, nil)
	}
	if err != nil {
		return api.SetVariableResponse{}, api.AsError(err)
	}
	return api.SetVariableResponse{Key: key, Secret: req.Secret, Scope: req.Scope}, nil
}

// ImportEnv sets the variables of a dotenv file.
func (s *Service) ImportEnv(
	ctx context.Context,
	p auth.Principal,
	app string,
	req api.ImportEnvRequest,
) (api.ImportEnvResponse, error) {
	if req.Scope == "" {
		req.Scope = api.EnvAll
	}
	if err := req.Validate(); err != nil {
		return api.ImportEnvResponse{}, err
	}
	values, err := ParseDotenv(req.Dotenv)
	if err != nil {
		return api.ImportEnvResponse{}, err
	}
	out := api.ImportEnvResponse{Imported: len(values)}
	if err := s.putVariables(ctx, p, app, values, req.Secret, req.Scope, &out.Total); err != nil {
		return api.ImportEnvResponse{}, api.AsError(err)
	}
	return out, nil
}

// ParseDotenv reads a dotenv file.
func ParseDotenv(text string) (map[string]string, error) {
	values, err := godotenv.Unmarshal(strings.TrimPrefix(text, "\ufeff"))
	if err != nil {
		return nil, api.Wrap(api.Invalid, err, "dotenv: "+err.Error()).With("field", "dotenv")
	}
	return values, nil
}

// putVariables sets variables of an app. Total, if not nil, gets the number of its variables.
func (s *Service) putVariables(
	ctx context.Context,
	p auth.Principal,
	app string,
	values map[string]string,
	secret bool,
	scope api.EnvScope,
	total *int,
) error {
	row, err := s.find(ctx, p, app)
	if err != nil {
		return err
	}
	for name, value := range values {
		if err := api.ValidateAppVariable(name, value); err != nil {
			return err
		}
	}
	return s.db.Write(ctx, "app variables", func(ctx context.Context, tx *store.Tx) error {
		for _, name := range slices.Sorted(maps.Keys(values)) {
			v := store.AppVariable{App: row.ID, Scope: string(scope), Name: name, Value: values[name], Secret: secret,
				Creator: p.KeyPrefix, Changed: store.Micros(time.Now())}
			if err := tx.PutAppVariable(ctx, &v); err != nil {
				return err
			}
		}
		all, err := tx.AppVariables(ctx, row.ID)
		if err == nil && len(all) > api.MaxAppEnv {
			err = api.Errorf(api.QuotaExceeded, "env: the app would have %d variables: use at most %d", len(all),
				api.MaxAppEnv).With("field", "env")
		}
		if total != nil {
			*total = len(all)
		}
		return err
	})
}

// replaceVariables makes variables of scope all those of rows.
func replaceVariables(ctx context.Context, tx *store.Tx, app string, rows []store.AppVariable) error {
	old, err := tx.AppVariables(ctx, app)
	if err != nil {
		return err
	}
	was := map[string]store.AppVariable{}
	for _, v := range old {
		if v.Scope != string(api.EnvAll) {
			continue
		}
		was[v.Name] = v
		if err := tx.DeleteAppVariable(ctx, app, v.Scope, v.Name); err != nil {
			return err
		}
	}
	for i := range rows {
		if v, ok := was[rows[i].Name]; ok && v.Secret && rows[i].Value == api.MaskedValue {
			rows[i] = v // it comes back as it was shown
		}
		if err := tx.PutAppVariable(ctx, &rows[i]); err != nil {
			return err
		}
	}
	return nil
}

// DeleteVariable removes a variable; scope "" is every scope.
func (s *Service) DeleteVariable(
	ctx context.Context,
	p auth.Principal,
	app, key string,
	scope api.EnvScope,
) error {
	row, err := s.find(ctx, p, app)
	if err != nil {
		return api.AsError(err)
	}
	err = s.db.Write(ctx, "app variable", func(ctx context.Context, tx *store.Tx) error {
		all, err := tx.AppVariables(ctx, row.ID)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(all, func(v store.AppVariable) bool {
			return v.Name == key && (scope == "" || v.Scope == string(scope))
		}) {
			return api.Errorf(api.NotFound, "app %s has no variable %.128q", row.Name, key)
		}
		return tx.DeleteAppVariable(ctx, row.ID, string(scope), key)
	})
	if err != nil {
		return api.AsError(err)
	}
	return nil
}

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
