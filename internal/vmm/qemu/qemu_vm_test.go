//go:build vm

package qemu_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/image/imagebuild"
	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/internal/os/jail"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/qemu"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
	"github.com/pandastack/pandastack/test/vmlab"
)

var (
	binary = flag.String("qemu.binary", "", "QEMU to test (default: the installed one)")
	record = flag.Bool("qemu.record", false, "allow all system calls and print those that monitors make")
)

// unprivilegedUID is the user of the monitors in these tests.
const unprivilegedUID = 65534

// newJail returns a jail for the monitors of a test program.
func newJail(t testing.TB, dir string) vmm.Jail {
	t.Helper()
	layout, err := jail.Probe()
	if err != nil {
		t.Fatal(err)
	}
	refused := &refusedCalls{}
	j, err := jail.New(
		jail.Config{
			Hierarchy:     layout,
			Prefix:        fmt.Sprintf("pntqemu%d", os.Getpid()),
			ProgramsDir:   filepath.Join(dir, "jail"),
			OnRefusedCall: refused.add,
			RecordCalls:   *record,
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { refused.report(t) })
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	g, err := j.Create(t.Context(), "test", jail.Limits{PIDs: 4096, OpenFiles: 1024})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return g
}

func lab(t testing.TB) vmmtest.Lab {
	t.Helper()
	l := vmlab.Open(t)
	return vmmtest.Lab{
		Dir: l.Dir,
		Open: func(t vmmtest.TB) vmm.Driver {
			d, err := qemu.New(t.Context(), qemu.Config{Binary: *binary, Dir: filepath.Join(l.Data, "qemu")})
			if err != nil {
				t.Fatal(err)
			}
			if *record {
				qemu.AllowOnlyStart(t, d)
			}
			return d
		},
		Abandon: func(t vmmtest.TB, d vmm.Driver) {
			if err := d.(*qemu.Driver).Close(); err != nil {
				t.Fatal(err)
			}
		},
		Crash: func(t vmmtest.TB, m vmm.Machine) {
			if err := unix.Kill(m.PID(), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		Spec: vmm.Spec{
			VCPUs: 1, MemoryMiB: 256, Kernel: l.Boot.Kernel, Initramfs: l.Boot.Initramfs, Cmdline: l.Boot.Cmdline,
			Confine: vmm.Confine{UID: unprivilegedUID, GID: unprivilegedUID, Jail: newJail(t, l.Data)},
		},
		Disk: func(t vmmtest.TB, path string) {
			if err := disk.Clone(l.Root, path); err != nil {
				t.Fatal(err)
			}
		},
		Data: func(t vmmtest.TB, path string) {
			empty, err := os.MkdirTemp(l.Dir, "empty-")
			if err == nil {
				err = errors.Join(imagebuild.Ext4(t.Context(), empty, path, 32, "data", nil), os.Remove(empty))
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		Clone: func(t vmmtest.TB, from *os.File, to string) {
			f, err := os.OpenFile(to, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(disk.CloneInto(from.Name(), f), f.Close()); err != nil {
				t.Fatal(err)
			}
		},
	}
}

// TestMachines runs all tests on one baked image, because baking takes most of the time.
func TestMachines(t *testing.T) {
	h := vmmtest.Bake(t, lab(t))
	t.Run("filters", func(t *testing.T) { testFilters(t, h) })
	t.Run("conformance", func(t *testing.T) {
		vmmtest.Run(h, func(name string, test func(vmmtest.TB)) { t.Run(name, func(t *testing.T) { test(t) }) })
	})
	t.Run("rehearsed", func(t *testing.T) {
		h := h.WithCheckpoint(t)
		if _, err := os.Stat(filepath.Join(h.Image.Dir, "process", "content")); err != nil {
			t.Fatal(err)
		}
		vmmtest.Run(h, func(name string, test func(vmmtest.TB)) { t.Run(name, func(t *testing.T) { test(t) }) })
		t.Run("filters", func(t *testing.T) { testFilters(t, h) })
		t.Run("adopted_base", func(t *testing.T) { testAdoptedBase(t, h) })
		t.Run("mapped_delta", func(t *testing.T) { testMappedDelta(t, h) })
		t.Run("travels", func(t *testing.T) { testExportImport(t, h) })
		t.Run("layer", func(t *testing.T) { testMemDelta(t, h) })
		t.Run("rates", func(t *testing.T) { testRates(t, h) })
		t.Run("nothing_left", func(t *testing.T) { testNothingLeft(t, h) })
	})
	t.Run("flushes", func(t *testing.T) { testFlushes(t, h, false) })
	t.Run("power_loss", func(t *testing.T) { testPowerLoss(t, h) })
	t.Run("flushes_restored", func(t *testing.T) { testFlushes(t, h, true) })
	t.Run("panic", func(t *testing.T) { testGuestExit(t, h, "c", "Kernel panic") })
	t.Run("reboot", func(t *testing.T) { testGuestExit(t, h, "b", "rebooted") })
	t.Run("endless_console", func(t *testing.T) { testConsole(t, h) })
	t.Run("larger_disk", func(t *testing.T) { testLargerDisk(t, h) })
	t.Run("layer", func(t *testing.T) { testMemDelta(t, h) })
	t.Run("rates", func(t *testing.T) { testRates(t, h) })
	t.Run("state_cut_short", func(t *testing.T) { testTruncatedState(t, h) })
	t.Run("nothing_left", func(t *testing.T) { testNothingLeft(t, h) })
}
