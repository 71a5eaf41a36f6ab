package hook

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// PreviewEnv returns the variables that the previews of a repository have besides those of their apps.
func (s *Service) PreviewEnv(ctx context.Context, p auth.Principal, repo int64) (api.AppEnv, error) {
	rows, err := s.db.Read().AppVariables(ctx, VariablesOf(p.Workspace, repo))
	if err != nil {
		return api.AppEnv{}, api.AsError(err)
	}
	out := api.AppEnv{Env: []api.AppVariable{}}
	for _, v := range rows {
		shown := v.Value
		if v.Secret {
			shown = api.MaskedValue
		}
		out.Env = append(out.Env, api.AppVariable{Key: v.Name, Value: shown, Secret: v.Secret,
			Scope: api.EnvScope(v.Scope), UpdatedAt: store.Time(v.Changed), CreatedBy: v.Creator})
	}
	return out, nil
}

// SetPreviewVariable sets a variable. The next deployment of a preview has it.
func (s *Service) SetPreviewVariable(
	ctx context.Context,
	p auth.Principal,
	repo int64,
	key string,
	req api.SetVariableRequest,
) (api.SetVariableResponse, error) {
	_, err := s.setVariables(ctx, p, repo, map[string]string{key: req.Value}, req.Secret)
	if err != nil {
		return api.SetVariableResponse{}, api.AsError(err)
	}
	return api.SetVariableResponse{Key: key, Secret: req.Secret, Scope: api.EnvPreview}, nil
}

// ImportPreviewEnv sets the variables of a dotenv file.
func (s *Service) ImportPreviewEnv(
	ctx context.Context,
	p auth.Principal,
	repo int64,
	req api.ImportEnvRequest,
) (api.ImportEnvResponse, error) {
	values, err := s.dotenv(req.Dotenv)
	if err != nil {
		return api.ImportEnvResponse{}, err
	}
	total, err := s.setVariables(ctx, p, repo, values, req.Secret)
	if err != nil {
		return api.ImportEnvResponse{}, api.AsError(err)
	}
	return api.ImportEnvResponse{Imported: len(values), Total: total}, nil
}

// setVariables sets variables, and returns how many there are then. A value that is masked stays as it is.
func (s *Service) setVariables(
	ctx context.Context,
	p auth.Principal,
	repo int64,
	values map[string]string,
	secret bool,
) (total int, err error) {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if err := api.ValidateAppVariable(name, values[name]); err != nil {
			return 0, err
		}
	}
	owner := VariablesOf(p.Workspace, repo)
	err = s.db.Write(ctx, "preview variables", func(ctx context.Context, tx *store.Tx) error {
		if err := s.mustKnow(ctx, tx, p, repo); err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(values)) {
			if values[name] == api.MaskedValue {
				continue
			}
			err := tx.PutAppVariable(ctx, &store.AppVariable{App: owner, Scope: string(api.EnvPreview), Name: name,
				Value: values[name], Secret: secret, Creator: p.KeyPrefix, Changed: store.Micros(time.Now())})
			if err != nil {
				return err
			}
		}
		rows, err := tx.AppVariables(ctx, owner)
		if total = len(rows); err == nil && total > api.MaxAppEnv {
			err = api.Errorf(api.Invalid, "env: the repository would have %d variables: use at most %d", total,
				api.MaxAppEnv).With("field", "env")
		}
		return err
	})
	return total, err
}

// mustKnow returns an error unless a workspace has previews for a repository.
func (s *Service) mustKnow(ctx context.Context, tx *store.Tx, p auth.Principal, repo int64) error {
	rows, err := tx.PreviewRepos(ctx, string(p.Workspace))
	if err == nil && !slices.ContainsFunc(rows, func(r store.PreviewRepo) bool { return r.Repository == repo }) {
		err = errNoRepo(repo)
	}
	return err
}

func errNoRepo(repo int64) error {
	return api.Errorf(api.NotFound, "repository %d has no previews in this workspace: POST /v1/preview-repos enables "+
		"them", repo)
}

// DeletePreviewVariable removes a variable.
func (s *Service) DeletePreviewVariable(ctx context.Context, p auth.Principal, repo int64, key string) error {
	err := s.db.Write(ctx, "preview variables", func(ctx context.Context, tx *store.Tx) error {
		owner := VariablesOf(p.Workspace, repo)
		rows, err := tx.AppVariables(ctx, owner)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(rows, func(v store.AppVariable) bool { return v.Name == key }) {
			return api.Errorf(api.NotFound, "variable %.128q not found", key)
		}
		return tx.DeleteAppVariable(ctx, owner, "", key)
	})
	if err != nil {
		return api.AsError(err)
	}
	return nil
}
