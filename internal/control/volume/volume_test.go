package volume_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/quota"
)

func TestLife(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	v := w.volume("data")
	if v.SizeMB != 256 || v.SizeBytes != 256<<20 || !v.ID.Valid() || v.CreatedAt.IsZero() || v.Workspace != "alice" {
		t.Errorf("got %+v", v)
	}
	_, err := w.Create(ctx, alice, api.CreateVolumeRequest{Name: "data"})
	w.wants("a name that is taken", err, api.Conflict)
	_, err = w.Create(ctx, bob, api.CreateVolumeRequest{Name: "data", SizeMB: 10})
	w.must(err)
	all, err := w.List(ctx, alice)
	if err != nil || len(all) != 1 || all[0].ID != v.ID {
		t.Errorf("got %+v, %v", all, err)
	}
	_, err = w.Get(ctx, bob, string(v.ID))
	w.wants("a volume of another workspace", err, api.NotFound)

	box := w.newBox("data")
	got, err := w.boxes.Get(ctx, alice, box)
	w.must(err)
	want := []api.SandboxVolume{{ID: v.ID, Name: "data", MountPath: "/mnt/data", SizeMB: 256}}
	if !slices.Equal(got.Volumes, want) {
		t.Errorf("the sandbox has %+v, want %+v", got.Volumes, want)
	}
	if now := w.get("data"); now.AttachedTo != box || now.Fence != 1 {
		t.Errorf("attached: %+v", now)
	}
	w.put(box, "/mnt/data/f", "one")
	e := w.wants("deleting what is attached", w.Delete(ctx, alice, "data", false), api.VolumeInUse)
	if e.Details["sandbox_id"] != string(box) {
		t.Errorf("details %v, want sandbox_id %s", e.Details, box)
	}
	w.end(box)
	if now := w.get("data"); now.AttachedTo != "" || now.WrittenAt == nil {
		t.Errorf("after the end of the sandbox: %+v", now)
	}
	again := w.newBox("data")
	w.has(again, "/mnt/data/f", "one")
	w.end(again)
	w.must(w.Delete(ctx, alice, "data", false))
	_, err = w.Get(ctx, alice, "data")
	w.wants("a deleted volume", err, api.NotFound)
	w.clean("at the end")
}

// TestOneWriter tries to get a second writer in every way.
func TestOneWriter(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	w.volume("data")
	first := w.newBox("data")
	second := w.newBox()
	try := func(when string) {
		t.Helper()
		_, err := w.boxes.Create(ctx, alice, api.CreateRequest{Template: "base", Volumes: mounts("data")})
		if e := w.wants(when+": create", err, api.VolumeInUse); e.Details["sandbox_id"] != string(first) {
			t.Errorf("%s: details %v, want sandbox_id %s", when, e.Details, first)
		}
		_, err = w.Attach(ctx, alice, second, api.VolumeMount{Name: "data"})
		w.wants(when+": attach", err, api.VolumeInUse)
		_, err = w.Restore(ctx, alice, "data", api.VolumeRestoreRequest{Backup: api.NewBackupID()})
		if err == nil {
			t.Errorf("%s: restored while it is attached", when)
		}
	}
	try("running")
	_, err := w.boxes.Pause(ctx, alice, first)
	w.must(err)
	try("paused")
	_, err = w.boxes.Resume(ctx, alice, first)
	w.must(err)
	_, err = w.boxes.Hibernate(ctx, alice, first)
	w.must(err)
	try("hibernated")

	// A host that cannot be reached may still run the first writer: its end is not known until the host says so.
	w.host.SetRecovering(true)
	if err := w.boxes.Delete(ctx, alice, first); err == nil {
		t.Error("deleted on a host that cannot be reached")
	}
	_, err = w.boxes.Create(ctx, alice, api.CreateRequest{Template: "base", Volumes: mounts("data")})
	w.wants("create while the host cannot be reached", err, api.VolumeInUse)
	w.restart()
	_ = w.Reconcile(ctx) // fails: the host says nothing
	now, err := w.db.Read().VolumeByName(ctx, "alice", "data")
	if err != nil || now.Holder != "sandbox/"+string(first) {
		t.Errorf("the lease went to %q, %v", now.Holder, err)
	}
	w.host.SetRecovering(false)
	w.reconcile()
	third := w.newBox("data")
	if now := w.get("data"); now.AttachedTo != third || now.Fence != 2 {
		t.Errorf("after the host came back: %+v", now)
	}
	w.clean("at the end")
}

