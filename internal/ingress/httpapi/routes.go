package httpapi

import (
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/pandastack/pandastack/api"
)

// access says who may call a route.
type access string

const (
	public access = "public" // anybody
	user   access = "user"   // whoever shows a key; sees what the key's workspace owns
	admin  access = "admin"  // whoever shows an admin's key
)

// route is one line of the table.
type route struct {
	method  string // "" is any
	pattern string // of net/http
	access  access
	tag     string
	summary string
	query   []param
	bound
	alias bool // another name of an earlier route; not in the OpenAPI document
}

// param is a parameter of the query.
type param struct{ name, kind, doc string }

// bound is a handler with what it takes and gives.
type bound struct {
	in, out reflect.Type // nil: nothing, or not JSON
	status  int
	takes   string // media type of the body, if not JSON
	gives   string // media type of the answer, if not JSON
	handle  func(*request) error
}

func (rt route) muxPattern() string { return strings.TrimSpace(rt.method + " " + rt.pattern) }

// checkQuery refuses a query with names that the route would not look at, so that a slip in a filter does not
// select everything. What is forwarded is for others to read, and anybody may ask public routes as they like.
func (rt route) checkQuery(q url.Values) error {
	if rt.access == public || rt.pattern == proxyPattern {
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

// matches tells whether a name in a query is this parameter's. One that ends in braces stands for all that begin as it.
func (p param) matches(name string) bool {
	prefix, _, many := strings.Cut(p.name, "{")
	return name == p.name || many && strings.HasPrefix(name, prefix)
}

// jsonOut binds a verb without a body.
func jsonOut[Out any](status int, do func(*request) (Out, error)) bound {
	return bound{out: reflect.TypeFor[Out](), status: status, handle: func(rq *request) error {
		out, err := do(rq)
		if err != nil {
			return err
		}
		writeJSON(rq.w, status, out)
		return nil
	}}
}

// jsonInOut binds a verb with a JSON body.
func jsonInOut[In, Out any](status int, do func(*request, In) (Out, error)) bound {
	return bound{
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

// noContent binds a verb that answers 204 and nothing else.
func noContent(do func(*request) error) bound {
	return bound{status: http.StatusNoContent, handle: func(rq *request) error {
		if err := do(rq); err != nil {
			return err
		}
		rq.w.WriteHeader(http.StatusNoContent)
		return nil
	}}
}

// jsonIn binds a verb with a JSON body that answers 204.
func jsonIn[In any](do func(*request, In) error) bound {
	b := noContent(func(rq *request) error {
		var in In
		if err := rq.decode(&in); err != nil {
			return err
		}
		return do(rq, in)
	})
	b.in = reflect.TypeFor[In]()
	return b
}

// raw binds a handler that writes its own answer of the given media type.
func raw(gives string, handle func(*request) error) bound {
	return bound{status: http.StatusOK, gives: gives, handle: handle}
}

const (
	boxes  = "/v1/sandboxes"
	one    = boxes + "/{sandbox}"
	octets = "application/octet-stream"
	sse    = "text/event-stream"
	ws     = "websocket"
)

// routes is the table of all routes.
func routes() []route {
	var all []route
	for _, part := range [][]route{sandboxRoutes(), runRoutes(), replRoutes(), fileRoutes(), portRoutes(), templateRoutes(), otherRoutes()} {
		all = append(all, part...)
	}
	return all
}

func sandboxRoutes() []route {
	const tag = "sandboxes"
	return []route{
		{"POST", boxes, user, tag, "Create a sandbox", nil, jsonInOut(201, createSandbox), false},
		{
			"GET",
			boxes,
			user,
			tag,
			"List sandboxes, newest first unless order says otherwise; X-Next-Cursor leads to the next page",
			[]param{
				{"status", "string", "Only in this state; may be repeated."},
				{"state", "string", "The same as status."},
				{"template", "string", "Only of this template."},
				{"metadata.{key}", "string", "Only with this value under the key."},
				{"order", "string", "asc: oldest first; desc, as if absent: newest first."},
				{"since", "string", "Only created at this time or later, RFC 3339."},
				{"limit", "integer", "At most so many, 1 to 1000; all if absent."},
				{"cursor", "string", "X-Next-Cursor of the page before."},
			},
			jsonOut(200, listSandboxes),
			false,
		},
		{"GET", one, user, tag, "Get a sandbox; the 404 of one that ended says why", nil, jsonOut(200, getSandbox), false},
		{"DELETE", one, user, tag, "End a sandbox in any state", nil, noContent(deleteSandbox), false},
		{"POST", one + "/pause", user, tag, "Stop a sandbox in memory", nil, noContent(pauseSandbox), false},
		{"POST", one + "/resume", user, tag, "Let a paused sandbox go on", nil, noContent(resumeSandbox), false},
		{
			"POST",
			one + "/hibernate",
			user,
			tag,
			"Put a sandbox to rest on disk",
			nil,
			jsonOut(200, hibernateSandbox),
			false,
		},
		{"POST", one + "/wake", user, tag, "Bring a hibernated sandbox back", nil, jsonOut(200, wakeSandbox), false},
		{"POST", one + "/stop", user, tag, "Put a sandbox to rest on disk", nil, jsonOut(200, hibernateSandbox), true},
		{"POST", one + "/start", user, tag, "Bring a hibernated sandbox back", nil, jsonOut(200, wakeSandbox), true},
		{"GET", one + "/lifecycle", user, tag, "When a sandbox ends by itself", nil, jsonOut(200, getLifecycle), false},
		{
			"PATCH",
			one + "/lifecycle",
			user,
			tag,
			"Change when a sandbox ends by itself",
			nil,
			jsonInOut(200, setLifecycle),
			false,
		},
		{"GET", one + "/network", user, tag, "What a sandbox may reach", nil, jsonOut(200, getNetwork), false},
		{
			"PUT",
			one + "/network",
			user,
			tag,
			"Replace what a sandbox may reach, at once and for connections that are there",
			nil,
			jsonInOut(200, setNetwork),
			false,
		},
		{"POST", one + "/fork", user, tag, "Copy a running sandbox, memory and disk; it goes on", []param{
			{"warm", "string", "Accepted from old clients; a fork is always live."},
		}, jsonInOut(201, forkSandbox), false},
		{"POST", one + "/fork-tree", user, tag, "Make several children of one moment", nil, jsonInOut(201, forkTree), false},
		{"POST", one + "/promote", user, tag, "Make a child the winner of its tree", nil, jsonInOut(200, promote), false},
		{
			"POST",
			one + "/snapshots",
			user,
			"snapshots",
			"Keep this moment of a sandbox; it goes on",
			nil,
			jsonInOut(201, takeSnapshot),
			false,
		},
		{"GET", "/v1/snapshots", user, "snapshots", "List snapshots, newest first", []param{
			{"sandbox_id", "string", "Only of this sandbox."},
			{"limit", "integer", "At most so many, 1 to 1000; all if absent."},
			{"cursor", "string", "X-Next-Cursor of the page before."},
		}, jsonOut(200, listSnapshots), false},
		{"GET", "/v1/snapshots/{snapshot}", user, "snapshots", "Get a snapshot", nil, jsonOut(200, getSnapshot), false},
		{
			"DELETE",
			"/v1/snapshots/{snapshot}",
			user,
			"snapshots",
			"Remove a snapshot",
			nil,
			jsonOut(200, deleteSnapshot),
			false,
		},
		{
			"POST",
			"/v1/snapshots/{snapshot}/push",
			user,
			"snapshots",
			"Put a snapshot into the object store, where other nodes find it",
			nil,
			jsonOut(200, pushSnapshot),
			false,
		},
		{
			"DELETE",
			"/v1/snapshots/{snapshot}/push",
			user,
			"snapshots",
			"Remove a snapshot from the object store",
			nil,
			jsonOut(200, deletePushed),
			false,
		},
		{
			"POST",
			"/v1/snapshots/{snapshot}/pull",
			user,
			"snapshots",
			"Bring a snapshot from the object store to this node",
			nil,
			jsonInOut(200, pullSnapshot),
			false,
		},
	}
}

func runRoutes() []route {
	const tag = "commands"
	terminal := []param{
		{"rows", "integer", "24 if absent."}, {"cols", "integer", "80 if absent."},
		{"cmd", "string", "A login shell if absent."},
		{"cwd", "string", "Working directory."}, {"user", "string", "Name or number."},
	}
	return []route{
		{"POST", one + "/exec", user, tag, "Run a command to its end", nil, jsonInOut(200, exec), false},
		{
			"POST",
			one + "/exec/stream",
			user,
			tag,
			"Run a command; events start, stdout, stderr, then exit or error",
			nil,
			bound{in: reflect.TypeFor[api.ExecRequest](), status: 200, gives: sse, handle: execStream},
			false,
		},
		{"GET", one + "/exec/ws", user, tag, "Run many commands over one WebSocket", nil, raw(ws, execSocket), false},
		{"GET", one + "/exec/pty", user, tag, "A terminal over a WebSocket", terminal, raw(ws, execPTY), false},
		{
			"GET",
			one + "/exec/pty/shared",
			user,
			tag,
			"A terminal that many see and type into at once; it goes on while nobody is there",
			append([]param{
				{"session", "string", "Name of the terminal; shared if absent."},
				{"readonly", "string", "1: what this viewer types is left out."},
			}, terminal...),
			raw(ws, execShared),
			false,
		},
		{
			"GET",
			one + "/ssh",
			user,
			tag,
			"A terminal for clients that print every message",
			terminal,
			raw(ws, execSSH),
			false,
		},
		{
			"GET",
			one + "/processes",
			user,
			tag,
			"List processes that run or ended lately",
			nil,
			jsonOut(200, listProcesses),
			false,
		},
		{
			"GET",
			one + "/processes/{pid}/stream",
			user,
			tag,
			"Follow a process; Last-Event-ID goes on where a stream was cut",
			nil,
			raw(sse, attachProcess),
			false,
		},
		{
			"POST",
			one + "/processes/{pid}/signal",
			user,
			tag,
			"Send a signal to a process",
			nil,
			jsonIn(signalProcess),
			false,
		},
		{"GET", one + "/logs", user, "observation", "What a sandbox printed, also after its end", []param{
			{"stream", "string", "stdout, stderr, console, or both, which is all and the default."},
			{"follow", "string", "1: go on with new lines as events."},
		}, raw("text/plain", logs), false},
		{"GET", one + "/events", user, "observation", "What happened to a sandbox, also after its end", []param{
			{"tail", "integer", "Only the last so many."},
			{"follow", "string", "1: go on with new ones as server-sent events."},
		}, bound{out: reflect.TypeFor[api.EventList](), status: 200, handle: events}, false},
		{"GET", one + "/metrics", user, "observation", "What a sandbox takes now", nil, jsonOut(200, usage), false},
		{
			"GET",
			one + "/util",
			user,
			"observation",
			"What a sandbox has taken of its host since it started or woke",
			nil,
			jsonOut(200, hostUsage),
			false,
		},
		{"GET", "/v1/metrics/sandbox/{sandbox}", user, "observation", "What was measured of a sandbox lately", []param{
			{"from", "string", "RFC 3339, or seconds since 1970; an hour before to if absent."},
			{"to", "string", "RFC 3339, or seconds since 1970; now if absent."},
			{"step", "string", "15s, the default, 1m, 5m or 1h."},
		}, jsonOut(200, series), false},
	}
}

func replRoutes() []route {
	const tag = "code"
	return []route{
		{
			"GET",
			"/v1/repl/languages",
			user,
			tag,
			"List the languages of contexts",
			nil,
			jsonOut(200, replLanguages),
			false,
		},
		{"POST", one + "/repl", user, tag, "Run code in a context of its own", nil, jsonInOut(200, runOnce), false},
		{
			"POST",
			one + "/repl/sessions",
			user,
			tag,
			"Start a context that keeps variables",
			nil,
			jsonInOut(201, startSession),
			false,
		},
		{"GET", one + "/repl/sessions", user, tag, "List contexts", nil, jsonOut(200, listSessions), false},
		{"DELETE", one + "/repl/sessions/{session}", user, tag, "End a context", nil, noContent(endSession), false},
		{
			"POST",
			one + "/repl/sessions/{session}/run",
			user,
			tag,
			"Run a cell of code; a timeout interrupts it and keeps the context",
			nil,
			jsonInOut(200, runInSession),
			false,
		},
	}
}

func fileRoutes() []route {
	const tag = "files"
	where := []param{
		{"path", "string", "Absolute, or relative to the user's home."},
		{"user", "string", "Name or number; the sandbox's default if absent."},
	}
	with := func(more ...param) []param { return append(append([]param(nil), where...), more...) }
	return []route{
		{
			"GET",
			one + "/fs",
			user,
			tag,
			"Read a file of any size; Range is honoured",
			where,
			raw(octets, readFile),
			false,
		},
		{
			"PUT",
			one + "/fs",
			user,
			tag,
			"Write a file of any size, whole or not at all",
			with(param{"mode", "string", "Octal permissions, such as 0755."}),
			bound{out: reflect.TypeFor[api.FileWritten](), status: 200, takes: octets, handle: writeFile},
			false,
		},
		{
			"DELETE",
			one + "/fs",
			user,
			tag,
			"Remove a file or directory",
			with(param{"recursive", "string", "1: a directory with all below it."}),
			noContent(removeFile),
			false,
		},
		{"GET", one + "/fs/stat", user, tag, "Describe a file", where, jsonOut(200, statFile), false},
		{
			"GET",
			one + "/fs/dir",
			user,
			tag,
			"List a directory",
			with(param{"depth", "integer", "How deep; 1 if absent."}),
			jsonOut(200, listDir),
			false,
		},
		{"POST", one + "/fs/mkdir", user, tag, "Make a directory with its parents", nil, jsonInOut(201, makeDir), false},
		{"POST", one + "/fs/move", user, tag, "Rename a file or directory", nil, jsonInOut(200, moveFile), false},
	}
}

func portRoutes() []route {
	const tag = "ports"
	return []route{
		{"GET", one + "/ports", user, tag, "List declared and listening ports", nil, jsonOut(200, listPorts), false},
		{"POST", one + "/ports", user, tag, "Declare a port", nil, jsonInOut(201, declarePort), false},
		{"DELETE", one + "/ports/{port}", user, tag, "Take a declaration back", nil, noContent(removePort), false},
		{
			"POST",
			one + "/preview-token",
			user,
			tag,
			"Make a signed address of a port that needs no key",
			nil,
			jsonInOut(201, makePreview),
			false,
		},
		{
			"POST",
			one + "/preview",
			user,
			tag,
			"Make a signed address of a port that needs no key",
			nil,
			jsonInOut(201, makePreview),
			true,
		},
		{
			"",
			proxyPattern,
			user,
			tag,
			"Forward to a port of the sandbox, WebSockets included",
			nil,
			raw("*/*", proxyPort),
			false,
		},
		{"", previewPattern, public, tag, "Forward to a port by a signed address", nil, raw("*/*", previewPort), false},
	}
}

func otherRoutes() []route {
	return []route{
		{"GET", "/v1/me", user, "keys", "Who the key is", nil, jsonOut(200, me), false},
		{
			"POST",
			"/v1/me/current-org",
			user,
			"keys",
			"Act for a workspace; a key acts for its own alone",
			nil,
			jsonInOut(200, chooseOrg),
			false,
		},
		{
			"GET",
			"/v1/orgs",
			user,
			"keys",
			"List the workspaces of the key, which is one",
			nil,
			jsonOut(200, listOrgs),
			false,
		},
		{"GET", "/v1/orgs/{org}", user, "keys", "Get a workspace of the key", nil, jsonOut(200, getOrg), false},
		{"GET", "/v1/me/tokens", admin, "keys", "List keys", nil, jsonOut(200, listTokens), false},
		{
			"POST",
			"/v1/me/tokens",
			admin,
			"keys",
			"Make a key, which is shown this once",
			nil,
			jsonInOut(201, createToken),
			false,
		},
		{"DELETE", "/v1/me/tokens/{prefix}", admin, "keys", "End a key at once", nil, noContent(revokeToken), false},
		{"GET", "/v1/capacity", user, "node", "What the node has and has promised", nil, jsonOut(200, capacity), false},
		{
			"GET",
			"/v1/metrics/overview",
			user,
			"observation",
			"What the workspace of the key has",
			nil,
			jsonOut(200, overview),
			false,
		},
		{
			"GET",
			"/stats/boot",
			admin,
			"node",
			"How fast sandboxes that were created here started lately, by the way of starting",
			nil,
			jsonOut(200, bootStats),
			false,
		},
		{
			"GET",
			"/v1/stats/boot",
			admin,
			"node",
			"How fast sandboxes that were created here started lately, by the way of starting",
			nil,
			jsonOut(200, bootStats),
			true,
		},
		{"GET", "/v1/audit", admin, "node", "Who did what and when", []param{
			{
				"since",
				"string",
				"Not before this time, RFC 3339.",
			}, {"target", "string", "Done to this id."}, {"limit", "integer", "1 to 1000; 100 if absent."},
		}, jsonOut(200, listAudit), false},
		{"GET", "/healthz", public, "node", "Whether the server runs", nil, jsonOut(200, health), false},
		{"GET", "/readyz", public, "node", "Whether the server can make sandboxes", nil, jsonOut(200, ready), false},
		{"GET", "/version", public, "node", "What the server is", nil, jsonOut(200, version), false},
		{"GET", "/v1/version", public, "node", "What the server is", nil, jsonOut(200, version), true},
		{"GET", "/v1/health", public, "node", "Whether the server runs", nil, jsonOut(200, health), true},
		{"GET", "/metrics", admin, "node", "Metrics for Prometheus", nil, raw("text/plain", prometheusText), false},
		{"GET", "/openapi.json", public, "node", "This document", nil, raw("application/json", openAPI), false},
		{"GET", "/v1/openapi.json", public, "node", "This document", nil, raw("application/json", openAPI), true},
	}
}
