package nodelab

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

// Leftovers lists everything on this host that belongs to the nodes of these tests: processes, network namespaces,
// links, nft tables, cgroups, mounts, and files of machines and snapshots in the data directory.
func Leftovers(t *testing.T, dir string) []string {
	t.Helper()
	prefix := Prefix(dir)
	all := Monitors(dir)
	for _, pattern := range []string{
		"/run/netns/" + prefix + "*", "/sys/fs/cgroup/" + prefix + "*", "/sys/fs/cgroup/*/" + prefix + "*",
		filepath.Join(dir, "machines", "*"), filepath.Join(dir, "snapshots", "*"), filepath.Join(dir, "drafts", "*"),
		filepath.Join(dir, ".new-*"), filepath.Join(dir, "*", ".new-*"),
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			if !strings.HasPrefix(filepath.Base(f), "lay") { // cached layers of builds stay
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

// Monitors lists the monitors that were started with a data directory.
func Monitors(dir string) []string {
	var all []string
	entries, _ := os.ReadDir("/proc") // a process that cannot be read has exited
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

// Running returns the number of running monitors, without those of bakes: a node bakes its default template in the
// background.
func Running(dir string) int {
	n := 0
	for _, m := range Monitors(dir) {
		if !strings.Contains(m, " -name bake") {
			n++
		}
	}
	return n
}

// AwaitMonitors waits until the number of running monitors is want.
func AwaitMonitors(t *testing.T, dir string, want int, when string) {
	t.Helper()
	Eventually(t, fmt.Sprintf("%d machines run %s", want, when), func() error {
		if got := Running(dir); got != want {
			return fmt.Errorf("%d monitors run", got)
		}
		return nil
	})
}

// NothingLeft fails the test if leftovers exist. It waits, because the kernel removes some objects asynchronously.
func NothingLeft(t *testing.T, dir string) {
	t.Helper()
	Eventually(t, "nothing left", func() error {
		if all := Leftovers(t, dir); len(all) > 0 {
			return fmt.Errorf("%d resources left over:\n%s", len(all), strings.Join(all, "\n"))
		}
		return nil
	})
}

// LoopDevices lists the loop devices that are backed by files below dir.
func LoopDevices(t *testing.T, dir string) []string {
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
