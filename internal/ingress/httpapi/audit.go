package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/audit"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// Audit records calls; *audit.Log does.
type Audit interface {
	Record(ctx context.Context, e audit.Entry)
	List(ctx context.Context, p auth.Principal, q audit.Query) ([]audit.Entry, error)
}

// recordAudit records an authorized call that may have changed something.
func (s *Server) recordAudit(rq *request, rt route, status int, began time.Time) {
	if s.deps.Audit == nil || rt.access == public || rq.p.Workspace == "" {
		return
	}
	if rq.r.Method == http.MethodGet || rq.r.Method == http.MethodHead {
		return
	}
	outcome := "ok"
	if status >= 400 {
		outcome = string(api.CodeOfStatus(status))
	}
	target := ""
	for _, name := range []string{"sandbox", "snapshot", "template", "prefix", "workspace"} {
		if v := rq.r.PathValue(name); v != "" {
			target = v
			break
		}
	}
	s.deps.Audit.Record(
		rq.r.Context(),
		audit.Entry{At: began, Principal: rq.p, Action: rq.r.Method + " " + rt.pattern, Target: target,
			Outcome: outcome, Remote: rq.r.RemoteAddr, Request: string(rq.id()), Took: time.Since(began)},
	)
}

// listAudit returns what callers of the workspace did, newest first.
func listAudit(rq *request) (api.AuditList, error) {
	if rq.s.deps.Audit == nil {
		return api.AuditList{}, api.Errorf(api.Unsupported, "this server keeps no audit log")
	}
	limit, err := rq.intParam("limit", 1, 1000, 100)
	if err != nil {
		return api.AuditList{}, err
	}
	q := audit.Query{Limit: int(limit), Target: rq.r.URL.Query().Get("target")}
	out := api.AuditList{Entries: []api.AuditEntry{}}
	if text := rq.r.URL.Query().Get("since"); text != "" {
		if q.Since, err = time.Parse(time.RFC3339, text); err != nil {
			return out, api.Errorf(api.Invalid, "since: %q is not a time such as 2026-01-02T15:04:05Z", truncate(text)).
				With("field", "since")
		}
		since := q.Since.UTC()
		out.Since = &since
	}
	list, err := rq.s.deps.Audit.List(rq.r.Context(), rq.p, q)
	if err != nil {
		return out, err
	}
	for _, e := range list {
		out.Entries = append(
			out.Entries,
			api.AuditEntry{Time: e.At, Key: e.Principal.KeyPrefix, Action: e.Action, Target: e.Target,
				Outcome: e.Outcome, Remote: e.Remote, RequestID: api.RequestID(e.Request),
				TookMS: float64(e.Took.Microseconds()) / 1000},
		)
	}
	return out, nil
}
