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

// TestTour walks through every verb of the command line on a real node.
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
	t.Run("rest", func(t *testing.T) { tourRest(t, n, s.ID) })
	t.Run("keys", func(t *testing.T) { tourKeys(t, n) })
	n.json(nil, "sandbox", "delete", s.ID)
	if r := n.cli("sandbox", "get", s.ID); r.code != 5 || !strings.Contains(r.stderr, "delete") {
		t.Errorf("get of a deleted sandbox: exit %d, %s; want 5 and why it ended", r.code, r.stderr)
	}
	n.json(nil, "sandbox", "delete", s.ID) // right twice
	n.stop()
	nothingLeft(t, dir)
}

func tourExec(t *testing.T, n *node, id string) {
	if got := n.sh(id, "echo $COLOUR; id -un"); !strings.HasPrefix(got, "bamboo\n") {
		t.Errorf("the environment gives %q", got)
	}
	r := n.cli("sandbox", "exec", id, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
	if r.code != 7 || r.stdout != "out\n" || r.stderr != "err\n" {
		t.Errorf("exit %d, stdout %q, stderr %q", r.code, r.stdout, r.stderr)
	}
	r = n.cli("sandbox", "exec", "--timeout", "1s", id, "--", "sleep", "100")
	if r.code != 124 {
		t.Errorf("after its time a command gives exit %d, %s; want 124", r.code, r.stderr)
	}
	r = run(t, n.dir, strings.NewReader("through\n"), "--api", n.url, "sandbox", "exec", "--stdin", id, "cat")
	if r.code != 0 || r.stdout != "through\n" {
		t.Errorf("standard input came back as %q, exit %d: %s", r.stdout, r.code, r.stderr)
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
		t.Errorf("shell: exit %d, %q, %s", r.code, r.stdout, r.stderr)
	}
	if r := n.cli("sandbox", "metrics", id); r.code != 0 || !strings.Contains(r.stdout, "memory inside") {
		t.Errorf("metrics: exit %d, %s%s", r.code, r.stdout, r.stderr)
	}
}

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
			t.Errorf("%s came back with %d bytes, changed (%v)", name, len(got), err)
		}
	}
	if r := n.cli("sandbox", "cp", id+":/nowhere", back); r.code != 5 {
		t.Errorf("copy of a missing file: exit %d, %s", r.code, r.stderr)
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

func tourFork(t *testing.T, n *node, id string) {
	n.sh(id, "echo parent >/dev/shm/memory; echo parent >/tmp/disk")
	var tree struct {
		TreeID   string    `json:"tree_id"`
		Children []sandbox `json:"children"`
	}
	n.json(&tree, "sandbox", "fork-tree", id, "--count", "4")
	if len(tree.Children) != 4 || tree.TreeID == "" {
		t.Fatalf("fork tree %+v", tree)
	}
	for i, c := range tree.Children {
		if got := n.sh(c.ID, "cat /dev/shm/memory /tmp/disk"); got != "parent\nparent" {
			t.Errorf("child %d has %q in memory and on disk", i, got)
		}
		n.sh(c.ID, fmt.Sprintf("echo child %d | tee /dev/shm/memory /tmp/disk", i))
	}
	if got := n.sh(id, "cat /dev/shm/memory /tmp/disk"); got != "parent\nparent" {
		t.Errorf("after its children wrote, the parent has %q", got)
	}
	for i, c := range tree.Children {
		want := fmt.Sprintf("child %d", i)
		if got := n.sh(c.ID, "cat /dev/shm/memory /tmp/disk"); got != want+"\n"+want {
			t.Errorf("child %d has %q", i, got)
		}
	}
	var p struct {
		Winner  string   `json:"winner"`
		Deleted []string `json:"deleted"`
	}
	n.json(&p, "sandbox", "promote", tree.Children[2].ID, "--cleanup")
	if p.Winner != tree.Children[2].ID || len(p.Deleted) != 3 {
		t.Errorf("promotion %+v", p)
	}
	n.json(nil, "sandbox", "delete", p.Winner)
}

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
		t.Errorf("a sandbox of the snapshot has %q, want then", got)
	}
	if out := n.ok(t, "snapshot", "list"); !strings.Contains(out, snap.ID) || !strings.Contains(out, "moment") {
		t.Errorf("snapshots:\n%s", out)
	}
	n.json(nil, "sandbox", "delete", s.ID)
	n.json(nil, "snapshot", "delete", snap.ID)
	if r := n.cli("snapshot", "get", snap.ID); r.code != 5 {
		t.Errorf("a deleted snapshot answers exit %d", r.code)
	}
}

func tourRest(t *testing.T, n *node, id string) {
	n.json(nil, "sandbox", "pause", id)
	if s := n.get(id); s.Status != "paused" {
		t.Errorf("paused is %s", s.Status)
	}
	n.json(nil, "sandbox", "resume", id)
	n.sh(id, "echo kept >/dev/shm/kept")
	n.json(nil, "sandbox", "hibernate", id)
	if s := n.get(id); s.Status != "hibernated" {
		t.Errorf("hibernated is %s", s.Status)
	}
	if got := n.sh(id, "cat /dev/shm/kept"); got != "kept" { // use wakes it
		t.Errorf("after a wake memory has %q", got)
	}
}

func tourKeys(t *testing.T, n *node) {
	var k struct {
		Token  string `json:"token"`
		Prefix string `json:"prefix"`
	}
	n.json(&k, "key", "create", "--label", "second")
	if r := n.cli("--key", k.Token, "sandbox", "list"); r.code != 0 {
		t.Errorf("a new key: exit %d, %s", r.code, r.stderr)
	}
	n.json(nil, "key", "revoke", k.Prefix)
	if r := n.cli("--key", k.Token, "sandbox", "list"); r.code != 3 {
		t.Errorf("a revoked key: exit %d, %s; want 3", r.code, r.stderr)
	}
	if r := n.cli("--key", "pds_00000000000000000000000000000000", "me"); r.code != 3 {
		t.Errorf("a key nobody made: exit %d; want 3", r.code)
	}
}
