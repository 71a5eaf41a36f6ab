package build_test

import (
	"errors"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/build"
)

// TestLimits builds a template with limits: its sandboxes and templates built on it have them, unless their builds have
// their own. A build with limits above those of the host is refused with the name of the field.
func TestLimits(t *testing.T) {
	w := newFixture(t, nil)
	w.h.SetLimits(hostapi.Limits{DiskMiB: 100, NetworkOutMbit: 10})
	spec, want := dockerfileOf("slow", "FROM base\nENV A=b\n"), api.Limits{DiskMiB: 20, DiskOps: 7}
	spec.Limits = &want
	w.mustBuild(spec, nil)
	tpl, err := w.templates.Get(t.Context(), alice, "slow")
	if err != nil || tpl.Limits == nil || *tpl.Limits != want {
		t.Errorf("got limits %+v of the template, %v; want %+v", tpl.Limits, err, want)
	}
	s, err := w.boxes.Create(t.Context(), alice, api.CreateRequest{Template: "slow"})
	if err != nil || s.Limits == nil || *s.Limits != want {
		t.Fatalf("got limits %+v of a sandbox, %v; want %+v", s.Limits, err, want)
	}
	if err := w.boxes.Delete(t.Context(), alice, s.ID); err != nil {
		t.Fatal(err)
	}
	w.mustBuild(dockerfileOf("child", "FROM slow\nENV B=c\n"), nil)
	none := dockerfileOf("free", "FROM slow\nENV B=d\n")
	none.Limits = &api.Limits{}
	w.mustBuild(none, nil)
	snap := api.SnapshotID("")
	if s, err = w.boxes.Create(t.Context(), alice, api.CreateRequest{Template: "child"}); err == nil {
		var taken api.Snapshot
		taken, err = w.boxes.TakeSnapshot(t.Context(), alice, s.ID, api.SnapshotRequest{})
		snap = taken.ID
	}
	if err != nil {
		t.Fatal(err)
	}
	w.mustBuild(build.Spec{BuildRequest: api.BuildRequest{Name: "kept", FromSnapshot: snap}}, nil)
	for name, want := range map[string]*api.Limits{"child": &want, "free": nil, "kept": &want} {
		tpl, err := w.templates.Get(t.Context(), alice, name)
		if err != nil || (tpl.Limits == nil) != (want == nil) || want != nil && *tpl.Limits != *want {
			t.Errorf("got limits %+v of template %s, %v; want %+v", tpl.Limits, name, err, want)
		}
	}
	if err := errors.Join(w.boxes.Delete(t.Context(), alice, s.ID),
		w.boxes.DeleteSnapshot(t.Context(), alice, snap)); err != nil {
		t.Fatal(err)
	}
	for field, l := range map[string]api.Limits{
		"limits.disk_mib": {DiskMiB: 101}, "limits.network_out_mbit": {NetworkOutMbit: 11},
		"limits.disk_ops": {DiskOps: -1},
	} {
		spec.Name, spec.Limits = "wide", &l
		_, err := w.Start(t.Context(), alice, spec, nil)
		if api.CodeOf(err) != api.Invalid || api.AsError(err).Details["field"] != field {
			t.Errorf("Start with %+v: got %v with details %v, want invalid in field %s",
				l, err, api.AsError(err).Details, field)
		}
	}
	w.checkClean(4)
}
