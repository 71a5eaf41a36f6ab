package sandbox_test

import (
	"errors"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
)

// A snapshot is pushed, lost here, pulled, and used.
func TestSnapshotComesBackFromTheObjectStore(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	s := w.create(alice, api.CreateRequest{Env: map[string]string{"X": "y"}})
	w.exec(alice, s.ID, "echo kept > f")
	snap, err := w.TakeSnapshot(ctx, alice, s.ID, api.SnapshotRequest{Name: "n"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.PushSnapshot(ctx, alice, snap.ID)
	wantCode(t, err, api.Unsupported, "push without an object store")
	hosttest.ShareObjects(w.host)
	pushed, err := w.PushSnapshot(ctx, alice, snap.ID)
	if err != nil || pushed.UploadedBytes == 0 || pushed.Snapshot.ID != snap.ID {
		t.Fatalf("pushed %+v, %v", pushed, err)
	}
	if again, err := w.PullSnapshot(ctx, alice, snap.ID, api.PullRequest{}); err != nil || again.FetchedBytes != 0 ||
		again.Snapshot.Name != "n" {
		t.Errorf("pull of one that is here: %+v, %v", again, err)
	}
	_, err = w.PushSnapshot(ctx, bob, snap.ID)
	wantCode(t, err, api.NotFound, "push of somebody else's")
	_, err = w.PullSnapshot(ctx, bob, snap.ID, api.PullRequest{})
	wantCode(t, err, api.NotFound, "pull of somebody else's")
	if err := w.DeleteSnapshot(ctx, alice, snap.ID); err != nil {
		t.Fatal(err)
	}
	_, err = w.PullSnapshot(ctx, bob, snap.ID, api.PullRequest{})
	wantCode(t, err, api.NotFound, "pull of what another workspace pushed")
	w.host.Fail("pullsnapshot", hostapi.ErrNoSpace)
	_, err = w.PullSnapshot(ctx, alice, snap.ID, api.PullRequest{})
	wantCode(t, err, api.NoSpace, "pull to a full host")
	w.host.FailAfter("pullsnapshot", errors.New("broken"))
	if _, err = w.PullSnapshot(ctx, alice, snap.ID, api.PullRequest{}); err == nil {
		t.Error("pull that broke: no error")
	}
	_, err = w.Snapshot(ctx, alice, snap.ID)
	wantCode(t, err, api.NotFound, "get after a pull that broke")
	if list, err := w.host.Snapshots(ctx); err != nil || len(list) != 0 {
		t.Errorf("a pull that broke left %v, %v", list, err)
	}
	pulled, err := w.PullSnapshot(ctx, alice, snap.ID, api.PullRequest{Stream: true})
	if err != nil || pulled.FetchedBytes == 0 || pulled.Snapshot.SandboxID != s.ID ||
		pulled.Snapshot.Template != "base" {
		t.Fatalf("pulled %+v, %v", pulled, err)
	}
	child := w.create(alice, api.CreateRequest{FromSnapshot: snap.ID})
	if got := w.exec(alice, child.ID, "cat f"); got != "kept\n" {
		t.Errorf("the sandbox says %q", got)
	}
	for range 2 {
		if err := w.DeletePushed(ctx, alice, snap.ID); err != nil {
			t.Error(err)
		}
	}
	if err := w.DeleteSnapshot(ctx, alice, snap.ID); err != nil {
		t.Fatal(err)
	}
	_, err = w.PullSnapshot(ctx, alice, snap.ID, api.PullRequest{})
	wantCode(t, err, api.NotFound, "pull after it was deleted from the store")
}
