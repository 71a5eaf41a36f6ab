//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/test/nodelab"
)

// emptyDataDir returns an empty data directory below the prepared one, which can clone files.
func emptyDataDir(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(nodelab.DataDir(t), "conformance", name)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o711)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// cloneTree copies a directory of the prepared data directory.
func cloneTree(t *testing.T, to, name string) {
	t.Helper()
	from := filepath.Join(nodelab.DataDir(t), name)
	err := filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		copied := filepath.Join(to, name, rel)
		if e.IsDir() {
			return os.MkdirAll(copied, info.Mode().Perm())
		}
		return errors.Join(disk.Clone(path, copied), os.Chmod(copied, info.Mode().Perm()))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestNodeBackup makes a backup of a node that runs, and restores it into another data directory while the node runs
// on: a hibernated sandbox wakes there with its memory, and code of functions and volumes are there.
func TestNodeBackup(t *testing.T) {
	prepared := nodelab.Start(t, nodelab.DataDir(t))
	prepared.Bake("mini")
	prepared.Stop()
	first, second, place := emptyDataDir(t, "first"), emptyDataDir(t, "second"), t.TempDir()
	cloneTree(t, first, "kernel")
	cloneTree(t, first, "templates/mini")
	passphrase := filepath.Join(t.TempDir(), "passphrase")
	if err := os.WriteFile(passphrase, []byte("correct horse battery\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := []string{"--at", place, "--passphrase-file", passphrase}
	n := nodelab.Start(t, first)
	asleep, awake := n.Create("--persistent").ID, n.Create("--persistent").ID
	n.Sh(asleep, "echo memory >/dev/shm/kept; echo disk >/home/user/kept; sync")
	n.Sh(awake, "echo disk >/home/user/kept; sync")
	n.OK("sandbox", "hibernate", asleep)
	code := filepath.Join("functions", "code", "aa", "bundle")
	if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(first, code)), 0o700),
		os.WriteFile(filepath.Join(first, code), []byte("def handler(): pass"), 0o600)); err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(n.OK(append([]string{"backup", "create"}, at...)...))
	var list []struct{ ID string }
	if err := json.Unmarshal([]byte(n.OK(append([]string{"backup", "list", "--json"}, at...)...)), &list); err != nil ||
		len(list) != 1 || list[0].ID != id {
		t.Errorf("backup list = %+v, %v; want %s", list, err, id)
	}
	if out := n.OK(append([]string{"backup", "verify"}, at...)...); !strings.Contains(out, id+" is complete") {
		t.Errorf("backup verify: %s", out)
	}
	refused := nodelab.Run(t, first, nil, append([]string{"backup", "restore"}, at...)...)
	if refused.Code == 0 || !strings.Contains(refused.Stderr, "uses the data directory") {
		t.Errorf("restore over a node that runs: %+v", refused)
	}
	if r := nodelab.Run(t, second, nil, append([]string{"backup", "restore", id}, at...)...); r.Code != 0 {
		t.Fatalf("backup restore: %+v", r)
	}
	if r := nodelab.Run(t, second, nil, append([]string{"backup", "restore", id}, at...)...); r.Code == 0 ||
		!strings.Contains(r.Stderr, "is not empty") {
		t.Errorf("restore over a restored node: %+v", r)
	}
	n.Sh(awake, "test $(cat /home/user/kept) = disk") // the first node runs on
	other := nodelab.Start(t, second)
	if got := other.Sh(asleep, "cat /dev/shm/kept /home/user/kept"); got != "memory\ndisk" {
		t.Errorf("the restored sandbox has %q, want its memory and disk", got)
	}
	if s := other.Get(awake); s.Status != "failed" {
		t.Errorf("the sandbox that ran is %s, want failed", s.Status)
	}
	other.OK("sandbox", "wake", awake)
	if got := strings.TrimSpace(other.Sh(awake, "cat /home/user/kept")); got != "disk" {
		t.Errorf("the sandbox that ran has %q on its disk", got)
	}
	if data, err := os.ReadFile(filepath.Join(second, code)); err != nil || string(data) != "def handler(): pass" {
		t.Errorf("code of a function: %q, %v", data, err)
	}
	for _, node := range []*nodelab.Node{n, other} {
		for _, sandbox := range []string{asleep, awake} {
			node.OK("sandbox", "delete", sandbox)
		}
		node.Stop()
	}
}
