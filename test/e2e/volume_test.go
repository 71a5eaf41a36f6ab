//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/test/nodelab"
)

// TestVolumes gives sandboxes volumes, and takes a volume's files through a killed node, a fork and copies.
func TestVolumes(t *testing.T) {
	dir := nodelab.DataDir(t)
	n := nodelab.Start(t, dir)
	n.Bake("mini")
	n.OK("volume", "create", "data", "--size", "64")
	writer := n.Create("--persistent", "--volume", "data:/data").ID
	n.Sh(writer, "echo first > /data/a && sync")

	// One writer; readers and forks have what it was.
	if r := n.CLI("sandbox", "create", "--template", "mini", "--volume", "data:/data"); r.Code == 0 ||
		!strings.Contains(r.Stderr, writer) {
		t.Errorf("a second writer: exit %d, %s; want the name of the first", r.Code, r.Stderr)
	}
	reader := n.Create("--volume", "data:/data:ro").ID
	var forked struct {
		Children []nodelab.Sandbox `json:"children"`
	}
	n.JSON(&forked, "sandbox", "fork", writer)
	child := forked.Children[0].ID
	n.Sh(child, "echo of the child > /data/a")
	n.Sh(writer, "echo second > /data/a && sync")
	for id, want := range map[string]string{reader: "first", child: "of the child", writer: "second"} {
		if got := n.Sh(id, "cat /data/a"); got != want {
			t.Errorf("%s reads %q, want %q", id, got, want)
		}
	}
	if r := n.CLI("sandbox", "exec", reader, "echo x > /data/a"); r.Code == 0 {
		t.Error("the reader writes")
	}
	if r := n.CLI("volume", "delete", "data"); r.Code == 0 {
		t.Error("a volume that a sandbox has was deleted")
	}
	n.OK("volume", "promote", "data", child, "mine")

	// Killed nodes and hibernation lose nothing.
	n.Kill()
	n = nodelab.Start(t, dir)
	n.OK("sandbox", "hibernate", writer)
	n.OK("sandbox", "wake", writer)
	n.Sh(writer, "cat /data/a && echo third > /data/b && sync")
	n.OK("volume", "resize", "data", "--size", "128")
	n.Sh(writer, "test $(df -k /data | awk 'END { print $2 }') -gt 102400")
	n.OK("volume", "snapshot", "data", "--name", "before")
	n.JSON(nil, "sandbox", "delete", writer, reader, child)

	volumeFiles(t, n)
	for _, name := range []string{"data", "mine", "copy"} {
		n.OK("volume", "delete", name, "--snapshots")
	}
	n.Stop()
	nodelab.NothingLeft(t, dir)
	if left, err := filepath.Glob(filepath.Join(dir, "volumes", "*")); err != nil || len(left) > 0 {
		t.Errorf("left of volumes: %v, %v", left, err)
	}
}

// volumeFiles uses the files of volumes that no sandbox has.
func volumeFiles(t *testing.T, n *nodelab.Node) {
	t.Helper()
	if got := n.OK("volume", "cat", "data:/a") + n.OK("volume", "cat", "data:/b"); got != "second\nthird\n" {
		t.Errorf("the files of the volume are %q", got)
	}
	if got := n.OK("volume", "cat", "mine:/a"); got != "of the child\n" {
		t.Errorf("the file of the promoted volume is %q", got)
	}
	archive := filepath.Join(t.TempDir(), "data.tar")
	if err := os.WriteFile(archive, []byte(n.OK("volume", "export", "data")), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "tar", "-tf", archive).CombinedOutput(); err != nil ||
		!strings.Contains(string(out), "b\n") {
		t.Errorf("the exported archive has %s, %v", out, err)
	}
	n.OK("volume", "create", "copy", "--size", "64")
	n.OK("volume", "import", "copy:/from", archive)
	if got := n.OK("volume", "cat", "copy:/from/b"); got != "third\n" {
		t.Errorf("the imported file is %q", got)
	}
	n.OK("volume", "remove", "copy:/from", "-r")
	again := n.Create("--volume", "data:/data").ID
	if got := n.Sh(again, "cat /data/b; ls /mnt"); !strings.HasPrefix(got, "third") {
		t.Errorf("the next sandbox reads %q", got)
	}
	n.OK("volume", "detach", "data", again)
	n.OK("volume", "attach", "data", again, "--at", "/srv")
	if got := n.Sh(again, "cat /srv/b"); got != "third" {
		t.Errorf("attached again, it reads %q", got)
	}
	n.JSON(nil, "sandbox", "delete", again)
}
