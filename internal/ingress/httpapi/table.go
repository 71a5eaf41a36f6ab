package httpapi

import (
	"net/http"
	"reflect"

	"github.com/pandastack/pandastack/api"
)

// Patterns and media types of several routes.
const (
	sandboxesPath = "/v1/sandboxes"
	sandboxPath   = sandboxesPath + "/{sandbox}"
	snapshotsPath = "/v1/snapshots"
	templatePath  = "/v1/templates/{template}"
	buildsPath    = "/v1/templates/builds"
	octets        = "application/octet-stream"
	sse           = "text/event-stream"
	ws            = "websocket"
)

// routes returns the table of all routes.
func routes() []route {
	var all []route
	for _, part := range [][]route{
		sandboxRoutes(),
		forkRoutes(),
		snapshotRoutes(),
		commandRoutes(),
		observationRoutes(),
		codeRoutes(),
		fileRoutes(),
		volumeRoutes(),
		databaseRoutes(),
		scheduleRoutes(),
		appRoutes(),
		functionRoutes(),
		portRoutes(),
		templateRoutes(),
		buildRoutes(),
		keyRoutes(),
		sshRoutes(),
		workspaceRoutes(),
		nodeRoutes(),
	} {
		all = append(all, part...)
	}
	return all
}

// pageParamDocs returns the parameters of lists that have pages.
func pageParamDocs() []param {
	return []param{
		{"limit", "integer", "At most so many, 1 to 1000; all if absent."},
		{"cursor", "string", "X-Next-Cursor of the page before."},
	}
}

func sandboxRoutes() []route {
	list := append([]param{
		{"status", "string", "Only in this state; may be repeated."},
		{"state", "string", "The same as status."},
		{"template", "string", "Only of this template."},
		{"metadata.{key}", "string", "Only with this value under the key."},
		{"order", "string", "asc: oldest first; desc, the default: newest first."},
		{"since", "string", "Only created at this time or later, RFC 3339."},
	}, pageParamDocs()...)
	return tagged("sandboxes",
		post(sandboxesPath, "Create a sandbox", jsonInOut(201, createSandbox)),
		get(sandboxesPath,
			"List sandboxes, newest first unless order says otherwise; X-Next-Cursor leads to the next page",
			jsonOut(200, listSandboxes), list...),
		get(sandboxPath, "Get a sandbox; the 404 of one that ended says why", jsonOut(200, getSandbox)),
		del(sandboxPath, "Delete a sandbox in any state", noContent(deleteSandbox)),
		post(sandboxPath+"/pause", "Pause a sandbox in memory", noContent(pauseSandbox)),
		post(sandboxPath+"/resume", "Resume a paused sandbox", noContent(resumeSandbox)),
		post(sandboxPath+"/hibernate", "Hibernate a sandbox to disk", jsonOut(200, hibernateSandbox)),
		post(sandboxPath+"/wake", "Wake a hibernated sandbox", jsonOut(200, wakeSandbox)),
		alias(post(sandboxPath+"/stop", "Hibernate a sandbox to disk", jsonOut(200, hibernateSandbox))),
		alias(post(sandboxPath+"/start", "Wake a hibernated sandbox", jsonOut(200, wakeSandbox))),
		get(sandboxPath+"/lifecycle", "Get when a sandbox ends by itself", jsonOut(200, getLifecycle)),
		patch(sandboxPath+"/lifecycle", "Change when a sandbox ends by itself", jsonInOut(200, setLifecycle)),
		get(sandboxPath+"/network", "Get what a sandbox may reach", jsonOut(200, getNetwork)),
		put(sandboxPath+"/network", "Replace what a sandbox may reach, at once and for open connections too",
			jsonInOut(200, setNetwork)),
	)
}

func forkRoutes() []route {
	return tagged("sandboxes",
		post(sandboxPath+"/fork", "Fork a running sandbox, memory and disk; the parent keeps running",
			jsonInOut(201, forkSandbox),
			param{"warm", "string", "Accepted from old clients; a fork is always live."}),
		post(sandboxPath+"/fork-tree", "Fork several children of the same moment", jsonInOut(201, forkTree)),
		post(sandboxPath+"/promote", "Make a child the winner of its tree", jsonInOut(200, promote)),
	)
}

