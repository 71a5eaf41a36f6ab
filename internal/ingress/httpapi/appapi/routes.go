package appapi

import (
	"net/http"
	"reflect"

	"github.com/pandastack/pandastack/api"
)

// Patterns of the routes.
const (
	Path         = "/v1/apps"
	appPath      = Path + "/{app}"
	deploysPath  = appPath + "/deploys"
	deployPath   = deploysPath + "/{deployment}"
	varPath      = appPath + "/env/{key}"
	domainPath   = appPath + "/domains/{domain}"
	reposPath    = "/v1/preview-repos"
	repoEnvPath  = "/v1/repos/{repo}/preview-env"
	ProxyPattern = appPath + "/proxy/{path...}"
)

const sse = "text/event-stream"

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
func out[Out any](method, pattern string, status int, summary string, do func(API, *Call) (Out, error)) Route {
	return Route{
		Method: method, Pattern: pattern, Summary: summary, Status: status, Out: reflect.TypeFor[Out](),
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
func empty(method, pattern, summary string, do func(API, *Call) error, query ...Param) Route {
	return Route{
		Method: method, Pattern: pattern, Summary: summary, Status: http.StatusNoContent, Query: query,
		Handle: func(a API, c *Call) error {
			err := do(a, c)
			if err == nil {
				c.W.WriteHeader(http.StatusNoContent)
			}
			return err
		},
	}
}

// stream is a route that writes a response of its own.
func stream(method, pattern, gives, summary string, do func(API, *Call) error, query ...Param) Route {
	return Route{
		Method: method, Pattern: pattern, Summary: summary, Status: http.StatusOK, Gives: gives, Query: query,
		Handle: do,
	}
}

// Routes returns the routes of apps.
func Routes() []Route {
	format := Param{"format", "string", "json: the data of events are objects; lines of text if absent."}
	run := stream("POST", appPath+"/run", sse,
		"Run a command once in a machine of the live deployment; events start, stdout, stderr, then exit or error",
		API.run)
	run.In = reflect.TypeFor[api.AppRunRequest]()
	upload := out("POST", appPath+"/uploads", 201, "Send the files of an app as a tar stream, for a deployment",
		API.upload)
	upload.Takes = "application/octet-stream"
	return []Route{
		inOut("POST", Path, 201, "Create an app, which is not deployed yet", API.create),
		out("GET", Path, 200, "List apps, newest first", API.list),
		out("GET", appPath, 200, "Get an app by id or name", API.get),
		inOut("PATCH", appPath, 200, "Change an app; absent fields stay", API.update),
		empty("DELETE", appPath, "Delete an app with all its deployments", API.remove),
		out("GET", appPath+"/stats", 200, "Get what an app did lately", API.stats),

		upload,
		inOut("POST", deploysPath, 202, "Begin to deploy an app", API.deploy),
		out("GET", deploysPath, 200, "List the deployments of an app, newest first", API.deployments),
		out("GET", deployPath, 200, "Get a deployment", API.deployment),
		stream("GET", deployPath+"/logs", sse,
			"Follow the log of a deployment: lines, then done; Last-Event-ID resumes a stream that was cut",
			API.deployLogs,
			Param{"after", "integer", "Only lines with higher numbers."},
			Param{"follow", "string", "0: only the lines that there are."},
			format,
		),
		out("POST", deployPath+"/cancel", 200, "Cancel a deployment that is not live yet", API.cancel),
		inOut("POST", appPath+"/rollback", 200, "Go back to an earlier deployment", API.rollback),
		stream("GET", appPath+"/runtime-logs", "text/plain", "Get what the replicas of an app printed",
			API.runtimeLogs,
			Param{"follow", "string", "1: continue with new lines as events."},
			format,
		),
		run,

		out("GET", appPath+"/env", 200, "List the variables of an app; values of secrets are masked", API.env),
		inOut("PUT", varPath, 200, "Set a variable, for deployments to come", API.setVariable),
		empty("DELETE", varPath, "Remove a variable", API.deleteVariable,
			Param{"scope", "string", "Only of this scope: all, production or preview."}),
		inOut("POST", appPath+"/env/import", 200, "Set the variables of a dotenv file", API.importEnv),

		out("GET", appPath+"/domains", 200, "List the custom domains of an app", API.listDomains),
		inOut("POST", appPath+"/domains", 201, "Add a custom domain; the response has the records to set",
			API.addDomain),
		out("GET", domainPath, 200, "Get a custom domain with its state", API.domain),
		empty("DELETE", domainPath, "Remove a custom domain and its certificate", API.deleteDomain),

		stream("", ProxyPattern, "*/*", "Forward to an app, WebSockets included", API.proxy),

		out("POST", appPath+"/webhook", 200, "Make the secret with which a repository notifies the app of changes",
			API.webhook),
		out("GET", reposPath, 200, "List repositories whose pull requests get previews", API.previewRepos),
		inOut("POST", reposPath, 200, "Make previews of the pull requests of a repository", API.enablePreviewRepo),
		empty("DELETE", reposPath+"/{repo}", "Make no more previews of a repository", API.disablePreviewRepo),
		out("GET", repoEnvPath, 200, "List the variables of a repository's previews", API.previewEnv),
		inOut("PUT", repoEnvPath+"/{key}", 200, "Set a variable of a repository's previews",
			API.setPreviewVariable),
		empty("DELETE", repoEnvPath+"/{key}", "Remove a variable of a repository's previews",
			API.deletePreviewVariable),
		inOut("POST", repoEnvPath+"/import", 200, "Set variables of a repository's previews from a dotenv file",
			API.importPreviewEnv),
	}
}
