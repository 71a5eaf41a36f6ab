package httpapi

import (
	"net/http"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/apiroute"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/appapi"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/functionapi"
)

// appRoutes returns the routes of apps, which package appapi has.
func appRoutes() []route {
	return tagged("apps", routesOf(appapi.Routes(), func(d *Deps) appapi.API { return d.Apps })...)
}

// functionRoutes returns the routes of functions and queues, which package functionapi has.
func functionRoutes() []route {
	return tagged("functions", routesOf(functionapi.Routes(), func(d *Deps) functionapi.API { return d.Functions })...)
}

// routesOf returns the routes of a part of the API that has a package of its own; part returns its services.
func routesOf[A any](routes []apiroute.Route[A], part func(*Deps) A) []route {
	var all []route
	for _, r := range routes {
		var query []param
		for _, p := range r.Query {
			query = append(query, param{p.Name, p.Kind, p.Doc})
		}
		handle := func(rq *request) error {
			c := &apiroute.Call{
				W: rq.w, R: rq.r, Principal: rq.p, Decode: rq.decode, Inner: rq.inner, Memory: rq.memory,
				JSON: func(status int, v any) { writeJSON(rq.w, status, v) },
				Fail: func(w http.ResponseWriter, r *http.Request, err *api.Error) { rq.s.writeError(w, r, err) },
			}
			err := r.Handle(part(&rq.s.deps), c)
			rq.target, rq.action, rq.p = c.Target, c.Action, c.Principal
			return err
		}
		e := endpoint{in: r.In, out: r.Out, status: r.Status, takes: r.Takes, gives: r.Gives, handle: handle}
		all = append(all, newRoute(r.Method, r.Pattern, r.Summary, e, query))
	}
	return all
}
