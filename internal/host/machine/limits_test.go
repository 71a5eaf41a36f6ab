package machine_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/vmm"
)

// TestDiskRates checks that the host's limits apply to every disk of every machine, however it was started, and that
// those of a later process apply to machines that start in it.
func TestDiskRates(t *testing.T) {
	w := newFixture(t)
	w.limits = hostapi.Limits{DiskMiB: 1, DiskOps: 100}
	w.restart(nil)
	check := func(ids ...string) {
		t.Helper()
		for _, id := range ids {
			disks := w.host.monitorOf(id).spec.Disks
			if len(disks) != 1+len(dataDisks)+places {
				t.Errorf("machine %s has %d disks, want %d", id, len(disks), 1+len(dataDisks)+places)
			}
			for i, d := range disks {
				want := vmm.Rate{Bytes: int64(w.limits.DiskMiB) << 20, Ops: int64(w.limits.DiskOps)}
				if d.Rate != want {
					t.Errorf("rate of disk %d of machine %s = %+v, want %+v", i, id, d.Rate, want)
				}
			}
		}
	}
	w.create("a", true)
	_, err := w.mgr.Fork(
		t.Context(),
		machine.ForkRequest{Parent: "a", Children: []machine.ChildRequest{{ID: "b"}, {ID: "c"}}},
	)
	w.must(err)
	check("a", "b", "c")
	w.must(w.mgr.Hibernate(t.Context(), "a"))
	w.limits = hostapi.Limits{DiskOps: 5}
	w.restart(nil)
	if _, err := w.mgr.Wake(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	check("a")
	for _, id := range []string{"a", "b", "c"} {
		w.destroy(id)
	}
	w.checkEmpty()
}

// TestDiskRatesNeedDriverSupport checks that New refuses disk limits with a driver that cannot enforce them.
func TestDiskRatesNeedDriverSupport(t *testing.T) {
	w := newFixture(t)
	h := newFakeDriver()
	h.noDiskRates = true
	_, err := machine.New(
		machine.Config{Dir: filepath.Join(w.dir, "other"), Limits: hostapi.Limits{DiskOps: 1}},
		machine.Deps{
			Driver:  h,
			Network: w.network,
			Cgroups: w.cgroups,
			Disks:   pageDisks{},
			Store:   w.store,
			Link:    openLink,
		},
	)
	if _, ok := errors.AsType[*vmm.UnsupportedError](err); !ok {
		t.Errorf("New with disk limits: got %v, want an UnsupportedError", err)
	}
}

// TestOwnLimits checks that a machine's own limits apply from its start on, beside those of the host: also to a fork,
// after a wake, and after another process took the machine over.
func TestOwnLimits(t *testing.T) {
	w := newFixture(t)
	w.limits = hostapi.Limits{DiskMiB: 10, DiskOps: 100, NetworkInMbit: 80}
	w.restart(nil)
	own := hostapi.Limits{DiskMiB: 2, NetworkInMbit: 8, NetworkOutMbit: 16, Connections: 30, NewConnections: 4}
	check := func(id string, rate vmm.Rate, in, out int64) {
		t.Helper()
		got, err := w.mgr.Get(hostapi.MachineID(id))
		if err != nil || got.Limits != own {
			t.Errorf("limits of machine %s = %+v, %v; want %+v", id, got.Limits, err, own)
		}
		for i, d := range w.host.monitorOf(id).spec.Disks {
			if d.Rate != rate {
				t.Errorf("rate of disk %d of machine %s = %+v, want %+v", i, id, d.Rate, rate)
			}
		}
		if got := w.network.ratesOf(id); got != [2]int64{in, out} {
			t.Errorf("network rates of machine %s = %v, want %d and %d", id, got, in, out)
		}
		if got := w.network.connsOf(id); got != [2]int{30, 4} {
			t.Errorf("connections of machine %s = %v, want 30 and 4", id, got)
		}
	}
	req := machine.CreateRequest{ID: "a", Template: "base", Persistent: true, Limits: own}
	if _, err := w.mgr.Create(t.Context(), req, base, ""); err != nil {
		t.Fatal(err)
	}
	fork := machine.ForkRequest{Parent: "a", Children: []machine.ChildRequest{{ID: "b"}}}
	if _, err := w.mgr.Fork(t.Context(), fork); err != nil {
		t.Fatal(err)
	}
	rate := vmm.Rate{Bytes: 2 << 20, Ops: 100}
	check("a", rate, 1_000_000, 2_000_000)
	check("b", rate, 1_000_000, 2_000_000)
	w.limits = hostapi.Limits{DiskMiB: 1}
	w.restart(nil)
	check("a", vmm.Rate{Bytes: 1 << 20}, 1_000_000, 2_000_000) // taken over by a host with stricter limits
	w.must(w.mgr.Hibernate(t.Context(), "a"))
	if _, err := w.mgr.Wake(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	check("a", vmm.Rate{Bytes: 1 << 20}, 1_000_000, 2_000_000)
	for _, id := range []string{"a", "b"} {
		w.destroy(id)
	}
	w.checkEmpty()
}

// TestWideLimits checks that limits above the host's, or invalid ones, are refused before anything is made.
func TestWideLimits(t *testing.T) {
	w := newFixture(t)
	w.limits = hostapi.Limits{DiskMiB: 10, DiskOps: 100, NetworkInMbit: 80, NetworkOutMbit: 80, Connections: 50,
		NewConnections: 5}
	w.restart(nil)
	for field, l := range map[string]hostapi.Limits{
		"disk_mib": {DiskMiB: 11}, "disk_ops": {DiskOps: 101},
		"network_in_mbit": {NetworkInMbit: 81}, "network_out_mbit": {NetworkOutMbit: -1},
		"connections": {Connections: 51}, "new_connections": {NewConnections: 6},
	} {
		_, err := w.mgr.Create(t.Context(), machine.CreateRequest{ID: "a", Template: "base", Limits: l}, base, "")
		which, ok := errors.AsType[*hostapi.LimitError](err)
		if !ok || !errors.Is(err, hostapi.ErrInvalid) || which.Field != field ||
			!strings.Contains(err.Error(), "use ") {
			t.Errorf("create with limits %+v: got %v, want a LimitError of %s", l, err, field)
		}
	}
	w.checkEmpty()
}
