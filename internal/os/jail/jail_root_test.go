//go:build root

package jail

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

const testTimeout = 60 * time.Second

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

func newManager(t *testing.T, prefix string) *Manager {
	t.Helper()
	layout, err := Probe()
	if err != nil {
		t.Skipf("probe cgroup: %v", err)
	}
	t.Log(layout)
	j, err := New(Config{Hierarchy: layout, Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func wantNoCgroups(t *testing.T, j *Manager) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Error(err)
	}
	for _, r := range j.cfg.Hierarchy.roots() {
		if _, err := os.Stat(filepath.Join(r, j.cfg.Prefix)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("cgroup %s/%s exists (%v), want it removed", r, j.cfg.Prefix, err)
		}
	}
}

// startShell starts a shell that runs the script only after it has entered the cgroup.
func startShell(t *testing.T, g *Cgroup, script string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "read go; "+script)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if err := g.Enter(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func TestDestroyKillsAll(t *testing.T) {
	j := newManager(t, "pntkill")
	defer wantNoCgroups(t, j)
	ctx := testContext(t)
	g, err := j.Create(ctx, "m1", Limits{CPUWeight: 50, MemoryMax: 256 << 20, PIDs: 32})
	if err != nil {
		t.Fatal(err)
	}
	// The shell itself never exits: its children may be killed before it.
	cmd := startShell(t, g, "sleep 1000 & sleep 1000 & setsid sleep 1000 & while :; do sleep 1000; done")
	if _, err := j.Create(ctx, "m1", Limits{}); err == nil {
		t.Error("Create succeeded for an existing name, want an error")
	}
	if s, err := g.Stats(); err != nil || s.PIDs < 1 {
		t.Errorf("Stats() = %+v, %v; want at least 1 process", s, err)
	}
	for range 2 {
		if err := g.Destroy(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the process exited with success, want it killed")
	}
}

func TestLimitsHold(t *testing.T) {
	j := newManager(t, "pntlimit")
	defer wantNoCgroups(t, j)
	ctx := testContext(t)
	g, err := j.Create(ctx, "m1", Limits{MemoryMax: 32 << 20, PIDs: 8, OpenFiles: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Destroy(ctx)
	if err := startShell(t, g, `test "$(ulimit -n)" = 100 && test "$(ulimit -c)" = 0`).Wait(); err != nil {
		t.Errorf("shell with 100 open files and no core file: %v", err)
	}
	if err := startShell(t, g, "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 100 & done; wait").Wait(); err == nil {
		t.Error("12 processes were started, want at most 8")
	}
	big, err := j.Create(ctx, "m2", Limits{MemoryMax: 32 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer big.Destroy(ctx)
	if err := startShell(t, big, "head -c 200000000 /dev/zero | tail -n 1 | wc -c").Wait(); err != nil {
		t.Log(err) // the kernel chooses which process to kill; the shell may survive
	}
	if s, err := big.Stats(); err != nil || s.OOMKills == 0 {
		t.Errorf("Stats() = %+v, %v; want OOM kills", s, err)
	}
}

func TestSweepAndAdopt(t *testing.T) {
	before := newManager(t, "pntsweep")
	ctx := testContext(t)
	kept, err := before.Create(ctx, "kept", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	lost, err := before.Create(ctx, "lost", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	in, out := startShell(t, kept, "sleep 1000"), startShell(t, lost, "sleep 1000")

	j := newManager(t, "pntsweep") // a new Manager, as after a restart
	defer wantNoCgroups(t, j)
	if _, err := j.Adopt(ctx, "missing", Limits{}); !errors.Is(err, ErrNoCgroup) {
		t.Errorf("Adopt of a missing cgroup = %v, want ErrNoCgroup", err)
	}
	g, err := j.Adopt(ctx, "kept", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := j.Sweep(ctx); n != 1 || err != nil {
		t.Errorf("Sweep() = %d, %v; want 1, nil", n, err)
	}
	if err := out.Wait(); err == nil {
		t.Error("the process in the swept cgroup exited with success, want it killed")
	}
	if _, err := os.Stat("/proc/" + strconv.Itoa(in.Process.Pid)); err != nil {
		t.Errorf("the process in the adopted cgroup has exited (%v), want it running", err)
	}
	if err := g.Destroy(ctx); err != nil {
		t.Fatal(err)
	}
}

// TestKillVersion2 checks killing in a real v2 hierarchy, even if its controllers are in use by v1.
func TestKillVersion2(t *testing.T) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Skipf("probe cgroup: %v", err)
	}
	defer f.Close()
	unified, _, err := mounts(f)
	if err != nil || unified == "" {
		t.Skip("probe cgroup2: version 2 is not mounted")
	}
	ctx := testContext(t)
	j, err := New(
		Config{
			Hierarchy: Hierarchy{Version: 2, CPU: unified, Memory: unified, PIDs: unified, Account: unified},
			Prefix:    "pntv2",
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	defer wantNoCgroups(t, j)
	g := &Cgroup{manager: j, name: "m1"}
	if err := os.MkdirAll(g.dir(unified), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := startShell(t, g, "sleep 1000 & sleep 1000 & while :; do sleep 1000; done")
	if err := g.Destroy(ctx); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the process exited with success, want it killed")
	}
}

func TestCreateReplacesLeftover(t *testing.T) {
	before := newManager(t, "pntagain")
	ctx := testContext(t)
	g, err := before.Create(ctx, "m1", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	cmd := startShell(t, g, "sleep 1000")
	j := newManager(t, "pntagain")
	defer wantNoCgroups(t, j)
	again, err := j.Create(ctx, "m1", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the process in the leftover cgroup exited with success, want it killed")
	}
	if err := again.Destroy(ctx); err != nil {
		t.Fatal(err)
	}
}
