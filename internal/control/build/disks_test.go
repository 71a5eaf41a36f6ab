package build_test

import (
	"slices"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/build"
)

// TestDataDisks builds on a template with a data disk in every way: the new template and its sandboxes have the disk.
func TestDataDisks(t *testing.T) {
	w := newFixture(t, nil)
	w.h.AddTemplate(
		hostapi.Template{Name: "db", VCPUs: 1, MemoryMiB: 256, DiskMiB: 1024, Baked: true, User: "user", Workdir: "/",
			Disks: []hostapi.DataDisk{{Name: "rows", SizeMiB: 64, Mount: "/var/rows"}}},
	)
	want := []api.DataDisk{{Name: "rows", SizeMB: 64, MountPath: "/var/rows"}}
	box, err := w.boxes.Create(t.Context(), alice, api.CreateRequest{Template: "db"})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name string
		spec build.Spec
	}{
		{"stepped", dockerfileOf("stepped", "FROM db AS first\nRUN echo 1 > /var/rows/one\n"+
			"FROM first\nRUN cat /var/rows/one\n")},
		{"stepless", dockerfileOf("stepless", "FROM db\nENV A=b\n")},
		{"taken", build.Spec{BuildRequest: api.BuildRequest{FromSandbox: box.ID}}},
		{"alive", build.Spec{BuildRequest: api.BuildRequest{FromSandbox: box.ID, Memory: true}}},
		{"larger", build.Spec{BuildRequest: api.BuildRequest{FromTemplate: "stepped", MemoryMB: 1024}}},
		{"again", dockerfileOf("again", "FROM larger\nRUN cat /var/rows/one\n")},
	} {
		row.spec.Name = row.name
		w.mustBuild(row.spec, nil)
		if tpl, err := w.templates.Get(t.Context(), alice, row.name); err != nil || !slices.Equal(tpl.DataDisks, want) {
			t.Errorf("template %s: got data disks %v, %v; want %v", row.name, tpl.DataDisks, err, want)
		}
		s, err := w.boxes.Create(t.Context(), alice, api.CreateRequest{Template: row.name})
		if err != nil || !slices.Equal(s.DataDisks, want) {
			t.Fatalf("a sandbox of %s: got data disks %v, %v; want %v", row.name, s.DataDisks, err, want)
		}
		if err := w.boxes.Delete(t.Context(), alice, s.ID); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"stepped", "larger", "again"} {
		if got := w.readFile(name, "/var/rows/one"); got != "1\n" {
			t.Errorf("got %q on the data disk of %s, want %q", got, name, "1\n")
		}
	}
	if err := w.boxes.Delete(t.Context(), alice, box.ID); err != nil {
		t.Fatal(err)
	}
	w.checkClean(6)
}
