package httpapi

import (
	"net/http"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/functionapi"
)

// functionRoutes returns the routes of functions and queues, which package functionapi has.
func functionRoutes() []route {
	var all []route
	for _, r := range functionapi.Routes() {
		var query []param
		for _, p := range r.Query {
			query = append(query, param{p.Name, p.Kind, p.Doc})
		}
		handle := func(rq *request) error {
			c := &functionapi.Call{
				W: rq.w, R: rq.r, Principal: rq.p, Decode: rq.decode, Inner: rq.inner, Memory: rq.memory,
				JSON: func(status int, v any) { writeJSON(rq.w, status, v) },
				Fail: func(w http.ResponseWriter, r *http.Request, err *api.Error) { rq.s.writeError(w, r, err) },
			}
			err := r.Handle(rq.s.deps.Functions, c)
			rq.target, rq.action = c.Target, c.Action
			return err
		}
		e := endpoint{in: r.In, out: r.Out, status: r.Status, takes: r.Takes, gives: r.Gives, handle: handle}
		all = append(all, newRoute(r.Method, r.Pattern, r.Summary, e, query))
	}
	return tagged("functions", all...)
}
