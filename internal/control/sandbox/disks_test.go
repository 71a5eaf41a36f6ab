package sandbox_test

import (
	"slices"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// TestDataDisksAreShown: whatever a sandbox comes from, it shows the disks that it has beside the root disk, also
// to a process that did not make it.
func TestDataDisksAreShown(t *testing.T) {
	w := newFixture(t)
	w.host.AddTemplate(
		hostapi.Template{Name: "data", VCPUs: 1, MemoryMiB: 256, DiskMiB: 1024, Baked: true, User: "user", Workdir: "/",
			Disks: []hostapi.DataDisk{
				{Name: "rows", SizeMiB: 64, Mount: "/var/rows"},
				{Name: "logs", SizeMiB: 32, Mount: "/var/logs"},
			}},
	)
	want := []api.DataDisk{
		{Name: "rows", SizeMB: 64, MountPath: "/var/rows"},
		{Name: "logs", SizeMB: 32, MountPath: "/var/logs"},
	}
	shows := func(what string, s api.Sandbox) {
		t.Helper()
		got, err := w.Get(t.Context(), alice, s.ID)
		if err != nil || !slices.Equal(got.DataDisks, want) || !slices.Equal(s.DataDisks, want) {
			t.Errorf("%s: data disks %v, then %v, %v; want %v", what, s.DataDisks, got.DataDisks, err, want)
		}
	}
	made := w.create(alice, api.CreateRequest{Template: "data"})
	shows("created", made)
	forked, err := w.Fork(t.Context(), alice, made.ID, api.ForkRequest{Count: 1})
	if err != nil {
		t.Fatal(err)
	}
	shows("forked", forked.Children[0])
	snap, err := w.TakeSnapshot(t.Context(), alice, made.ID, api.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	shows("of a snapshot", w.create(alice, api.CreateRequest{FromSnapshot: snap.ID}))
	if _, err := w.Hibernate(t.Context(), alice, made.ID); err != nil {
		t.Fatal(err)
	}
	w.restart()
	woken, err := w.Wake(t.Context(), alice, made.ID)
	if err != nil {
		t.Fatal(err)
	}
	shows("woken", woken)
	if plain := w.create(alice, api.CreateRequest{Template: "base"}); plain.DataDisks != nil {
		t.Errorf("a sandbox without data disks shows %v", plain.DataDisks)
	}
}
