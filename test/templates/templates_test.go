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

// Time limits, generous enough for a loaded host.
const (
	readyLimit = 5 * time.Minute
	bakeLimit  = 40 * time.Minute
	checkLimit = 20 * time.Minute
)

// node starts a node with the prepared data directory and returns a client for it.
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
		_ = cmd.Process.Signal(syscall.SIGTERM) // fails only if the process has exited, which done reports
		if err := <-done; err != nil || t.Failed() {
			text := log.String()
			t.Errorf("the node exited with %v:\n%s", err, text[max(0, len(text)-8000):])
		}
	})
	limit := time.NewTimer(readyLimit)
	defer limit.Stop()
	select {
	case n := <-first:
		if n.Key == "" {
			n.Key = storedKey(t, dir)
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

// storedKey returns the API key that an earlier node has stored in the data directory for the command line.
func storedKey(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "client.json"))
	var known struct {
		Key string `json:"api_key"`
	}
	if err == nil {
		err = json.Unmarshal(data, &known)
	}
	if err != nil {
		t.Fatalf("no stored API key: %v", err)
	}
	return known.Key
}

// externalVariants are the variants whose package source has to be configured on the host.
var externalVariants = []string{"base.ubuntu-24.04", "postgres-16.ubuntu-24.04", "postgres-16.pgdg"}

// TestTemplates bakes every template and runs its check in a sandbox restored from the bake.
func TestTemplates(t *testing.T) {
	cl := node(t)
	all, err := cl.Templates.List(t.Context())
	if err != nil || len(all) < 6 {
		t.Fatalf("List() returned %d templates, %v, want at least 6", len(all), err)
	}
	names := []string{
		"base",
		"code-interpreter",
		"agent",
		"browser",
		"postgres-16",
		"claude-agent",
		"postgres-17",
	}
	for _, name := range append(names, externalVariants...) {
		t.Run(name, func(t *testing.T) {
			const params = "PANDASTACK_TEMPLATES_PARAMS"
			if slices.Contains(externalVariants, name) && !strings.Contains(os.Getenv(params), name+".") {
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
				t.Errorf("disk usage %d bytes, apparent size %d (%v); want a usage above 0 and below the apparent size",
					baked.SizeBytes, baked.ApparentBytes, err)
			}
			t.Logf(
				"baked in %v, disk usage %d MiB, apparent size %d MiB",
				time.Since(began).Round(time.Second),
				baked.SizeBytes>>20,
				baked.ApparentBytes>>20,
			)
			runCheck(t, cl, name)
		})
	}
}

// runCheck runs the check of a template in a new sandbox.
func runCheck(t *testing.T, cl *client.Client, name string) {
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
		t.Errorf("boot mode = %q, want snapshot", box.BootMode)
	}
	if name == "code-interpreter" {
		checkFirstCell(ctx, t, cl, box.ID)
	}
	res, err := cl.Sandboxes.Exec(
		ctx,
		box.ID,
		api.ExecRequest{Cmd: recipe.CheckPath, TimeoutSeconds: checkLimit.Seconds()},
	)
	if err != nil || res.ExitCode != 0 {
		t.Fatalf("check: exit code %d, %v, want 0\n%s%s", res.ExitCode, err, res.Stdout, res.Stderr)
	}
	t.Log(strings.TrimSpace(res.Stdout))
	if strings.HasPrefix(name, "postgres-16") {
		checkPostgresCopies(ctx, t, cl, box.ID)
	}
}

// checkPostgresCopies checks that a sandbox and its fork have separate database clusters that survive hibernation.
func checkPostgresCopies(ctx context.Context, t *testing.T, cl *client.Client, id api.SandboxID) {
	t.Helper()
	sql := func(id api.SandboxID, text string) string {
		t.Helper()
		res, err := cl.Sandboxes.Exec(
			ctx,
			id,
			api.ExecRequest{Cmd: "psql -XqAt -v ON_ERROR_STOP=1 postgres -c \"" + text + "\"", TimeoutSeconds: 120},
		)
		if err != nil || res.ExitCode != 0 {
			t.Fatalf("%s: exit code %d, %v, want 0\n%s%s", text, res.ExitCode, err, res.Stdout, res.Stderr)
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
			t.Errorf("rows in the cluster of %s = %q, want %q", of, got, want)
		}
	}
}

// checkFirstCell checks that the template's context runs a cell, and that no cell has run in it before.
func checkFirstCell(ctx context.Context, t *testing.T, cl *client.Client, id api.SandboxID) {
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
