//go:build e2e

package e2e

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTour runs the commands of the command line against a real node.
func TestTour(t *testing.T) {
	t.Setenv("PANDASTACK_TEST_WARM_MONITORS", "2")
	dir := dataDir(t)
	n := start(t, dir)
	n.bake("mini")
	s := n.create("--persistent", "--env", "COLOUR=bamboo", "--metadata", "purpose=tour")
	t.Run("exec", func(t *testing.T) { tourExec(t, n, s.ID) })
	t.Run("files", func(t *testing.T) { tourFiles(t, n, s.ID) })
	t.Run("fork", func(t *testing.T) { tourFork(t, n, s.ID) })
	t.Run("snapshot", func(t *testing.T) { tourSnapshot(t, n, s.ID) })
	t.Run("pause-and-hibernate", func(t *testing.T) { tourPauseHibernate(t, n, s.ID) })
	t.Run("keys", func(t *testing.T) { tourKeys(t, n) })
	n.json(nil, "sandbox", "delete", s.ID)
	if r := n.cli("sandbox", "get", s.ID); r.code != 5 || !strings.Contains(r.stderr, "delete") {
		t.Errorf("get of a deleted sandbox: exit %d, %s; want 5 and why it ended", r.code, r.stderr)
	}
	n.json(nil, "sandbox", "delete", s.ID) // a second delete succeeds, too
	n.stop()
	nothingLeft(t, dir)
}

