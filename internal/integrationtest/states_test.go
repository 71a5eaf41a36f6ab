package integrationtest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/integrationtest"
)

// states are the states in which every route of a sandbox is called, in the order of the columns of wantByState.
var states = []string{"paused", "hibernated", "failed", "ended"}

// wantByState is the expected result of each route of a sandbox in these states: "ok", or the error code.
var wantByState = map[string][4]string{
	"DELETE":                         {"ok", "ok", "ok", "ok"},
	"DELETE fs":                      {"wrong_state", "not_found", "wrong_state", "not_found"},
	"DELETE ports/{port}":            {"not_found", "not_found", "not_found", "not_found"},
	"DELETE proxy/{port}/{path}":     {"wrong_state", "unreachable", "wrong_state", "not_found"},
	"DELETE repl/sessions/{session}": {"wrong_state", "not_found", "wrong_state", "not_found"},
	"GET":                            {"ok", "ok", "ok", "not_found"},
	"GET events":                     {"ok", "ok", "ok", "ok"},
	"GET exec/pty":                   {"wrong_state", "ok", "wrong_state", "not_found"},
	"GET exec/pty/shared":            {"wrong_state", "ok", "wrong_state", "not_found"},
	"GET exec/ws":                    {"wrong_state", "ok", "wrong_state", "not_found"},
	"GET fs":                         {"wrong_state", "not_found", "wrong_state", "not_found"},
	"GET fs/dir":                     {"wrong_state", "not_found", "wrong_state", "not_found"},
	"GET fs/stat":                    {"wrong_state", "not_found", "wrong_state", "not_found"},
	"GET lifecycle":                  {"ok", "ok", "ok", "not_found"},
	"GET logs":                       {"ok", "ok", "ok", "ok"},
	"GET metrics":                    {"ok", "ok", "ok", "not_found"},
	"GET network":                    {"ok", "ok", "ok", "not_found"},
	"GET ports":                      {"ok", "ok", "ok", "not_found"},
	"GET ports/{port}/connect":       {"wrong_state", "unreachable", "wrong_state", "not_found"},
	"GET processes":                  {"wrong_state", "ok", "wrong_state", "not_found"},
	"GET processes/{pid}/stream":     {"wrong_state", "not_found", "wrong_state", "not_found"},
	"GET previews":                   {"ok", "ok", "ok", "not_found"},
	"DELETE previews":                {"ok", "ok", "ok", "not_found"},
	"DELETE previews/{preview}":      {"not_found", "not_found", "not_found", "not_found"},
	"GET proxy/{port}/{path}":        {"wrong_state", "unreachable", "wrong_state", "not_found"},
	"GET repl/sessions":              {"wrong_state", "ok", "wrong_state", "not_found"},
	"GET ssh":                        {"wrong_state", "ok", "wrong_state", "not_found"},
	"GET util":                       {"ok", "ok", "ok", "not_found"},
	"PATCH lifecycle":                {"ok", "ok", "ok", "not_found"},
	"PATCH proxy/{port}/{path}":      {"wrong_state", "unreachable", "wrong_state", "not_found"},
	// A Platform has no volumes.
	"DELETE volumes/{volume}":       {"unsupported", "unsupported", "unsupported", "not_found"},
	"POST volumes":                  {"invalid", "invalid", "invalid", "invalid"},
	"POST volumes/{volume}/promote": {"invalid", "invalid", "invalid", "invalid"},
	// A Platform has no build service.
	"POST bake-image":                  {"unsupported", "unsupported", "unsupported", "not_found"},
	"POST exec":                        {"wrong_state", "ok", "wrong_state", "not_found"},
	"POST exec/stream":                 {"wrong_state", "ok", "wrong_state", "not_found"},
	"POST fork":                        {"ok", "ok", "wrong_state", "not_found"},
	"POST fork-tree":                   {"ok", "ok", "wrong_state", "not_found"},
	"POST fs/mkdir":                    {"wrong_state", "ok", "wrong_state", "not_found"},
	"POST fs/move":                     {"wrong_state", "ok", "wrong_state", "not_found"},
	"POST hibernate":                   {"ok", "ok", "wrong_state", "not_found"},
	"POST pause":                       {"ok", "wrong_state", "wrong_state", "not_found"},
	"POST ports":                       {"ok", "ok", "ok", "not_found"},
	"POST preview-token":               {"ok", "ok", "ok", "not_found"},
	"POST processes/{pid}/signal":      {"wrong_state", "not_found", "wrong_state", "not_found"},
	"POST promote":                     {"invalid", "invalid", "invalid", "not_found"},
	"POST proxy/{port}/{path}":         {"wrong_state", "unreachable", "wrong_state", "not_found"},
	"POST repl":                        {"wrong_state", "not_found", "wrong_state", "not_found"},
	"POST repl/sessions":               {"wrong_state", "ok", "wrong_state", "not_found"},
	"POST repl/sessions/{session}/run": {"wrong_state", "not_found", "wrong_state", "not_found"},
	"POST resume":                      {"ok", "wrong_state", "wrong_state", "not_found"},
	"POST snapshots":                   {"ok", "ok", "wrong_state", "not_found"},
	"POST wake":                        {"wrong_state", "ok", "ok", "not_found"},
	"PUT fs":                           {"wrong_state", "ok", "wrong_state", "not_found"},
	"PUT network":                      {"ok", "ok", "ok", "not_found"},
	"PUT proxy/{port}/{path}":          {"wrong_state", "unreachable", "wrong_state", "not_found"},
}

