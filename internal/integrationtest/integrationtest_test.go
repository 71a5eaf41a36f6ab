package integrationtest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/bench"
	"github.com/pandastack/pandastack/internal/cli"
	"github.com/pandastack/pandastack/internal/integrationtest"
)

// create creates a sandbox.
func create(t *testing.T, w *integrationtest.Platform, req api.CreateRequest) api.Sandbox {
	t.Helper()
	sb, err := w.Client.Sandboxes.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

// sh runs a shell command in a sandbox and returns its trimmed standard output.
func sh(t *testing.T, w *integrationtest.Platform, id api.SandboxID, line string) string {
	t.Helper()
	res, err := w.Client.Sandboxes.Exec(t.Context(), id, api.ExecRequest{Cmd: line})
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return strings.TrimSpace(res.Stdout)
}

// TestSandboxLifecycle creates, forks, hibernates, snapshots and deletes a sandbox with the client.
func TestSandboxLifecycle(t *testing.T) {
	w := integrationtest.New(t)
	if sb := create(t, w, api.CreateRequest{}); sb.BootMode != "cold" {
		t.Errorf("boot mode of the first sandbox of a template = %q, want cold", sb.BootMode)
	}
	parent := create(t, w, api.CreateRequest{Env: map[string]string{"WORD": "hello"}})
	if parent.BootMode != "snapshot" || sh(t, w, parent.ID, "echo $WORD") != "hello" {
		t.Errorf("second sandbox = %+v, want boot mode snapshot and WORD=hello in its environment", parent)
	}
	sh(t, w, parent.ID, "echo one > /tmp/file")
	tree, err := w.Client.Sandboxes.ForkTree(t.Context(), parent.ID, api.ForkTreeRequest{Count: 3})
	if err != nil || len(tree.Children) != 3 {
		t.Fatalf("ForkTree() = %+v, %v, want 3 children", tree, err)
	}
	for i, c := range tree.Children {
		if got := sh(t, w, c.ID, fmt.Sprintf("cat /tmp/file; echo child%d >> /tmp/file", i)); got != "one" {
			t.Errorf("file in child %d = %q, want one", i, got)
		}
	}
	if got := sh(t, w, parent.ID, "cat /tmp/file"); got != "one" {
		t.Errorf("file in the parent after its children wrote = %q, want one", got)
	}
	if err := w.Client.Sandboxes.Hibernate(t.Context(), parent.ID); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, w, parent.ID, "cat /tmp/file"); got != "one" { // wakes it
		t.Errorf("file after hibernation = %q, want one", got)
	}
	snap, err := w.Client.Sandboxes.Snapshot(t.Context(), parent.ID, api.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Client.Sandboxes.Delete(t.Context(), parent.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Client.Sandboxes.Exec(t.Context(), parent.ID, api.ExecRequest{Cmd: "true"}); err == nil ||
		!strings.Contains(err.Error(), "deleted") {
		t.Errorf("exec in a deleted sandbox: error %v, want one that says it was deleted", err)
	}
	again := create(t, w, api.CreateRequest{FromSnapshot: snap.ID})
	if got := sh(t, w, again.ID, "cat /tmp/file"); got != "one" {
		t.Errorf("file in a sandbox of the snapshot = %q, want one", got)
	}
}

// TestCrash crashes a node that has ten sandboxes and a pending request.
func TestCrash(t *testing.T) {
	w := integrationtest.New(t)
	var ids []api.SandboxID
	for i := range 10 {
		sb := create(t, w, api.CreateRequest{Metadata: map[string]string{"n": fmt.Sprint(i)}})
		sh(t, w, sb.ID, fmt.Sprintf("echo %d > /tmp/me", i))
		ids = append(ids, sb.ID)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var pending sync.WaitGroup
	cl := w.Client
	pending.Go(func() { _, _ = cl.Sandboxes.Exec(ctx, ids[0], api.ExecRequest{Cmd: "sleep 3600"}) })
	w.Crash()
	cancel()
	pending.Wait()
	for i, id := range ids {
		if got := sh(t, w, id, "cat /tmp/me"); got != fmt.Sprint(i) {
			t.Errorf("file in sandbox %d = %q, want %d", i, got, i)
		}
	}
	for _, id := range ids {
		if err := w.Client.Sandboxes.Delete(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if left := w.Driver.Monitors(); len(left) != 0 {
		t.Errorf("monitors left over: %v, want none", left)
	}
}

// TestRestart stops a node cleanly: a persistent sandbox comes back, and another one has ended.
func TestRestart(t *testing.T) {
	w := integrationtest.New(t)
	kept, lost := create(t, w, api.CreateRequest{Persistent: true}), create(t, w, api.CreateRequest{})
	sh(t, w, kept.ID, "echo kept > /tmp/file")
	w.Restart()
	if left := w.Driver.Monitors(); len(left) != 0 {
		t.Errorf("monitors left over: %v, want none", left)
	}
	if got := sh(t, w, kept.ID, "cat /tmp/file"); got != "kept" {
		t.Errorf("file in the persistent sandbox = %q, want kept", got)
	}
	if _, err := w.Client.Sandboxes.Get(t.Context(), lost.ID); err == nil {
		t.Error("a sandbox that is not persistent survived the restart")
	}
}

// TestFailingCreate makes each operation of the driver fail once. The create must fail and leave nothing behind.
func TestFailingCreate(t *testing.T) {
	w := integrationtest.New(t)
	create(t, w, api.CreateRequest{})
	before := w.Driver.Monitors()
	for _, op := range []string{"prepare", "load", "dial"} {
		w.Driver.FailNext(op, errors.New("injected"))
		if _, err := w.Client.Sandboxes.Create(t.Context(), api.CreateRequest{}); err == nil {
			t.Errorf("create with a failing %s succeeded, want an error", op)
		}
		if left := w.Driver.Monitors(); !slices.Equal(
			slices.Sorted(slices.Values(left)),
			slices.Sorted(slices.Values(before)),
		) {
			t.Errorf("after a failed %s: monitors %v, want %v", op, left, before)
		}
	}
	if list, err := w.Client.Sandboxes.List(t.Context(), api.SandboxFilter{}); err != nil || len(list) != 1 {
		t.Errorf("List() = %+v, %v, want one sandbox", list, err)
	}
	create(t, w, api.CreateRequest{})
}

// pandastack runs the command line with the platform's URL and key.
func pandastack(t *testing.T, w *integrationtest.Platform, args ...string) (exit int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	home := t.TempDir()
	exit = cli.Run(t.Context(), cli.Process{
		Version: "test",
		Env: []string{
			"HOME=" + home, "PANDASTACK_DATA_DIR=" + home,
			"PANDASTACK_API_URL=" + w.URL, "PANDASTACK_API_KEY=" + w.Key,
		},
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
	}, args)
	return exit, out.String(), errs.String()
}

// TestCommandLine runs the commands of the command line with both kinds of output.
func TestCommandLine(t *testing.T) {
	w := integrationtest.New(t)
	_, out, errs := pandastack(t, w, "sandbox", "create", "--metadata", "a=b")
	id := strings.TrimSpace(out)
	if !api.SandboxID(id).Valid() {
		t.Fatalf("sandbox create printed %q, %s; want a sandbox id", out, errs)
	}
	_, out, _ = pandastack(t, w, "--json", "sandbox", "snapshot", id)
	var snap struct{ ID string }
	if json.Unmarshal([]byte(out), &snap) != nil || snap.ID == "" {
		t.Fatalf("snapshot: %q", out)
	}
	for _, tt := range []struct {
		args string
		exit int
		want string // part of standard output or standard error
	}{
		{"sandbox list", 0, id},
		{"sandbox list --status hibernated", 0, ""},
		{"sandbox get " + id, 0, "a=b"},
		{"sandbox exec " + id + " -- echo out", 0, "out\n"},
		{"sandbox exec " + id + " -- exit 3", 3, ""},
		{"sandbox exec " + id + " -- nonsense", 127, ""},
		{"sandbox logs " + id, 0, "out"},
		{"sandbox ports " + id, 0, ""},
		{"sandbox metrics " + id, 0, ""},
		{"sandbox lifecycle " + id, 0, ""},
		{"sandbox network " + id, 0, ""},
		{"sandbox pause " + id, 0, ""},
		{"sandbox pause " + id, 0, ""},
		{"sandbox resume " + id, 0, ""},
		{"sandbox hibernate " + id, 0, ""},
		{"sandbox wake " + id, 0, ""},
		{"sandbox fork " + id, 0, "sbx"},
		{"sandbox fork-tree " + id + " --count 2", 0, "sbx"},
		{"snapshot list", 0, snap.ID},
		{"snapshot get " + snap.ID, 0, snap.ID},
		{"sandbox create --from-snapshot " + snap.ID, 0, "sbx"},
		{"sandbox create --template none", 2, "there are base"},
		{"snapshot delete " + snap.ID, 0, ""},
		{"template list", 0, "base"},
		{"template get base", 0, "base"},
		{"template bake base", 0, "baked"},
		{"key create --label ci", 0, "pds_"},
		{"key list", 0, "ci"},
		{"me", 0, ""},
		{"version", 0, "test"},
		{"sandbox delete " + id, 0, ""},
		{"sandbox get " + id, 5, "deleted"},
	} {
		for _, form := range [][]string{nil, {"--json"}} {
			if len(form) > 0 &&
				(strings.Contains(tt.args, "delete") || strings.Contains(tt.args, "create") || tt.exit != 0) {
				continue // these cannot be repeated
			}
			exit, out, errs := pandastack(t, w, append(form, strings.Fields(tt.args)...)...)
			said := strings.NewReplacer(`\n`, "\n", `": "`, "=", `"`, "").
				Replace(out + errs)
				// the same words in both forms
			if exit != tt.exit || !strings.Contains(said, tt.want) {
				t.Errorf("%v %s: exit %d\n%s%s\nwant exit %d and %q", form, tt.args, exit, out, errs, tt.exit, tt.want)
			}
			if len(form) > 0 && out != "" && !json.Valid([]byte(out)) && !strings.Contains(tt.args, "logs") {
				t.Errorf("%s: not JSON: %s", tt.args, out)
			}
		}
	}
}

// TestTemplateSizes checks that a template and lists of templates show the disk usage and the apparent size.
func TestTemplateSizes(t *testing.T) {
	w := integrationtest.New(t)
	if exit, out, errs := pandastack(t, w, "template", "bake", "base"); exit != 0 {
		t.Fatalf("bake: %s%s", out, errs)
	}
	base, err := w.Client.Templates.Get(t.Context(), "base")
	if err != nil || base.SizeBytes <= 0 || base.ApparentBytes <= int64(base.DiskMB)<<20 {
		t.Errorf(
			"size of base = %d bytes, apparent size %d (%v); want an apparent size above that of its disk",
			base.SizeBytes,
			base.ApparentBytes,
			err,
		)
	}
	for args, want := range map[string]string{
		"template list":        " of 1.0 MiB",
		"--json template list": fmt.Sprintf(`"apparent_bytes": %d,`, base.ApparentBytes),
	} {
		if exit, out, errs := pandastack(t, w, strings.Fields(args)...); exit != 0 || !strings.Contains(out, want) {
			t.Errorf("%s: exit %d\n%s%s\nwant %q", args, exit, out, errs, want)
		}
	}
}

// TestBench runs the benchmark and checks the report. Its numbers have no meaning over fake machines.
func TestBench(t *testing.T) {
	w := integrationtest.New(t)
	report, err := bench.Run(t.Context(), w.Client, bench.Options{
		Template: "base", Only: []string{"create", "exec", "fork_tree_16"}, Scale: 0.1, MaxIdle: 1, Work: t.TempDir(),
		Report: func(string) {},
	})
	if err != nil || len(report.Skipped) != 0 {
		t.Fatalf("Run: error %v, skipped %v, want none", err, report.Skipped)
	}
	names := map[string]bool{}
	for _, s := range report.Series {
		if s.Name == "exec_python" {
			continue // the shell of fake guests has no Python
		}
		if len(s.Values) == 0 || s.Failed > 0 || s.P50 > s.P99 {
			t.Errorf("series = %+v, want values, no failures and ordered percentiles", s)
		}
		names[s.Name] = true
	}
	for _, want := range []string{"create_sequential", "exec_true", "fork_tree_16"} {
		if !names[want] {
			t.Errorf("series = %v, want %s among them", slices.Sorted(maps.Keys(names)), want)
		}
	}
	if left, err := w.Client.Sandboxes.List(t.Context(), api.SandboxFilter{}); err != nil || len(left) != 0 {
		t.Errorf("sandboxes after the benchmark = %+v, %v, want none", left, err)
	}
	var table bytes.Buffer
	if err := report.Table(&table); err != nil || !strings.Contains(table.String(), "create_sequential") {
		t.Errorf("table without create_sequential (%v):\n%s", err, table.String())
	}
}
