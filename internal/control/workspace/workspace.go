// Package workspace implements what operators do with workspaces: list, create, suspend, resume, and set quotas.
//
// It owns who may do so and what a suspension means: requests of a suspended workspace are refused with
// workspace_suspended, its builds are cancelled, and its running sandboxes are hibernated, in the background and as
// often as it takes. Nothing is deleted, and sandboxes wake on use after the workspace is resumed. What quotas are, and
// how they are counted, is in package quota.
//
// All methods may be called concurrently. All errors are *api.Error.
package workspace

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Issuer makes the first key of a workspace; *auth.Keys does.
type Issuer interface {
	Issue(ctx context.Context, workspace api.Workspace, label string) (auth.Key, string, error)
}

// Sandboxes is the part of sandbox.Service that a suspension needs.
type Sandboxes interface {
	// EnforceQuotas makes suspensions and changed quotas take effect on running sandboxes soon.
	EnforceQuotas()
}

// Builds is the part of build.Service that a suspension needs.
type Builds interface {
	// CancelAll cancels all builds of a workspace that have not ended.
	CancelAll(ctx context.Context, workspace api.Workspace) error
}

// Deps are the components that a Service works with. All but Builds are required.
type Deps struct {
	Store     *store.DB
	Quotas    *quota.Quotas
	Keys      Issuer
	Sandboxes Sandboxes
	Builds    Builds // nil: there are no builds
	Log       *slog.Logger
}

// Service implements the verbs on workspaces.
type Service struct{ deps Deps }

// New returns a service. It touches nothing.
func New(deps Deps) (*Service, error) {
	if deps.Store == nil || deps.Quotas == nil || deps.Keys == nil || deps.Sandboxes == nil || deps.Log == nil {
		return nil, errors.New("workspace: store, quotas, keys, sandboxes and log are required")
	}
	return &Service{deps: deps}, nil
}

// requireOperator refuses callers who do not operate the node.
func requireOperator(p auth.Principal) error {
	if !p.Operator {
		return api.Errorf(api.Forbidden, "only an operator's key can manage workspaces")
	}
	return nil
}

func notFound(id api.Workspace) error {
	return api.Errorf(api.NotFound, "workspace %.80q not found: list them at /v1/workspaces", string(id))
}

// view returns a row as the API shows it, without quotas.
func view(row store.Workspace) api.WorkspaceInfo {
	out := api.WorkspaceInfo{ID: api.Workspace(row.ID), Name: row.Name, Status: api.WorkspaceActive,
		CreatedAt: store.Time(row.Created)}
	if row.Suspended > 0 {
		since := store.Time(row.Suspended)
		out.Status, out.SuspendedAt = api.WorkspaceStopped, &since
	}
	return out
}

// get returns a workspace with its quotas.
func (s *Service) get(ctx context.Context, id api.Workspace) (api.WorkspaceInfo, error) {
	row, err := s.deps.Store.Read().Workspace(ctx, string(id))
	if errors.Is(err, store.ErrNotFound) {
		return api.WorkspaceInfo{}, notFound(id)
	}
	if err != nil {
		return api.WorkspaceInfo{}, api.AsError(err)
	}
	out := view(row)
	if out.Quotas, err = s.deps.Quotas.Usage(ctx, id); err != nil {
		return api.WorkspaceInfo{}, api.AsError(err)
	}
	return out, nil
}

// Own returns the workspace of the caller, with what it uses and may have.
func (s *Service) Own(ctx context.Context, p auth.Principal) (api.WorkspaceInfo, error) {
	if p.Workspace == "" {
		return api.WorkspaceInfo{}, api.Errorf(api.Unauthenticated, "the caller has no workspace")
	}
	return s.get(ctx, p.Workspace)
}

// Get returns a workspace, with what it uses and may have. The caller must be an operator.
func (s *Service) Get(ctx context.Context, p auth.Principal, id api.Workspace) (api.WorkspaceInfo, error) {
	if err := requireOperator(p); err != nil {
		return api.WorkspaceInfo{}, err
	}
	return s.get(ctx, id)
}

// List returns workspaces by id, at most limit of those after an id. The caller must be an operator.
func (s *Service) List(
	ctx context.Context,
	p auth.Principal,
	after api.Workspace,
	limit int,
) ([]api.WorkspaceInfo, error) {
	if err := requireOperator(p); err != nil {
		return nil, err
	}
	rows, err := s.deps.Store.Read().Workspaces(ctx, store.WorkspaceQuery{AfterID: string(after), Limit: limit})
	if err != nil {
		return nil, api.AsError(err)
	}
	out := make([]api.WorkspaceInfo, 0, len(rows))
	for _, row := range rows {
		out = append(out, view(row))
	}
	return out, nil
}