func TestAttachAndDetach(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	v := w.volume("data")
	box := w.newBox()
	got, err := w.Attach(ctx, alice, box, api.VolumeMount{Name: string(v.ID), MountPath: "/data"})
	w.must(err)
	want := []api.SandboxVolume{{ID: v.ID, Name: "data", MountPath: "/data", SizeMB: 256}}
	if !slices.Equal(got.Volumes, want) {
		t.Errorf("the sandbox has %+v, want %+v", got.Volumes, want)
	}
	w.clean("attached")
	_, err = w.Attach(ctx, alice, box, api.VolumeMount{Name: "data", MountPath: "/other"})
	w.wants("attaching it twice", err, api.Conflict)
	w.put(box, "/data/f", "one")
	grown, err := w.Update(ctx, alice, "data", api.VolumePatch{SizeMB: 512})
	if err != nil || grown.SizeMB != 512 {
		t.Errorf("grown: %+v, %v", grown, err)
	}
	w.host.SetVolumeBusy(hostapi.VolumeID(v.ID), true)
	_, err = w.Detach(ctx, alice, box, "data", false)
	w.wants("detaching what programs use", err, api.VolumeInUse)
	w.clean("after a detach that was refused")
	w.host.SetVolumeBusy(hostapi.VolumeID(v.ID), false)
	got, err = w.Detach(ctx, alice, box, "data", false)
	if err != nil || len(got.Volumes) != 0 {
		t.Errorf("detached: %+v, %v", got.Volumes, err)
	}
	w.clean("detached")
	w.has(box, "/data/f", "")
	_, err = w.Attach(ctx, alice, box, api.VolumeMount{Name: "data", ReadOnly: true})
	w.must(err)
	w.has(box, "/mnt/data/f", "one")
	w.wants("deleting what a sandbox reads", w.Delete(ctx, alice, "data", false), api.VolumeInUse)
	_, err = w.Detach(ctx, alice, box, "data", false)
	w.must(err)
	_, err = w.boxes.Hibernate(ctx, alice, box)
	w.must(err)
	_, err = w.Attach(ctx, alice, box, api.VolumeMount{Name: "data"}) // wakes it
	w.must(err)
	_, err = w.boxes.Hibernate(ctx, alice, box)
	w.must(err)
	_, err = w.Detach(ctx, alice, box, "data", false)
	w.wants("detaching from a hibernated sandbox", err, api.WrongState)
	w.clean("after another detach that was refused")
	got, err = w.Detach(ctx, alice, box, "data", true)
	if err != nil || len(got.Volumes) != 0 || got.Status != api.Hibernated {
		t.Errorf("detached by force: %+v, %v", got, err)
	}
	w.clean("at the end")
}

