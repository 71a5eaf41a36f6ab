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

	"github.com/pandastack/pandastack/test/nodelab"
)

// TestTour runs the commands of the command line against a real node.
func TestTour(t *testing.T) {
	t.Setenv("PANDASTACK_TEST_WARM_MONITORS", "2")
	dir := nodelab.DataDir(t)
	n := nodelab.Start(t, dir)
	n.Bake("mini")
	s := n.Create("--persistent", "--env", "COLOUR=bamboo", "--metadata", "purpose=tour")
	t.Run("exec", func(t *testing.T) { tourExec(t, n, s.ID) })
	t.Run("files", func(t *testing.T) { tourFiles(t, n, s.ID) })
	t.Run("fork", func(t *testing.T) { tourFork(t, n, s.ID) })
	t.Run("snapshot", func(t *testing.T) { tourSnapshot(t, n, s.ID) })
	t.Run("pause-and-hibernate", func(t *testing.T) { tourPauseHibernate(t, n, s.ID) })
	t.Run("keys", func(t *testing.T) { tourKeys(t, n) })
	n.JSON(nil, "sandbox", "delete", s.ID)
	if r := n.CLI("sandbox", "get", s.ID); r.Code != 5 || !strings.Contains(r.Stderr, "delete") {
		t.Errorf("get of a deleted sandbox: exit %d, %s; want 5 and why it ended", r.Code, r.Stderr)
	}
	n.JSON(nil, "sandbox", "delete", s.ID) // a second delete succeeds, too
	n.Stop()
	nodelab.NothingLeft(t, dir)
}

// tourExec runs commands and a shell in a sandbox.
func tourExec(t *testing.T, n *nodelab.Node, id string) {
	if got := n.Sh(id, "echo $COLOUR; id -un"); !strings.HasPrefix(got, "bamboo\n") {
		t.Errorf("value of COLOUR and user = %q, want bamboo first", got)
	}
	r := n.CLI("sandbox", "exec", id, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
	if r.Code != 7 || r.Stdout != "out\n" || r.Stderr != "err\n" {
		t.Errorf("exec: exit %d, stdout %q, stderr %q; want 7, out and err", r.Code, r.Stdout, r.Stderr)
	}
	r = n.CLI("sandbox", "exec", "--timeout", "1s", id, "--", "sleep", "100")
	if r.Code != 124 {
		t.Errorf("exec with an expired timeout: exit %d, %s; want 124", r.Code, r.Stderr)
	}
	r = nodelab.Run(t, n.Dir, strings.NewReader("through\n"), "--api", n.URL, "sandbox", "exec", "--stdin", id, "cat")
	if r.Code != 0 || r.Stdout != "through\n" {
		t.Errorf("exec --stdin of cat: stdout %q, exit %d, %s; want the input and 0", r.Stdout, r.Code, r.Stderr)
	}
	r = nodelab.Run(
		t,
		n.Dir,
		strings.NewReader("echo in a $((40+2)) terminal; exit 3\n"),
		"--api",
		n.URL,
		"sandbox",
		"shell",
		id,
	)
	if r.Code != 3 || !strings.Contains(r.Stdout, "in a 42 terminal") {
		t.Errorf("shell: exit %d, %q, %s; want 3 and the output of echo", r.Code, r.Stdout, r.Stderr)
	}
	if r := n.CLI("sandbox", "metrics", id); r.Code != 0 || !strings.Contains(r.Stdout, "memory in the guest") {
		t.Errorf("metrics: exit %d, %s%s; want 0 and the memory in the guest", r.Code, r.Stdout, r.Stderr)
	}
}

// tourFiles copies files and directories to a sandbox and back.
func tourFiles(t *testing.T, n *nodelab.Node, id string) {
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
	n.OK("sandbox", "cp", filepath.Join(from, "one.bin"), id+":/tmp/one.bin")
	n.OK("sandbox", "cp", id+":/tmp/one.bin", back)
	n.OK("sandbox", "cp", from, id+":/tmp/tree")
	n.OK("sandbox", "cp", id+":/tmp/tree", filepath.Join(back, "tree"))
	for _, name := range []string{"one.bin", "tree/one.bin", "tree/deep/er/two.bin"} {
		got, err := os.ReadFile(filepath.Join(back, name))
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s after copying it back: %d bytes that differ from the original (%v), want equal content",
				name, len(got), err)
		}
	}
	if r := n.CLI("sandbox", "cp", id+":/nowhere", back); r.Code != 5 {
		t.Errorf("copy of a missing file: exit %d, %s; want 5", r.Code, r.Stderr)
	}
}

