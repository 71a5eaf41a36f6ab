package build_test

import (
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/hostapi"
)

// TestLimits: sandboxes of a template have the limits that its build asked for; a build that asks for wider ones than
// the host's is refused by the field's name.
func TestLimits(t *testing.T) {
	w := newWorld(t, nil)
	w.h.SetLimits(hostapi.Limits{DiskMiB: 100, NetworkOutMbit: 10})
	spec, want := dockerfileOf("slow", "FROM base\nENV A=b\n"), api.Limits{DiskMiB: 20, DiskOps: 7}
	spec.Limits = &want
	w.built(spec, nil)
	tpl, err := w.templates.Get(t.Context(), alice, "slow")
	if err != nil || tpl.Limits == nil || *tpl.Limits != want {
		t.Errorf("the template has %+v, %v; want %+v", tpl.Limits, err, want)
	}
	s, err := w.boxes.Create(t.Context(), alice, api.CreateRequest{Template: "slow"})
	if err != nil || s.Limits == nil || *s.Limits != want {
		t.Fatalf("a sandbox has %+v, %v; want %+v", s.Limits, err, want)
	}
	if err := w.boxes.Delete(t.Context(), alice, s.ID); err != nil {
		t.Fatal(err)
	}
	for field, l := range map[string]api.Limits{
		"limits.disk_mib": {DiskMiB: 101}, "limits.network_out_mbit": {NetworkOutMbit: 11}, "limits.disk_ops": {DiskOps: -1},
	} {
		spec.Name, spec.Limits = "wide", &l
		_, err := w.Start(t.Context(), alice, spec, nil)
		if api.CodeOf(err) != api.Invalid || api.AsError(err).Details["field"] != field {
			t.Errorf("%+v: got %v of %v", l, err, api.AsError(err).Details)
		}
	}
	w.clean(1)
}
