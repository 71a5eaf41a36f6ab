//go:build e2e

package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/test/nodelab"
)

// TestPortTaken starts a node on a port that another program uses.
func TestPortTaken(t *testing.T) {
	dir := nodelab.DataDir(t)
	address := nodelab.BusyPort(t)
	n, ended := nodelab.Launch(t, dir, "--listen", address)
	if !ended {
		t.Fatal("the node started on a port in use, want an error")
	}
	if code := n.Cmd.ProcessState.ExitCode(); code == 0 || !strings.Contains(n.Log.String(), address) ||
		!strings.Contains(n.Log.String(), "in use") {
		t.Errorf("exit %d, log %s; want a failure that names %s", code, n.Log, address)
	}
	nodelab.NothingLeft(t, dir)
}

// TestTwoNodes starts a second node with the same data directory.
func TestTwoNodes(t *testing.T) {
	dir := nodelab.DataDir(t)
	first := nodelab.Start(t, dir)
	second, ended := nodelab.Launch(t, dir)
	if !ended {
		t.Fatal("a second node started with the same data directory, want an error")
	}
	if !strings.Contains(second.Log.String(), "another node") {
		t.Errorf("log of the second node = %s, want an error about another node", second.Log)
	}
	if r := first.CLI("me"); r.Code != 0 {
		t.Errorf("me on the first node: exit %d, %s; want 0", r.Code, r.Stderr)
	}
	first.Stop()
	nodelab.NothingLeft(t, dir)
}

// TestBadRequests sends invalid requests and checks the error responses.
func TestBadRequests(t *testing.T) {
	dir := nodelab.DataDir(t)
	n := nodelab.Start(t, dir)
	n.Bake("mini")
	for _, tt := range []struct {
		name, method, path, body string
		status                   int
		want                     string
	}{
		{"bad-json", "POST", "/v1/sandboxes", `{"template":`, http.StatusBadRequest, `"code":"invalid"`},
		{
			"unknown-template", "POST", "/v1/sandboxes", `{"template":"nothing-like-it"}`,
			http.StatusBadRequest, "nothing-like-it",
		},
		{"unknown-field", "POST", "/v1/sandboxes", `{"tmplate":"mini"}`, http.StatusBadRequest, "tmplate"},
		{"wrong-kind", "POST", "/v1/sandboxes", `{"template":7}`, http.StatusBadRequest, "template"},
		{
			"huge-body", "POST", "/v1/sandboxes", `{"template":"` + strings.Repeat("x", 64<<20) + `"}`,
			http.StatusRequestEntityTooLarge, `"code":"too_large"`,
		},
		{"unknown-id", "GET", "/v1/sandboxes/sbxaaaaaaaaaaaaaaaaaaaa", "", http.StatusNotFound, `"code":"not_found"`},
		{"no-such-path", "GET", "/v1/nothing", "", http.StatusNotFound, `"error"`},
		{"wrong-method", "PUT", "/v1/sandboxes", "", http.StatusMethodNotAllowed, `"error"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, body := n.Send(tt.method, tt.path, tt.body)
			if status != tt.status || !strings.Contains(body, tt.want) {
				t.Errorf("%s %s = %d %.300s; want %d with %s", tt.method, tt.path, status, body, tt.status, tt.want)
			}
		})
	}
	n.Stop()
	nodelab.NothingLeft(t, dir)
}

// TestBadConfiguration starts a node with two mistakes in its settings: the error must name both.
func TestBadConfiguration(t *testing.T) {
	dir := nodelab.DataDir(t)
	file := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(file, []byte("colour: red\nlog:\n  level: loud\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := nodelab.Run(t, dir, nil, "--config", file, "up")
	if r.Code != 2 || !strings.Contains(r.Stderr, "colour") || !strings.Contains(r.Stderr, "loud") {
		t.Errorf("exit %d: %s; want 2 and both mistakes", r.Code, r.Stderr)
	}
}
