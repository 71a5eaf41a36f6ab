package e2b_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
)

// TestIDsWithClient checks that clients of version 1, who write <id>-<client>, act on the sandbox that they mean.
func TestIDsWithClient(t *testing.T) {
	w := newFixture(t)
	made := w.create("/sandboxes", `{"templateID":"base"}`)
	long := made.SandboxID + "-pandastack"
	path := "/sandboxes/" + long
	if text := w.must(200, "GET", path, ""); !strings.Contains(text, `"sandboxID":"`+made.SandboxID+`"`) {
		t.Errorf("detail by the long id: %s", text)
	}
	w.must(204, "POST", path+"/timeout", `{"timeout":60}`)
	if text := w.must(200, "GET", "/sandboxes/metrics?sandbox_ids="+long, ""); !strings.Contains(text, made.SandboxID) {
		t.Errorf("metrics by the long id: %s", text)
	}
	if status, text := w.at("GET", long, 49983, "/health", "", ""); status != 204 {
		t.Errorf("health by the long id: got %d %s, want 204", status, text)
	}
	w.must(204, "DELETE", path, "")
	w.must(404, "GET", "/sandboxes/"+made.SandboxID, "")
	w.must(404, "DELETE", path, "")
}

// TestDetail checks the fields of sandboxes that run and that are paused.
func TestDetail(t *testing.T) {
	w := newFixture(t)
	made := w.create("/v2/sandboxes", `{"templateID":"base","timeout":3600,"envVars":{"a.b-c":"1"}}`)
	path := "/sandboxes/" + made.SandboxID
	var detail struct {
		Alias string
		EndAt time.Time
	}
	w.decode(w.must(200, "GET", path, ""), &detail)
	if left := time.Until(detail.EndAt); detail.Alias != "base" || left < 50*time.Minute {
		t.Errorf("a running sandbox has alias %q and ends in %s, want its template and its timeout", detail.Alias, left)
	}
	if got := w.output(made.SandboxID, "env"); !strings.Contains(got, "a.b-c=1\n") {
		t.Errorf("variables with dots and dashes: the program has %q", got)
	}
	w.must(204, "POST", path+"/pause", "")
	w.decode(w.must(200, "GET", path, ""), &detail)
	if since := time.Since(detail.EndAt); since < 0 || since > time.Minute {
		t.Errorf("a paused sandbox ended %s ago, want when it was paused", since)
	}
	w.must(409, "POST", path+"/fork", "")
	w.must(404, "POST", "/sandboxes/sbxaaaaaaaaaaaaaaaaaaaaa/fork", "")
	w.must(404, "POST", "/sandboxes/sbxaaaaaaaaaaaaaaaaaaaaa/timeout", `{"timeout":1}`)
	other := w.create("/v2/sandboxes", `{"templateID":"base","metadata":{"k":"v"}}`)
	w.create("/v2/sandboxes", `{"templateID":"base"}`)
	for query, want := range map[string]string{
		"": "2", "?metadata=k%3Dv": "1", "?metadata=k%3Dw": "0", "?limit=1": "2",
	} {
		status, text, header := w.call("GET", "/v2/sandboxes"+query, w.key, "")
		if got := header.Get("X-Total-Running"); status != 200 || got != want {
			t.Errorf("list%s: got %d %s, %s run, want %s", query, status, text, got, want)
		}
	}
	w.must(204, "DELETE", "/sandboxes/"+other.SandboxID, "")
	w.must(200, "PATCH", "/templates/base", `{}`)
}

// TestSnapshotsByName checks that lists find a snapshot by name before they are cut into pages, and that a sandbox is
// made from the newest one of a name.
func TestSnapshotsByName(t *testing.T) {
	w := newFixture(t)
	path := "/sandboxes/" + w.create("/v2/sandboxes", `{"templateID":"base"}`).SandboxID
	var wanted struct{ SnapshotID string }
	w.decode(w.must(201, "POST", path+"/snapshots", `{"name":"kept"}`), &wanted)
	for range 3 {
		w.must(201, "POST", path+"/snapshots", `{"name":"other"}`)
	}
	team := string(w.principal().Workspace)
	for _, name := range []string{"kept", "kept:default", team + "/kept", team + "/kept:default"} {
		if text := w.must(200, "GET", "/snapshots?limit=1&name="+name, ""); !strings.Contains(text, wanted.SnapshotID) {
			t.Errorf("snapshots of name %s: %s, want %s", name, text, wanted.SnapshotID)
		}
		made := w.create("/v2/sandboxes", fmt.Sprintf(`{"templateID":%q}`, name))
		b, err := w.boxes.Get(t.Context(), w.principal(), api.SandboxID(made.SandboxID))
		if err != nil || string(b.FromSnapshot) != wanted.SnapshotID {
			t.Errorf("a sandbox of %s is made from %q, %v, want %s", name, b.FromSnapshot, err, wanted.SnapshotID)
		}
	}
	status, text, _ := w.call("POST", "/v2/sandboxes", w.key, `{"templateID":"missing"}`)
	if status != 404 && status != 400 {
		t.Errorf("create from what does not exist: got %d %s", status, text)
	}
}

// TestRangesOfDownloads checks that the agent sends parts of files.
func TestRangesOfDownloads(t *testing.T) {
	w := newFixture(t)
	c := w.create("/v2/sandboxes", `{"templateID":"base"}`)
	w.output(c.SandboxID, "echo 0123456789 > /tmp/f")
	for header, want := range map[string]struct {
		status      int
		body, parts string
	}{
		"":             {200, "0123456789\n", ""},
		"bytes=2-4":    {206, "234", "bytes 2-4/11"},
		"bytes=-3":     {206, "89\n", "bytes 8-10/11"},
		"bytes=11-":    {416, "", "bytes */11"},
		"bytes=1-2,4-": {200, "0123456789\n", ""},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/files?path=/tmp/f", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "49983-" + c.SandboxID + "." + domain
		req.Header.Set("X-Access-Token", c.EnvdAccessToken)
		if header != "" {
			req.Header.Set("Range", header)
		}
		status, text, h := w.do(req)
		if status != want.status || h.Get("Content-Range") != want.parts || want.status != 416 && text != want.body {
			t.Errorf("Range %q: got %d %q, part %q; want %+v", header, status, text, h.Get("Content-Range"), want)
		}
	}
}

// TestTimeoutWhilePausing checks that a timeout that is set while a sandbox is being paused is a conflict: it would not
// outlive the pause.
func TestTimeoutWhilePausing(t *testing.T) {
	w := newFixture(t)
	path := "/sandboxes/" + w.create("/v2/sandboxes", `{"templateID":"base"}`).SandboxID
	pausing, goOn := make(chan struct{}), make(chan struct{})
	w.host.SetHook(func(ctx context.Context, op, _ string, after bool) error {
		if op != "hibernate" || after {
			return nil
		}
		close(pausing)
		select {
		case <-goOn:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	paused := make(chan int, 1)
	go func() {
		status, _, _ := w.call("POST", path+"/pause", w.key, "")
		paused <- status
	}()
	<-pausing
	status, text, _ := w.call("POST", path+"/timeout", w.key, `{"timeout":60}`)
	close(goOn)
	if status != 409 {
		t.Errorf("timeout while pausing: got %d %s, want 409", status, text)
	}
	if status := <-paused; status != 204 {
		t.Errorf("pause: got %d, want 204", status)
	}
}
