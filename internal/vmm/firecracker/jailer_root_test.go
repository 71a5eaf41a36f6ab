//go:build root

package firecracker_test

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/firecracker"
	"github.com/pandastack/pandastack/internal/vmm/firecracker/fctest"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// linkTo returns a symbolic link of another name to a program, as packages install it.
func linkTo(t *testing.T, program string) string {
	t.Helper()
	link := filepath.Join(filepath.Dir(program), "firecracker-v1.15.1-link")
	if err := os.Symlink(program, link); err != nil {
		t.Fatal(err)
	}
	return link
}

// programCgroup creates a cgroup with the name of a program, into which the jailer moves monitors with the option
// for cgroup v2, and returns its path in /proc/PID/cgroup; "" if no hierarchy of version 2 is mounted.
func programCgroup(t *testing.T, program string) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) < 3 || f[2] != "cgroup2" {
			continue
		}
		dir := filepath.Join(f[1], program)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
		return "0::/" + program
	}
	return ""
}

// TestOfficialJailer starts monitors through a strict fake of Firecracker's jailer. The program is a symbolic link.
func TestOfficialJailer(t *testing.T) {
	w := newFixture(t, "1.15.1")
	w.program = fctest.InstallJailer(t, "1.15.1")
	w.config.Binary, w.config.Jailer = linkTo(t, w.program.Path), w.program.Jailer
	cgroup := programCgroup(t, filepath.Base(w.program.Path))
	mac, err := net.ParseMAC("06:00:ac:10:00:02")
	if err != nil {
		t.Fatal(err)
	}
	w.spec.NIC = &vmm.NIC{Device: "test0", Netns: tapIn(t, "test0"), MAC: mac}
	h := vmmtest.Bake(t, w.lab())
	for _, c := range vmmtest.Cases() {
		switch c.Name {
		case "live_fork", "crash", "adopt":
			t.Run(c.Name, func(t *testing.T) { c.Test(t, h) })
		}
	}
	t.Run("disk_elsewhere", func(t *testing.T) { testDiskOnOtherFilesystem(t, w, h) })
	t.Run("command_line", func(t *testing.T) {
		m := h.Restore(t)
		logs, err := filepath.Glob(
			filepath.Join(m.Spec.Dir, "root", "firecracker-v1.15.1", m.Spec.ID, "root", "requests.log"),
		)
		if err != nil || len(logs) != 1 {
			t.Fatalf("got logs %v, %v; want one", logs, err)
		}
		text, err := os.ReadFile(logs[0])
		if err != nil {
			t.Fatal(err)
		}
		want := "--id " + m.Spec.ID + " --start-time-us 1 --start-time-cpu-us 1 --parent-cpu-time-us 1 --api-sock " +
			"api.sock --level Warning"
		if !strings.Contains(string(text), want) {
			t.Errorf("got log %s, want a start with %s", text, want)
		}
	})
	t.Run("cgroup", func(t *testing.T) {
		if cgroup == "" {
			t.Skip("probe cgroup2: no hierarchy of version 2 is mounted")
		}
		m := h.Restore(t)
		own, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(m.PID()), "cgroup"))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(own), cgroup) {
			t.Errorf("the monitor is in cgroups %s, want it where it was started", own)
		}
	})
	t.Run("not_started", func(t *testing.T) {
		w.config.Jailer = "/bin/false"
		if _, err := firecracker.New(t.Context(), w.config); err == nil ||
			!strings.Contains(err.Error(), "/bin/false --version") {
			t.Errorf("New with /bin/false as jailer = %v, want an error", err)
		}
		w.config.Jailer = fctest.InstallJailer(t, "1.17.0").Jailer
		if _, err := firecracker.New(t.Context(), w.config); err == nil ||
			!strings.Contains(err.Error(), "does not match") {
			t.Errorf("New with a jailer of another release = %v, want an error", err)
		}
	})
}
