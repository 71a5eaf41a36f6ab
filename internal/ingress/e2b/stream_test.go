package e2b_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
)

// TestStreamsOfEndedSandboxesAreCut ends or pauses a sandbox while a stream of its agent is open. The stream must
// break, as it does when a machine goes away, and not end in order: clients ask then whether the sandbox is there.
func TestStreamsOfEndedSandboxesAreCut(t *testing.T) {
	for name, change := range map[string]func(w *fixture, id api.SandboxID) error{
		"delete": func(w *fixture, id api.SandboxID) error { return w.boxes.Delete(t.Context(), w.principal(), id) },
		"pause": func(w *fixture, id api.SandboxID) error {
			_, err := w.boxes.Hibernate(t.Context(), w.principal(), id)
			return err
		},
	} {
		for path, message := range map[string]string{
			"/process.Process/Start":          `{"process":{"cmd":"/bin/bash","args":["-l","-c","sleep 1000"]}}`,
			"/filesystem.Filesystem/WatchDir": `{"path":"/tmp"}`,
		} {
			t.Run(name+path, func(t *testing.T) {
				w := newFixture(t)
				c := w.create("/v2/sandboxes", `{"templateID":"base"}`)
				if path == "/filesystem.Filesystem/WatchDir" {
					w.upload(c, "/tmp/f")
				}
				body := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+path,
					bytes.NewReader(append(body, message...)))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", "application/connect+json")
				req.Header.Set("Connect-Protocol-Version", "1")
				resp, err := (&http.Client{Transport: asHost{
					"49983-" + c.SandboxID + "." + domain, c.EnvdAccessToken,
				}}).Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if _, err := io.ReadFull(resp.Body, make([]byte, 5)); err != nil {
					t.Fatalf("the stream did not begin: %v", err)
				}
				if err := change(w, api.SandboxID(c.SandboxID)); err != nil {
					t.Fatal(err)
				}
				rest, err := io.ReadAll(resp.Body)
				if !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("the stream ended with %v and %q, want it cut", err, rest)
				}
				status, text := w.at("GET", c.SandboxID, 49983, "/health", "X-Access-Token", c.EnvdAccessToken)
				if status != http.StatusBadGateway {
					t.Errorf("health afterwards: %d %s, want %d", status, text, http.StatusBadGateway)
				}
			})
		}
	}
}

// upload writes a file through the agent.
func (w *fixture) upload(c created, path string) {
	w.t.Helper()
	url := w.url + "/files?path=" + path
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, url, strings.NewReader("x"))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	resp, err := (&http.Client{Transport: asHost{"49983-" + c.SandboxID + "." + domain, c.EnvdAccessToken}}).Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		w.t.Fatalf("upload: %s", resp.Status)
	}
}
