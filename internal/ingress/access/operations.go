package access

import (
	"strings"

	"github.com/pandastack/pandastack/api"
)

// Need is what an operation needs of its caller: a scope of the key, or one of the words below.
type Need string

// What operations need in place of a key.
const (
	Public  Need = "public"  // nothing
	Token   Need = "token"   // the token of the sandbox's agent, if it has one
	Traffic Need = "traffic" // that token or the one for traffic, if the sandbox has them
	Signed  Need = "signed"  // a signature in the address
	Broker  Need = "broker"  // the broker token of the database
	// Function is what the settings of the function say: a key with the scope ports, a signature, or nothing.
	Function Need = "function"
)

// The scopes as needs.
const (
	read      = Need(api.ScopeRead)
	exec      = Need(api.ScopeExec)
	files     = Need(api.ScopeFiles)
	lifecycle = Need(api.ScopeLifecycle)
	ports     = Need(api.ScopePorts)
	build     = Need(api.ScopeBuild)
	keys      = Need(api.ScopeKeys)
	auditing  = Need(api.ScopeAudit)
	metrics   = Need(api.ScopeMetrics)
	node      = Need(api.ScopeNode)
)

// Scope returns the scope that is needed; false for a need without a key.
func (n Need) Scope() (api.Scope, bool) { return api.Scope(n), api.Scope(n).Valid() }

// Face is an API with operations of its own.
type Face string

// The faces.
const (
	V1          Face = "v1"          // /v1 and the paths beside it
	E2B         Face = "e2b"         // E2B's control API
	Agent       Face = "agent"       // E2B's agent, on a port of each sandbox
	Interpreter Face = "interpreter" // E2B's code interpreter, on a port of each sandbox
	Git         Face = "git"         // repositories of apps
	Webhooks    Face = "webhooks"    // deliveries of the programs that host repositories
)

// NeedOf returns what an operation needs: a pattern of net/http with its method, if it has one. false: it is not
// declared, and must not be served.
func NeedOf(face Face, pattern string) (Need, bool) {
	n, ok := operations[face][pattern]
	return n, ok
}

// Recorded reports whether calls of an operation are recorded although they succeed: those that may change something,
// and those that open a shell.
func Recorded(face Face, pattern string) bool {
	need, ok := NeedOf(face, pattern)
	method, _, _ := strings.Cut(pattern, " ")
	switch {
	case !ok || need == Public:
		return false
	case face == Agent:
		return recordedOfAgent[pattern]
	case method == "GET" || method == "HEAD":
		return need == exec
	}
	return true
}

// fileReads are the operations that send the content of a file, whose path is in the query.
var fileReads = map[Face]map[string]bool{
	V1:    {"GET " + box + "/fs": true, "GET " + vol + "/fs": true, "GET " + vol + "/export": true},
	E2B:   {"GET /volumecontent/{id}/file": true},
	Agent: {"GET /files": true},
}

// recordedOfAgent are the operations of the agent that are recorded. Input, polls and reads are not.
var recordedOfAgent = map[string]bool{
	"/process.Process/Start": true, "/process.Process/Connect": true, "/process.Process/SendSignal": true,
	"/filesystem.Filesystem/MakeDir": true, "/filesystem.Filesystem/Move": true,
	"/filesystem.Filesystem/Remove": true, "POST /files": true, "POST /files/compose": true,
}

// operations declares what each operation needs. A server does not start with one that is missing here.
var operations = map[Face]map[string]Need{
	V1:  operationsV1,
	E2B: operationsE2B,
	Agent: {
		"GET /health": Public, "/": Public, // not found
		"GET /metrics": Token, "GET /envs": Token,
		"GET /files": Token, "POST /files": Token, "POST /files/compose": Token, // or a signature in the address
		"/process.Process/List": Token, "/process.Process/Connect": Token, "/process.Process/Start": Token,
		"/process.Process/Update": Token, "/process.Process/StreamInput": Token, "/process.Process/SendInput": Token,
		"/process.Process/SendSignal": Token, "/process.Process/CloseStdin": Token,
		"/filesystem.Filesystem/Stat": Token, "/filesystem.Filesystem/MakeDir": Token,
		"/filesystem.Filesystem/Move": Token, "/filesystem.Filesystem/ListDir": Token,
		"/filesystem.Filesystem/Remove": Token, "/filesystem.Filesystem/WatchDir": Token,
		"/filesystem.Filesystem/CreateWatcher": Token, "/filesystem.Filesystem/GetWatcherEvents": Token,
		"/filesystem.Filesystem/RemoveWatcher": Token,
	},
	Interpreter: {
		"GET /health": Token, "POST /execute": Token, "POST /contexts": Traffic, "GET /contexts": Traffic,
		"DELETE /contexts/{id}": Traffic, "POST /contexts/{id}/restart": Traffic,
	},
	Git: {
		"GET /git/{app}/info/refs":        files, // to push: as git-receive-pack
		"POST /git/{app}/git-upload-pack": files, "POST /git/{app}/git-receive-pack": lifecycle,
	},
	Webhooks: {"POST /v1/webhooks/apps/{app}": Signed},
}