// bodies are the request bodies of the routes that need one.
var bodies = map[string]string{
	"POST bake-image":                  `{"image_name":"x"}`,
	"POST exec":                        `{"cmd":"true"}`,
	"POST exec/stream":                 `{"cmd":"true"}`,
	"PUT network":                      `{"deny_others":true}`,
	"PATCH lifecycle":                  `{"ttl_seconds":1000}`,
	"POST fs/mkdir":                    `{"path":"x"}`,
	"POST fs/move":                     `{"from":"/etc/hostname","to":"y"}`,
	"POST ports":                       `{"port":80}`,
	"POST preview-token":               `{"port":80}`,
	"POST repl":                        `{"code":"1"}`,
	"POST repl/sessions":               `{"language":"bash"}`,
	"POST repl/sessions/{session}/run": `{"code":"1"}`,
	"PUT fs":                           "content",
}

// documentedRoutes lists the routes of a sandbox in the node's OpenAPI document, as the method and the path after the
// sandbox id.
func documentedRoutes(t *testing.T, w *integrationtest.Platform) []string {
	t.Helper()
	_, body := get(t, w, "/openapi.json")
	var doc struct{ Paths map[string]map[string]any }
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatal(err)
	}
	var all []string
	for path, methods := range doc.Paths {
		rest, ok := strings.CutPrefix(path, "/v1/sandboxes/{sandbox}")
		if !ok {
			continue
		}
		for method := range methods {
			all = append(all, strings.TrimSpace(strings.ToUpper(method)+" "+strings.TrimPrefix(rest, "/")))
		}
	}
	slices.Sort(all)
	return all
}

// sandboxInState creates a sandbox and brings it into a state.
func sandboxInState(t *testing.T, w *integrationtest.Platform, state string) api.SandboxID {
	t.Helper()
	boxes := w.Client.Sandboxes
	sb := create(t, w, api.CreateRequest{Persistent: state == "failed"})
	var err error
	switch state {
	case "paused":
		err = boxes.Pause(t.Context(), sb.ID)
	case "hibernated":
		err = boxes.Hibernate(t.Context(), sb.ID)
	case "ended":
		err = boxes.Delete(t.Context(), sb.ID)
	case "failed":
		if !w.Driver.Crash(string(sb.ID), errors.New("injected")) {
			err = errors.New("the sandbox has no monitor")
		}
		until(t, "the sandbox failed", func() bool {
			got, err := boxes.Get(t.Context(), sb.ID)
			return err == nil && got.Status == api.Failed
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return sb.ID
}

// TestEveryRouteInEveryState calls every documented route of a sandbox in every state but running. A route that is
// missing in wantByState fails the test.
func TestEveryRouteInEveryState(t *testing.T) {
	w := integrationtest.New(t)
	routes := documentedRoutes(t, w)
	for route := range wantByState {
		if !slices.Contains(routes, route) {
			t.Errorf("wantByState has %s, which is not a documented route", route)
		}
	}
	held := map[string]api.SandboxID{}
	for _, route := range routes {
		want, known := wantByState[route]
		if !known {
			t.Errorf("documented route %s is missing in wantByState", route)
		}
		var got [4]string
		for i, state := range states {
			if held[state] == "" {
				held[state] = sandboxInState(t, w, state)
			}
			got[i] = call(t, w, route, held[state])
			if now, err := w.Client.Sandboxes.Get(t.Context(), held[state]); state != "ended" &&
				(err != nil || string(now.Status) != state) {
				delete(held, state) // the route changed it
			}
		}
		if got != want {
			t.Errorf("%s = %q in states %q, want %q", route, got, states, want)
		}
	}
}

// call calls a route and returns "ok", the error code, or the HTTP status of an error without a code.
func call(t *testing.T, w *integrationtest.Platform, route string, id api.SandboxID) string {
	t.Helper()
	method, rest, _ := strings.Cut(route, " ")
	path := strings.NewReplacer("{pid}", "1", "{port}", "80", "{path}", "x", "{session}", "abc").Replace(rest)
	rq, err := http.NewRequestWithContext(
		t.Context(),
		method,
		strings.TrimSuffix(fmt.Sprintf("%s/v1/sandboxes/%s/%s", w.URL, id, path), "/"),
		strings.NewReader(bodies[route]),
	)
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(rest, "fs") && method != http.MethodPost { // POST routes have the path in the body
		rq.URL.RawQuery = "path=file"
	}
	rq.Header.Set("Authorization", "Bearer "+w.Key)
	if strings.HasPrefix(rest, "exec/ws") || strings.HasPrefix(rest, "exec/pty") || rest == "ssh" ||
		strings.HasSuffix(rest, "/connect") {
		for name, value := range map[string]string{
			"Connection": "Upgrade", "Upgrade": "websocket",
			"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
		} {
			rq.Header.Set(name, value)
		}
	}
	res, err := http.DefaultClient.Do(rq)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode < 400 {
		return "ok"
	}
	var e api.Error
	if err := json.NewDecoder(res.Body).Decode(&e); err != nil || e.Code == "" {
		return fmt.Sprint(res.StatusCode)
	}
	return string(e.Code)
}