// tourFork forks a sandbox, and promotes a child.
func tourFork(t *testing.T, n *nodelab.Node, id string) {
	n.Sh(id, "echo parent >/dev/shm/memory; echo parent >/tmp/disk")
	var tree struct {
		TreeID   string            `json:"tree_id"`
		Children []nodelab.Sandbox `json:"children"`
	}
	n.JSON(&tree, "sandbox", "fork-tree", id, "--count", "4")
	if len(tree.Children) != 4 || tree.TreeID == "" {
		t.Fatalf("fork tree = %+v, want an id and 4 children", tree)
	}
	for i, c := range tree.Children {
		if got := n.Sh(c.ID, "cat /dev/shm/memory /tmp/disk"); got != "parent\nparent" {
			t.Errorf("files of child %d = %q, want those of the parent", i, got)
		}
		n.Sh(c.ID, fmt.Sprintf("echo child %d | tee /dev/shm/memory /tmp/disk", i))
	}
	if got := n.Sh(id, "cat /dev/shm/memory /tmp/disk"); got != "parent\nparent" {
		t.Errorf("files of the parent after its children wrote = %q, want them unchanged", got)
	}
	for i, c := range tree.Children {
		want := fmt.Sprintf("child %d", i)
		if got := n.Sh(c.ID, "cat /dev/shm/memory /tmp/disk"); got != want+"\n"+want {
			t.Errorf("files of child %d = %q, want %q twice", i, got, want)
		}
	}
	var p struct {
		Winner  string   `json:"winner"`
		Deleted []string `json:"deleted"`
	}
	n.JSON(&p, "sandbox", "promote", tree.Children[2].ID, "--cleanup")
	if p.Winner != tree.Children[2].ID || len(p.Deleted) != 3 {
		t.Errorf("promotion = %+v, want winner %s and 3 deleted", p, tree.Children[2].ID)
	}
	n.JSON(nil, "sandbox", "delete", p.Winner)
}

// tourSnapshot takes a snapshot, creates a sandbox of it, and deletes it.
func tourSnapshot(t *testing.T, n *nodelab.Node, id string) {
	n.Sh(id, "echo then >/dev/shm/moment")
	var snap struct {
		ID string `json:"id"`
	}
	n.JSON(&snap, "sandbox", "snapshot", id, "--name", "moment")
	n.Sh(id, "echo now >/dev/shm/moment")
	var s nodelab.Sandbox
	n.JSON(&s, "sandbox", "create", "--from-snapshot", snap.ID)
	if got := n.Sh(s.ID, "cat /dev/shm/moment"); got != "then" {
		t.Errorf("file in a sandbox of the snapshot = %q, want then", got)
	}
	if out := n.OK("snapshot", "list"); !strings.Contains(out, snap.ID) || !strings.Contains(out, "moment") {
		t.Errorf("snapshot list without %s:\n%s", snap.ID, out)
	}
	n.JSON(nil, "sandbox", "delete", s.ID)
	n.JSON(nil, "snapshot", "delete", snap.ID)
	if r := n.CLI("snapshot", "get", snap.ID); r.Code != 5 {
		t.Errorf("get of a deleted snapshot: exit %d, want 5", r.Code)
	}
}

// tourPauseHibernate pauses and hibernates a sandbox.
func tourPauseHibernate(t *testing.T, n *nodelab.Node, id string) {
	n.JSON(nil, "sandbox", "pause", id)
	if s := n.Get(id); s.Status != "paused" {
		t.Errorf("status after pause = %s, want paused", s.Status)
	}
	n.JSON(nil, "sandbox", "resume", id)
	n.Sh(id, "echo kept >/dev/shm/kept")
	n.JSON(nil, "sandbox", "hibernate", id)
	if s := n.Get(id); s.Status != "hibernated" {
		t.Errorf("status after hibernate = %s, want hibernated", s.Status)
	}
	if got := n.Sh(id, "cat /dev/shm/kept"); got != "kept" { // exec wakes it
		t.Errorf("file in memory after a wake = %q, want kept", got)
	}
}

// tourKeys creates and revokes an API key.
func tourKeys(t *testing.T, n *nodelab.Node) {
	var k struct {
		Token  string `json:"token"`
		Prefix string `json:"prefix"`
	}
	n.JSON(&k, "key", "create", "--label", "second")
	if r := n.CLI("--key", k.Token, "sandbox", "list"); r.Code != 0 {
		t.Errorf("list with a new key: exit %d, %s; want 0", r.Code, r.Stderr)
	}
	n.JSON(nil, "key", "revoke", k.Prefix)
	if r := n.CLI("--key", k.Token, "sandbox", "list"); r.Code != 3 {
		t.Errorf("list with a revoked key: exit %d, %s; want 3", r.Code, r.Stderr)
	}
	if r := n.CLI("--key", "pds_00000000000000000000000000000000", "me"); r.Code != 3 {
		t.Errorf("me with an unknown key: exit %d; want 3", r.Code)
	}
}
