//go:build slow

package templates

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/host/probe/probetest"
	"github.com/pandastack/pandastack/internal/image/recipe"
)

// Bounds of what a loaded machine may take.
const (
	readyLimit = 5 * time.Minute
	bakeLimit  = 40 * time.Minute
	checkLimit = 20 * time.Minute
)

// node starts the program with the prepared data directory and gives a client of it.
func node(t *testing.T) *client.Client {
	t.Helper()
	probetest.Need(t, probe.Config{}, probe.Root)
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := os.Getenv("PANDASTACK_TEST_DATA")
	if dir == "" {
		dir = filepath.Join(root, ".cache", "data")
	}
	if _, err := os.Stat(filepath.Join(dir, "kernel")); err != nil {
		t.Fatalf("%v; run make prepare", err)
	}
	var log bytes.Buffer
	cmd := exec.Command(filepath.Join(root, "bin", "pandastack"), "up", "--json")
	cmd.Env = append(os.Environ(), "PANDASTACK_DATA_DIR="+dir, "PANDASTACK_LISTEN=127.0.0.1:0",
		fmt.Sprintf("PANDASTACK_NETWORK_PREFIX=t%06x", crc32.ChecksumIEEE([]byte(dir))&0xffffff),
		"PANDASTACK_API=", "PANDASTACK_API_URL=", "PANDASTACK_API_KEY=", "PANDASTACK_TOKEN=")
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	first := make(chan struct{ URL, Key string }, 1)
	done := make(chan error, 1)
	go func() {
		var line struct {
			URL string `json:"api_url"`
			Key string `json:"api_key"`
		}
		if json.NewDecoder(out).Decode(&line) == nil {
			first <- struct{ URL, Key string }{line.URL, line.Key}
		}
		_, _ = io.Copy(io.Discard, out) // the node prints nothing more; reading keeps it from blocking
		done <- cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // one that has ended already says so in done
		if err := <-done; err != nil || t.Failed() {
			text := log.String()
			t.Errorf("the node ended with %v:\n%s", err, text[max(0, len(text)-8000):])
		}
	})
	limit := time.NewTimer(readyLimit)
	defer limit.Stop()
	select {
	case n := <-first:
		if n.Key == "" {
			n.Key = knownKey(t, dir)
		}
		cl, err := client.New(n.URL, n.Key)
		if err != nil {
			t.Fatal(err)
		}
		return cl
	case <-limit.C:
		t.Fatalf("the node was not ready in %v", readyLimit)
	}
	return nil
}

// knownKey is the key that an earlier node of a data directory has left for the machine's own programs.
func knownKey(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "client.json"))
	var known struct {
		Key string `json:"api_key"`
	}
	if err == nil {
		err = json.Unmarshal(data, &known)
	}
	if err != nil {
		t.Fatalf("the node gave no key: %v", err)
	}
	return known.Key
}

// elsewhere are variants whose packages come from where only the machine's configuration can say.
var elsewhere = []string{"base.ubuntu-24.04", "postgres-16.ubuntu-24.04", "postgres-16.pgdg"}

// TestTemplates bakes every template, and its check runs a second time, in a machine restored from the bake.
func TestTemplates(t *testing.T) {
	cl := node(t)
	all, err := cl.Templates.List(t.Context())
	if err != nil || len(all) < 6 {
		t.Fatalf("%d templates, %v", len(all), err)
	}
	names := []string{
		"base",
		"code-interpreter",
		"agent",
		"browser",
		"postgres-16",
		"claude-agent",
		"postgres-16.debian-13",
	}
	for _, name := range append(names, elsewhere...) {
		t.Run(name, func(t *testing.T) {
			const params = "PANDASTACK_TEMPLATES_PARAMS"
			if slices.Contains(elsewhere, name) && !strings.Contains(os.Getenv(params), name+".") {
				t.Skipf("probe source: %s names none for the packages of %s", params, name)
			}
			ctx, cancel := context.WithTimeout(t.Context(), bakeLimit)
			defer cancel()
			began := time.Now()
			if _, err := cl.Templates.BakeAndWait(ctx, name, api.BakeRequest{}, func(api.Bake) {}); err != nil {
				t.Fatal(err)
			}
			baked, err := cl.Templates.Get(ctx, name)
			if err != nil || baked.SizeBytes <= 0 || baked.SizeBytes >= baked.ApparentBytes {
				t.Errorf("takes %d bytes of %d: %v", baked.SizeBytes, baked.ApparentBytes, err)
			}
			t.Logf(
				"baked in %v, takes %d MiB of %d",
				time.Since(began).Round(time.Second),
				baked.SizeBytes>>20,
				baked.ApparentBytes>>20,
			)
			prove(t, cl, name)
		})
	}
}

