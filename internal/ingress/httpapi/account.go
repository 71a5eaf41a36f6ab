package httpapi

import (
	"cmp"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

func listTemplates(rq *request) ([]api.Template, error) {
	list, err := rq.s.deps.Templates.List(rq.r.Context(), rq.p)
	if list == nil {
		list = []api.Template{}
	}
	return list, err
}

func getTemplate(rq *request) (api.Template, error) {
	return rq.s.deps.Templates.Get(rq.r.Context(), rq.p, rq.r.PathValue("template"))
}

func bakeTemplate(rq *request, req api.BakeRequest) (api.Template, error) {
	return rq.s.deps.Templates.Bake(rq.r.Context(), rq.p, rq.r.PathValue("template"), req)
}

func me(rq *request) (api.Me, error) {
	p := rq.p
	role := "member"
	if p.Admin {
		role = "admin"
	}
	return api.Me{
		UserID: p.KeyPrefix, CurrentOrg: p.Workspace, CurrentOrgID: p.Workspace, Workspace: p.Workspace,
		Orgs:       []api.Org{{ID: p.Workspace, Slug: p.Workspace, Name: string(p.Workspace), Role: role}},
		AuthMethod: "token", TokenPrefix: p.KeyPrefix, Role: role,
	}, nil
}

func listOrgs(rq *request) ([]api.Org, error) {
	m, err := me(rq)
	return m.Orgs, err
}

func getOrg(rq *request) (api.Org, error) { return rq.org(api.Workspace(rq.r.PathValue("org"))) }

// org finds a workspace of the key.
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
			Prefix: k.Prefix, Label: k.Label, Name: k.Label, CreatedAt: k.Created,
			ExpiresAt: timeOrNil(k.Expires), LastUsedAt: timeOrNil(k.LastUsed), Admin: k.Admin,
		})
	}
	return out, nil
}

// timeOrNil gives a time that may be zero as one that may be absent.
func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func createToken(rq *request, req api.TokenRequest) (api.TokenCreated, error) {
	k, token, err := rq.s.deps.Keys.Create(rq.r.Context(), rq.p, auth.KeyRequest{
		Label: req.Label, Admin: req.Admin, Expires: time.Duration(req.ExpiresInDays) * 24 * time.Hour,
	})
	if err != nil {
		return api.TokenCreated{}, err
	}
	return api.TokenCreated{
		Token: token, Prefix: k.Prefix, Label: k.Label, Name: k.Label, Admin: k.Admin,
		CreatedAt: k.Created, ExpiresAt: timeOrNil(k.Expires),
	}, nil
}

func revokeToken(rq *request) error {
	return rq.s.deps.Keys.Revoke(rq.r.Context(), rq.p, rq.r.PathValue("prefix"))
}

func version(rq *request) (api.Version, error) {
	v := api.Version{Version: rq.s.cfg.Version, Commit: rq.s.cfg.Commit, GoVersion: runtime.Version(), API: "v1"}
	// A host that is away keeps nobody from knowing the version.
	if c, err := rq.s.deps.Sandboxes.Capacity(rq.r.Context()); err == nil {
		v.Driver, v.Isolation, v.Accel = c.Driver, c.Isolation, c.Accelerator
	}
	return v, nil
}

func bootStats(rq *request) (api.BootStats, error) { return rq.s.boots.Stats(), nil }

// overview counts what the caller's workspace has.
func overview(rq *request) (api.Overview, error) {
	out := api.Overview{Workspace: rq.p.Workspace, ByStatus: map[api.Status]int{}}
	list, err := rq.allSandboxes(api.SandboxFilter{})
	if err != nil {
		return out, err
	}
	for _, b := range list {
		out.Sandboxes++
		out.ByStatus[b.Status]++
		out.DiskMB += b.DiskMB
		if b.Status == api.Running || b.Status == api.Paused {
			out.CPUs, out.MemoryMB = out.CPUs+b.CPU, out.MemoryMB+b.MemoryMB
		}
	}
	snaps, err := rq.allSnapshots(api.SnapshotFilter{})
	for _, s := range snaps {
		out.Snapshots, out.SnapshotBytes = out.Snapshots+1, out.SnapshotBytes+s.SizeBytes
	}
	return out, err
}

func prometheusText(rq *request) error {
	if err := rq.s.met.count(rq.r.Context(), rq.s.deps.Sandboxes); err != nil {
		return err
	}
	promhttp.HandlerFor(rq.s.deps.Metrics, promhttp.HandlerOpts{}).ServeHTTP(rq.w, rq.r)
	return nil
}

func openAPI(rq *request) error {
	rq.w.Header().Set("Content-Type", "application/json")
	rq.w.WriteHeader(http.StatusOK)
	_, _ = rq.w.Write(rq.s.spec) // a client that is gone needs no answer
	return nil
}