const (
	box      = "/v1/sandboxes/{sandbox}"
	snap     = "/v1/snapshots/{snapshot}"
	vol      = "/v1/volumes/{volume}"
	dbs      = "/v1/databases/{database}"
	app      = "/v1/apps/{app}"
	cron     = "/v1/schedules/{schedule}"
	fn       = "/v1/functions/{function}"
	queue    = "/v1/queues/{queue}"
	template = "/v1/templates/{template}"
	builds   = "/v1/templates/builds"
)

var operationsV1 = map[string]Need{
	"POST /v1/sandboxes": lifecycle, "GET /v1/sandboxes": read, "GET " + box: read, "DELETE " + box: lifecycle,
	"POST " + box + "/pause": lifecycle, "POST " + box + "/resume": lifecycle,
	"POST " + box + "/hibernate": lifecycle, "POST " + box + "/wake": lifecycle,
	"POST " + box + "/stop": lifecycle, "POST " + box + "/start": lifecycle,
	"GET " + box + "/lifecycle": read, "PATCH " + box + "/lifecycle": lifecycle,
	"GET " + box + "/network": read, "PUT " + box + "/network": lifecycle,
	"POST " + box + "/fork": lifecycle, "POST " + box + "/fork-tree": lifecycle,
	"POST " + box + "/promote": lifecycle, "POST " + box + "/snapshots": lifecycle,

	"GET /v1/snapshots": read, "GET " + snap: read, "DELETE " + snap: lifecycle,
	"POST " + snap + "/push": lifecycle, "DELETE " + snap + "/push": lifecycle, "POST " + snap + "/pull": lifecycle,

	"POST " + box + "/exec": exec, "POST " + box + "/exec/stream": exec, "GET " + box + "/exec/ws": exec,
	"GET " + box + "/exec/pty": exec, "GET " + box + "/exec/pty/shared": exec, "GET " + box + "/ssh": exec,
	"GET " + box + "/processes": read, "GET " + box + "/processes/{pid}/stream": exec,
	"POST " + box + "/processes/{pid}/signal": exec,

	"GET " + box + "/logs": read, "GET " + box + "/events": read, "GET " + box + "/metrics": read,
	"GET " + box + "/util": read, "GET /v1/metrics/sandbox/{sandbox}": read, "GET /v1/metrics/overview": read,

	"GET /v1/repl/languages": read, "POST " + box + "/repl": exec, "POST " + box + "/repl/sessions": exec,
	"GET " + box + "/repl/sessions": read, "DELETE " + box + "/repl/sessions/{session}": exec,
	"POST " + box + "/repl/sessions/{session}/run": exec,

	"GET " + box + "/fs": files, "PUT " + box + "/fs": files, "DELETE " + box + "/fs": files,
	"GET " + box + "/fs/stat": files, "GET " + box + "/fs/dir": files, "POST " + box + "/fs/mkdir": files,
	"POST " + box + "/fs/move": files,

	"POST /v1/volumes": lifecycle, "GET /v1/volumes": read, "GET " + vol: read, "PATCH " + vol: lifecycle,
	"DELETE " + vol: lifecycle, "POST " + vol + "/clone": lifecycle, "POST " + vol + "/restore": lifecycle,
	"POST " + vol + "/snapshots": lifecycle, "GET " + vol + "/snapshots": read,
	"DELETE " + vol + "/snapshots/{volume_snapshot}": lifecycle, "POST " + vol + "/import": files,
	"GET " + vol + "/export": files, "POST " + vol + "/backups": lifecycle, "GET " + vol + "/backups": read,
	"GET /v1/volume-backups": read, "DELETE /v1/volume-backups/{backup}": lifecycle,
	"POST " + box + "/volumes": lifecycle, "DELETE " + box + "/volumes/{volume}": lifecycle,
	"POST " + box + "/volumes/{volume}/promote": lifecycle,

	"GET " + vol + "/fs": files, "PUT " + vol + "/fs": files, "DELETE " + vol + "/fs": files,
	"GET " + vol + "/fs/stat": files, "GET " + vol + "/fs/dir": files, "POST " + vol + "/fs/mkdir": files,
	"POST " + vol + "/fs/move": files,

	"POST /v1/databases/adopt": node,
	"POST /v1/databases":       lifecycle, "GET /v1/databases": read, "GET " + dbs: read, "PATCH " + dbs: lifecycle,
	"DELETE " + dbs: lifecycle, "GET " + dbs + "/connection": exec, "POST " + dbs + "/wake": lifecycle,
	"POST " + dbs + "/suspend": lifecycle, "POST " + dbs + "/clone": lifecycle, "POST " + dbs + "/failover": lifecycle,
	"POST " + dbs + "/reset": lifecycle, "POST " + dbs + "/upgrade": lifecycle,
	"POST " + dbs + "/reset-credentials": lifecycle, "GET " + dbs + "/stats": read, "GET " + dbs + "/logs": read,
	"GET " + dbs + "/metrics": read, "GET " + dbs + "/insights": read,
	"GET " + dbs + "/backups": read, "POST " + dbs + "/backups": lifecycle, "POST " + dbs + "/rehearsals": lifecycle,
	dbs + "/proxy/{path...}": Broker,

	"POST /v1/apps": lifecycle, "GET /v1/apps": read, "GET " + app: read, "PATCH " + app: lifecycle,
	"DELETE " + app: lifecycle, "GET " + app + "/stats": read, "POST " + app + "/uploads": lifecycle,
	"POST " + app + "/deploys": lifecycle, "GET " + app + "/deploys": read,
	"GET " + app + "/deploys/{deployment}": read, "GET " + app + "/deploys/{deployment}/logs": read,
	"POST " + app + "/deploys/{deployment}/cancel": lifecycle, "POST " + app + "/rollback": lifecycle,
	"GET " + app + "/runtime-logs": read, "POST " + app + "/run": exec,
	"GET " + app + "/env": read, "PUT " + app + "/env/{key}": lifecycle, "DELETE " + app + "/env/{key}": lifecycle,
	"POST " + app + "/env/import": lifecycle, "GET " + app + "/domains": read, "POST " + app + "/domains": lifecycle,
	"GET " + app + "/domains/{domain}": read, "DELETE " + app + "/domains/{domain}": lifecycle,
	"POST " + app + "/webhook": lifecycle, app + "/proxy/{path...}": ports,
	"GET /v1/preview-repos": read, "POST /v1/preview-repos": lifecycle,
	"DELETE /v1/preview-repos/{repo}": lifecycle, "GET /v1/repos/{repo}/preview-env": read,
	"PUT /v1/repos/{repo}/preview-env/{key}": lifecycle, "DELETE /v1/repos/{repo}/preview-env/{key}": lifecycle,
	"POST /v1/repos/{repo}/preview-env/import": lifecycle,

	"POST /v1/functions": lifecycle, "GET /v1/functions": read, "GET " + fn: read, "PATCH " + fn: lifecycle,
	"DELETE " + fn: lifecycle, "GET " + fn + "/code": files, "POST " + fn + "/deploy": lifecycle,
	"POST " + fn + "/rollback": lifecycle, "GET " + fn + "/metrics": read,
	"GET " + fn + "/versions": read, "GET " + fn + "/versions/{version}": read,
	"DELETE " + fn + "/versions/{version}": lifecycle, "GET " + fn + "/versions/{version}/code": files,
	"GET " + fn + "/versions/{version}/logs": read, "GET " + fn + "/aliases": read,
	"PUT " + fn + "/aliases/{alias}": lifecycle, "DELETE " + fn + "/aliases/{alias}": lifecycle,
	"POST " + fn + "/invoke": ports, "POST " + fn + "/map": ports, "POST " + fn + "/runs": lifecycle,
	"GET " + fn + "/runs": read, "GET " + fn + "/runs/{run}": read, "POST " + fn + "/runs/{run}/cancel": ports,
	"GET " + fn + "/logs": read, fn + "/http-invoke": Function, fn + "/http-invoke/{path...}": Function,
	"POST /v1/queues": lifecycle, "GET /v1/queues": read, "GET " + queue: read, "PATCH " + queue: lifecycle,
	"DELETE " + queue: lifecycle, "POST " + queue + "/messages": ports, "POST " + queue + "/receive": ports,
	"POST " + queue + "/ack": ports, "POST " + queue + "/extend": ports,

	"POST /v1/schedules": exec, "GET /v1/schedules": read, "GET " + cron: read, "PATCH " + cron: exec,
	"DELETE " + cron: exec, "POST " + cron + "/trigger": exec, "GET " + cron + "/runs": read,

	"GET " + box + "/ports": read, "POST " + box + "/ports": ports, "DELETE " + box + "/ports/{port}": ports,
	"GET " + box + "/ports/{port}/connect": ports,
	"GET " + box + "/previews":             ports, "DELETE " + box + "/previews": ports,
	"DELETE " + box + "/previews/{preview}": ports,
	"POST " + box + "/preview-token":        ports, "POST " + box + "/preview": ports,
	box + "/proxy/{port}/{path...}": ports, "/v1/p/{token}/{path...}": Signed,

	"GET /v1/templates": read, "GET " + template: read, "DELETE " + template: build,
	"POST " + template + "/tags": build, "DELETE " + template + "/tags/{tag}": build,
	"POST " + template + "/bake": build, "POST /v1/templates/build": build, "POST " + box + "/bake-image": build,
	"GET " + builds: read, "GET " + builds + "/{build}": read, "GET " + builds + "/{build}/logs": read,
	"POST " + builds + "/{build}/cancel": build, "POST " + builds + "/{build}/retry": build,

	"GET /v1/me": read, "POST /v1/me/current-org": read, "GET /v1/orgs": read, "GET /v1/orgs/{org}": read,
	"GET /v1/me/tokens": keys, "POST /v1/me/tokens": keys, "DELETE /v1/me/tokens/{prefix}": keys,
	"POST /v1/me/tokens/{prefix}/rotate": keys,

	"GET /v1/ssh": read, "GET /v1/ssh-keys": read, "POST /v1/ssh-keys": exec, "DELETE /v1/ssh-keys/{ssh_key}": exec,

	"GET /v1/workspace": read, "GET /v1/workspaces": node, "POST /v1/workspaces": node,
	"GET /v1/workspaces/{workspace}": node, "PATCH /v1/workspaces/{workspace}/quotas": node,
	"POST /v1/workspaces/{workspace}/suspend": node, "POST /v1/workspaces/{workspace}/resume": node,

	"GET /v1/capacity": read, "GET /v1/audit": auditing,
	"GET /stats/boot": metrics, "GET /v1/stats/boot": metrics, "GET /metrics": metrics,
	"GET /healthz": Public, "GET /readyz": Public, "GET /version": Public, "GET /v1/version": Public,
	"GET /v1/health": Public, "GET /openapi.json": Public, "GET /v1/openapi.json": Public,
}