// prove runs a template's check in a sandbox of it.
func prove(t *testing.T, cl *client.Client, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), checkLimit)
	defer cancel()
	box, err := cl.Sandboxes.Create(ctx, api.CreateRequest{Template: name})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cl.Sandboxes.Delete(context.WithoutCancel(ctx), box.ID); err != nil {
			t.Error(err)
		}
	}()
	if box.BootMode != "snapshot" {
		t.Errorf("the sandbox came to life by %q, want a restore", box.BootMode)
	}
	if name == "code-interpreter" {
		cell(ctx, t, cl, box.ID)
	}
	res, err := cl.Sandboxes.Exec(
		ctx,
		box.ID,
		api.ExecRequest{Cmd: recipe.CheckPath, TimeoutSeconds: checkLimit.Seconds()},
	)
	if err != nil || res.ExitCode != 0 {
		t.Fatalf("check: %d, %v\n%s%s", res.ExitCode, err, res.Stdout, res.Stderr)
	}
	t.Log(strings.TrimSpace(res.Stdout))
	if strings.HasPrefix(name, "postgres-16") {
		clusters(ctx, t, cl, box.ID)
	}
}

// clusters wants a sandbox and its fork to have a cluster each, and a hibernation to keep it.
func clusters(ctx context.Context, t *testing.T, cl *client.Client, id api.SandboxID) {
	t.Helper()
	sql := func(id api.SandboxID, text string) string {
		t.Helper()
		res, err := cl.Sandboxes.Exec(
			ctx,
			id,
			api.ExecRequest{Cmd: "psql -XqAt -v ON_ERROR_STOP=1 postgres -c \"" + text + "\"", TimeoutSeconds: 120},
		)
		if err != nil || res.ExitCode != 0 {
			t.Fatalf("%s: %d, %v\n%s%s", text, res.ExitCode, err, res.Stdout, res.Stderr)
		}
		return strings.TrimSpace(res.Stdout)
	}
	sql(id, "create table who as select 'both'::text as name")
	forked, err := cl.Sandboxes.Fork(ctx, id, api.ForkRequest{Count: 1})
	if err != nil || len(forked.Children) != 1 {
		t.Fatalf("fork: %+v, %v", forked, err)
	}
	child := forked.Children[0].ID
	defer func() {
		if err := cl.Sandboxes.Delete(context.WithoutCancel(ctx), child); err != nil {
			t.Error(err)
		}
	}()
	sql(id, "insert into who values ('parent')")
	sql(child, "insert into who values ('child')")
	if err := cl.Sandboxes.Hibernate(ctx, id); err != nil {
		t.Fatal(err)
	}
	if err := cl.Sandboxes.Wake(ctx, id); err != nil {
		t.Fatal(err)
	}
	sql(id, "checkpoint")
	for of, want := range map[api.SandboxID]string{id: "both parent", child: "both child"} {
		if got := sql(of, "select string_agg(name, ' ' order by name) from who"); got != want {
			t.Errorf("cluster of %s holds %q, want %q", of, got, want)
		}
	}
}

// cell checks that the template's context runs a cell, and that no cell has run in it before.
func cell(ctx context.Context, t *testing.T, cl *client.Client, id api.SandboxID) {
	t.Helper()
	res, err := cl.Sandboxes.RunCell(
		ctx,
		id,
		"default",
		api.ReplCell{Code: "import sys\n('pandas' in sys.modules, '_' in globals(), 1+1)"},
	)
	if err != nil || len(res.Results) != 1 || res.Results[0]["text/plain"] != "(True, False, 2)" {
		t.Errorf("first cell: got results %v, error %q, %v", res.Results, res.Error, err)
	}
}
