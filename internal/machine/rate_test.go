package machine_test

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/internal/hostapi"
	"github.com/pandastack/pandastack/internal/machine"
	"github.com/pandastack/pandastack/internal/vmm"
)

// The bounds of the host hold for every disk of every machine, however it came to be, and those of a later
// process for what starts in it.
func TestDisksAreBounded(t *testing.T) {
	w := newWorld(t)
	w.rate = vmm.Rate{Bytes: 1 << 20, Ops: 100}
	w.kill(nil)
	check := func(ids ...string) {
		t.Helper()
		for _, id := range ids {
			disks := w.host.of(id).spec.Disks
			if len(disks) != 1+len(data) {
				t.Errorf("machine %s has %d disks", id, len(disks))
			}
			for i, d := range disks {
				if d.Rate != w.rate {
					t.Errorf("disk %d of machine %s is held to %+v, want %+v", i, id, d.Rate, w.rate)
				}
			}
		}
	}
	w.create("a", true)
	if _, err := w.mgr.Fork(t.Context(), hostapi.Fork{Parent: "a", Children: []hostapi.Child{{ID: "b"}, {ID: "c"}}}); err != nil {
		t.Fatal(err)
	}
	check("a", "b", "c")
	w.must(w.mgr.Hibernate(t.Context(), "a"))
	w.rate = vmm.Rate{Ops: 5}
	w.kill(nil)
	if _, err := w.mgr.Wake(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	check("a")
	for _, id := range []string{"a", "b", "c"} {
		w.destroy(id)
	}
	w.empty()
}

// A host that is to bound disks does not begin with a driver that cannot.
func TestBoundsNeedADriverThatHoldsThem(t *testing.T) {
	w := newWorld(t)
	h := newHost()
	h.boundless = true
	_, err := machine.New(machine.Config{Dir: filepath.Join(w.dir, "other"), DiskRate: vmm.Rate{Ops: 1}},
		machine.Deps{Driver: h, Network: w.net, Groups: w.groups, Disks: copies{}, Store: w.store, Link: openLink})
	if _, ok := errors.AsType[*vmm.UnsupportedError](err); !ok {
		t.Errorf("got %v", err)
	}
}