func TestForksAndSnapshotsOfSandboxes(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	v := w.volume("data")
	parent := w.newBox("data")
	w.put(parent, "/mnt/data/f", "one")
	forked, err := w.boxes.Fork(ctx, alice, parent, api.ForkRequest{Count: 1})
	w.must(err)
	child := forked.Children[0]
	want := []api.SandboxVolume{{ID: v.ID, Name: "data", MountPath: "/mnt/data", Private: true, SizeMB: 256}}
	if !slices.Equal(child.Volumes, want) {
		t.Errorf("the child has %+v, want %+v", child.Volumes, want)
	}
	w.put(child.ID, "/mnt/data/f", "child")
	w.has(parent, "/mnt/data/f", "one")
	own, err := w.Promote(ctx, alice, child.ID, "data", api.VolumeCloneRequest{Name: "own"})
	w.must(err)
	_, err = w.Promote(ctx, alice, parent, "data", api.VolumeCloneRequest{Name: "own2"})
	w.wants("promoting what is no copy", err, api.Invalid)
	w.end(child.ID)
	if now := w.get("data"); now.AttachedTo != parent {
		t.Errorf("after the end of the child: %+v", now)
	}
	w.has(w.newBox(own.Name), "/mnt/own/f", "child")

	snap, err := w.boxes.TakeSnapshot(ctx, alice, parent, api.SnapshotRequest{})
	w.must(err)
	w.put(parent, "/mnt/data/f", "two")
	w.volume("more")
	from, err := w.boxes.Create(ctx, alice, api.CreateRequest{FromSnapshot: snap.ID, Volumes: mounts("more")})
	w.must(err)
	if len(from.Volumes) != 2 || !from.Volumes[0].Private || from.Volumes[0].Name != "data" ||
		from.Volumes[1].Private {
		t.Errorf("the sandbox from the snapshot has %+v", from.Volumes)
	}
	w.has(from.ID, "/mnt/data/f", "one")
	_, err = w.boxes.Create(ctx, alice, api.CreateRequest{FromSnapshot: snap.ID,
		Volumes: []api.VolumeMount{{Name: "own", MountPath: "/mnt/data", ReadOnly: true}}})
	w.wants("a volume at the mount point of a private copy", err, api.Invalid)
	w.clean("at the end")
}

func TestSnapshotsAndRestore(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	w.volume("data")
	box := w.newBox("data")
	w.put(box, "/mnt/data/f", "one")
	snap, err := w.Snapshot(ctx, alice, "data", api.VolumeSnapshotRequest{Name: "first"})
	w.must(err)
	w.put(box, "/mnt/data/f", "two")
	clone, err := w.Clone(ctx, alice, "data", api.VolumeCloneRequest{Name: "clone", SizeMB: 300})
	w.must(err)
	if clone.SizeMB != 300 {
		t.Errorf("the clone has %d MiB, want 300", clone.SizeMB)
	}
	w.hasFile("clone", "/f", "two")
	_, err = w.Clone(ctx, alice, "data", api.VolumeCloneRequest{Name: "small", SizeMB: 100})
	w.wants("a clone that is smaller", err, api.Invalid)
	_, err = w.Restore(ctx, alice, "data", api.VolumeRestoreRequest{Snapshot: snap.ID})
	w.wants("restoring what is attached", err, api.VolumeInUse)
	_, err = w.Restore(ctx, alice, "clone", api.VolumeRestoreRequest{Snapshot: snap.ID})
	w.wants("a snapshot of another volume", err, api.Invalid)
	w.end(box)
	_, err = w.Restore(ctx, alice, "data", api.VolumeRestoreRequest{Snapshot: snap.ID})
	w.must(err)
	w.clean("restored")
	w.hasFile("data", "/f", "one")
	w.has(w.newBox("data:ro"), "/mnt/data/f", "one")

	other, err := w.Create(ctx, alice, api.CreateVolumeRequest{Name: "other", FromSnapshot: snap.ID})
	w.must(err)
	w.hasFile(other.Name, "/f", "one")
	_, err = w.Create(ctx, bob, api.CreateVolumeRequest{Name: "other", FromSnapshot: snap.ID})
	w.wants("a snapshot of another workspace", err, api.NotFound)
	_, err = w.Clone(ctx, bob, "clone", api.VolumeCloneRequest{Name: "mine"})
	w.wants("a volume of another workspace", err, api.NotFound)
	w.must(w.Delete(ctx, alice, "clone", false))
	_, err = w.Snapshot(ctx, alice, "other", api.VolumeSnapshotRequest{})
	w.must(err)
	w.wants("deleting a volume with snapshots", w.Delete(ctx, alice, "other", false), api.Conflict)
	w.must(w.Delete(ctx, alice, "other", true))
	w.must(w.DeleteSnapshot(ctx, alice, "data", snap.ID))
	list, err := w.Snapshots(ctx, alice, "data")
	if err != nil || len(list) != 0 {
		t.Errorf("after the deletion: %+v, %v", list, err)
	}
	w.helpers.Yield(ctx, "alice", hostapi.Owner{}, mounts("data")) //nolint:errcheck // what is left is seen below
	w.clean("at the end")
}

