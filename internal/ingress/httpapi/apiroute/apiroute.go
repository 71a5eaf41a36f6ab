// Package apiroute describes the routes of a part of the API that has a package of its own, and their calls.
//
// A is what the handlers of such a package have for receiver: its services. Package httpapi authorizes callers, decodes
// bodies and writes the document of the API.
package apiroute

import (
	"context"
	"net/http"
	"reflect"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/execstream"
)

// Call is one authorized request of a route.
type Call struct {
	W         http.ResponseWriter
	R         *http.Request
	Principal auth.Principal // of a route without authorization, its handler sets it for the audit log

	Decode func(v any) error       // reads and checks the JSON body
	JSON   func(status int, v any) // sends a response
	Fail   func(http.ResponseWriter, *http.Request, *api.Error)
	Inner  func() (*http.Request, string, error) // the request below a proxy's path, and what precedes that path
	Memory *execstream.Memory                    // pays for what the call buffers

	Target string // what the call made, for the audit log; "": what its path names
	Action string // what the call did, for the audit log; "": what its route says
}

// Context returns the context of the request.
func (c *Call) Context() context.Context { return c.R.Context() }

// Route is one line of the table of routes.
type Route[A any] struct {
	Method, Pattern, Summary string // Method "" is any
	Query                    []Param
	Status                   int
	In, Out                  reflect.Type // nil: nothing, or not JSON
	Takes, Gives             string       // media types of what is not JSON
	Handle                   func(A, *Call) error
}

// Param is a parameter of the query.
type Param struct{ Name, Kind, Doc string }

// Query returns a parameter of a kind of JSON Schema.
func Query(name, kind, doc string) Param { return Param{name, kind, doc} }

// Out is a route without a body that sends JSON.
func Out[A, O any](
	method, pattern string,
	status int,
	summary string,
	do func(A, *Call) (O, error),
	query ...Param,
) Route[A] {
	return Route[A]{
		Method: method, Pattern: pattern, Summary: summary, Status: status, Out: reflect.TypeFor[O](), Query: query,
		Handle: func(a A, c *Call) error {
			v, err := do(a, c)
			if err == nil {
				c.JSON(status, v)
			}
			return err
		},
	}
}

// InOut is a route with a JSON body that sends JSON.
func InOut[A, I, O any](
	method, pattern string,
	status int,
	summary string,
	do func(A, *Call, I) (O, error),
) Route[A] {
	rt := Out(method, pattern, status, summary, func(a A, c *Call) (none O, err error) {
		var in I
		if err := c.Decode(&in); err != nil {
			return none, err
		}
		return do(a, c, in)
	})
	rt.In = reflect.TypeFor[I]()
	return rt
}

// Empty is a route without a body that sends 204.
func Empty[A any](method, pattern, summary string, do func(A, *Call) error, query ...Param) Route[A] {
	return Route[A]{
		Method: method, Pattern: pattern, Summary: summary, Status: http.StatusNoContent, Query: query,
		Handle: func(a A, c *Call) error {
			err := do(a, c)
			if err == nil {
				c.W.WriteHeader(http.StatusNoContent)
			}
			return err
		},
	}
}

// In is a route with a JSON body that sends 204.
func In[A, I any](method, pattern, summary string, do func(A, *Call, I) error) Route[A] {
	rt := Empty(method, pattern, summary, func(a A, c *Call) error {
		var in I
		if err := c.Decode(&in); err != nil {
			return err
		}
		return do(a, c, in)
	})
	rt.In = reflect.TypeFor[I]()
	return rt
}

// Stream is a route that writes a response of its own.
func Stream[A any](
	method, pattern, gives, summary string,
	do func(A, *Call) error,
	query ...Param,
) Route[A] {
	return Route[A]{
		Method: method, Pattern: pattern, Summary: summary, Status: http.StatusOK, Gives: gives, Query: query,
		Handle: do,
	}
}
