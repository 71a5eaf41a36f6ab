//go:build vm

package kernel_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pandastack/pandastack/internal/image/kernel"

	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/host/probe/probetest"
)

// TestInstall uses the real package sources of the machine.
func TestInstall(t *testing.T) {
	probetest.Need(t, probe.Config{}, probe.Root, probe.Tools)
	dir := t.TempDir()
	guest := agent(t, t.TempDir(), "one")
	for range 2 {
		if err := kernel.Install(t.Context(), dir, func(l string) { t.Log(l) }); err != nil {
			t.Fatal(err)
		}
	}
	boot, err := kernel.Find(t.Context(), dir, guest)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", boot)
	data, err := os.ReadFile(boot.Initramfs)
	if err != nil {
		t.Fatal(err)
	}
	order := unpack(t, data)["modules/order"].data
	t.Logf("%d bytes; order:\n%s", len(data), order)
	entries, err := filepath.Glob(filepath.Join(dir, "[^.]*"))
	if err != nil || len(entries) != 2 || !slices.Contains(entries, filepath.Join(dir, "distribution")) {
		t.Errorf("got entries %v, want the kernel and one initramfs", entries)
	}
	hidden, err := filepath.Glob(filepath.Join(dir, ".new-*"))
	if err != nil || len(hidden) != 0 {
		t.Errorf("got leftovers %v, want none", hidden)
	}
}
