package function

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
)

// Create adds a function. With code, it deploys the code and returns when it is built.
func (s *Service) Create(ctx context.Context, p auth.Principal, req api.CreateFunctionRequest) (api.Function, error) {
	if p.Workspace == "" {
		return api.Function{}, api.Errorf(api.Unauthenticated, "the caller has no workspace")
	}
	if err := req.Validate(); err != nil {
		return api.Function{}, err
	}
	if err := s.quotas.CheckActive(ctx, p.Workspace); err != nil {
		return api.Function{}, api.AsError(err)
	}
	set := req.Settings
	if req.Public != nil && *req.Public {
		set.Auth = api.FunctionPublic
	}
	if err := s.check(ctx, p, req.Template, &set); err != nil {
		return api.Function{}, err
	}
	row := functionstore.Function{
		ID: string(api.NewFunctionID()), Workspace: string(p.Workspace), Name: req.Name, State: functionstore.Active,
		Runtime: string(req.Runtime), Entrypoint: cmp.Or(req.Entrypoint, defaultEntrypoint[req.Runtime]),
		Template: cmp.Or(req.Template, s.cfg.Template), Secret: rand.Text(), Auth: string(set.Auth),
		Created: store.Micros(time.Now()),
	}
	row.Changed = row.Created
	var err error
	if row.Settings, err = encode(set); err == nil {
		row.Env, err = encode(req.Env)
	}
	if err != nil {
		return api.Function{}, api.AsError(err)
	}
	err = s.db.Write(ctx, "function create", func(ctx context.Context, tx *store.Tx) error {
		if err := s.quotas.Admit(ctx, tx, p.Workspace, quota.Amount{Kind: quota.Functions, N: 1}); err != nil {
			return err
		}
		return functionstore.In(tx).InsertFunction(ctx, &row)
	})
	if err != nil {
		return api.Function{}, s.taken(err, req.Name)
	}
	if len(req.Code) == 0 {
		return s.show(ctx, &row)
	}
	return s.Deploy(ctx, p, row.ID, bytes.NewReader(req.Code), "", true)
}

var defaultEntrypoint = map[api.FunctionRuntime]string{api.RuntimePython: "handler.py", api.RuntimeNode: "index.js"}

func (s *Service) taken(err error, name string) error {
	if errors.Is(err, store.ErrExists) {
		return api.Errorf(api.Conflict, "name: the workspace has a function %s: use another name", name).
			With("field", "name")
	}
	return api.AsError(err)
}

// check completes settings and checks what needs the server.
func (s *Service) check(ctx context.Context, p auth.Principal, template string, set *api.FunctionSettings) error {
	set.Mode, set.Auth = cmp.Or(set.Mode, api.FunctionIsolated), cmp.Or(set.Auth, api.FunctionKey)
	if w := set.WarmUp; w != nil && (w.Path == "") == (len(w.Event) == 0) {
		return api.Errorf(api.Invalid, "settings.warm_up: needs path or event, and not both").
			With("field", "settings.warm_up")
	} else if w != nil && w.Path != "" && !strings.HasPrefix(w.Path, "/") {
		return api.Errorf(api.Invalid, "settings.warm_up.path: %.60q does not begin with /", w.Path).
			With("field", "settings.warm_up.path")
	}
	for field, d := range map[string]*api.Destination{"on_success": set.OnSuccess, "on_failure": set.OnFailure} {
		if d == nil || d.FunctionID == "" {
			continue
		}
		if _, err := s.Find(ctx, p, string(d.FunctionID)); err != nil {
			return api.Wrap(api.Invalid, err, "settings."+field+": "+err.Error()).With("field", "settings."+field)
		}
	}
	if template == "" {
		return nil
	}
	if _, err := s.deps.Templates.Resolve(ctx, p, template); err != nil {
		if api.CodeOf(err) == api.NotFound {
			err = api.Wrap(api.Invalid, err, "template: "+err.Error()).With("field", "template")
		}
		return api.AsError(err)
	}
	return nil
}

