package functionapi

import (
	"net/http"
	"reflect"

	"github.com/pandastack/pandastack/api"
)

// Patterns of the routes.
const (
	Path          = "/v1/functions"
	functionPath  = Path + "/{function}"
	versionsPath  = functionPath + "/versions"
	versionPath   = versionsPath + "/{version}"
	aliasesPath   = functionPath + "/aliases"
	aliasPath     = aliasesPath + "/{alias}"
	runsPath      = functionPath + "/runs"
	runPath       = runsPath + "/{run}"
	queuesPath    = "/v1/queues"
	queuePath     = queuesPath + "/{queue}"
	InvokePattern = functionPath + "/http-invoke"
	ProxyPattern  = InvokePattern + "/{path...}"
)

// Media types.
const (
	ndjson = "application/x-ndjson"
	octets = "application/octet-stream"
	sse    = "text/event-stream"
)

// Route is one line of the table of routes.
type Route struct {
	Method, Pattern, Summary string // Method "" is any
	Query                    []Param
	Status                   int
	In, Out                  reflect.Type // nil: nothing, or not JSON
	Takes, Gives             string       // media types of what is not JSON
	Handle                   func(API, *Call) error
}

// Param is a parameter of the query.
type Param struct{ Name, Kind, Doc string }

// out is a route without a body that sends JSON.
func out[Out any](
	method, pattern string,
	status int,
	summary string,
	do func(API, *Call) (Out, error),
	query ...Param,
) Route {
	return Route{
		Method: method, Pattern: pattern, Summary: summary, Status: status, Out: reflect.TypeFor[Out](), Query: query,
		Handle: func(a API, c *Call) error {
			v, err := do(a, c)
			if err == nil {
				c.JSON(status, v)
			}
			return err
		},
	}
}

// inOut is a route with a JSON body that sends JSON.
func inOut[In, Out any](
	method, pattern string,
	status int,
	summary string,
	do func(API, *Call, In) (Out, error),
) Route {
	rt := out(method, pattern, status, summary, func(a API, c *Call) (none Out, err error) {
		var in In
		if err := c.Decode(&in); err != nil {
			return none, err
		}
		return do(a, c, in)
	})
	rt.In = reflect.TypeFor[In]()
	return rt
}

// empty is a route without a body that sends 204.
func empty(method, pattern, summary string, do func(API, *Call) error) Route {
	return Route{
		Method: method, Pattern: pattern, Summary: summary, Status: http.StatusNoContent,
		Handle: func(a API, c *Call) error {
			err := do(a, c)
			if err == nil {
				c.W.WriteHeader(http.StatusNoContent)
			}
			return err
		},
	}
}

// in is a route with a JSON body that sends 204.
func in[In any](method, pattern, summary string, do func(API, *Call, In) error) Route {
	rt := empty(method, pattern, summary, func(a API, c *Call) error {
		var in In
		if err := c.Decode(&in); err != nil {
			return err
		}
		return do(a, c, in)
	})
	rt.In = reflect.TypeFor[In]()
	return rt
}

// stream is a route that writes a response of its own.
func stream(method, pattern, gives, summary string, do func(API, *Call) error, query ...Param) Route {
	return Route{
		Method: method, Pattern: pattern, Summary: summary, Status: http.StatusOK, Gives: gives, Query: query,
		Handle: do,
	}
}

// Routes returns the routes of functions and queues.
func Routes() []Route {
	return append(append(functionRoutes(), runRoutes()...), queueRoutes()...)
}

