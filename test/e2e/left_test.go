//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
)

// left lists everything on this machine that belongs to the nodes of these tests: processes, network
// namespaces, links, nft tables, control groups, loop devices, and files that a machine or snapshot
// would leave in the data directory.
func left(t *testing.T, dir string) []string {
	t.Helper()
	prefix := prefix(dir)
	all := processes(dir)
	for _, pattern := range []string{
		"/run/netns/" + prefix + "*", "/sys/fs/cgroup/" + prefix + "*", "/sys/fs/cgroup/*/" + prefix + "*",
		filepath.Join(dir, "machines", "*"), filepath.Join(dir, "snapshots", "*"), filepath.Join(dir, "drafts", "*"), filepath.Join(dir, ".new-*"), filepath.Join(dir, "*", ".new-*"),
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			if !strings.HasPrefix(filepath.Base(f), "lay") { // layers of builds are kept for the next
				all = append(all, f)
			}
		}
	}
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if strings.HasPrefix(l.Name, prefix) {
			all = append(all, "link "+l.Name)
		}
	}
	tables, err := (&nftables.Conn{}).ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		if strings.HasPrefix(table.Name, prefix) {
			all = append(all, "nft table "+table.Name)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); strings.HasPrefix(fields[4], dir+"/") ||
			strings.Contains(fields[4], prefix) {
			all = append(all, "mount "+fields[4])
		}
	}
	return all
}

// processes lists monitors and other children of a node by the data directory that they were started with.
func processes(dir string) []string {
	var all []string
	entries, _ := os.ReadDir("/proc") // a process may end while it is looked at: what cannot be read is gone
	for _, e := range entries {
		command, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || len(command) == 0 || e.Name() == fmt.Sprint(os.Getpid()) {
			continue
		}
		environ, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		name, _, _ := bytes.Cut(command, []byte{0})
		if bytes.Contains(name, []byte("qemu")) &&
			(bytes.Contains(environ, []byte(dir)) || bytes.Contains(command, []byte(dir))) {
			all = append(
				all,
				fmt.Sprintf(
					"process %s %s",
					e.Name(),
					bytes.ReplaceAll(command[:min(len(command), 120)], []byte{0}, []byte{' '}),
				),
			)
		}
	}
	return all
}

// monitors counts the processes of running machines.
func monitors(dir string) int { return len(processes(dir)) }

// await waits until so many machines run.
func await(t *testing.T, dir string, want int, when string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d machines run %s", want, when), func() error {
		if got := monitors(dir); got != want {
			return fmt.Errorf("%d run", got)
		}
		return nil
	})
}

// nothingLeft fails when something of the nodes is on this machine. Kernel objects may take a moment to go.
func nothingLeft(t *testing.T, dir string) {
	t.Helper()
	eventually(t, "nothing left", func() error {
		if all := left(t, dir); len(all) > 0 {
			return fmt.Errorf("%d left:\n%s", len(all), strings.Join(all, "\n"))
		}
		return nil
	})
}

// loops lists the loop devices that stand on files below dir.
func loops(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir("/sys/block", func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == "/sys/block" {
			return err
		}
		file, err := os.ReadFile(filepath.Join(p, "loop", "backing_file"))
		if err == nil && strings.HasPrefix(string(file), dir) {
			all = append(all, d.Name()+" "+strings.TrimSpace(string(file)))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all
}
