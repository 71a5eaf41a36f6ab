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
)

// refused starts a node that must end at once, and say something with each of the words.
func refused(t *testing.T, dir string, words []string, args ...string) {
	t.Helper()
	n, ended := launch(t, dir, args...)
	if !ended {
		n.stop()
		t.Fatal("the node started")
	}
	text := n.log.String()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("the node says %q, without %q", tail(text), w)
		}
	}
	if code := n.cmd.ProcessState.ExitCode(); code == 0 {
		t.Error("the node ended well")
	}
}

// damage turns a byte of a file over until the test ends.
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

// TestMissingQEMU starts a node without a monitor program.
func TestMissingQEMU(t *testing.T) {
	dir := dataDir(t)
	refused(t, dir, []string{"/nowhere/qemu", "setup"}, "--vmm-qemu", "/nowhere/qemu")
	nothingLeft(t, dir)
}

// TestDamagedKernel starts a node whose guest kernel is not what was installed.
func TestDamagedKernel(t *testing.T) {
	dir := dataDir(t)
	for _, name := range []string{"tuned/vmlinux", "distribution/vmlinuz"} {
		path := filepath.Join(dir, "kernel", name)
		if _, err := os.Stat(path); err != nil {
			continue
		}
		damage(t, path)
		refused(t, dir, []string{path, "setup"})
		nothingLeft(t, dir)
		return
	}
	t.Fatal("there is no kernel; run make prepare")
}

// TestDamagedTemplate creates from a template whose device state was changed; baking it again mends it.
func TestDamagedTemplate(t *testing.T) {
	dir := dataDir(t)
	n := start(t, dir)
	n.bake("mini")
	found, err := filepath.Glob(filepath.Join(dir, "templates", "mini", "*", "*state*"))
	if err != nil || len(found) == 0 {
		found, err = filepath.Glob(filepath.Join(dir, "templates", "mini", "*", "*", "*state*"))
	}
	if err != nil || len(found) == 0 {
		t.Fatalf("no device state of template mini below %s (%v)", dir, err)
	}
	t.Run("damaged", func(t *testing.T) {
		damage(t, found[len(found)-1])
		r := n.cli("sandbox", "create", "--template", "mini")
		if r.code == 0 {
			t.Fatal("a sandbox was created")
		}
		await(t, dir, 0, "after a create that failed")
	})
	n.json(nil, "sandbox", "delete", n.create().ID)
	n.stop()
	nothingLeft(t, dir)
}

// TestSmallDisk prepares a data directory of its own on a small image, fills it, and looks at what a full
// disk does: clear answers, nothing half-made, and life goes on when there is room again.
func TestSmallDisk(t *testing.T) {
	full := dataDir(t)
	dir := filepath.Join(filepath.Dir(full), "small")
	clean := func() { // also what a killed run left
		r := run(t, dir, nil, "--data-dir", dir, "setup", "--remove", "--yes")
		if r.code != 0 {
			t.Errorf("setup --remove: exit %d: %s", r.code, r.stderr)
		}
		if all := loops(t, dir); len(all) > 0 {
			t.Errorf("loop devices are left: %v", all)
		}
	}
	clean()
	t.Setenv("PANDASTACK_CAPACITY_DISK_IMAGE_GIB", "3")
	t.Setenv("PANDASTACK_CAPACITY_DISK_RESERVE_MIB", "256")
	if r := run(t, dir, nil, "setup", "--yes"); r.code != 0 {
		t.Fatalf("setup: exit %d: %s", r.code, r.stderr)
	}
	t.Cleanup(clean)
	for _, name := range []string{"cache", "bake"} { // saves downloads and a build
		if err := exec.CommandContext(t.Context(), "cp", "-a", "--sparse=always", filepath.Join(full, name), dir).Run(); err != nil {
			t.Logf("copy %s: %v", name, err)
		}
	}
	for _, name := range []string{"base-*", "code-interpreter-*"} {
		found, _ := filepath.Glob(filepath.Join(dir, "bake", name)) // the pattern is right
		for _, f := range found {
			if err := os.RemoveAll(f); err != nil {
				t.Fatal(err)
			}
		}
	}
	n := start(t, dir)
	n.bake("mini")
	before := n.create("--persistent").ID
	n.sh(before, "echo before >/tmp/x")
	filler := filepath.Join(dir, "filler")
	fill(t, filler, dir)
	for _, args := range [][]string{
		{"sandbox", "create", "--template", "mini"}, {"sandbox", "snapshot", before}, {"sandbox", "fork", before}, {"sandbox", "hibernate", before},
	} {
		r := n.cli(args...)
		if r.code != 10 || !strings.Contains(r.stderr, "disk") && !strings.Contains(r.stderr, "space") {
			t.Errorf("%s on a full disk: exit %d, %s; want 10 and that the disk is full", args[1], r.code, r.stderr)
		}
	}
	if got := n.sh(before, "cat /tmp/x"); got != "before" {
		t.Errorf("the sandbox from before says %q", got)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	eventually(
		t,
		"the space of a removed file is free",
		func() error { // which the file system sees to in the background
			if free := freeMiB(t, dir); free < 512 {
				return fmt.Errorf("%d MiB are", free)
			}
			return nil
		},
	)
	n.json(nil, "sandbox", "hibernate", before)
	if got := n.sh(before, "cat /tmp/x"); got != "before" {
		t.Errorf("with room again the sandbox says %q", got)
	}
	n.json(nil, "sandbox", "delete", "--all")
	n.stop()
	nothingLeft(t, dir)
}

// fill leaves 128 MiB free on the file system of dir.
func fill(t *testing.T, path, dir string) {
	t.Helper()
	size := freeMiB(t, dir) - 128
	if size <= 0 {
		return
	}
	if out, err := exec.CommandContext(t.Context(), "fallocate", "-l", strconv.Itoa(size)+"MiB", path).CombinedOutput(); err != nil {
		t.Fatalf("fallocate: %v: %s", err, out)
	}
}

// freeMiB is how much is free on the file system of dir.
func freeMiB(t *testing.T, dir string) int {
	t.Helper()
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int(st.Bavail * uint64(st.Bsize) >> 20)
}