func snapshotRoutes() []route {
	const snapshot = snapshotsPath + "/{snapshot}"
	list := append([]param{{"sandbox_id", "string", "Only of this sandbox."}}, pageParamDocs()...)
	return tagged("snapshots",
		post(sandboxPath+"/snapshots", "Take a snapshot of a sandbox, which keeps running",
			jsonInOut(201, takeSnapshot)),
		get(snapshotsPath, "List snapshots, newest first", jsonOut(200, listSnapshots), list...),
		get(snapshot, "Get a snapshot", jsonOut(200, getSnapshot)),
		del(snapshot, "Delete a snapshot", jsonOut(200, deleteSnapshot)),
		post(snapshot+"/push", "Push a snapshot to the object store, where other nodes find it",
			jsonOut(200, pushSnapshot)),
		del(snapshot+"/push", "Delete a snapshot from the object store", jsonOut(200, deletePushed)),
		post(snapshot+"/pull", "Pull a snapshot from the object store to this node", jsonInOut(200, pullSnapshot)),
	)
}

func commandRoutes() []route {
	terminal := []param{
		{"rows", "integer", "24 if absent."}, {"cols", "integer", "80 if absent."},
		{"cmd", "string", "A login shell if absent."},
		{"cwd", "string", "Working directory."}, {"user", "string", "Name or number."},
	}
	shared := append([]param{
		{"session", "string", "Name of the terminal; shared if absent."},
		{"readonly", "string", "1: input of this viewer is dropped."},
	}, terminal...)
	stream := endpoint{in: reflect.TypeFor[api.ExecRequest](), status: 200, gives: sse, handle: execStream}
	return tagged("commands",
		post(sandboxPath+"/exec", "Run a command to its end", jsonInOut(200, exec)),
		post(sandboxPath+"/exec/stream", "Run a command; events start, stdout, stderr, then exit or error", stream),
		get(sandboxPath+"/exec/ws", "Run many commands over one WebSocket", raw(ws, execSocket)),
		get(sandboxPath+"/exec/pty", "Open a terminal over a WebSocket", raw(ws, execPTY), terminal...),
		get(sandboxPath+"/exec/pty/shared", "Join a terminal that several clients share; it outlives them",
			raw(ws, execShared), shared...),
		get(sandboxPath+"/ssh", "Open a terminal for clients that print every message", raw(ws, execSSH), terminal...),
		get(sandboxPath+"/processes", "List processes that run or ended lately", jsonOut(200, listProcesses)),
		get(sandboxPath+"/processes/{pid}/stream", "Follow a process; Last-Event-ID resumes a stream that was cut",
			raw(sse, attachProcess)),
		post(sandboxPath+"/processes/{pid}/signal", "Send a signal to a process", jsonIn(signalProcess)),
	)
}

func observationRoutes() []route {
	eventList := endpoint{out: reflect.TypeFor[api.EventList](), status: 200, handle: events}
	return tagged("observation",
		get(sandboxPath+"/logs", "Get what a sandbox printed, also after its end", raw("text/plain", logs),
			param{"stream", "string", "stdout, stderr, console, or both, which is all of them and the default."},
			param{"follow", "string", "1: continue with new lines as events."}),
		get(sandboxPath+"/events", "Get what happened to a sandbox, also after its end", eventList,
			param{"tail", "integer", "Only the last so many."},
			param{"follow", "string", "1: continue with new ones as server-sent events."}),
		get(sandboxPath+"/metrics", "Get what a sandbox uses now", jsonOut(200, usage)),
		get(sandboxPath+"/util", "Get what a sandbox has used of its host since it started or woke",
			jsonOut(200, hostUsage)),
		get("/v1/metrics/sandbox/{sandbox}", "Get what was measured of a sandbox lately", jsonOut(200, series),
			param{"from", "string", "RFC 3339, or seconds since 1970; an hour before to if absent."},
			param{"to", "string", "RFC 3339, or seconds since 1970; now if absent."},
			param{"step", "string", "15s, the default, 1m, 5m or 1h."}),
		get("/v1/metrics/overview", "Get what the workspace of the key has", jsonOut(200, overview)),
	)
}

