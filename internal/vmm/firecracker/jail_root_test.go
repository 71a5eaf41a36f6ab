//go:build root

package firecracker_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/host/probe/probetest"
	"github.com/pandastack/pandastack/internal/os/jail"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// useJail makes the fixture start its monitors in jails.
func useJail(t *testing.T, w *fixture) {
	t.Helper()
	probetest.Need(t, probe.Config{}, probe.CGroups)
	layout, err := jail.Probe()
	if err != nil {
		t.Fatal(err)
	}
	trees := filepath.Join(w.dir, "trees")
	if err := os.Mkdir(trees, 0o711); err != nil {
		t.Fatal(err)
	}
	j, err := jail.New(jail.Config{Hierarchy: layout, Prefix: "fcjail", ProgramsDir: trees})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	g, err := j.Create(t.Context(), "all", jail.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), vmmtest.Timeout)
		defer cancel()
		if err := g.Destroy(ctx); err != nil {
			t.Error(err)
		}
	})
	w.spec.Confine.Jail = g
}

// TestMachinesInJail runs the tests that involve a jail: files, sockets, and the end of a machine.
func TestMachinesInJail(t *testing.T) {
	w := newFixture(t, "1.17.0")
	useJail(t, w)
	h := vmmtest.Bake(t, w.lab())
	for _, c := range vmmtest.Cases() {
		switch c.Name {
		case "exec", "live_fork", "hibernate", "kill_in_every_state", "crash", "adopt", "usage":
			t.Run(c.Name, func(t *testing.T) { c.Test(t, h) })
		}
	}
	t.Run("pages", func(t *testing.T) {
		if _, err := os.Stat("/dev/userfaultfd"); err != nil {
			t.Skip("probe userfaultfd: /dev/userfaultfd does not exist")
		}
		image := h.Image
		image.Memory = newMemoryServer(h.Image)
		if r := h.RestoreFrom(t, image, h.Disk).Run(t, "echo on"); r.Stdout != "on\n" {
			t.Errorf("got %+v, want output \"on\"", r)
		}
	})
	t.Run("disk_elsewhere", func(t *testing.T) { testDiskOnOtherFilesystem(t, w, h) })
}

// TestDiskOnOtherFilesystem runs testDiskOnOtherFilesystem without a jail.
func TestDiskOnOtherFilesystem(t *testing.T) {
	w := newFixture(t, "1.15.1")
	testDiskOnOtherFilesystem(t, w, vmmtest.Bake(t, w.lab()))
}

// testDiskOnOtherFilesystem starts a machine with a disk on another file system.
func testDiskOnOtherFilesystem(t *testing.T, w *fixture, h *vmmtest.Host) {
	t.Helper()
	spec := h.Spec(t, h.Disk)
	dir := t.TempDir()
	spec.Disks = []vmm.Disk{{Path: filepath.Join(dir, "disk")}}
	if err := errors.Join(os.Chmod(dir, 0o711), os.Chmod(filepath.Dir(dir), 0o711),
		os.WriteFile(spec.Disks[0].Path, nil, 0o600),
		os.Truncate(spec.Disks[0].Path, diskBytes),
		os.Chown(spec.Disks[0].Path, unprivilegedUID, unprivilegedUID)); err != nil {
		t.Fatal(err)
	}
	m, err := h.Driver.Prepare(t.Context(), spec, h.Image)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Load(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if err := m.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	w.nothingLeft(t, spec)
}

// tapIn creates a tap in a new network namespace.
func tapIn(t *testing.T, name string) *os.File {
	t.Helper()
	type result struct {
		ns  *os.File
		err error
	}
	made := make(chan result)
	go func() {
		ns, err := newNamespace(name)
		made <- result{ns, err}
	}()
	r := <-made
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Cleanup(func() { _ = r.ns.Close() })
	return r.ns
}

// TestNetwork starts monitors in the network namespace of their tap, which they open by name.
func TestNetwork(t *testing.T) {
	for name, in := range map[string]func(*testing.T, *fixture){
		// Without a jail, the monitor itself needs permission to open /dev/net/tun.
		"plain":  func(_ *testing.T, w *fixture) { w.spec.Confine = vmm.Confine{} },
		"jailed": useJail,
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, "1.17.0")
			in(t, w)
			mac, err := net.ParseMAC("06:00:ac:10:00:02")
			if err != nil {
				t.Fatal(err)
			}
			w.spec.NIC = &vmm.NIC{Device: "fctap0", Netns: tapIn(t, "fctap0"), MAC: mac}
			h := vmmtest.Bake(t, w.lab()) // ends its machine, so the tap is free again
			if r := h.Restore(t).Run(t, "echo on"); r.Stdout != "on\n" {
				t.Errorf("got %+v, want output \"on\"", r)
			}
			spec := w.chownFiles(t, h.Spec(t, h.Disk))
			nic := *spec.NIC
			nic.Device, nic.Netns = "fctap1", tapIn(t, "fctap1")
			spec.NIC = &nic
			m, err := h.Driver.Prepare(t.Context(), spec, h.Image)
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Load(t.Context(), nil); err != nil { // under another name than in the image
				t.Error(err)
			}
		})
	}
}

// newNamespace creates a network namespace with a tap. The calling thread must end with its
// goroutine.
func newNamespace(name string) (*os.File, error) {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	// Firecracker opens the tap as a user without rights, so owner and group must be its own.
	if err := netlink.LinkAdd(&netlink.Tuntap{
		LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TAP,
		Owner: unprivilegedUID, Group: unprivilegedUID, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR,
	}); err != nil {
		return nil, err
	}
	return os.Open("/proc/thread-self/ns/net")
}
