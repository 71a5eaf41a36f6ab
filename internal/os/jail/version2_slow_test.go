//go:build slow

package jail_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/qemu"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
	"github.com/pandastack/pandastack/test/vmlab"
)

// version2Tests are the tests of this package that depend on the cgroup version.
const version2Tests = "^(TestForkBomb|TestMemoryHog|TestStartsInItsCgroup|TestDestroyKillsAll|TestLimitsHold|" +
	"TestSweepAndAdopt|TestKillVersion2)$"

// TestVersion2 runs tests of this package as root in a guest that has only cgroup v2, with the
// memory and pids controllers.
func TestVersion2(t *testing.T) {
	l := vmlab.Open(t)
	program := filepath.Join(t.TempDir(), "jail.test")
	build := exec.Command("go", "test", "-c", "-vet=off", "-tags", "root", "-ldflags", "-s -w", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the test program: %v\n%s", err, out)
	}
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	h := &vmmtest.Host{Lab: vmmtest.Lab{
		Dir: l.Dir,
		Spec: vmm.Spec{
			VCPUs:     1,
			MemoryMiB: 512,
			Kernel:    l.Boot.Kernel,
			Initramfs: l.Boot.Initramfs,
			Cmdline:   l.Boot.Cmdline,
		},
		Disk: func(t vmmtest.TB, path string) {
			if err := disk.Clone(l.Root, path); err != nil {
				t.Fatal(err)
			}
		},
	}}
	if h.Driver, err = qemu.New(t.Context(), qemu.Config{}); err != nil {
		t.Fatal(err)
	}
	m := h.Boot(t)
	m.Put(t, "/root/jail.test", data)
	r := m.Run(
		t,
		"cat /sys/fs/cgroup/cgroup.controllers; chmod +x /root/jail.test; cd /root && "+
			"./jail.test -test.v -test.timeout 5m -test.run '"+version2Tests+"'",
	)
	t.Log(r.Stdout, r.Stderr)
	controllers, _, _ := strings.Cut(r.Stdout, "\n")
	for _, want := range []string{"memory", "pids"} {
		if !strings.Contains(" "+controllers+" ", " "+want+" ") {
			t.Errorf("the guest has the controllers %q, want %s", controllers, want)
		}
	}
	if r.Exit.Code != 0 || strings.Count(r.Stdout, "--- PASS: Test") != strings.Count(version2Tests, "Test") ||
		strings.Contains(r.Stdout, "--- SKIP") {
		t.Errorf("the tests in the guest exited with %+v, want all passed and none skipped", r.Exit)
	}
	if err := errors.Join(m.Link.Close(), m.Kill(context.WithoutCancel(t.Context()))); err != nil {
		t.Error(err)
	}
}
