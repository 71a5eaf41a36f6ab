package httpapi

import (
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/access"
)

// route is one line of the table.
type route struct {
	method  string      // "" is any
	pattern string      // of net/http
	need    access.Need // of the table of operations
	tag     string
	summary string
	query   []param
	endpoint
	alias bool // another name of an earlier route; not in the OpenAPI document
}

// param is a parameter of the query.
type param struct{ name, kind, doc string }

// endpoint is a handler and what it takes and gives.
type endpoint struct {
	in, out reflect.Type // nil: nothing, or not JSON
	status  int
	takes   string // media type of the body, if not JSON
	gives   string // media type of the response, if not JSON
	handle  func(*request) error
}

func newRoute(method, pattern, summary string, e endpoint, query []param) route {
	rt := route{method: method, pattern: pattern, summary: summary, query: query, endpoint: e}
	rt.need, _ = access.NeedOf(access.V1, rt.muxPattern()) // New refuses a route without one
	return rt
}

// isPublic reports whether a route needs no key.
func (rt route) isPublic() bool {
	return rt.need == access.Public || rt.need == access.Signed || rt.need == access.Function || rt.checksBrokerToken()
}

func get(pattern, summary string, e endpoint, query ...param) route {
	return newRoute(http.MethodGet, pattern, summary, e, query)
}

func post(pattern, summary string, e endpoint, query ...param) route {
	return newRoute(http.MethodPost, pattern, summary, e, query)
}

func put(pattern, summary string, e endpoint, query ...param) route {
	return newRoute(http.MethodPut, pattern, summary, e, query)
}

func patch(pattern, summary string, e endpoint, query ...param) route {
	return newRoute(http.MethodPatch, pattern, summary, e, query)
}

func del(pattern, summary string, e endpoint, query ...param) route {
	return newRoute(http.MethodDelete, pattern, summary, e, query)
}

func anyMethod(pattern, summary string, e endpoint) route {
	return newRoute("", pattern, summary, e, nil)
}

// alias marks a route as another name of an earlier one.
func alias(rt route) route {
	rt.alias = true
	return rt
}

// tagged puts routes under a heading of the OpenAPI document.
func tagged(tag string, routes ...route) []route {
	for i := range routes {
		routes[i].tag = tag
	}
	return routes
}

func (rt route) muxPattern() string { return strings.TrimSpace(rt.method + " " + rt.pattern) }

// checkQuery refuses a query with names that the route does not read, so that a misspelt filter does not select
// everything. The program behind a port reads the query of a forwarded request, and public routes ignore theirs.
func (rt route) checkQuery(q url.Values) error {
	if rt.isPublic() || forwards(rt.pattern) {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(q)) {
		if name != "access_token" && !slices.ContainsFunc(rt.query, func(p param) bool { return p.matches(name) }) {
			names := []string{}
			for _, p := range rt.query {
				names = append(names, p.name)
			}
			known := "none are known here"
			if len(names) > 0 {
				known = "known are " + strings.Join(names, ", ")
			}
			return api.Errorf(api.Invalid, "%s: no such name in the query: %s", truncate(name), known).
				With("field", truncate(name))
		}
	}
	return nil
}

// matches reports whether a name in a query is this parameter. A parameter that ends in braces stands for all names
// that begin like it.
func (p param) matches(name string) bool {
	prefix, _, many := strings.Cut(p.name, "{")
	return name == p.name || many && strings.HasPrefix(name, prefix)
}

// jsonOut is an endpoint without a body that sends JSON.
func jsonOut[Out any](status int, do func(*request) (Out, error)) endpoint {
	return endpoint{out: reflect.TypeFor[Out](), status: status, handle: func(rq *request) error {
		out, err := do(rq)
		if err != nil {
			return err
		}
		writeJSON(rq.w, status, out)
		return nil
	}}
}

// jsonInOut is an endpoint with a JSON body that sends JSON.
func jsonInOut[In, Out any](status int, do func(*request, In) (Out, error)) endpoint {
	return endpoint{
		in:     reflect.TypeFor[In](),
		out:    reflect.TypeFor[Out](),
		status: status,
		handle: func(rq *request) error {
			var in In
			if err := rq.decode(&in); err != nil {
				return err
			}
			out, err := do(rq, in)
			if err != nil {
				return err
			}
			writeJSON(rq.w, status, out)
			return nil
		},
	}
}

// noContent is an endpoint without a body that sends 204.
func noContent(do func(*request) error) endpoint {
	return endpoint{status: http.StatusNoContent, handle: func(rq *request) error {
		if err := do(rq); err != nil {
			return err
		}
		rq.w.WriteHeader(http.StatusNoContent)
		return nil
	}}
}

// jsonIn is an endpoint with a JSON body that sends 204.
func jsonIn[In any](do func(*request, In) error) endpoint {
	e := noContent(func(rq *request) error {
		var in In
		if err := rq.decode(&in); err != nil {
			return err
		}
		return do(rq, in)
	})
	e.in = reflect.TypeFor[In]()
	return e
}

// raw is an endpoint whose handler writes a response of the given media type itself.
func raw(gives string, handle func(*request) error) endpoint {
	return endpoint{status: http.StatusOK, gives: gives, handle: handle}
}
