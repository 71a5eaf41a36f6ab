//go:build root

package firecracker_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/internal/os/disk/disktest"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/firecracker"
	"github.com/pandastack/pandastack/internal/vmm/firecracker/fctest"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// unprivilegedUID is the user of the monitors in these tests.
const unprivilegedUID = 65534

// releases are the Firecracker releases that the driver is tested with.
var releases = []string{"1.15.1", "1.17.0"}

// reflinkDir returns a directory on a new XFS image, which is removed at the end of the test.
func reflinkDir(t *testing.T) string {
	t.Helper()
	dir := disktest.Dir(t, 1<<30)
	for at := dir; at != "/"; at = filepath.Dir(at) { // monitors of another user must be able to traverse it
		if st, err := os.Stat(at); err == nil && st.Mode().Perm()&1 == 0 {
			if err := os.Chmod(at, st.Mode().Perm()|0o111); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// fixture is a fake Firecracker with a directory and a driver configuration.
type fixture struct {
	program fctest.Program
	dir     string
	config  firecracker.Config
	spec    vmm.Spec
}

func newFixture(t *testing.T, release string) *fixture {
	t.Helper()
	w := &fixture{program: fctest.Install(t, release), dir: reflinkDir(t)}
	kernel := filepath.Join(w.dir, "kernel")
	if err := os.WriteFile(kernel, []byte("\x7fELF and more"), 0o644); err != nil {
		t.Fatal(err)
	}
	initramfs := filepath.Join(w.dir, "initramfs")
	if err := os.WriteFile(initramfs, []byte("initramfs"), 0o644); err != nil {
		t.Fatal(err)
	}
	w.config = firecracker.Config{
		Binary: w.program.Path, Dir: filepath.Join(w.dir, "captures"), HotplugMemoryMiB: 256, HotplugDisks: 2,
		Limit: 30 * time.Second,
	}
	w.spec = vmm.Spec{
		VCPUs:     1,
		MemoryMiB: 64,
		Kernel:    kernel,
		Initramfs: initramfs,
		Confine:   vmm.Confine{UID: unprivilegedUID, GID: unprivilegedUID},
	}
	return w
}

func (w *fixture) open(t vmmtest.TB) *firecracker.Driver {
	t.Helper()
	d, err := firecracker.New(t.Context(), w.config)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

const diskBytes = 8 << 20

func (w *fixture) lab() vmmtest.Lab {
	return vmmtest.Lab{
		Dir:  w.dir,
		Open: func(t vmmtest.TB) vmm.Driver { return w.open(t) },
		Abandon: func(t vmmtest.TB, d vmm.Driver) {
			if err := d.(*firecracker.Driver).Close(); err != nil {
				t.Fatal(err)
			}
		},
		Crash: func(t vmmtest.TB, m vmm.Machine) {
			if err := unix.Kill(m.PID(), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		Spec: w.spec,
		Disk: func(t vmmtest.TB, path string) {
			if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, diskBytes),
				os.Chown(path, unprivilegedUID, unprivilegedUID)); err != nil {
				t.Fatal(err)
			}
		},
		Data: func(t vmmtest.TB, path string) {
			if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, diskBytes/2),
				os.Chown(path, unprivilegedUID, unprivilegedUID)); err != nil {
				t.Fatal(err)
			}
		},
		Clone: func(t vmmtest.TB, from *os.File, to string) {
			f, err := os.OpenFile(to, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(disk.CloneInto(from.Name(), f), f.Close(),
				os.Chown(to, unprivilegedUID, unprivilegedUID)); err != nil {
				t.Fatal(err)
			}
		},
	}
}

// TestMachines runs the driver test suite of package vmmtest with each release.
func TestMachines(t *testing.T) {
	for _, release := range releases {
		t.Run(release, func(t *testing.T) {
			h := vmmtest.Bake(t, newFixture(t, release).lab())
			vmmtest.Run(h, func(name string, test func(vmmtest.TB)) { t.Run(name, func(t *testing.T) { test(t) }) })
		})
	}
}