// List returns the functions of the caller's workspace, newest first.
func (s *Service) List(ctx context.Context, p auth.Principal) ([]api.Function, error) {
	rows, err := s.read().Functions(ctx, string(p.Workspace), functionstore.Active)
	if err != nil || p.Workspace == "" {
		return []api.Function{}, asError(err)
	}
	latest, err := s.read().LatestVersions(ctx, string(p.Workspace))
	if err != nil {
		return nil, api.AsError(err)
	}
	out := make([]api.Function, 0, len(rows))
	for i := range rows {
		aliases, err := s.read().Aliases(ctx, rows[i].ID)
		if err != nil {
			return nil, api.AsError(err)
		}
		v, err := s.view(&rows[i], latest[rows[i].ID], aliases)
		if err != nil {
			return nil, api.AsError(err)
		}
		out = append(out, v)
	}
	return out, nil
}

func asError(err error) error {
	if err == nil {
		return nil
	}
	return api.AsError(err)
}

// Get returns a function.
func (s *Service) Get(ctx context.Context, p auth.Principal, fn string) (api.Function, error) {
	row, err := s.Find(ctx, p, fn)
	if err != nil {
		return api.Function{}, err
	}
	return s.show(ctx, &row)
}

// show reads what belongs to a function and returns it as users see it.
func (s *Service) show(ctx context.Context, row *functionstore.Function) (api.Function, error) {
	var latest functionstore.Version
	var err error
	if row.Numbered > 0 {
		latest, err = s.read().Version(ctx, row.ID, row.Numbered)
		if errors.Is(err, store.ErrNotFound) {
			latest, err = functionstore.Version{}, nil
		}
	}
	if err != nil {
		return api.Function{}, api.AsError(err)
	}
	aliases, err := s.read().Aliases(ctx, row.ID)
	if err != nil {
		return api.Function{}, api.AsError(err)
	}
	out, err := s.view(row, latest, aliases)
	return out, asError(err)
}

func (s *Service) view(
	row *functionstore.Function,
	latest functionstore.Version,
	aliases []functionstore.Alias,
) (api.Function, error) {
	id := api.FunctionID(row.ID)
	out := api.Function{
		ID: id, Workspace: api.Workspace(row.Workspace), Name: row.Name, Runtime: api.FunctionRuntime(row.Runtime),
		Entrypoint: row.Entrypoint, Template: row.Template, CodeSize: latest.Size, Env: map[string]string{},
		Public: row.Auth == string(api.FunctionPublic), Endpoint: s.cfg.Endpoint(id), URL: s.cfg.URL(id),
		Status: status(row, latest.State), Error: latest.Error, IsReady: row.Version > 0, Version: row.Version,
		Latest: row.Numbered, Aliases: []api.FunctionAlias{}, Secret: row.Secret,
		CreatedAt: store.Time(row.Created), UpdatedAt: store.Time(row.Changed),
	}
	env, err := decode[map[string]string](row.Env)
	if err != nil {
		return out, fmt.Errorf("variables of function %s: %w", row.ID, err)
	}
	for name := range env {
		out.Env[name] = api.MaskedValue
	}
	if out.Settings, err = decode[api.FunctionSettings](row.Settings); err != nil {
		return out, fmt.Errorf("settings of function %s: %w", row.ID, err)
	}
	for i := range aliases {
		a, err := viewAlias(&aliases[i])
		if err != nil {
			return out, err
		}
		out.Aliases = append(out.Aliases, a)
	}
	return out, nil
}

// status returns the state of a function whose newest version is in a state.
func status(row *functionstore.Function, latest string) api.FunctionStatus {
	switch {
	case latest == functionstore.VersionBuilding:
		return api.FunctionBuilding
	case latest == functionstore.VersionFailed:
		return api.FunctionFailed
	case row.Version > 0:
		return api.FunctionReady
	}
	return api.FunctionEmpty
}