// tourExec runs commands and a shell in a sandbox.
func tourExec(t *testing.T, n *node, id string) {
	if got := n.sh(id, "echo $COLOUR; id -un"); !strings.HasPrefix(got, "bamboo\n") {
		t.Errorf("value of COLOUR and user = %q, want bamboo first", got)
	}
	r := n.cli("sandbox", "exec", id, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
	if r.code != 7 || r.stdout != "out\n" || r.stderr != "err\n" {
		t.Errorf("exec: exit %d, stdout %q, stderr %q; want 7, out and err", r.code, r.stdout, r.stderr)
	}
	r = n.cli("sandbox", "exec", "--timeout", "1s", id, "--", "sleep", "100")
	if r.code != 124 {
		t.Errorf("exec with an expired timeout: exit %d, %s; want 124", r.code, r.stderr)
	}
	r = run(t, n.dir, strings.NewReader("through\n"), "--api", n.url, "sandbox", "exec", "--stdin", id, "cat")
	if r.code != 0 || r.stdout != "through\n" {
		t.Errorf("exec --stdin of cat: stdout %q, exit %d, %s; want the input and 0", r.stdout, r.code, r.stderr)
	}
	r = run(
		t,
		n.dir,
		strings.NewReader("echo in a $((40+2)) terminal; exit 3\n"),
		"--api",
		n.url,
		"sandbox",
		"shell",
		id,
	)
	if r.code != 3 || !strings.Contains(r.stdout, "in a 42 terminal") {
		t.Errorf("shell: exit %d, %q, %s; want 3 and the output of echo", r.code, r.stdout, r.stderr)
	}
	if r := n.cli("sandbox", "metrics", id); r.code != 0 || !strings.Contains(r.stdout, "memory in the guest") {
		t.Errorf("metrics: exit %d, %s%s; want 0 and the memory in the guest", r.code, r.stdout, r.stderr)
	}
}

// tourFiles copies files and directories to a sandbox and back.
func tourFiles(t *testing.T, n *node, id string) {
	from, back := t.TempDir(), t.TempDir()
	data := make([]byte, 3<<20)
	if _, err := rand.Read(data); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(from, "deep", "er"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one.bin", "deep/er/two.bin"} {
		if err := os.WriteFile(filepath.Join(from, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	n.ok(t, "sandbox", "cp", filepath.Join(from, "one.bin"), id+":/tmp/one.bin")
	n.ok(t, "sandbox", "cp", id+":/tmp/one.bin", back)
	n.ok(t, "sandbox", "cp", from, id+":/tmp/tree")
	n.ok(t, "sandbox", "cp", id+":/tmp/tree", filepath.Join(back, "tree"))
	for _, name := range []string{"one.bin", "tree/one.bin", "tree/deep/er/two.bin"} {
		got, err := os.ReadFile(filepath.Join(back, name))
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s after copying it back: %d bytes that differ from the original (%v), want equal content",
				name, len(got), err)
		}
	}
	if r := n.cli("sandbox", "cp", id+":/nowhere", back); r.code != 5 {
		t.Errorf("copy of a missing file: exit %d, %s; want 5", r.code, r.stderr)
	}
}

// ok runs a command that must succeed.
func (n *node) ok(t *testing.T, args ...string) string {
	t.Helper()
	r := n.cli(args...)
	if r.code != 0 {
		t.Fatalf("pandastack %s: exit %d: %s", strings.Join(args, " "), r.code, r.stderr)
	}
	return r.stdout
}

// tourFork forks a sandbox, and promotes a child.
func tourFork(t *testing.T, n *node, id string) {
	n.sh(id, "echo parent >/dev/shm/memory; echo parent >/tmp/disk")
	var tree struct {
		TreeID   string    `json:"tree_id"`
		Children []sandbox `json:"children"`
	}
	n.json(&tree, "sandbox", "fork-tree", id, "--count", "4")
	if len(tree.Children) != 4 || tree.TreeID == "" {
		t.Fatalf("fork tree = %+v, want an id and 4 children", tree)
	}
	for i, c := range tree.Children {
		if got := n.sh(c.ID, "cat /dev/shm/memory /tmp/disk"); got != "parent\nparent" {
			t.Errorf("files of child %d = %q, want those of the parent", i, got)
		}
		n.sh(c.ID, fmt.Sprintf("echo child %d | tee /dev/shm/memory /tmp/disk", i))
	}
	if got := n.sh(id, "cat /dev/shm/memory /tmp/disk"); got != "parent\nparent" {
		t.Errorf("files of the parent after its children wrote = %q, want them unchanged", got)
	}
	for i, c := range tree.Children {
		want := fmt.Sprintf("child %d", i)
		if got := n.sh(c.ID, "cat /dev/shm/memory /tmp/disk"); got != want+"\n"+want {
			t.Errorf("files of child %d = %q, want %q twice", i, got, want)
		}
	}
	var p struct {
		Winner  string   `json:"winner"`
		Deleted []string `json:"deleted"`
	}
	n.json(&p, "sandbox", "promote", tree.Children[2].ID, "--cleanup")
	if p.Winner != tree.Children[2].ID || len(p.Deleted) != 3 {
		t.Errorf("promotion = %+v, want winner %s and 3 deleted", p, tree.Children[2].ID)
	}
	n.json(nil, "sandbox", "delete", p.Winner)
}

// tourSnapshot takes a snapshot, creates a sandbox of it, and deletes it.
func tourSnapshot(t *testing.T, n *node, id string) {
	n.sh(id, "echo then >/dev/shm/moment")
	var snap struct {
		ID string `json:"id"`
	}
	n.json(&snap, "sandbox", "snapshot", id, "--name", "moment")
	n.sh(id, "echo now >/dev/shm/moment")
	var s sandbox
	n.json(&s, "sandbox", "create", "--from-snapshot", snap.ID)
	if got := n.sh(s.ID, "cat /dev/shm/moment"); got != "then" {
		t.Errorf("file in a sandbox of the snapshot = %q, want then", got)
	}
	if out := n.ok(t, "snapshot", "list"); !strings.Contains(out, snap.ID) || !strings.Contains(out, "moment") {
		t.Errorf("snapshot list without %s:\n%s", snap.ID, out)
	}
	n.json(nil, "sandbox", "delete", s.ID)
	n.json(nil, "snapshot", "delete", snap.ID)
	if r := n.cli("snapshot", "get", snap.ID); r.code != 5 {
		t.Errorf("get of a deleted snapshot: exit %d, want 5", r.code)
	}
}

// tourPauseHibernate pauses and hibernates a sandbox.
func tourPauseHibernate(t *testing.T, n *node, id string) {
	n.json(nil, "sandbox", "pause", id)
	if s := n.get(id); s.Status != "paused" {
		t.Errorf("status after pause = %s, want paused", s.Status)
	}
	n.json(nil, "sandbox", "resume", id)
	n.sh(id, "echo kept >/dev/shm/kept")
	n.json(nil, "sandbox", "hibernate", id)
	if s := n.get(id); s.Status != "hibernated" {
		t.Errorf("status after hibernate = %s, want hibernated", s.Status)
	}
	if got := n.sh(id, "cat /dev/shm/kept"); got != "kept" { // exec wakes it
		t.Errorf("file in memory after a wake = %q, want kept", got)
	}
}

// tourKeys creates and revokes an API key.
func tourKeys(t *testing.T, n *node) {
	var k struct {
		Token  string `json:"token"`
		Prefix string `json:"prefix"`
	}
	n.json(&k, "key", "create", "--label", "second")
	if r := n.cli("--key", k.Token, "sandbox", "list"); r.code != 0 {
		t.Errorf("list with a new key: exit %d, %s; want 0", r.code, r.stderr)
	}
	n.json(nil, "key", "revoke", k.Prefix)
	if r := n.cli("--key", k.Token, "sandbox", "list"); r.code != 3 {
		t.Errorf("list with a revoked key: exit %d, %s; want 3", r.code, r.stderr)
	}
	if r := n.cli("--key", "pds_00000000000000000000000000000000", "me"); r.code != 3 {
		t.Errorf("me with an unknown key: exit %d; want 3", r.code)
	}
}
