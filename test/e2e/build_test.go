//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTemplateBuild builds templates with the command line on a real node: from a Dockerfile with a context, again with
// cached layers, with a failing step, and from a running sandbox.
func TestTemplateBuild(t *testing.T) {
	dir := dataDir(t)
	n := start(t, dir)
	n.bake("mini")
	for _, name := range []string{"e2ebuilt", "e2ekept"} {
		n.cli("template", "delete", name) // an earlier test may have left it
		t.Cleanup(func() { n.cli("template", "delete", name) })
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
	built := n.cli("template", "build", "--name", "e2ebuilt", context)
	if built.code != 0 || !strings.Contains(built.stdout+built.stderr, "COPY") {
		t.Fatalf("build: exit %d\n%s%s", built.code, built.stdout, built.stderr)
	}
	again := n.cli("template", "build", "--name", "e2ebuilt", "--build-arg", "WHAT=bear", context)
	if again.code != 0 {
		t.Fatalf("second build: exit %d\n%s%s", again.code, again.stdout, again.stderr)
	}
	var builds []struct{ ID, Status string }
	n.json(&builds, "template", "builds", "e2ebuilt")
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
		if r := n.cli(append([]string{"template"}, strings.Fields(row.args)...)...); r.code != 0 ||
			!strings.Contains(r.stdout, row.want) {
			t.Errorf("template %s: exit %d\n%s%s\nwant %q", row.args, r.code, r.stdout, r.stderr, row.want)
		}
	}
	var first sandbox
	n.json(&first, "sandbox", "create", "--template", "e2ebuilt:panda")
	if got := n.sh(first.ID, "cat said"); got != "panda bamboo" {
		t.Errorf("output in a sandbox of the first version = %q, want panda bamboo", got)
	}
	var s sandbox
	n.json(&s, "sandbox", "create", "--template", "e2ebuilt")
	want := "/srv/app\nbear bamboo\n.dockerignore\nDockerfile\nsaid\nbear"
	if got := n.sh(s.ID, "pwd; cat said; ls -A; echo $WHO"); got != want {
		t.Errorf("output in a sandbox of the second version = %q, want %q", got, want)
	}
	if got := n.sh(s.ID, "ps -e -o args="); !strings.Contains("\n"+got, "\nsleep infinity") {
		t.Errorf("processes in the sandbox without the start command of the Dockerfile, want sleep infinity:\n%s", got)
	}

	write("Dockerfile", "FROM mini\nRUN echo before; echo why it failed >&2; exit 3\n")
	failed := n.cli("template", "build", "--name", "e2ebuilt", context)
	for _, want := range []string{"why it failed", "3"} {
		if failed.code == 0 || !strings.Contains(failed.stdout+failed.stderr, want) {
			t.Errorf(
				"build with a failing step: exit %d\n%s%s\nwant a failure with %q",
				failed.code,
				failed.stdout,
				failed.stderr,
				want,
			)
		}
	}
	write("Dockerfile", "FROM mini\nRUN --mount=type=cache,target=/x true\n")
	if r := n.cli("template", "build", "--name", "e2ebuilt", context); r.code == 0 ||
		!strings.Contains(r.stdout+r.stderr, "mount") ||
		!strings.Contains(r.stdout+r.stderr, "line 2") {
		t.Errorf(
			"build with an unsupported option: exit %d, want a failure that names it\n%s%s",
			r.code,
			r.stdout,
			r.stderr,
		)
	}

	write("Dockerfile", "FROM mini\nRUN echo so far && sleep 100000\n")
	hangs := n.cli("template", "build", "--name", "e2ebuilt", "--no-wait", context)
	id := strings.TrimSpace(hangs.stdout)
	if r := n.cli("template", "cancel", id); hangs.code != 0 || r.code != 0 {
		t.Errorf("cancel: exit %d, %d\n%s%s", hangs.code, r.code, hangs.stderr, r.stderr)
	}
	if r := n.cli("template", "logs", "--follow", id); r.code != 0 || !strings.Contains(r.stdout, "cancelled") {
		t.Errorf("logs of the cancelled build: exit %d, want 0 and \"cancelled\"\n%s%s", r.code, r.stdout, r.stderr)
	}

	n.sh(s.ID, "echo kept > /tmp/kept")
	if r := n.cli("template", "build", "--name", "e2ekept", "--from-sandbox", s.ID, "--keep-memory"); r.code != 0 {
		t.Fatalf("build from a sandbox: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	var kept sandbox
	n.json(&kept, "sandbox", "create", "--template", "e2ekept")
	if got := n.sh(kept.ID, "cat /tmp/kept"); got != "kept" {
		t.Errorf("file in a sandbox of the template built from a sandbox = %q, want kept", got)
	}
	if r := n.cli("template", "delete", "e2ebuilt"); r.code != 0 {
		t.Errorf("delete: exit %d\n%s", r.code, r.stderr)
	}
	if got := n.sh(s.ID, "echo here"); got != "here" {
		t.Errorf("output in a sandbox whose template was deleted = %q, want here", got)
	}
	n.json(nil, "sandbox", "delete", "--all")
	n.cli("template", "delete", "e2ekept")
	n.stop()
	nothingLeft(t, dir)
}