// Create makes a workspace and its first key, whose token cannot be read again. The caller must be an operator.
func (s *Service) Create(
	ctx context.Context,
	p auth.Principal,
	req api.WorkspaceRequest,
) (api.WorkspaceCreated, error) {
	if err := requireOperator(p); err != nil {
		return api.WorkspaceCreated{}, err
	}
	if err := req.Validate(); err != nil {
		return api.WorkspaceCreated{}, err
	}
	change, err := quota.Parse(req.Quotas)
	if err != nil {
		return api.WorkspaceCreated{}, err
	}
	row := store.Workspace{ID: string(req.ID), Name: req.Name, Created: store.Micros(time.Now())}
	if row.Name == "" {
		row.Name = row.ID
	}
	err = s.deps.Store.Write(ctx, "workspace create", func(ctx context.Context, tx *store.Tx) error {
		if err := tx.InsertWorkspace(ctx, &row); err != nil {
			return err
		}
		return change.Apply(ctx, tx, req.ID)
	})
	if errors.Is(err, store.ErrExists) {
		return api.WorkspaceCreated{}, api.Errorf(api.Conflict, "workspace %s exists already", req.ID)
	}
	if err != nil {
		return api.WorkspaceCreated{}, api.AsError(err)
	}
	_, token, err := s.deps.Keys.Issue(ctx, req.ID, "first key")
	if err != nil {
		return api.WorkspaceCreated{}, errors.Join(api.AsError(err), s.abandon(ctx, req.ID))
	}
	info, err := s.get(ctx, req.ID)
	if err != nil {
		return api.WorkspaceCreated{}, err
	}
	return api.WorkspaceCreated{WorkspaceInfo: info, Token: token}, nil
}

// abandonTimeout bounds the removal of a workspace that got no key.
const abandonTimeout = 10 * time.Second

// abandon removes a workspace that got no key, so that it can be created again.
func (s *Service) abandon(ctx context.Context, id api.Workspace) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), abandonTimeout,
		errors.New("removing the workspace took too long"))
	defer cancel()
	return s.deps.Store.Write(ctx, "workspace abandon", func(ctx context.Context, tx *store.Tx) error {
		keys, err := tx.Keys(ctx, string(id))
		if err != nil || len(keys) > 0 { // it is not known whether the key was written: keep what may be in use
			return err
		}
		return tx.DeleteWorkspace(ctx, string(id))
	})
}

// SetQuotas changes quotas of a workspace and returns it. The caller must be an operator.
func (s *Service) SetQuotas(
	ctx context.Context,
	p auth.Principal,
	id api.Workspace,
	patch api.QuotaPatch,
) (api.WorkspaceInfo, error) {
	if err := requireOperator(p); err != nil {
		return api.WorkspaceInfo{}, err
	}
	change, err := quota.Parse(patch.Quotas)
	if err != nil {
		return api.WorkspaceInfo{}, err
	}
	err = s.deps.Store.Write(ctx, "quota set", func(ctx context.Context, tx *store.Tx) error {
		if _, err := tx.Workspace(ctx, string(id)); err != nil {
			return err
		}
		return change.Apply(ctx, tx, id)
	})
	if errors.Is(err, store.ErrNotFound) {
		return api.WorkspaceInfo{}, notFound(id)
	}
	if err != nil {
		return api.WorkspaceInfo{}, api.AsError(err)
	}
	s.deps.Sandboxes.EnforceQuotas()
	return s.get(ctx, id)
}

// Suspend refuses all requests of a workspace, and cancels its builds.
//
// Its sandboxes hibernate in the background. Suspend may be repeated. The caller must be an operator with a key of
// another workspace.
func (s *Service) Suspend(ctx context.Context, p auth.Principal, id api.Workspace) (api.WorkspaceInfo, error) {
	if err := requireOperator(p); err != nil {
		return api.WorkspaceInfo{}, err
	}
	if id == p.Workspace {
		return api.WorkspaceInfo{}, api.Errorf(api.Conflict,
			"workspace %s is the one of your key, which would be refused from then on: use a key of another", id)
	}
	if err := s.setSuspended(ctx, id, true); err != nil {
		return api.WorkspaceInfo{}, err
	}
	s.deps.Sandboxes.EnforceQuotas()
	if s.deps.Builds != nil {
		if err := s.deps.Builds.CancelAll(ctx, id); err != nil {
			return api.WorkspaceInfo{}, api.Wrap(api.Unavailable, err,
				"the workspace is suspended, but not all of its builds could be cancelled: suspend it again")
		}
	}
	return s.get(ctx, id)
}

// Resume makes a suspended workspace active again. Its sandboxes stay hibernated until they are used. The caller must
// be an operator.
func (s *Service) Resume(ctx context.Context, p auth.Principal, id api.Workspace) (api.WorkspaceInfo, error) {
	if err := requireOperator(p); err != nil {
		return api.WorkspaceInfo{}, err
	}
	if err := s.setSuspended(ctx, id, false); err != nil {
		return api.WorkspaceInfo{}, err
	}
	return s.get(ctx, id)
}

func (s *Service) setSuspended(ctx context.Context, id api.Workspace, suspend bool) error {
	changed, err := s.deps.Quotas.SetSuspended(ctx, id, suspend)
	if errors.Is(err, store.ErrNotFound) {
		return notFound(id)
	}
	if err != nil {
		return api.AsError(err)
	}
	if changed {
		s.deps.Log.Info("workspace suspended or resumed", "workspace", id, "suspended", suspend)
	}
	return nil
}