func TestQuotasAndHeadroom(t *testing.T) {
	w := newFixture(t, func(w *fixture) {
		w.quotas = map[quota.Kind]int64{quota.Volumes: 2, quota.VolumeSize: 500, quota.VolumeSnaps: 1}
		w.cfg.Oversubscription = 50
	})
	ctx := t.Context()
	w.volume("a")
	_, err := w.Create(ctx, alice, api.CreateVolumeRequest{Name: "b", SizeMB: 300})
	if e := w.wants("beyond the size", err, api.QuotaExceeded); e.Details["used"] != int64(256) ||
		e.Details["allowed"] != int64(500) || e.Code.Info().Status != 429 {
		t.Errorf("details %v", e.Details)
	}
	_, err = w.Create(ctx, alice, api.CreateVolumeRequest{Name: "b", SizeMB: 100})
	w.must(err)
	_, err = w.Create(ctx, alice, api.CreateVolumeRequest{Name: "c", SizeMB: 10})
	w.wants("beyond the number", err, api.QuotaExceeded)
	_, err = w.Update(ctx, alice, "a", api.VolumePatch{SizeMB: 500})
	w.wants("growing beyond the size", err, api.QuotaExceeded)
	_, err = w.Snapshot(ctx, alice, "a", api.VolumeSnapshotRequest{})
	w.must(err)
	_, err = w.Snapshot(ctx, alice, "a", api.VolumeSnapshotRequest{})
	w.wants("beyond the snapshots", err, api.QuotaExceeded)

	w.quotas = map[quota.Kind]int64{}
	w.restart()
	_, err = w.Create(ctx, alice, api.CreateVolumeRequest{Name: "big", SizeMB: 60 << 10})
	e := w.wants("beyond the headroom", err, api.NoSpace)
	var body map[string]any
	data, jerr := json.Marshal(e)
	if jerr != nil || json.Unmarshal(data, &body) != nil {
		t.Fatal(jerr)
	}
	if body["reason"] != "oversubscribed" || body["hint"] == "" || body["fs_size_bytes"] != float64(100<<30) ||
		body["fs_free_bytes"] != float64(90<<30) || body["free_reserve_bytes"] != float64(0) ||
		body["provisioned_bytes"] != float64(356<<20) || body["oversub_factor"] != 0.5 || e.Code.Info().Status != 507 ||
		!strings.Contains(body["error"].(string), "volume.oversubscription_percent") {
		t.Errorf("body %s", data)
	}
	w.host.Fail("createvolume", hostapi.ErrNoSpace)
	_, err = w.Create(ctx, alice, api.CreateVolumeRequest{Name: "c"})
	if e := w.wants("a full host", err, api.NoSpace); e.Details["reason"] != "host" {
		t.Errorf("details %v", e.Details)
	}
	w.clean("at the end")
}

func TestFilesWithoutASandbox(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	w.volume("data")
	w.putFile("data", "/dir/f", "one")
	w.hasFile("data", "dir/../dir/f", "one")
	if n := len(w.host.Machines()); n != 1 {
		t.Errorf("%d machines after two uses, want 1", n)
	}
	g, release, err := w.Files(ctx, alice, "data", false)
	w.must(err)
	list, err := g.List(ctx, "/", "", 2)
	if err != nil || len(list) != 2 || list[0].Path != "/dir" || list[1].Path != "/dir/f" || list[1].Name != "f" {
		t.Errorf("got %+v, %v", list, err)
	}
	_, err = w.boxes.Create(ctx, alice, api.CreateRequest{Template: "base", Volumes: mounts("data")})
	w.wants("a sandbox while files are read by the machine that may write", err, api.VolumeInUse)
	release()
	box := w.newBox("data") // ends the idle machine
	w.has(box, "/mnt/data/dir/f", "one")
	if n := len(w.host.Machines()); n != 1 {
		t.Errorf("%d machines, want the sandbox's", n)
	}
	w.putFile("data", "/g", "two") // by the sandbox
	w.has(box, "/mnt/data/g", "two")
	_, err = w.boxes.Hibernate(ctx, alice, box)
	w.must(err)
	_, _, err = w.Files(ctx, alice, "data", true)
	w.wants("writing to a volume of a hibernated sandbox", err, api.VolumeInUse)
	w.hasFile("data", "/g", "two") // of a copy
	w.end(box)
	w.helpers.EndIdle(ctx)
	if all := w.host.Machines(); len(all) != 0 {
		t.Errorf("machines %+v, want none", all)
	}
	_, _, err = w.Files(ctx, bob, "data", false)
	w.wants("files of another workspace", err, api.NotFound)
	w.clean("at the end")
}