func codeRoutes() []route {
	const sessions = sandboxPath + "/repl/sessions"
	return tagged("code",
		get("/v1/repl/languages", "List the languages of contexts", jsonOut(200, replLanguages)),
		post(sandboxPath+"/repl", "Run code in a context of its own", jsonInOut(200, runOnce)),
		post(sessions, "Start a context that keeps variables", jsonInOut(201, startSession)),
		get(sessions, "List contexts", jsonOut(200, listSessions)),
		del(sessions+"/{session}", "End a context", noContent(endSession)),
		post(sessions+"/{session}/run", "Run a cell of code; a timeout interrupts it and keeps the context",
			jsonInOut(200, runInSession)),
	)
}

func fileRoutes() []route { return tagged("files", filesBelow(sandboxPath)...) }

// filesBelow returns the routes of the files of what is at a path.
func filesBelow(at string) []route {
	file := func(more ...param) []param {
		return append([]param{
			{"path", "string", "Absolute, or relative to the user's home."},
			{"user", "string", "Name or number; the sandbox's default if absent."},
		}, more...)
	}
	write := endpoint{out: reflect.TypeFor[api.FileWritten](), status: 200, takes: octets, handle: writeFile}
	return []route{
		get(at+"/fs", "Read a file of any size; Range is honoured", raw(octets, readFile), file()...),
		put(at+"/fs", "Write a file of any size, whole or not at all", write,
			file(param{"mode", "string", "Octal permissions, such as 0755."},
				param{"atomic", "boolean", "false: empty and write an existing file, for its links and readers."})...),
		del(at+"/fs", "Remove a file or directory", noContent(removeFile),
			file(param{"recursive", "string", "1: a directory and everything below it."})...),
		get(at+"/fs/stat", "Describe a file", jsonOut(200, statFile), file()...),
		get(at+"/fs/dir", "List a directory", jsonOut(200, listDir),
			file(param{"depth", "integer", "How deep; 1 if absent."})...),
		post(at+"/fs/mkdir", "Make a directory with its parents", jsonInOut(201, makeDir)),
		post(at+"/fs/move", "Rename a file or directory", jsonInOut(200, moveFile)),
	}
}

func portRoutes() []route {
	return tagged("ports",
		get(sandboxPath+"/ports", "List declared and listening ports", jsonOut(200, listPorts)),
		post(sandboxPath+"/ports", "Declare a port", jsonInOut(201, declarePort)),
		del(sandboxPath+"/ports/{port}", "Remove the declaration of a port", noContent(removePort)),
		get(sandboxPath+"/ports/{port}/connect", "Connect to a TCP port over a WebSocket", raw(ws, connectPort)),
		post(sandboxPath+"/preview-token", "Make a signed address of a port that needs no key",
			jsonInOut(201, makePreview)),
		alias(post(sandboxPath+"/preview", "Make a signed address of a port that needs no key",
			jsonInOut(201, makePreview))),
		get(sandboxPath+"/previews", "List signed addresses that have not expired, without what opens them",
			jsonOut(200, listPreviews)),
		del(sandboxPath+"/previews", "Revoke all signed addresses of a sandbox", noContent(revokePreviews)),
		del(sandboxPath+"/previews/{preview}", "Revoke a signed address; open requests end",
			noContent(revokePreview)),
		anyMethod(proxyPattern, "Forward to a port of the sandbox, WebSockets included", raw("*/*", proxyPort)),
		anyMethod(previewPattern, "Redirect a signed address to the host name of the sandbox's port",
			endpoint{status: http.StatusTemporaryRedirect, handle: redirectPreview}),
	)
}

func templateRoutes() []route {
	return tagged("templates",
		get("/v1/templates", "List templates", jsonOut(200, listTemplates)),
		get(templatePath, "Get a template; name:tag is a version of it", jsonOut(200, getTemplate)),
		del(templatePath, "Delete a built template; its sandboxes keep running", noContent(deleteTemplate)),
		post(templatePath+"/tags", "Set tags to a version", jsonInOut(200, putTags)),
		del(templatePath+"/tags/{tag}", "Remove a tag", noContent(removeTag)),
		post(templatePath+"/bake", "Begin to bake a template, or join a bake", jsonInOut(202, bakeTemplate)),
	)
}

