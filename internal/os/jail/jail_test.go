package jail

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

const mixed = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu\040and rw,relatime shared:3 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
broken line
`

func TestMounts(t *testing.T) {
	unified, v1, err := mounts(strings.NewReader(mixed))
	if err != nil || unified != "/sys/fs/cgroup/unified" {
		t.Fatalf("got cgroup v2 at %q, %v; want /sys/fs/cgroup/unified", unified, err)
	}
	want := map[string]string{"cpu": "/sys/fs/cgroup/cpu and", "cpuacct": "/sys/fs/cgroup/cpu and",
		"memory": "/sys/fs/cgroup/memory", "pids": "/sys/fs/cgroup/pids"}
	if !reflect.DeepEqual(v1, want) {
		t.Errorf("got cgroup v1 controllers %v, want %v", v1, want)
	}
}

func TestSettings(t *testing.T) {
	l := Limits{CPUWeight: 50, CPUQuota: 1500 * time.Millisecond, MemoryMax: 1 << 28, PIDs: 64}
	flat := func(version int, l Limits) string {
		var b strings.Builder
		cpu, memory, pids := settings(version, l)
		for _, s := range append(append(cpu, memory...), pids...) {
			b.WriteString(s.file + "=" + s.value + ";")
		}
		return b.String()
	}
	for _, c := range []struct {
		version int
		limits  Limits
		want    string
	}{
		{2, l, "cpu.weight=50;cpu.max=150000 100000;memory.max=268435456;" +
			"memory.swap.max=0;memory.oom.group=1;pids.max=64;"},
		{1, l, "cpu.shares=512;cpu.cfs_period_us=100000;cpu.cfs_quota_us=150000;" +
			"memory.limit_in_bytes=268435456;memory.memsw.limit_in_bytes=268435456;pids.max=64;"},
		{2, Limits{}, ""},
		{1, Limits{}, ""},
		{1, Limits{CPUWeight: 1}, "cpu.shares=10;"},
	} {
		if got := flat(c.version, c.limits); got != c.want {
			t.Errorf("version %d %+v:\n got %s\nwant %s", c.version, c.limits, got, c.want)
		}
	}
}

// TestVersion2Files checks the file operations for cgroup v2 on ordinary files, which work on every
// host.
func TestVersion2Files(t *testing.T) {
	root := t.TempDir()
	put := func(dir string, files map[string]string) {
		t.Helper()
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(
		root,
		map[string]string{
			"cgroup.controllers":     "cpuset cpu io memory pids\n",
			"cgroup.subtree_control": "cpu memory\n",
		},
	)
	if err := checkDelegation(root); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(root, "cgroup.subtree_control")); err != nil ||
		!strings.Contains(string(b), "+pids") {
		t.Errorf("subtree_control is %q, %v; want the missing controllers", b, err)
	}
	j, err := New(Config{Hierarchy: Hierarchy{Version: 2, CPU: root, Memory: root, PIDs: root, Account: root}})
	if err != nil {
		t.Fatal(err)
	}
	g := &Cgroup{manager: j, name: "m1", limits: Limits{CPUWeight: 7, MemoryMax: 4096, PIDs: 3}}
	if err := os.MkdirAll(g.dir(root), 0o755); err != nil {
		t.Fatal(err)
	}
	put(g.dir(root), map[string]string{"cpu.weight": "", "memory.max": "", "pids.max": "", "memory.current": "8192\n",
		"memory.peak": "9000\n", "cpu.stat": "usage_usec 1500\nuser_usec 1\n", "pids.current": "2\n",
		"memory.events": "low 0\noom 3\noom_kill 2\n"})
	if err := g.limit(); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(g.dir(root), "memory.max")); err != nil || string(b) != "4096" {
		t.Errorf("memory.max is %q, %v; want 4096", b, err)
	}
	s, err := g.Stats()
	want := Stats{Memory: 8192, MemoryPeak: 9000, CPU: 1500 * time.Microsecond, PIDs: 2, OOMKills: 2}
	if err != nil || s != want {
		t.Errorf("Stats() = %+v, %v; want %+v", s, err, want)
	}
}

// TestMachinesTogetherHaveTheDefaultWeight checks that machines do not take the processors from the process that
// manages them, also if an earlier release has made their parent with another weight.
func TestMachinesTogetherHaveTheDefaultWeight(t *testing.T) {
	for version, file := range map[int]struct{ name, want string }{
		1: {"cpu.shares", "1024"}, 2: {"cpu.weight", "100"},
	} {
		root := t.TempDir()
		h := Hierarchy{Version: version, CPU: root, Memory: root, PIDs: root, Account: root}
		j, err := New(Config{Hierarchy: h})
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(root, j.cfg.Prefix)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, file.name)
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := j.makeParent(root, dir); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != file.want {
			t.Errorf("version %d: %s is %q, %v; want %s", version, file.name, b, err, file.want)
		}
	}
}

func TestCheckDelegation(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "cgroup.controllers"), []byte("hugetlb\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := checkDelegation(root); err == nil || !strings.Contains(err.Error(), "no controller cpu") {
		t.Errorf("checkDelegation() = %v, want an error about the cpu controller", err)
	}
}

func TestNewRefuses(t *testing.T) {
	v1 := Hierarchy{Version: 1, CPU: "/c", Memory: "/m", PIDs: "/p", Account: "/a"}
	for _, c := range []Config{{}, {Hierarchy: v1, Prefix: "../x"}, {Hierarchy: v1, FirstUID: -1},
		{Hierarchy: v1, FirstUID: 1 << 31}} {
		if _, err := New(c); err == nil {
			t.Errorf("New(%+v) succeeded, want an error", c)
		}
	}
	if _, err := New(Config{}); !errors.Is(err, ErrNoControl) {
		t.Errorf("New without hierarchy = %v, want ErrNoControl", err)
	}
}

// TestUIDsOfTwoNodes checks that nodes with different prefixes share no user IDs, and that the
// second of two prefixes with the same range is refused.
func TestUIDsOfTwoNodes(t *testing.T) {
	seen := map[int]string{}
	for i := range 200 {
		prefix := fmt.Sprintf("node%d", i)
		first := firstUID(prefix, defaultUIDs)
		if first < lowestUID || first+defaultUIDs-1 > highestUID || (first-lowestUID)%defaultUIDs != 0 {
			t.Errorf(
				"prefix %s has user IDs from %d, want an aligned range between %d and %d",
				prefix,
				first,
				lowestUID,
				highestUID,
			)
		}
		seen[first] = prefix
	}
	if len(seen) < 190 { // of 15,000 ranges
		t.Errorf("200 prefixes have %d different ranges, want at least 190", len(seen))
	}
	j, locks := make([]*Manager, 3), t.TempDir()
	for i, c := range []Config{{Prefix: "one", FirstUID: 77000}, {Prefix: "two", FirstUID: 77000}, {Prefix: "three"}} {
		c.Hierarchy = Hierarchy{Version: 2, CPU: t.TempDir(), Memory: t.TempDir(), PIDs: t.TempDir()}
		c.LockDir = locks
		var err error
		if j[i], err = New(c); err != nil {
			t.Fatal(err)
		}
	}
	name, err := net.Listen("unix", "@jail-users-77000") // which any user can hold
	if err != nil {
		t.Fatal(err)
	}
	defer name.Close()
	if err := errors.Join(j[0].ClaimUIDs(), j[2].ClaimUIDs()); err != nil {
		t.Fatal(err)
	}
	if err := j[1].ClaimUIDs(); !errors.Is(err, ErrUIDsInUse) ||
		!strings.Contains(err.Error(), "prefix two, users 77000 to") {
		t.Errorf("second ClaimUIDs of a range = %v, want an error with the range", err)
	}
	if err := j[0].Close(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(j[1].ClaimUIDs(), j[1].Close(), j[2].Close()); err != nil {
		t.Errorf("ClaimUIDs after the first Close: %v", err)
	}
}

func TestUIDs(t *testing.T) {
	j, err := New(Config{Hierarchy: Hierarchy{Version: 1}, FirstUID: 5000, UIDs: 2})
	if err != nil {
		t.Fatal(err)
	}
	if uid, gid, err := j.User(1); uid != 5001 || gid != 5001 || err != nil {
		t.Errorf("User(1) = %d, %d, %v; want 5001, 5001, nil", uid, gid, err)
	}
	for _, i := range []int{-1, 2} {
		if _, _, err := j.User(i); err == nil {
			t.Errorf("User(%d) succeeded, want an error", i)
		}
	}
}

// FuzzMounts parses arbitrary mountinfo, because anybody who may mount chooses the names.
func FuzzMounts(f *testing.F) {
	f.Add("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n")
	f.Add("30 23 0:26 / /sys/fs/cgroup/a\\040b rw shared:1 - cgroup cgroup rw,cpu,cpuacct\n")
	f.Add("- - - - - -\n -  - \n")
	f.Fuzz(func(t *testing.T, text string) {
		unified, v1, err := mounts(strings.NewReader(text))
		if err == nil && !strings.Contains(text, "cgroup") && (unified != "" || len(v1) != 0) {
			t.Errorf("mounts(%q) = %q, %v; want no cgroups", text, unified, v1)
		}
	})
}

// FuzzObject parses files that are no ELF objects or damaged ones.
func FuzzObject(f *testing.F) {
	f.Add([]byte("\x7fELF\x02\x01\x01"))
	f.Add([]byte("#!/bin/sh\n"))
	path := filepath.Join(f.TempDir(), "object")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if o, err := readObject(path); err == nil && len(o.interp) > 4096 {
			t.Errorf("got an interpreter of %d bytes, want at most 4096", len(o.interp))
		}
	})
}
