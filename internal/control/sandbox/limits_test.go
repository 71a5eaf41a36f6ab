package sandbox_test

import (
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// TestLimits: a sandbox has the limits that it was asked for, over those of its template or snapshot; it keeps them,
// and its forks have them.
func TestLimits(t *testing.T) {
	w := newFixture(t)
	w.host.SetLimits(hostapi.Limits{DiskMiB: 100, NetworkInMbit: 50})
	w.host.AddTemplate(
		hostapi.Template{Name: "slow", VCPUs: 1, MemoryMiB: 256, DiskMiB: 1024, Baked: true, User: "user", Workdir: "/",
			Limits: hostapi.Limits{DiskMiB: 20, DiskOps: 300, NetworkInMbit: 70}},
	) // 70 is more than the host gives
	holds := func(what string, s api.Sandbox, want api.Limits) {
		t.Helper()
		got, err := w.Get(t.Context(), alice, s.ID)
		if err != nil || got.Limits == nil || *got.Limits != want {
			t.Errorf("%s: shown are %+v, %v; want %+v", what, got.Limits, err, want)
		}
		m, err := w.host.Get(t.Context(), hostapi.MachineID(s.ID))
		if err != nil || m.Limits != hostapi.Limits(want) {
			t.Errorf("%s: its machine has %+v, %v; want %+v", what, m.Limits, err, want)
		}
	}
	holds(
		"of the template",
		w.create(alice, api.CreateRequest{Template: "slow"}),
		api.Limits{DiskMiB: 20, DiskOps: 300},
	)
	want := api.Limits{DiskMiB: 60, DiskOps: 300, NetworkOutMbit: 5}
	made := w.create(alice, api.CreateRequest{Template: "slow", Limits: &api.Limits{DiskMiB: 60, NetworkOutMbit: 5}})
	holds("asked for", made, want)
	forked, err := w.Fork(t.Context(), alice, made.ID, api.ForkRequest{Count: 1})
	if err != nil {
		t.Fatal(err)
	}
	holds("forked", forked.Children[0], want)
	snap, err := w.TakeSnapshot(t.Context(), alice, made.ID, api.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want.DiskOps = 7
	holds(
		"of a snapshot",
		w.create(alice, api.CreateRequest{FromSnapshot: snap.ID, Limits: &api.Limits{DiskOps: 7}}),
		want,
	)
	if plain := w.create(alice, api.CreateRequest{Template: "base"}); plain.Limits != nil {
		t.Errorf("a sandbox without limits of its own shows %+v", plain.Limits)
	}
}

// TestLimitsAboveTheHost: limits wider than the host's are refused before anything is made. The error names the field
// and says what to do.
func TestLimitsAboveTheHost(t *testing.T) {
	w := newFixture(t)
	w.host.SetLimits(hostapi.Limits{DiskMiB: 100, DiskOps: 100, NetworkInMbit: 50, NetworkOutMbit: 50})
	for field, l := range map[string]api.Limits{
		"limits.disk_mib": {DiskMiB: 101}, "limits.disk_ops": {DiskOps: 101},
		"limits.network_in_mbit":  {NetworkInMbit: 51},
		"limits.network_out_mbit": {NetworkOutMbit: -1},
	} {
		_, err := w.Create(t.Context(), alice, api.CreateRequest{Template: "base", Limits: &l})
		e := api.AsError(err)
		if api.CodeOf(err) != api.Invalid || e.Details["field"] != field ||
			!strings.Contains(e.Message, "leave it out") {
			t.Errorf("%+v: got %v of %v", l, err, e.Details)
		}
	}
	if list, err := w.List(t.Context(), alice, api.SandboxFilter{}); err != nil || len(list.Sandboxes) != 0 {
		t.Errorf("there are %v, %v", list, err)
	}
}
