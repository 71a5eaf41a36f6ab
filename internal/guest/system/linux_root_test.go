//go:build root

package system

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// unified returns a mounted version 2 cgroup hierarchy.
func unified(t *testing.T) string {
	t.Helper()
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(path.Join(dir, "cgroup.procs")); err == nil {
			if _, err := os.Stat(path.Join(dir, "cgroup.controllers")); err == nil {
				return dir
			}
		}
	}
	t.Skip("probe cgroup2: no version 2 hierarchy is mounted")
	return ""
}

// TestGroupFreezes checks that a process of a frozen cgroup stops, and continues when the cgroup is thawed.
func TestGroupFreezes(t *testing.T) {
	g, err := OpenCgroup(unified(t), fmt.Sprintf("guest-test-%d", os.Getpid()), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	count := path.Join(t.TempDir(), "count")
	cmd := exec.Command("/bin/sh", "-c", "while :; do echo x >> "+count+"; done")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = g.Thaw(context.WithoutCancel(t.Context()))
		_ = cmd.Wait()
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	}()
	if err := write(path.Join(g.dir, "cgroup.procs"), fmt.Sprint(cmd.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	size := func() int64 {
		st, err := os.Stat(count)
		if err != nil {
			return 0
		}
		return st.Size()
	}
	for range 3 {
		if err := g.Freeze(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := size()
		<-time.After(50 * time.Millisecond)
		if size() != before {
			t.Error("a process of a frozen cgroup still runs")
		}
		if err := g.Thaw(t.Context()); err != nil {
			t.Fatal(err)
		}
		for limit := time.After(time.Minute); size() == before; {
			select {
			case <-limit:
				t.Fatal("a process of a thawed cgroup does not run")
			case <-time.After(time.Millisecond):
			}
		}
	}
}

// TestNetworkIsConfigured configures a card in a network namespace of its own.
func TestNetworkIsConfigured(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test, and its namespace with it
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("probe netns: %v", err)
	}
	ip := func(args ...string) string {
		out, err := exec.Command("ip", args...).CombinedOutput()
		if err != nil {
			t.Skipf("probe ip: %v: %s", err, out)
		}
		return string(out)
	}
	ip("link", "add", "eth0", "type", "dummy")
	ip("addr", "add", "10.9.9.9/24", "dev", "eth0")
	l := &Linux{Link: "eth0"}
	n := Network{
		Address: netip.MustParsePrefix("192.168.241.2/29"),
		Gateway: netip.MustParseAddr("192.168.241.1"),
		MTU:     1400,
	}
	for range 2 {
		if err := l.SetNetwork(n); err != nil {
			t.Fatal(err)
		}
	}
	if addr := ip("-4", "addr", "show", "dev", "eth0"); !strings.Contains(addr, "192.168.241.2/29") ||
		strings.Contains(addr, "10.9.9.9") ||
		!strings.Contains(addr, "mtu 1400") {
		t.Errorf("got addresses:\n%s", addr)
	}
	if route := ip("route"); !strings.Contains(route, "default via 192.168.241.1 dev eth0") {
		t.Errorf("got routes:\n%s", route)
	}
	if err := LinkUp("lo"); err != nil {
		t.Error(err)
	}
	if lo, err := net.InterfaceByName("lo"); err != nil || lo.Flags&net.FlagUp == 0 {
		t.Errorf("LinkUp(lo): got %+v, %v", lo, err)
	}
}

func TestWriteFileReplacesLinks(t *testing.T) {
	dir := t.TempDir()
	target, link := path.Join(dir, "target"), path.Join(dir, "new/link")
	if err := os.WriteFile(target, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := &Linux{}
	if err := l.WriteFile(link, []byte("first, and long"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if err := l.WriteFile(link, []byte("x"), 0o400); err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(link)
	kept, _ := os.ReadFile(target)
	st, err := os.Lstat(link)
	if string(b) != "x" || string(kept) != "kept" || err != nil || st.Mode() != 0o400 {
		t.Errorf("got content %q, link target %q, mode %v, error %v", b, kept, st.Mode(), err)
	}
}
