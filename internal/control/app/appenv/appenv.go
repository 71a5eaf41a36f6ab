// Package appenv keeps the variables of apps.
package appenv

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/joho/godotenv"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Variables implements the verbs on the variables of apps. Make it with New.
type Variables struct {
	db   *store.DB
	find func(ctx context.Context, p auth.Principal, app string) (store.App, error)
}

// New returns the variables of a store. Find reads an app of the caller's workspace by id or name.
func New(
	db *store.DB,
	find func(ctx context.Context, p auth.Principal, app string) (store.App, error),
) *Variables {
	return &Variables{db: db, find: find}
}

// Shown returns the value of a variable as users see it.
func Shown(v *store.AppVariable) string {
	if v.Secret {
		return api.MaskedValue
	}
	return v.Value
}

// Env returns the variables of an app.
func (s *Variables) Env(ctx context.Context, p auth.Principal, app string) (api.AppEnv, error) {
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
		out.Env = append(out.Env, api.AppVariable{Key: v.Name, Value: Shown(&v), Secret: v.Secret,
			Scope: api.EnvScope(v.Scope), UpdatedAt: store.Time(v.Changed), CreatedBy: v.Creator})
	}
	return out, nil
}

// SetVariable sets a variable. The next deployment has it.
func (s *Variables) SetVariable(
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
func (s *Variables) ImportEnv(
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
func (s *Variables) putVariables(
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

// Replace makes variables of scope all those of rows.
func Replace(ctx context.Context, tx *store.Tx, app string, rows []store.AppVariable) error {
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
func (s *Variables) DeleteVariable(
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
