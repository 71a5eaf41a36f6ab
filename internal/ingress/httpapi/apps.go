package httpapi

import (
	"net/http"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/appapi"
)

// appRoutes returns the routes of apps, which package appapi has.
func appRoutes() []route {
	var all []route
	for _, r := range appapi.Routes() {
		var query []param
		for _, p := range r.Query {
			query = append(query, param{p.Name, p.Kind, p.Doc})
		}
		handle := func(rq *request) error {
			c := &appapi.Call{
				W: rq.w, R: rq.r, Principal: rq.p, Decode: rq.decode, Inner: rq.inner,
				JSON: func(status int, v any) { writeJSON(rq.w, status, v) },
				Fail: func(w http.ResponseWriter, r *http.Request, err *api.Error) { rq.s.writeError(w, r, err) },
			}
			err := r.Handle(rq.s.deps.Apps, c)
			rq.target, rq.action = c.Target, c.Action
			return err
		}
		e := endpoint{in: r.In, out: r.Out, status: r.Status, takes: r.Takes, gives: r.Gives, handle: handle}
		all = append(all, newRoute(r.Method, r.Pattern, r.Summary, e, query))
	}
	return tagged("apps", all...)
}
