package machine_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/host/snapshot"
)

// ground is the snapshot of a machine that waits for a disk.
const ground = snapshot.Ref("templates/ground/g1")

// ground makes it.
func (w *world) ground() {
	w.t.Helper()
	_, err := w.mgr.Boot(
		w.t.Context(),
		machine.Boot{
			ID:        "g",
			Disk:      filepath.Join(w.dir, string(base), "disk.img"),
			VCPUs:     1,
			MemoryMiB: 64,
			Waits:     true,
		},
	)
	w.must(err)
	if line := w.host.of("g").spec.Cmdline; line != guestapi.WaitArgument {
		w.t.Errorf("a machine that waits boots with %q", line)
	}
	_, err = w.mgr.TakeSnapshot(w.t.Context(), "g", ground, nil, nil)
	w.must(err)
	w.destroy("g")
}

func TestBootOnGround(t *testing.T) {
	w := newWorld(t)
	disk := filepath.Join(w.dir, string(base), "disk.img")
	boot := machine.Boot{
		ID:        "b",
		Disk:      disk,
		VCPUs:     1,
		MemoryMiB: 64,
		User:      "me",
		Env:       map[string]string{"A": "1"},
		Ground:    ground,
		Listed:    true,
	}
	if _, err := w.mgr.Boot(t.Context(), boot); !errors.Is(err, hostapi.ErrNotFound) {
		t.Fatalf("boot on a ground that is not there: %v", err)
	}
	w.ground()
	mc, err := w.mgr.Boot(t.Context(), boot)
	w.must(err)
	if mc.State != hostapi.Running || mc.BootMode != hostapi.BootCold {
		t.Errorf("machine %+v", mc)
	}
	m := w.host.of("b")
	if m.spec.Kernel != "" || m.mem.Who.User != "me" || m.mem.Who.Env["A"] != "1" || !m.mem.Who.DiskGrow ||
		len(m.mem.Who.Entropy) == 0 {
		t.Errorf("booted with %+v as %+v", m.spec, m.mem.Who)
	}
	w.tick("b", 1)
	// The ground may go while machines run on it; the next process finds them and it.
	w.must(w.store.Delete(ground))
	held := filepath.Join(w.dir, string(ground))
	w.kill(nil)
	w.tick("b", 2)
	if _, err := os.Stat(held); err != nil {
		t.Errorf("the files that a machine runs on: %v", err)
	}
	w.destroy("b")
	if _, err := os.Stat(held); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a ground that nobody needs is left: %v", err)
	}
	w.empty()
}
