package access

import "strings"

// ClassOf returns the class of an operation, "" if it has none.
func ClassOf(face Face, pattern string) Class {
	need, ok := NeedOf(face, pattern)
	switch {
	case !ok, need == Public, need == Signed, need == Broker, need == Function, need == node, need == metrics:
		return ""
	case need == ports && strings.Contains(pattern, "/proxy/"): // what a program inside serves
		return ""
	}
	if class, ok := classes[face][pattern]; ok {
		return class
	}
	method, _, hasMethod := strings.Cut(pattern, " ")
	switch {
	case need == exec, need == files, face == Agent, face == Interpreter:
		return Work
	case hasMethod && (method == "GET" || method == "HEAD"):
		return Reads
	}
	return Changes
}

// classes are the classes that do not follow from what operations need.
var classes = map[Face]map[string]Class{
	V1: {
		"DELETE " + box: Deletes, "POST /v1/sandboxes": Creates, "POST " + box + "/fork": Creates,
		"POST " + box + "/fork-tree": Creates, "POST " + box + "/wake": Creates, "POST " + box + "/start": Creates,
		"GET " + box + "/ports/{port}/connect": Work,

		"DELETE " + dbs: Deletes, "POST /v1/databases": Creates,
		"POST /v1/databases/adopt": Creates, "POST " + dbs + "/clone": Creates,
		"POST " + dbs + "/wake": Creates, "GET " + dbs + "/connection": Reads,
		"DELETE " + app: Deletes, "POST /v1/apps": Creates, "POST " + app + "/deploys": Creates,
		"POST " + app + "/rollback": Creates,
		"DELETE " + fn:              Deletes, "POST /v1/functions": Creates, "POST " + fn + "/deploy": Creates,
		"POST " + fn + "/invoke": Work, "POST " + fn + "/map": Work, "POST " + queue + "/messages": Work,
		"POST " + queue + "/receive": Work, "POST " + queue + "/ack": Work, "POST " + queue + "/extend": Work,
	},
	E2B: {
		"DELETE /sandboxes/{id}": Deletes, "POST /sandboxes": Creates, "POST /v2/sandboxes": Creates,
		"POST /sandboxes/{id}/fork": Creates, "POST /sandboxes/{id}/connect": Creates,
		"POST /v2/sandboxes/{id}/connect": Creates, "POST /sandboxes/{id}/resume": Creates,
	},
	Agent: {"GET /metrics": Reads, "GET /envs": Reads},
}
