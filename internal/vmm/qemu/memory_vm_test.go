//go:build vm

package qemu_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/image/kernel"
	"github.com/pandastack/pandastack/internal/image/recipe"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/qemu"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
	"github.com/pandastack/pandastack/test/vmlab"
)

var aroundSizes = flag.Bool("qemu.around", false, "boot guests 2 MiB smaller and larger than each memory size, too")

// Memory sizes of guests, in MiB: every power of two from smallestMiB to largestMiB.
const smallestMiB, largestMiB = 128, 8192

// memorySizes returns the memory sizes to boot: powers of two and the size of every bundled template and variant.
func memorySizes(t *testing.T) []int {
	t.Helper()
	var sizes []int
	for mib := smallestMiB; mib <= largestMiB; mib *= 2 {
		sizes = append(sizes, mib)
	}
	recipes, err := recipe.Builtin(recipe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range recipes {
		sizes = append(sizes, r.MemoryMiB)
	}
	if *aroundSizes {
		for _, mib := range slices.Clone(sizes) {
			sizes = append(sizes, mib-2, mib+2)
		}
	}
	slices.Sort(sizes)
	return slices.Compact(sizes)
}

// TestMemorySizes boots a guest of each memory size on each kernel until its agent has replied. Where QEMU and the
// firmware put their tables and the initramfs depends on the size.
func TestMemorySizes(t *testing.T) {
	l := vmlab.Open(t)
	jail := newJail(t, l.Data)
	sizes := memorySizes(t)
	for _, kind := range []string{kernel.Distribution, kernel.Tuned} {
		t.Run(kind, func(t *testing.T) {
			boot := bootKind(t, l, kind)
			for _, mib := range sizes {
				t.Run(fmt.Sprintf("%d_MiB", mib), func(t *testing.T) {
					t.Parallel()
					h := rootlessHost(t, filepath.Join(l.Dir, fmt.Sprintf("%s-%d", kind, mib)), boot)
					h.Lab.Spec.MemoryMiB, h.Lab.Spec.Confine.Jail = mib, jail
					start := time.Now()
					m := h.Boot(t)
					t.Logf("guest of %d MiB replied after %.1f s", mib, time.Since(start).Seconds())
					if err := m.Kill(t.Context()); err != nil {
						t.Fatal(err)
					}
				})
			}
		})
	}
}

// TestDamagedInitramfs boots guests whose initramfs was changed, as by a firmware that writes into it. The agent
// refuses to go on, and the machine's error says why.
func TestDamagedInitramfs(t *testing.T) {
	l := vmlab.Open(t)
	boot := bootKind(t, l, kernel.Distribution)
	whole, err := os.ReadFile(boot.Initramfs)
	if err != nil {
		t.Fatal(err)
	}
	const order = "modules/order\x00"
	for name, c := range map[string]struct {
		at   int
		want string
	}{
		"order":       {bytes.Index(whole, []byte(order)) + len(order) + 20, "/modules/order"},
		"last_module": {len(whole) - 4096, ".ko"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(l.Dir, "damaged-"+name)
			damaged := slices.Clone(whole)
			damaged[c.at] ^= 1
			boot := boot
			boot.Initramfs = filepath.Join(l.Dir, name+".cpio")
			if err := os.WriteFile(boot.Initramfs, damaged, 0o644); err != nil {
				t.Fatal(err)
			}
			h := rootlessHost(t, dir, boot)
			m, err := h.Driver.Boot(t.Context(), h.Spec(t, ""))
			if err != nil {
				t.Fatal(err)
			}
			select {
			case <-m.Done():
			case <-time.After(vmmtest.Timeout):
				t.Fatalf("got a machine that runs after %s, want it ended", vmmtest.Timeout)
			}
			want := vmm.AgentPrefix + " initramfs is damaged: "
			if err := m.Err(); err == nil || !strings.Contains(err.Error(), want) ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want %q and %q in it", err, want, c.want)
			}
		})
	}
}

// bootKind returns one kind of kernel with the lab's guest agent, or skips the test where it is not installed.
func bootKind(t *testing.T, l vmlab.Lab, kind string) kernel.Boot {
	t.Helper()
	boot, err := kernel.FindKind(t.Context(), filepath.Join(l.Data, "kernel"), kind, l.Agent)
	if _, missing := errors.AsType[*kernel.NotFoundError](err); missing {
		t.Skipf("probe kernel: the %s kernel is not installed; %v", kind, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return boot
}

// rootlessHost returns a host whose guests have 256 MiB and wait for a root file system.
func rootlessHost(t *testing.T, dir string, boot kernel.Boot) *vmmtest.Host {
	t.Helper()
	d, err := qemu.New(t.Context(), qemu.Config{Binary: *binary})
	if err != nil {
		t.Fatal(err)
	}
	return &vmmtest.Host{Driver: d, Lab: vmmtest.Lab{
		Dir: dir,
		Spec: vmm.Spec{
			VCPUs: 1, MemoryMiB: 256, Kernel: boot.Kernel, Initramfs: boot.Initramfs,
			Cmdline: boot.Cmdline + " " + guestapi.WaitForRootArgument,
			Confine: vmm.Confine{UID: unprivilegedUID, GID: unprivilegedUID},
		},
		Disk: func(t vmmtest.TB, path string) {
			if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<20)); err != nil {
				t.Fatal(err)
			}
		},
	}}
}