var operationsE2B = map[string]Need{
	"GET /health":     Public,
	"POST /sandboxes": lifecycle, "POST /v2/sandboxes": lifecycle, "GET /sandboxes": read, "GET /v2/sandboxes": read,
	"GET /sandboxes/metrics": read, "GET /sandboxes/{id}": read, "DELETE /sandboxes/{id}": lifecycle,
	"POST /sandboxes/{id}/connect": lifecycle, "POST /v2/sandboxes/{id}/connect": lifecycle,
	"POST /sandboxes/{id}/resume": lifecycle, "POST /sandboxes/{id}/pause": lifecycle,
	"POST /sandboxes/{id}/fork": lifecycle, "POST /sandboxes/{id}/timeout": lifecycle,
	"POST /sandboxes/{id}/refreshes": lifecycle, "PUT /sandboxes/{id}/network": lifecycle,
	"GET /sandboxes/{id}/metrics": read, "GET /sandboxes/{id}/logs": read, "GET /v2/sandboxes/{id}/logs": read,
	"POST /sandboxes/{id}/snapshots": lifecycle, "GET /snapshots": read, "GET /teams": read,
	"GET /templates": read, "GET /v2/templates": read, "GET /templates/{id}": read,
	"PATCH /templates/{id}":    build,
	"PATCH /v2/templates/{id}": build, "DELETE /templates/{id}": build, "POST /v3/templates": build,
	"GET /templates/{id}/files/{hash}": build, "POST /v2/templates/{id}/builds/{build}": build,
	"GET /templates/{id}/builds/{build}/status": read, "GET /templates/{id}/builds/{build}/logs": read,
	"POST /templates/tags": build, "DELETE /templates/tags": build, "GET /templates/{id}/{part}": read,
	"PUT /templates/uploads/{hash}": Signed,

	"GET /volumes": read, "POST /volumes": lifecycle, "GET /volumes/{id}": read,
	"DELETE /volumes/{id}": lifecycle,
	// Clients show a token of the volume, which stands for the key that it was given to.
	"GET /volumecontent/{id}/path": files, "PATCH /volumecontent/{id}/path": files,
	"DELETE /volumecontent/{id}/path": files, "GET /volumecontent/{id}/dir": files,
	"POST /volumecontent/{id}/dir": files, "GET /volumecontent/{id}/file": files,
	"PUT /volumecontent/{id}/file": files,
	// The server has none of these; they are refused by name to who holds a key.
	"GET /secrets": read, "POST /secrets": read, "GET /secrets/{id}": read,
	"POST /secrets/{id}": read, "DELETE /secrets/{id}": read, "GET /teams/{id}/metrics": read,
	"GET /teams/{id}/metrics/max": read, "POST /templates": read, "POST /v2/templates": read,
}

// pathOf returns the path of a pattern.
func pathOf(pattern string) string {
	if method, path, ok := strings.Cut(pattern, " "); ok && !strings.Contains(method, "/") {
		return path
	}
	return pattern
}
