package httpapi

import (
	"cmp"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

func me(rq *request) (api.Me, error) {
	p := rq.p
	return api.Me{
		UserID: p.KeyPrefix, CurrentOrg: p.Workspace, CurrentOrgID: p.Workspace, Workspace: p.Workspace,
		Orgs:       []api.Org{{ID: p.Workspace, Slug: p.Workspace, Name: string(p.Workspace), Role: string(p.Role)}},
		AuthMethod: "token", TokenPrefix: p.KeyPrefix, Role: string(p.Role),
		Operator: p.Operator, Scopes: p.Scopes.List(),
	}, nil
}

func listOrgs(rq *request) ([]api.Org, error) {
	m, err := me(rq)
	return m.Orgs, err
}

func getOrg(rq *request) (api.Org, error) { return rq.org(api.Workspace(rq.r.PathValue("org"))) }

// org returns a workspace of the key.
func (rq *request) org(id api.Workspace) (api.Org, error) {
	list, err := listOrgs(rq)
	for _, o := range list {
		if o.ID == id {
			return o, nil
		}
	}
	return api.Org{}, cmp.Or(
		err,
		error(api.Errorf(api.NotFound, "workspace %q not found: list them at /v1/orgs", truncate(string(id)))),
	)
}

func chooseOrg(rq *request, req api.OrgChoice) (api.Me, error) {
	if _, err := rq.org(req.OrgID); err != nil {
		return api.Me{}, err
	}
	return me(rq)
}

func listTokens(rq *request) (api.TokenList, error) {
	keys, err := rq.s.deps.Keys.List(rq.r.Context(), rq.p)
	if err != nil {
		return api.TokenList{}, err
	}
	out := api.TokenList{Items: make([]api.Token, 0, len(keys))}
	for _, k := range keys {
		out.Items = append(out.Items, api.Token{
			Prefix: k.Prefix, Label: k.Label, Name: k.Label, Admin: k.Admin(),
			Role: k.Role, Operator: k.Operator, Scopes: k.Scopes, CIDRs: k.CIDRs, Workspace: k.Workspace,
			CreatedAt: k.Created, ExpiresAt: timeOrNil(k.Expires), LastUsedAt: timeOrNil(k.LastUsed),
			ReplacedBy: k.ReplacedBy,
		})
	}
	return out, nil
}

// timeOrNil returns nil for the zero time.
func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func createToken(rq *request, req api.TokenRequest) (api.TokenCreated, error) {
	ask := auth.KeyRequest{
		Workspace: req.Workspace, Label: req.Label, Role: req.Role, Operator: req.Operator,
		Scopes: req.Scopes, CIDRs: req.CIDRs,
	}
	if req.ExpiresAt != nil {
		ask.Expires = *req.ExpiresAt
	}
	k, token, err := rq.s.deps.Keys.Create(rq.r.Context(), rq.p, ask)
	if err != nil {
		return api.TokenCreated{}, err
	}
	return tokenCreated(k, token), nil
}

func tokenCreated(k auth.Key, token string) api.TokenCreated {
	return api.TokenCreated{
		Token: token, Prefix: k.Prefix, Label: k.Label, Name: k.Label, Admin: k.Admin(),
		Role: k.Role, Operator: k.Operator, Scopes: k.Scopes, CIDRs: k.CIDRs, Workspace: k.Workspace,
		CreatedAt: k.Created, ExpiresAt: timeOrNil(k.Expires),
	}
}

func rotateToken(rq *request, req api.RotateRequest) (api.TokenCreated, error) {
	prefix := rq.r.PathValue("prefix")
	k, token, until, err := rq.s.deps.Keys.Rotate(rq.r.Context(), rq.p, prefix, req.Overlap())
	if err != nil {
		return api.TokenCreated{}, err
	}
	out := tokenCreated(k, token)
	out.Replaces, out.ReplacedUntil = prefix, timeOrNil(until.UTC())
	return out, nil
}

func revokeToken(rq *request) error {
	return rq.s.deps.Keys.Revoke(rq.r.Context(), rq.p, rq.r.PathValue("prefix"))
}
