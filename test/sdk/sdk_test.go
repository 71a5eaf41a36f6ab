//go:build e2e

// Package sdk_test drives the server with the published SDKs, unmodified: @pandastack/sdk 0.9.0 from npm
// and pandastack 0.8.1 from PyPI. The services are the real ones over a simulated host, whose sandboxes
// are processes of this machine under the real guest agent; what needs a machine is tested elsewhere.
package sdk_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/auth"
	"github.com/pandastack/pandastack/internal/edge"
	"github.com/pandastack/pandastack/internal/guest"
	"github.com/pandastack/pandastack/internal/guest/process"
	"github.com/pandastack/pandastack/internal/guestapi"
	"github.com/pandastack/pandastack/internal/hostapi"
	"github.com/pandastack/pandastack/internal/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/httpapi"
	"github.com/pandastack/pandastack/internal/sandbox"
	"github.com/pandastack/pandastack/internal/store"
	"github.com/pandastack/pandastack/internal/template"
)

// host is a simulated host whose machines have the real guest agent inside, on this machine.
type host struct {
	*hosttest.Host
	reaper *process.Reaper

	mu     sync.Mutex
	guests map[hostapi.MachineID]*guest.Backend
}

func (h *host) Guest(ctx context.Context, id hostapi.MachineID) (guestapi.Guest, error) {
	if _, err := h.Host.Guest(ctx, id); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.guests[id] == nil {
		h.guests[id] = guest.New(guest.Config{Reaper: h.reaper})
	}
	return h.guests[id], nil
}

func (h *host) Destroy(ctx context.Context, id hostapi.MachineID, cause string) error {
	h.mu.Lock()
	g := h.guests[id]
	delete(h.guests, id)
	h.mu.Unlock()
	if g != nil {
		g.Close()
	}
	return h.Host.Destroy(ctx, id, cause)
}

// nobody opens no sandboxes: preview hosts are not what is tested here.
type nobody struct{}

func (nobody) Open(context.Context, string, func(edge.Target) bool) (edge.Target, error) {
	return edge.Target{}, edge.ErrNotFound
}

// serve starts the whole control plane and gives its address and an admin's key. With SDK_TEST_API and
// SDK_TEST_KEY set the tests drive that node instead, with whatever machines it has.
func serve(t *testing.T) (address, key string) {
	t.Helper()
	if address = os.Getenv("SDK_TEST_API"); address != "" {
		return address, os.Getenv("SDK_TEST_KEY")
	}
	ctx := t.Context()
	h := &host{Host: hosttest.New(), reaper: process.NewReaper(false), guests: map[hostapi.MachineID]*guest.Backend{}}
	t.Cleanup(h.Close)
	h.AddTemplate(hostapi.Template{Name: "base", VCPUs: 1, MemoryMiB: 256, DiskMiB: 1024, Baked: true})
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	db, err := store.Open(ctx, store.Config{DSN: filepath.Join(t.TempDir(), "control.db")})
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	keys, err := auth.New(db, log)
	must(t, err)
	templates, err := template.New(h, db, template.Builtin())
	must(t, err)
	boxes, err := sandbox.New(sandbox.Defaults(), sandbox.Deps{Store: db, Host: h, Templates: templates, Log: log})
	must(t, err)
	run, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = boxes.Run(run) }) // ends with its context
	t.Cleanup(func() { stop(); running.Wait() })
	door := edge.New(nobody{}, nil, log)
	t.Cleanup(door.Close)
	face, err := httpapi.New(httpapi.Config{Version: "test", PreviewKey: bytes.Repeat([]byte("k"), 32)},
		httpapi.Deps{Sandboxes: boxes, Templates: templates, Keys: keys, Edge: door, Log: log})
	must(t, err)
	srv := httptest.NewServer(face)
	t.Cleanup(srv.Close)
	key, err = keys.First(ctx)
	must(t, err)
	return srv.URL, key
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// command runs a program in dir and gives its output; a program that is not there skips the test.
func command(t *testing.T, dir string, env []string, name string, args ...string) (string, error) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("probe %s: it is not installed", name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err != nil {
		t.Logf("%s %v: %v\n%s", name, args, err, errs.String())
	}
	return out.String(), err
}

// drive runs a script and makes a test of every check that it tells.
func drive(t *testing.T, dir string, env []string, name, script string) {
	t.Helper()
	script, err := filepath.Abs(script)
	must(t, err)
	address, key := serve(t)
	ready(t, address)
	env = append(env, "PANDASTACK_API="+address, "PANDASTACK_API_KEY="+key, "SDK_DIR="+t.TempDir(), "HOME="+t.TempDir())
	out, err := command(t, dir, env, name, script)
	n := 0
	for lines := bufio.NewScanner(bytes.NewReader([]byte(out))); lines.Scan(); {
		var c struct {
			Name, Error string
			OK          bool
		}
		if json.Unmarshal(lines.Bytes(), &c) != nil || c.Name == "" {
			t.Logf("printed: %s", lines.Text())
			continue
		}
		n++
		t.Run(c.Name, func(t *testing.T) {
			if !c.OK {
				t.Error(c.Error)
			}
		})
	}
	if err != nil && !t.Failed() || n < 15 {
		t.Errorf("the script ended after %d checks: %v", n, err)
	}
}

func ready(t *testing.T, address string) {
	t.Helper()
	res, err := http.Get(address + "/readyz")
	must(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	must(t, err)
	if res.StatusCode != http.StatusOK {
		t.Fatalf("not ready: %s", body)
	}
}

func TestTypeScript(t *testing.T) {
	dir := t.TempDir()
	if _, err := command(t, dir, nil, "npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "@pandastack/sdk@0.9.0"); err != nil {
		t.Skipf("probe npm: it cannot install @pandastack/sdk: %v", err)
	}
	drive(t, dir, nil, "node", "sdk.mjs")
}

func TestPython(t *testing.T) {
	dir := t.TempDir()
	site := filepath.Join(dir, "site")
	if _, err := command(t, dir, nil, "python3", "-m", "pip", "install", "--quiet", "--target", site, "pandastack==0.8.1"); err != nil {
		t.Skipf("probe pip: it cannot install pandastack: %v", err)
	}
	drive(t, dir, []string{"PYTHONPATH=" + site}, "python3", "sdk.py")
}