func buildRoutes() []route {
	start := endpoint{
		in: reflect.TypeFor[api.BuildRequest](), out: reflect.TypeFor[api.Build](), status: 202, handle: startBuild,
	}
	bake := endpoint{
		in: reflect.TypeFor[api.BakeImageRequest](), out: reflect.TypeFor[api.BakedImage](), status: 201,
		handle: bakeImage,
	}
	return tagged("templates",
		post("/v1/templates/build", "Build a template; also a multipart form with the files of a context, or rootfs",
			start),
		post(sandboxPath+"/bake-image",
			"Make a template of a sandbox's disk; 202 if that takes longer than the caller waits",
			bake),
		get(buildsPath, "List builds, newest first", jsonOut(200, listBuilds),
			param{"template", "string", "Only of this template."}),
		get(buildsPath+"/{build}", "Get a build", jsonOut(200, getBuild)),
		get(buildsPath+"/{build}/logs",
			"Get the log of a build; events line, then done; Last-Event-ID resumes a stream that was cut",
			raw(sse, buildLogs),
			param{"follow", "string", "1: until the build has ended."},
			param{"after", "integer", "Only lines with higher numbers."}),
		post(buildsPath+"/{build}/cancel", "Cancel a build", jsonOut(200, cancelBuild)),
		post(buildsPath+"/{build}/retry", "Retry a build that failed", jsonInOut(202, retryBuild)),
	)
}

func keyRoutes() []route {
	return tagged("keys",
		get("/v1/me", "Get who the key is", jsonOut(200, me)),
		post("/v1/me/current-org", "Choose a workspace to act for; a key acts for its own alone",
			jsonInOut(200, chooseOrg)),
		get("/v1/orgs", "List the workspaces of the key, which is one", jsonOut(200, listOrgs)),
		get("/v1/orgs/{org}", "Get a workspace of the key", jsonOut(200, getOrg)),
		get("/v1/me/tokens", "List keys", jsonOut(200, listTokens)),
		post("/v1/me/tokens", "Create a key, which is shown only once", jsonInOut(201, createToken)),
		del("/v1/me/tokens/{prefix}", "Revoke a key at once", noContent(revokeToken)),
		post("/v1/me/tokens/{prefix}/rotate",
			"Make a key with the rights of another one, which ends after an overlap", jsonInOut(201, rotateToken)),
	)
}

func workspaceRoutes() []route {
	const workspaces, one = "/v1/workspaces", "/v1/workspaces/{workspace}"
	return tagged("workspaces",
		get("/v1/workspace", "Get the workspace of the key, with what it uses and may have",
			jsonOut(200, ownWorkspace)),
		get(workspaces, "List all workspaces, by id", jsonOut(200, listWorkspaces),
			pageParamDocs()...),
		post(workspaces, "Create a workspace and its first key", jsonInOut(201, createWorkspace)),
		get(one, "Get a workspace, with what it uses and may have", jsonOut(200, getWorkspace)),
		patch(one+"/quotas", "Change quotas of a workspace", jsonInOut(200, setQuotas)),
		post(one+"/suspend",
			"Refuse the requests of a workspace, cancel its builds and hibernate its sandboxes",
			jsonOut(200, suspendWorkspace)),
		post(one+"/resume", "Make a suspended workspace active again",
			jsonOut(200, resumeWorkspace)),
	)
}

func nodeRoutes() []route {
	const boots = "Get how fast sandboxes that were created here started lately, by the way of starting"
	return tagged("node",
		get("/v1/capacity", "Get what the node has and has promised", jsonOut(200, capacity)),
		get("/stats/boot", boots, jsonOut(200, bootStats)),
		alias(get("/v1/stats/boot", boots, jsonOut(200, bootStats))),
		get("/v1/audit", "List who did what and when, also what was refused", auditList(), auditParams()...),
		get("/healthz", "Report whether the server runs", jsonOut(200, health)),
		get("/readyz", "Report whether the server can make sandboxes", jsonOut(200, ready)),
		get("/version", "Get the version of the server", jsonOut(200, version)),
		alias(get("/v1/version", "Get the version of the server", jsonOut(200, version))),
		alias(get("/v1/health", "Report whether the server runs", jsonOut(200, health))),
		get("/metrics", "Get metrics for Prometheus", raw("text/plain", prometheusText)),
		get("/openapi.json", "Get this document", raw("application/json", openAPI)),
		alias(get("/v1/openapi.json", "Get this document", raw("application/json", openAPI))),
	)
}
