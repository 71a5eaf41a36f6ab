package functionapi

import (
	"reflect"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/apiroute"
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
type Route = apiroute.Route[API]

// Routes returns the routes of functions and queues.
func Routes() []Route {
	return append(append(functionRoutes(), runRoutes()...), queueRoutes()...)
}

func functionRoutes() []Route {
	deploy := apiroute.Out("POST", functionPath+"/deploy", 200,
		"Deploy a bundle, a form with the file bundle and the field entrypoint; responds when the version is ready",
		API.deploy, apiroute.Query("wait", "string", "0: respond at once; the version is built in the background."))
	deploy.Takes = "multipart/form-data"
	return []Route{
		apiroute.InOut("POST", Path, 201, "Create a function; with code, its first version", API.create),
		apiroute.Out("GET", Path, 200, "List functions, newest first", API.list),
		apiroute.Out("GET", functionPath, 200, "Get a function by id or name", API.get),
		apiroute.InOut("PATCH", functionPath, 200, "Change a function; absent fields stay", API.update),
		apiroute.Empty("DELETE", functionPath, "Delete a function with its versions and runs", API.remove),
		apiroute.Stream("GET", functionPath+"/code", octets, "Get the code of the newest version, compressed with gzip",
			API.code),
		deploy,
		apiroute.InOut("POST", functionPath+"/rollback", 200, "Go back to an earlier version at once", API.rollback),
		apiroute.Out("GET", functionPath+"/metrics", 200, "Get figures of the invocations of the last hours",
			API.metrics,
			apiroute.Query("period", "integer", "Hours, 1 to 720; 24 if absent.")),

		apiroute.Out("GET", versionsPath, 200, "List versions, newest first", API.versions),
		apiroute.Out("GET", versionPath, 200, "Get a version", API.version),
		apiroute.Empty("DELETE", versionPath, "Delete a version that no alias names and that is not live",
			API.deleteVersion),
		apiroute.Stream("GET", versionPath+"/code", octets, "Get the code of a version, compressed with gzip",
			API.versionCode),
		apiroute.Stream("GET", versionPath+"/logs", "text/plain", "Get the log of the build of a version",
			API.buildLog),
		apiroute.Out("GET", aliasesPath, 200, "List aliases by name", API.aliases),
		apiroute.InOut("PUT", aliasPath, 200, "Set an alias to a version, or to two with weights", API.setAlias),
		apiroute.Empty("DELETE", aliasPath, "Delete an alias", API.deleteAlias),
	}
}

func runRoutes() []Route {
	mapping := apiroute.Stream("POST", functionPath+"/map", ndjson,
		"Invoke a function for up to 1000 inputs; a line for each run that has ended, and one at the end",
		API.mapInputs)
	mapping.In = reflect.TypeFor[api.MapRequest]()
	invoke := apiroute.InOut("POST", functionPath+"/invoke", 200,
		"Invoke a function with an event; responds when the run has ended, or with 202 and the queued run if async",
		API.invoke)
	invoke.Handle = API.serveInvoke
	return []Route{
		invoke,
		mapping,
		apiroute.InOut("POST", runsPath, 201, "Record a run that the client has made itself; nothing is invoked",
			API.record),
		apiroute.Out("GET", runsPath, 200, "List runs, newest first", API.runs,
			apiroute.Query("status", "string", "Only with this status."),
			apiroute.Query("version", "integer", "Only of this version."),
			apiroute.Query("limit", "integer", "At most so many, 1 to 1000; 100 if absent."),
			apiroute.Query("before", "string", "Only runs older than this one.")),
		apiroute.Out("GET", runPath, 200, "Get a run with its output", API.run),
		apiroute.Out("POST", runPath+"/cancel", 200, "Cancel an asynchronous run that has not ended", API.cancel),
		apiroute.Stream("GET", functionPath+"/logs", sse,
			"Get the last runs with their output as events, oldest first, then done",
			API.logs,
			apiroute.Query("follow", "string", "1: continue with the runs that end from now on."),
			apiroute.Query("limit", "integer", "So many of the last runs, 0 to 1000; 20 if absent.")),
		apiroute.Stream("", InvokePattern, "*/*", "Send a request to a function, as to its URL", API.httpInvoke),
		apiroute.Stream("", ProxyPattern, "*/*", "Send a request with a path to a function, as to its URL",
			API.httpInvoke),
	}
}

func queueRoutes() []Route {
	return []Route{
		apiroute.InOut("POST", queuesPath, 201, "Create a queue", API.createQueue),
		apiroute.Out("GET", queuesPath, 200, "List queues by name", API.queues),
		apiroute.Out("GET", queuePath, 200, "Get a queue with how many messages it has", API.queue),
		apiroute.InOut("PATCH", queuePath, 200, "Change the settings of a queue", API.updateQueue),
		apiroute.Empty("DELETE", queuePath, "Delete a queue with its messages", API.deleteQueue),
		apiroute.InOut("POST", queuePath+"/messages", 201, "Send messages", API.send),
		apiroute.InOut("POST", queuePath+"/receive", 200, "Receive messages, which are hidden from others for a time",
			API.receive),
		apiroute.In("POST", queuePath+"/ack", "Remove messages that were received", API.ack),
		apiroute.In("POST", queuePath+"/extend", "Give more time to acknowledge a message", API.extend),
	}
}
