package integrationtest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/integrationtest"
)

// get requests a path with the platform's key, in the headers of both APIs.
func get(t *testing.T, w *integrationtest.Platform, path string) (status int, body string) {
	t.Helper()
	rq, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	rq.Header.Set("Authorization", "Bearer "+w.Key)
	rq.Header.Set("X-API-Key", "e2b_"+strings.TrimPrefix(w.Key, "pds_"))
	res, err := http.DefaultClient.Do(rq)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// TestEndedSandboxCanBeInspected ends sandboxes in every possible way, and then requests each of them through both
// APIs: at once, after a crash of the node, and after a clean stop. The reason, the processes and their output, the
// events and the last metrics must be available.
func TestEndedSandboxCanBeInspected(t *testing.T) {
	w := integrationtest.New(t)
	short, once := int64(1), api.CreateRequest{}
	ways := []struct {
		reason string
		req    api.CreateRequest
		end    func(api.SandboxID) error
	}{
		{"deleted", once, func(id api.SandboxID) error { return w.Client.Sandboxes.Delete(t.Context(), id) }},
		{"idle", once, func(id api.SandboxID) error {
			_, err := w.Client.Sandboxes.SetLifecycle(t.Context(), id, api.LifecyclePatch{TTLSeconds: &short})
			return err
		}},
		{"timeout", once, func(id api.SandboxID) error {
			_, err := w.Client.Sandboxes.SetLifecycle(t.Context(), id, api.LifecyclePatch{TimeoutSeconds: &short})
			return err
		}},
		{"crash", once, func(id api.SandboxID) error {
			if !w.Driver.Crash(string(id), errors.New("injected")) {
				return errors.New("the sandbox has no monitor")
			}
			return nil
		}},
		{"host_lost", once, func(api.SandboxID) error { return nil }}, // ended by the stop of the node
	}
	ids := map[string]api.SandboxID{}
	for _, way := range ways {
		sb := create(t, w, way.req)
		sh(t, w, sb.ID, "echo printed by "+way.reason+"; echo wrong >&2; exit 7")
		ids[way.reason] = sb.ID
	}
	w.Crash() // the next node must know the processes that this one saw
	for _, way := range ways {
		sh(t, w, ids[way.reason], "echo again")
		if err := way.end(ids[way.reason]); err != nil {
			t.Fatal(err)
		}
	}
	for _, way := range ways[:len(ways)-1] {
		until(t, "the sandbox ended with reason "+way.reason, func() bool {
			status, _ := get(t, w, "/v1/sandboxes/"+string(ids[way.reason]))
			return status == http.StatusNotFound
		})
	}
	for _, when := range []struct {
		name string
		do   func()
		ways int // number of entries of ways that have ended by then
	}{{"at once", func() {}, 4}, {"after a crash", w.Crash, 4}, {"after a stop", w.Restart, 5}} {
		when.do()
		for _, way := range ways[:when.ways] {
			t.Run(way.reason+" "+when.name, func(t *testing.T) { checkEnded(t, w, ids[way.reason], way.reason) })
		}
	}
}

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// checkEnded checks what both APIs return for a sandbox that ended.
func checkEnded(t *testing.T, w *integrationtest.Platform, id api.SandboxID, reason string) {
	t.Helper()
	status, body := get(t, w, "/v1/sandboxes/"+string(id))
	var e struct {
		Code    api.Code
		Details struct {
			Reason, EndedAt string
			Processes       []struct {
				Command string
				Exited  bool
				Code    int
			}
			Metrics *api.Usage
		}
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil || status != http.StatusNotFound || e.Code != api.NotFound ||
		e.Details.Reason != reason {
		t.Errorf(
			"GET sandbox = %d %s (%v), want 404 with code %s and reason %s",
			status,
			body,
			err,
			api.NotFound,
			reason,
		)
	}
	if p := e.Details.Processes; len(p) != 2 || !p[0].Exited || p[0].Code != 7 ||
		!strings.Contains(p[0].Command, reason) ||
		p[1].Code != 0 {
		t.Errorf("processes = %+v, want two, the first one with its command and exit code 7", p)
	}
	if m := e.Details.Metrics; m == nil || m.UptimeSeconds <= 0 {
		t.Errorf("metrics = %+v, want an uptime above 0", m)
	}
	printed := "printed by " + reason + "\n"
	for path, want := range map[string][]string{
		"/v1/sandboxes/%s/logs":               {printed, "wrong\n", "again\n"},
		"/v1/sandboxes/%s/logs?stream=stderr": {"wrong\n"},
		"/v1/sandboxes/%s/logs?follow=1":      {"event: line", "printed by " + reason},
		"/v1/sandboxes/%s/events":             {"sandbox.running", "sandbox.deleted", `"reason":"` + reason},
		"/v1/sandboxes/%s/events?follow=1":    {"event: event", "sandbox.deleted"},
		"/sandboxes/%s/logs":                  {"printed by " + reason},
		"/v2/sandboxes/%s/logs":               {"printed by " + reason, `"level":"error"`},
		"/sandboxes/%s/metrics":               {"["},
	} {
		status, body := get(t, w, fmt.Sprintf(path, id))
		for _, part := range want {
			if status != http.StatusOK || !strings.Contains(body, part) {
				t.Errorf("GET %s = %d %s\nwant 200 with %q", path, status, body, part)
			}
		}
	}
	for _, path := range []string{
		"/v1/sandboxes/%s/metrics", "/v1/sandboxes/%s/processes", "/v1/sandboxes/%s/ports", "/sandboxes/%s",
	} {
		status, body := get(t, w, fmt.Sprintf(path, id))
		if status != http.StatusNotFound || !strings.Contains(body, "it ended at ") {
			t.Errorf("GET %s = %d %s, want 404 with the time of the end", path, status, body)
		}
	}
}
