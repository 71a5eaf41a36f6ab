package sandbox_test

import (
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// TestSnapshotsOfServices takes a snapshot of the sandbox of a service's object. It belongs to the object: users of the
// workspace do not see it, and neither they nor other objects can use or delete it.
func TestSnapshotsOfServices(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	app, other := alice, alice
	app.Owner = hostapi.Owner{Kind: "app", ID: "app1"}
	other.Owner = hostapi.Owner{Kind: "app", ID: "app2"}
	own, err := w.TakeSnapshot(ctx, alice, w.create(alice, api.CreateRequest{}).ID, api.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	snap, err := w.TakeSnapshot(ctx, app, w.create(app, api.CreateRequest{}).ID, api.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, who := range []struct {
		name string
		p    auth.Principal
		owns []api.SnapshotID
	}{{"user", alice, []api.SnapshotID{own.ID}}, {"app", app, []api.SnapshotID{snap.ID}}, {"other", other, nil}} {
		page, err := w.Snapshots(ctx, who.p, api.SnapshotFilter{})
		if err != nil || len(page.Snapshots) != len(who.owns) ||
			len(who.owns) > 0 && page.Snapshots[0].ID != who.owns[0] {
			t.Errorf("%s lists %+v, %v; want %v", who.name, page.Snapshots, err, who.owns)
		}
		if who.name == "app" {
			continue
		}
		_, err = w.Snapshot(ctx, who.p, snap.ID)
		wantCode(t, err, api.NotFound, who.name+" reads it")
		_, err = w.Create(ctx, who.p, api.CreateRequest{FromSnapshot: snap.ID})
		wantCode(t, err, api.NotFound, who.name+" restores it")
		wantCode(t, w.DeleteSnapshot(ctx, who.p, snap.ID), api.NotFound, who.name+" deletes it")
	}
	if _, err := w.Create(ctx, app, api.CreateRequest{FromSnapshot: snap.ID}); err != nil {
		t.Error(err)
	}
	if err := w.DeleteSnapshot(ctx, app, snap.ID); err != nil {
		t.Error(err)
	}
}
