//go:build e2e

// Package e2e tests the real program, as a node and as the command line against it.
//
// The tests also check that nothing is left over on the host. They need root, and the data directory that "make
// prepare" creates.
package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/test/nodelab"
)

// TestTemplateBuild builds templates with the command line on a real node: from a Dockerfile with a context, again with
// cached layers, with a failing step, and from a running sandbox.
func TestTemplateBuild(t *testing.T) {
	dir := nodelab.DataDir(t)
	n := nodelab.Start(t, dir)
	n.Bake("mini")
	for _, name := range []string{"e2ebuilt", "e2ekept"} {
		n.CLI("template", "delete", name) // an earlier test may have left it
		t.Cleanup(func() { n.CLI("template", "delete", name) })
	}
	context := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(context, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("word.txt", "bamboo\n")
	write("secret.key", "not to be sent\n")
	write(".dockerignore", "*.key\n")
	write(
		"Dockerfile",
		"FROM mini\nARG WHAT=panda\nENV WHO=$WHAT\nWORKDIR /srv/app\nCOPY . .\n"+
			"RUN echo \"$WHO $(cat word.txt)\" > said && rm word.txt\nCMD [\"sleep\", \"infinity\"]\n",
	)
	built := n.CLI("template", "build", "--name", "e2ebuilt", context)
	if built.Code != 0 || !strings.Contains(built.Stdout+built.Stderr, "COPY") {
		t.Fatalf("build: exit %d\n%s%s", built.Code, built.Stdout, built.Stderr)
	}
	again := n.CLI("template", "build", "--name", "e2ebuilt", "--build-arg", "WHAT=bear", context)
	if again.Code != 0 {
		t.Fatalf("second build: exit %d\n%s%s", again.Code, again.Stdout, again.Stderr)
	}
	var builds []struct{ ID, Status string }
	n.JSON(&builds, "template", "builds", "e2ebuilt")
	if len(builds) < 2 || builds[0].Status != "done" ||
		builds[1].Status != "done" { // newest first, with those of earlier runs
		t.Fatalf("builds = %+v, want at least two, the newest two done", builds)
	}
	for _, row := range []struct{ want, args string }{
		{"[2/3 COPY . .]", "logs " + builds[0].ID},
		{builds[0].ID, "tag e2ebuilt bear"},
		{builds[1].ID, "tag --target " + builds[1].ID + " e2ebuilt panda"},
		{"1 vCPU", "get e2ebuilt:panda"},
		{" of 1.", "list"}, // disk usage of its memory and disk files
	} {
		if r := n.CLI(append([]string{"template"}, strings.Fields(row.args)...)...); r.Code != 0 ||
			!strings.Contains(r.Stdout, row.want) {
			t.Errorf("template %s: exit %d\n%s%s\nwant %q", row.args, r.Code, r.Stdout, r.Stderr, row.want)
		}
	}
	var first nodelab.Sandbox
	n.JSON(&first, "sandbox", "create", "--template", "e2ebuilt:panda")
	if got := n.Sh(first.ID, "cat said"); got != "panda bamboo" {
		t.Errorf("output in a sandbox of the first version = %q, want panda bamboo", got)
	}
	var s nodelab.Sandbox
	n.JSON(&s, "sandbox", "create", "--template", "e2ebuilt")
	want := "/srv/app\nbear bamboo\n.dockerignore\nDockerfile\nsaid\nbear"
	if got := n.Sh(s.ID, "pwd; cat said; ls -A; echo $WHO"); got != want {
		t.Errorf("output in a sandbox of the second version = %q, want %q", got, want)
	}
	if got := n.Sh(s.ID, "ps -e -o args="); !strings.Contains("\n"+got, "\nsleep infinity") {
		t.Errorf("processes in the sandbox without the start command of the Dockerfile, want sleep infinity:\n%s", got)
	}

	write("Dockerfile", "FROM mini\nRUN echo before; echo why it failed >&2; exit 3\n")
	failed := n.CLI("template", "build", "--name", "e2ebuilt", context)
	for _, want := range []string{"why it failed", "3"} {
		if failed.Code == 0 || !strings.Contains(failed.Stdout+failed.Stderr, want) {
			t.Errorf(
				"build with a failing step: exit %d\n%s%s\nwant a failure with %q",
				failed.Code,
				failed.Stdout,
				failed.Stderr,
				want,
			)
		}
	}
	write("Dockerfile", "FROM mini\nRUN --mount=type=cache,target=/x true\n")
	if r := n.CLI("template", "build", "--name", "e2ebuilt", context); r.Code == 0 ||
		!strings.Contains(r.Stdout+r.Stderr, "mount") ||
		!strings.Contains(r.Stdout+r.Stderr, "line 2") {
		t.Errorf(
			"build with an unsupported option: exit %d, want a failure that names it\n%s%s",
			r.Code,
			r.Stdout,
			r.Stderr,
		)
	}

	write("Dockerfile", "FROM mini\nRUN echo so far && sleep 100000\n")
	hangs := n.CLI("template", "build", "--name", "e2ebuilt", "--no-wait", context)
	id := strings.TrimSpace(hangs.Stdout)
	if r := n.CLI("template", "cancel", id); hangs.Code != 0 || r.Code != 0 {
		t.Errorf("cancel: exit %d, %d\n%s%s", hangs.Code, r.Code, hangs.Stderr, r.Stderr)
	}
	if r := n.CLI("template", "logs", "--follow", id); r.Code != 0 || !strings.Contains(r.Stdout, "cancelled") {
		t.Errorf("logs of the cancelled build: exit %d, want 0 and \"cancelled\"\n%s%s", r.Code, r.Stdout, r.Stderr)
	}

	n.Sh(s.ID, "echo kept > /tmp/kept")
	if r := n.CLI("template", "build", "--name", "e2ekept", "--from-sandbox", s.ID, "--keep-memory"); r.Code != 0 {
		t.Fatalf("build from a sandbox: exit %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	var kept nodelab.Sandbox
	n.JSON(&kept, "sandbox", "create", "--template", "e2ekept")
	if got := n.Sh(kept.ID, "cat /tmp/kept"); got != "kept" {
		t.Errorf("file in a sandbox of the template built from a sandbox = %q, want kept", got)
	}
	if r := n.CLI("template", "delete", "e2ebuilt"); r.Code != 0 {
		t.Errorf("delete: exit %d\n%s", r.Code, r.Stderr)
	}
	if got := n.Sh(s.ID, "echo here"); got != "here" {
		t.Errorf("output in a sandbox whose template was deleted = %q, want here", got)
	}
	n.JSON(nil, "sandbox", "delete", "--all")
	n.CLI("template", "delete", "e2ekept")
	n.Stop()
	nodelab.NothingLeft(t, dir)
}
