package appapi

import (
	"reflect"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/apiroute"
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
type Route = apiroute.Route[API]

// Routes returns the routes of apps.
func Routes() []Route {
	format := apiroute.Query("format", "string", "json: the data of events are objects; lines of text if absent.")
	run := apiroute.Stream("POST", appPath+"/run", sse,
		"Run a command once in a machine of the live deployment; events start, stdout, stderr, then exit or error",
		API.run)
	run.In = reflect.TypeFor[api.AppRunRequest]()
	upload := apiroute.Out("POST", appPath+"/uploads",
		201, "Send the files of an app as a tar stream, for a deployment",
		API.upload)
	upload.Takes = "application/octet-stream"
	return []Route{
		apiroute.InOut("POST", Path, 201, "Create an app, which is not deployed yet", API.create),
		apiroute.Out("GET", Path, 200, "List apps, newest first", API.list),
		apiroute.Out("GET", appPath, 200, "Get an app by id or name", API.get),
		apiroute.InOut("PATCH", appPath, 200, "Change an app; absent fields stay", API.update),
		apiroute.Empty("DELETE", appPath, "Delete an app with all its deployments", API.remove),
		apiroute.Out("GET", appPath+"/stats", 200, "Get what an app did lately", API.stats),

		upload,
		apiroute.InOut("POST", deploysPath, 202, "Begin to deploy an app", API.deploy),
		apiroute.Out("GET", deploysPath, 200, "List the deployments of an app, newest first", API.deployments),
		apiroute.Out("GET", deployPath, 200, "Get a deployment", API.deployment),
		apiroute.Stream("GET", deployPath+"/logs", sse,
			"Follow the log of a deployment: lines, then done; Last-Event-ID resumes a stream that was cut",
			API.deployLogs,
			apiroute.Query("after", "integer", "Only lines with higher numbers."),
			apiroute.Query("follow", "string", "0: only the lines that there are."),
			format,
		),
		apiroute.Out("POST", deployPath+"/cancel", 200, "Cancel a deployment that is not live yet", API.cancel),
		apiroute.InOut("POST", appPath+"/rollback", 200, "Go back to an earlier deployment", API.rollback),
		apiroute.Stream("GET", appPath+"/runtime-logs", "text/plain", "Get what the replicas of an app printed",
			API.runtimeLogs,
			apiroute.Query("follow", "string", "1: continue with new lines as events."),
			format,
		),
		run,

		apiroute.Out("GET", appPath+"/env", 200, "List the variables of an app; values of secrets are masked", API.env),
		apiroute.InOut("PUT", varPath, 200, "Set a variable, for deployments to come", API.setVariable),
		apiroute.Empty("DELETE", varPath, "Remove a variable", API.deleteVariable,
			apiroute.Query("scope", "string", "Only of this scope: all, production or preview.")),
		apiroute.InOut("POST", appPath+"/env/import", 200, "Set the variables of a dotenv file", API.importEnv),

		apiroute.Out("GET", appPath+"/domains", 200, "List the custom domains of an app", API.listDomains),
		apiroute.InOut("POST", appPath+"/domains", 201, "Add a custom domain; the response has the records to set",
			API.addDomain),
		apiroute.Out("GET", domainPath, 200, "Get a custom domain with its state", API.domain),
		apiroute.Empty("DELETE", domainPath, "Remove a custom domain and its certificate", API.deleteDomain),

		apiroute.Stream("", ProxyPattern, "*/*", "Forward to an app, WebSockets included", API.proxy),

		apiroute.Out("POST", appPath+"/webhook",
			200, "Make the secret with which a repository notifies the app of changes",
			API.webhook),
		apiroute.Out("GET", reposPath, 200, "List repositories whose pull requests get previews", API.previewRepos),
		apiroute.InOut("POST", reposPath, 200, "Make previews of the pull requests of a repository",
			API.enablePreviewRepo),
		apiroute.Empty("DELETE", reposPath+"/{repo}", "Make no more previews of a repository", API.disablePreviewRepo),
		apiroute.Out("GET", repoEnvPath, 200, "List the variables of a repository's previews", API.previewEnv),
		apiroute.InOut("PUT", repoEnvPath+"/{key}", 200, "Set a variable of a repository's previews",
			API.setPreviewVariable),
		apiroute.Empty("DELETE", repoEnvPath+"/{key}", "Remove a variable of a repository's previews",
			API.deletePreviewVariable),
		apiroute.InOut("POST", repoEnvPath+"/import",
			200, "Set variables of a repository's previews from a dotenv file",
			API.importPreviewEnv),
	}
}