// TestReadsAreNotOfThePast reads, lets a sandbox write, and reads again.
func TestReadsAreNotOfThePast(t *testing.T) {
	w := newFixture(t)
	w.volume("data")
	w.hasFile("data", "/f", "")
	box := w.newBox("data")
	w.put(box, "/mnt/data/f", "one")
	w.end(box)
	w.hasFile("data", "/f", "one")
	w.putFile("data", "/f", "two")
	w.hasFile("data", "/f", "two")
}

func TestMachinesForFilesAreBounded(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	var open []func()
	for _, name := range []string{"a", "b", "c"} {
		w.volume(name)
	}
	for _, name := range []string{"a", "b"} {
		_, release, err := w.Files(ctx, alice, name, true)
		w.must(err)
		open = append(open, release)
	}
	_, _, err := w.Files(ctx, alice, "c", true)
	w.wants("one more", err, api.RateLimited)
	open[0]()
	w.putFile("c", "/f", "one") // in place of the idle one
	open[1]()
	w.newBox("a", "b", "c")
	w.clean("at the end")
}

func TestImportAndExport(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	w.volume("data")
	var in bytes.Buffer
	tw := tar.NewWriter(&in)
	w.must(tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "a/b", Mode: 0o600, Size: 3}))
	_, err := tw.Write([]byte("one"))
	w.must(err)
	w.must(tw.Close())
	w.must(w.Import(ctx, alice, "data", "/in", &in))
	w.hasFile("data", "/in/a/b", "one")
	var out bytes.Buffer
	w.must(w.Export(ctx, alice, "data", "/in", &out))
	tr := tar.NewReader(&out)
	h, err := tr.Next()
	w.must(err)
	data, err := io.ReadAll(tr)
	if err != nil || h.Name != "./a/b" || string(data) != "one" {
		t.Errorf("exported %s with %q, %v", h.Name, data, err)
	}
	w.wants("exporting nothing", w.Export(ctx, alice, "data", "/none", io.Discard), api.NotFound)
	w.putFile("data", "/file", "x")
	below := w.Import(ctx, alice, "data", "/file/below", strings.NewReader(""))
	w.wants("importing below a file", below, api.Invalid)
	if err := w.Import(ctx, alice, "data", "/in", strings.NewReader("no tar")); err == nil {
		t.Error("a stream that is no tar was imported")
	}
}

// TestHostDisagrees gives the host volumes, and a size, that the store does not know.
func TestHostDisagrees(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	v := w.volume("data")
	_, err := w.host.ResizeVolume(ctx, hostapi.VolumeID(v.ID), 300)
	w.must(err)
	_, err = w.host.CreateVolume(ctx, hostapi.CreateVolume{ID: "volorphan", SizeMiB: 10, Labels: map[string]string{
		"owner": "volume/volorphan", "store": w.db.ID(), "workspace": "alice", "name": "orphan"}})
	w.must(err)
	id := api.NewVolumeID()
	_, err = w.host.CreateVolume(ctx, hostapi.CreateVolume{ID: hostapi.VolumeID(id), SizeMiB: 10,
		Labels: map[string]string{"owner": "volume/" + string(id), "store": "another", "workspace": "alice",
			"name": "data"}})
	w.must(err)
	w.reconcile()
	w.clean("reconciled")
	if now := w.get("data"); now.SizeMB != 300 {
		t.Errorf("size %d, want 300", now.SizeMB)
	}
	if now := w.get(string(id)); now.Name != string(id) || now.SizeMB != 10 {
		t.Errorf("adopted %+v", now)
	}
}