// Update changes a function.
func (s *Service) Update(
	ctx context.Context,
	p auth.Principal,
	fn string,
	req api.UpdateFunctionRequest,
) (api.Function, error) {
	if err := req.Validate(); err != nil {
		return api.Function{}, err
	}
	row, err := s.Find(ctx, p, fn)
	if err != nil {
		return api.Function{}, err
	}
	var template string
	if req.Template != nil {
		template = *req.Template
	}
	if req.Settings != nil {
		err = s.check(ctx, p, template, req.Settings)
	} else if template != "" {
		err = s.check(ctx, p, template, &api.FunctionSettings{})
	}
	if err != nil {
		return api.Function{}, err
	}
	err = s.write(ctx, "function update", func(ctx context.Context, tx functionstore.Tx) error {
		if row, err = tx.Function(ctx, row.ID); err != nil {
			return err
		}
		if err := change(&row, &req); err != nil {
			return err
		}
		return tx.UpdateFunction(ctx, &row, "name", "entrypoint", "template", "settings", "env", "auth", "revision",
			"generation", "changed")
	})
	if errors.Is(err, store.ErrNotFound) {
		return api.Function{}, notFound(fn)
	}
	if err != nil {
		return api.Function{}, s.taken(err, row.Name)
	}
	s.poke()
	return s.show(ctx, &row)
}

// change applies a request to a row.
func change(row *functionstore.Function, req *api.UpdateFunctionRequest) error {
	row.Name = *cmp.Or(req.Name, &row.Name)
	row.Entrypoint = *cmp.Or(req.Entrypoint, &row.Entrypoint)
	row.Template = *cmp.Or(req.Template, &row.Template)
	row.Generation++
	row.Changed = store.Micros(time.Now())
	set, err := decode[api.FunctionSettings](row.Settings)
	if err != nil {
		return err
	}
	if req.Settings != nil {
		set = *req.Settings
	}
	if req.Public != nil && *req.Public {
		set.Auth = api.FunctionPublic
	} else if req.Public != nil && set.Auth == api.FunctionPublic {
		set.Auth = api.FunctionKey
	}
	row.Auth = string(set.Auth)
	if row.Settings, err = encode(set); err != nil || req.Env == nil {
		return err
	}
	old, err := decode[map[string]string](row.Env)
	if err != nil {
		return err
	}
	env := map[string]string{}
	for name, value := range *req.Env {
		if was, ok := old[name]; ok && value == api.MaskedValue {
			value = was
		}
		env[name] = value
	}
	if maps.Equal(env, old) {
		return nil
	}
	row.Revision++
	row.Env, err = encode(env)
	return err
}

// Target is a function as the edge sees it.
type Target struct {
	Function   api.FunctionID
	Workspace  api.Workspace
	Name       string
	Auth       api.FunctionAuth
	Secret     string // signs requests
	MaxPayload int64  // bytes of a request that is buffered
}

// Lookup finds an active function for the edge.
func (s *Service) Lookup(ctx context.Context, id api.FunctionID) (Target, error) {
	row, err := s.read().Function(ctx, string(id))
	if errors.Is(err, store.ErrNotFound) || err == nil && row.State != functionstore.Active {
		return Target{}, notFound(string(id))
	}
	if err == nil {
		err = s.quotas.CheckActive(ctx, api.Workspace(row.Workspace))
	}
	if api.CodeOf(err) == api.WorkspaceSuspended && err != nil {
		return Target{}, notFound(string(id))
	}
	if err != nil {
		return Target{}, api.AsError(err)
	}
	set, err := decode[api.FunctionSettings](row.Settings)
	if err != nil {
		return Target{}, api.AsError(err)
	}
	return Target{Function: id, Workspace: api.Workspace(row.Workspace), Name: row.Name,
		Auth: api.FunctionAuth(row.Auth), Secret: row.Secret, MaxPayload: (&settings{set}).maxPayload()}, nil
}