func functionRoutes() []Route {
	deploy := out("POST", functionPath+"/deploy", 200,
		"Deploy a bundle, a form with the file bundle and the field entrypoint; responds when the version is ready",
		API.deploy, Param{"wait", "string", "0: respond at once; the version is built in the background."})
	deploy.Takes = "multipart/form-data"
	return []Route{
		inOut("POST", Path, 201, "Create a function; with code, its first version", API.create),
		out("GET", Path, 200, "List functions, newest first", API.list),
		out("GET", functionPath, 200, "Get a function by id or name", API.get),
		inOut("PATCH", functionPath, 200, "Change a function; absent fields stay", API.update),
		empty("DELETE", functionPath, "Delete a function with its versions and runs", API.remove),
		stream("GET", functionPath+"/code", octets, "Get the code of the newest version, compressed with gzip",
			API.code),
		deploy,
		inOut("POST", functionPath+"/rollback", 200, "Go back to an earlier version at once", API.rollback),
		out("GET", functionPath+"/metrics", 200, "Get figures of the invocations of the last hours", API.metrics,
			Param{"period", "integer", "Hours, 1 to 720; 24 if absent."}),

		out("GET", versionsPath, 200, "List versions, newest first", API.versions),
		out("GET", versionPath, 200, "Get a version", API.version),
		empty("DELETE", versionPath, "Delete a version that no alias names and that is not live", API.deleteVersion),
		stream("GET", versionPath+"/code", octets, "Get the code of a version, compressed with gzip",
			API.versionCode),
		stream("GET", versionPath+"/logs", "text/plain", "Get the log of the build of a version", API.buildLog),
		out("GET", aliasesPath, 200, "List aliases by name", API.aliases),
		inOut("PUT", aliasPath, 200, "Set an alias to a version, or to two with weights", API.setAlias),
		empty("DELETE", aliasPath, "Delete an alias", API.deleteAlias),
	}
}

func runRoutes() []Route {
	mapping := stream("POST", functionPath+"/map", ndjson,
		"Invoke a function for up to 1000 inputs; a line for each run that has ended, and one at the end",
		API.mapInputs)
	mapping.In = reflect.TypeFor[api.MapRequest]()
	invoke := inOut("POST", functionPath+"/invoke", 200,
		"Invoke a function with an event; responds when the run has ended, or with 202 and the queued run if async",
		API.invoke)
	invoke.Handle = API.serveInvoke
	return []Route{
		invoke,
		mapping,
		inOut("POST", runsPath, 201, "Record a run that the client has made itself; nothing is invoked", API.record),
		out("GET", runsPath, 200, "List runs, newest first", API.runs,
			Param{"status", "string", "Only with this status."},
			Param{"version", "integer", "Only of this version."},
			Param{"limit", "integer", "At most so many, 1 to 1000; 100 if absent."},
			Param{"before", "string", "Only runs older than this one."}),
		out("GET", runPath, 200, "Get a run with its output", API.run),
		out("POST", runPath+"/cancel", 200, "Cancel an asynchronous run that has not ended", API.cancel),
		stream("GET", functionPath+"/logs", sse,
			"Get the last runs with their output as events, oldest first, then done",
			API.logs,
			Param{"follow", "string", "1: continue with the runs that end from now on."},
			Param{"limit", "integer", "So many of the last runs, 0 to 1000; 20 if absent."}),
		stream("", InvokePattern, "*/*", "Send a request to a function, as to its URL", API.httpInvoke),
		stream("", ProxyPattern, "*/*", "Send a request with a path to a function, as to its URL", API.httpInvoke),
	}
}

func queueRoutes() []Route {
	return []Route{
		inOut("POST", queuesPath, 201, "Create a queue", API.createQueue),
		out("GET", queuesPath, 200, "List queues by name", API.queues),
		out("GET", queuePath, 200, "Get a queue with how many messages it has", API.queue),
		inOut("PATCH", queuePath, 200, "Change the settings of a queue", API.updateQueue),
		empty("DELETE", queuePath, "Delete a queue with its messages", API.deleteQueue),
		inOut("POST", queuePath+"/messages", 201, "Send messages", API.send),
		inOut("POST", queuePath+"/receive", 200, "Receive messages, which are hidden from others for a time",
			API.receive),
		in("POST", queuePath+"/ack", "Remove messages that were received", API.ack),
		in("POST", queuePath+"/extend", "Give more time to acknowledge a message", API.extend),
	}
}
