//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/pandastack/pandastack/internal/os/disk/disktest"
	"github.com/pandastack/pandastack/test/nodelab"
)

// wantStartFailure starts a node that must exit with an error that contains each of the words.
func wantStartFailure(t *testing.T, dir string, words []string, args ...string) {
	t.Helper()
	n, ended := nodelab.Launch(t, dir, args...)
	if !ended {
		n.Stop()
		t.Fatal("the node started, want an error")
	}
	text := n.Log.String()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("log of the node = %q, want it to contain %q", text, w)
		}
	}
	if code := n.Cmd.ProcessState.ExitCode(); code == 0 {
		t.Error("exit code = 0, want a failure")
	}
}

// damage inverts a byte in the middle of a file until the test ends.
func damage(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	turn := func() {
		b := make([]byte, 1)
		at := info.Size() / 2
		if _, err := f.ReadAt(b, at); err != nil {
			t.Error(err)
		}
		b[0] ^= 0xff
		if _, err := f.WriteAt(b, at); err != nil {
			t.Error(err)
		}
	}
	turn()
	t.Cleanup(func() {
		turn()
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestMissingQEMU starts a node with a path of QEMU that does not exist.
func TestMissingQEMU(t *testing.T) {
	dir := nodelab.DataDir(t)
	wantStartFailure(t, dir, []string{"/nowhere/qemu", "setup"}, "--vmm-qemu", "/nowhere/qemu")
	nodelab.NothingLeft(t, dir)
}

// TestDamagedKernel starts a node with a guest kernel that differs from the installed one.
func TestDamagedKernel(t *testing.T) {
	dir := nodelab.DataDir(t)
	for _, name := range []string{"tuned/vmlinux", "distribution/vmlinuz"} {
		path := filepath.Join(dir, "kernel", name)
		if _, err := os.Stat(path); err != nil {
			continue
		}
		damage(t, path)
		wantStartFailure(t, dir, []string{path, "setup"})
		nodelab.NothingLeft(t, dir)
		return
	}
	t.Fatal("no guest kernel found; run make prepare")
}

// TestDamagedTemplate creates a sandbox from a template with damaged device state: the create must fail, and succeed
// once the state is restored.
func TestDamagedTemplate(t *testing.T) {
	dir := nodelab.DataDir(t)
	n := nodelab.Start(t, dir)
	n.Bake("mini")
	found, err := filepath.Glob(filepath.Join(dir, "templates", "mini", "*", "*state*"))
	if err != nil || len(found) == 0 {
		found, err = filepath.Glob(filepath.Join(dir, "templates", "mini", "*", "*", "*state*"))
	}
	if err != nil || len(found) == 0 {
		t.Fatalf("no device state of template mini below %s (%v)", dir, err)
	}
	t.Run("damaged", func(t *testing.T) {
		damage(t, found[len(found)-1])
		r := n.CLI("sandbox", "create", "--template", "mini")
		if r.Code == 0 {
			t.Fatal("create from a damaged template succeeded, want an error")
		}
		nodelab.AwaitMonitors(t, dir, 0, "after a create that failed")
	})
	n.JSON(nil, "sandbox", "delete", n.Create().ID)
	n.Stop()
	nodelab.NothingLeft(t, dir)
}

// TestSmallDisk fills the disk of a small data directory. Operations must fail with a clear error and leave nothing
// incomplete, and succeed when there is room again.
func TestSmallDisk(t *testing.T) {
	full := nodelab.DataDir(t)
	dir := filepath.Join(filepath.Dir(full), "small")
	clean := func() { // also removes what an interrupted run left
		r := nodelab.Run(t, dir, nil, "--data-dir", dir, "setup", "--remove", "--yes")
		if r.Code != 0 {
			t.Errorf("setup --remove: exit %d: %s", r.Code, r.Stderr)
		}
		if all := nodelab.LoopDevices(t, dir); len(all) > 0 {
			t.Errorf("loop devices left over: %v, want none", all)
		}
	}
	clean()
	t.Setenv("PANDASTACK_CAPACITY_DISK_IMAGE_GIB", "3")
	t.Setenv("PANDASTACK_CAPACITY_DISK_RESERVE_MIB", "256")
	if r := nodelab.Run(t, dir, nil, "setup", "--yes"); r.Code != 0 {
		t.Fatalf("setup: exit %d: %s", r.Code, r.Stderr)
	}
	t.Cleanup(clean)
	for _, name := range []string{"cache", "bake"} { // saves downloads and a build
		cp := exec.CommandContext(t.Context(), "cp", "-a", "--sparse=always", filepath.Join(full, name), dir)
		if err := cp.Run(); err != nil {
			t.Logf("copy %s: %v", name, err)
		}
	}
	for _, name := range []string{"base-*", "code-interpreter-*"} {
		found, _ := filepath.Glob(filepath.Join(dir, "bake", name)) // fails only for a malformed pattern
		for _, f := range found {
			if err := os.RemoveAll(f); err != nil {
				t.Fatal(err)
			}
		}
	}
	n := nodelab.Start(t, dir)
	n.Bake("mini")
	before := n.Create("--persistent").ID
	n.Sh(before, "echo before >/tmp/x")
	other := n.Create().ID
	filler := filepath.Join(dir, "filler")
	fillDisk(t, filler, dir)
	for _, args := range [][]string{
		{"sandbox", "create", "--template", "mini"},
		{"sandbox", "snapshot", before},
		{"sandbox", "fork", before},
		{"sandbox", "hibernate", before},
	} {
		r := n.CLI(args...)
		if r.Code != 10 || !strings.Contains(r.Stderr, "disk") && !strings.Contains(r.Stderr, "space") {
			t.Errorf("%s on a full disk: exit %d, %s; want 10 and an error about the disk", args[1], r.Code, r.Stderr)
		}
	}
	if got := n.Sh(before, "cat /tmp/x"); got != "before" {
		t.Errorf("file in the sandbox on a full disk = %q, want before", got)
	}
	fullToTheLastByte(t, n, dir, other)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	nodelab.Eventually(
		t,
		"the space of a removed file is free",
		func() error { // the file system frees it in the background
			if free := freeMiB(t, dir); free < 512 {
				return fmt.Errorf("%d MiB are free, want 512", free)
			}
			return nil
		},
	)
	n.JSON(nil, "sandbox", "hibernate", before)
	if got := n.Sh(before, "cat /tmp/x"); got != "before" {
		t.Errorf("file in the sandbox with enough room = %q, want before", got)
	}
	n.JSON(nil, "sandbox", "delete", "--all")
	n.Stop()
	nodelab.NothingLeft(t, dir)
}

// fullToTheLastByte fills the disk of a node completely. It says why it is not ready, and frees space when asked.
func fullToTheLastByte(t *testing.T, n *nodelab.Node, dir, id string) {
	t.Helper()
	nodelab.Eventually(t, "the ballast exists", func() error {
		_, err := os.Stat(filepath.Join(dir, "ballast"))
		return err
	})
	disktest.FillUp(t, dir)
	if code, body := n.Send("GET", "/readyz", ""); code != 503 || !strings.Contains(body, "disk is full") {
		t.Errorf("readyz on a full disk: %d, %s; want 503 and an error about the disk", code, body)
	}
	n.JSON(nil, "key", "create", "--label", "late")
	n.JSON(nil, "sandbox", "delete", id)
	stuff, err := filepath.Glob(filepath.Join(dir, "stuff*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range stuff {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
}

// fillDisk creates a file that leaves 128 MiB free on the file system of dir.
func fillDisk(t *testing.T, path, dir string) {
	t.Helper()
	size := freeMiB(t, dir) - 128
	if size <= 0 {
		return
	}
	fallocate := exec.CommandContext(t.Context(), "fallocate", "-l", strconv.Itoa(size)+"MiB", path)
	if out, err := fallocate.CombinedOutput(); err != nil {
		t.Fatalf("fallocate: %v: %s", err, out)
	}
}

// freeMiB returns the free space on the file system of dir.
func freeMiB(t *testing.T, dir string) int {
	t.Helper()
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int(st.Bavail * uint64(st.Bsize) >> 20)
}
