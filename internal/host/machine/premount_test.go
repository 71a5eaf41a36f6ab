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

// preMount is the pre-mount snapshot of these tests.
const preMount = snapshot.Ref("templates/premount/g1")

// makePreMount makes preMount.
func (w *fixture) makePreMount() {
	w.t.Helper()
	_, err := w.mgr.Boot(
		w.t.Context(),
		machine.Boot{
			ID:          "g",
			Disk:        filepath.Join(w.dir, string(base), "disk.img"),
			VCPUs:       1,
			MemoryMiB:   64,
			WaitForRoot: true,
		},
	)
	w.must(err)
	if line := w.host.monitorOf("g").spec.Cmdline; line != guestapi.WaitForRootArgument {
		w.t.Errorf("kernel command line of a machine that waits = %q, want %q", line, guestapi.WaitForRootArgument)
	}
	_, err = w.mgr.TakeSnapshot(w.t.Context(), "g", preMount, nil, nil)
	w.must(err)
	w.destroy("g")
}

func TestBootFromPreMount(t *testing.T) {
	w := newFixture(t)
	disk := filepath.Join(w.dir, string(base), "disk.img")
	boot := machine.Boot{
		ID:        "b",
		Disk:      disk,
		VCPUs:     1,
		MemoryMiB: 64,
		User:      "me",
		Env:       map[string]string{"A": "1"},
		From:      preMount,
		Listed:    true,
	}
	if _, err := w.mgr.Boot(t.Context(), boot); !errors.Is(err, hostapi.ErrNotFound) {
		t.Fatalf("boot from a missing pre-mount snapshot: got %v, want ErrNotFound", err)
	}
	w.makePreMount()
	mc, err := w.mgr.Boot(t.Context(), boot)
	w.must(err)
	if mc.State != hostapi.Running || mc.BootMode != hostapi.BootCold {
		t.Errorf("machine = %+v, want it running with boot mode cold", mc)
	}
	m := w.host.monitorOf("b")
	if m.spec.Kernel != "" || m.mem.Who.User != "me" || m.mem.Who.Env["A"] != "1" || !m.mem.Who.DiskGrow ||
		len(m.mem.Who.Entropy) == 0 {
		t.Errorf("booted with %+v and identity %+v, want no kernel and the identity of the request", m.spec, m.mem.Who)
	}
	w.count("b", 1)
	// The snapshot can be deleted while machines run on it; the next process finds both.
	w.must(w.store.Delete(preMount))
	files := filepath.Join(w.dir, string(preMount))
	w.restart(nil)
	w.count("b", 2)
	if _, err := os.Stat(files); err != nil {
		t.Errorf("files of the snapshot that a machine runs on: %v", err)
	}
	w.destroy("b")
	if _, err := os.Stat(files); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("files of a deleted snapshot without users: got %v, want ErrNotExist", err)
	}
	w.checkEmpty()
}
