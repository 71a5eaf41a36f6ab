package machine_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/host/volume"
)

// volumeDisk is the guest's disk at the first place for volumes.
const volumeDisk = 1 + 2

// addVolume makes an empty volume.
func (w *fixture) addVolume(id hostapi.VolumeID) {
	w.t.Helper()
	_, err := w.mgr.CreateVolume(w.t.Context(), volume.Request{ID: id, SizeMiB: volume.MinMiB}, "", "")
	w.must(err)
}

// withVolumes is a create of machine a with volume v, and a read-only copy of r.
func withVolumes(id hostapi.MachineID) machine.CreateRequest {
	return machine.CreateRequest{
		ID: id, Template: "base", Persistent: true, Egress: baseEgress, Volumes: []hostapi.VolumeAttachment{
			{Volume: "v", Mount: "/vol", Fence: 1}, {Volume: "r", Mount: "/ro", ReadOnly: true},
		},
	}
}

// createWithVolumes makes volumes v and r and machine a, which has them.
func (w *fixture) createWithVolumes() machine.View {
	w.t.Helper()
	w.addVolume("v")
	w.addVolume("r")
	mc, err := w.mgr.Create(w.t.Context(), withVolumes("a"), base, "")
	w.must(err)
	return mc
}

func (w *fixture) volume(id hostapi.VolumeID) volume.Volume {
	w.t.Helper()
	v, err := w.volumes.Get(id)
	w.must(err)
	return v
}

// wantCounter fails unless the counter on a volume is want.
func (w *fixture) wantCounter(id hostapi.VolumeID, want uint64) {
	w.t.Helper()
	if got, err := counterOn(w.volumes.Path(id)); err != nil || got != want {
		w.t.Errorf("counter on volume %s = %d, %v; want %d", id, got, err, want)
	}
}

func TestCreateWithVolumes(t *testing.T) {
	w := newFixture(t)
	mc := w.createWithVolumes()
	want := []hostapi.AttachedVolume{
		{Volume: "v", Mount: "/vol", SizeMiB: volume.MinMiB},
		{Volume: "r", Mount: "/ro", SizeMiB: volume.MinMiB, ReadOnly: true, Private: true},
	}
	if !reflect.DeepEqual(mc.Volumes, want) || mc.BootMode != hostapi.BootSnapshot {
		t.Errorf("volumes of machine a = %+v, boot mode %s; want %+v and a restore", mc.Volumes, mc.BootMode, want)
	}
	bytes := int64(volume.MinMiB) << 20
	mounts := []guestapi.VolumeMount{
		{Disk: volumeDisk, Dir: "/vol", Bytes: bytes}, {Disk: volumeDisk + 1, Dir: "/ro", Bytes: bytes, ReadOnly: true},
	}
	m := w.host.monitorOf("a")
	if !reflect.DeepEqual(m.mem.Who.Volumes, mounts) {
		t.Errorf("guest mounts %+v, want %+v", m.mem.Who.Volumes, mounts)
	}
	if d := m.spec.Disks[volumeDisk]; d.Volatile || d.Path != w.volumes.Path("v") {
		t.Errorf("disk of volume v = %+v, want its file and flushes that reach the disk", d)
	}
	w.count("a", 1)
	w.wantCounter("v", 1)
	w.wantCounter("r", 0) // the machine writes to its copy
	if v := w.volume("v"); v.Machine != "a" || !v.Dirty || v.Count != 1 {
		t.Errorf("volume v = %+v, want it attached to a and dirty", v)
	}
	if err := w.volumes.Delete("v"); !errors.Is(err, hostapi.ErrInUse) {
		t.Errorf("delete of an attached volume: got %v, want ErrInUse", err)
	}
	w.must(w.volumes.Delete("r"))
	w.restart(nil)
	w.count("a", 2)
	w.destroy("a")
	if v := w.volume("v"); v.Machine != "" || v.Dirty || v.Written.IsZero() {
		t.Errorf("volume v = %+v, want it detached and clean", v)
	}
	w.wantCounter("v", 2)
	w.checkEmpty()
}

func TestVolumesThatCannotBeAttached(t *testing.T) {
	w := newFixture(t)
	w.createWithVolumes()
	w.addVolume("x")
	w.addVolume("y")
	w.addVolume("z")
	_, err := w.mgr.CreateVolume(t.Context(), volume.Request{ID: "f", Frozen: true}, "x", "")
	w.must(err)
	for name, c := range map[string]struct {
		volumes []hostapi.VolumeAttachment
		want    error
	}{
		"unknown":      {[]hostapi.VolumeAttachment{{Volume: "none", Mount: "/m"}}, hostapi.ErrNotFound},
		"in use":       {[]hostapi.VolumeAttachment{{Volume: "v", Mount: "/m", Fence: 2}}, hostapi.ErrInUse},
		"frozen":       {[]hostapi.VolumeAttachment{{Volume: "f", Mount: "/m"}}, hostapi.ErrInvalid},
		"relative":     {[]hostapi.VolumeAttachment{{Volume: "x", Mount: "m"}}, hostapi.ErrInvalid},
		"root":         {[]hostapi.VolumeAttachment{{Volume: "x", Mount: "/"}}, hostapi.ErrInvalid},
		"of data disk": {[]hostapi.VolumeAttachment{{Volume: "x", Mount: "/data"}}, hostapi.ErrInvalid},
		"no disk":      {[]hostapi.VolumeAttachment{{Volume: "x", Disk: "none"}}, hostapi.ErrInvalid},
		"not of disk":  {[]hostapi.VolumeAttachment{{Volume: "x", Disk: "data"}}, hostapi.ErrInvalid},
		"one mount": {
			[]hostapi.VolumeAttachment{{Volume: "x", Mount: "/m"}, {Volume: "y", Mount: "/m"}}, hostapi.ErrInvalid,
		},
		"twice": {
			[]hostapi.VolumeAttachment{{Volume: "x", Mount: "/m"}, {Volume: "x", Mount: "/n", ReadOnly: true}},
			hostapi.ErrInUse,
		},
		"too many": {
			[]hostapi.VolumeAttachment{
				{Volume: "x", Mount: "/m"}, {Volume: "y", Mount: "/n"}, {Volume: "z", Mount: "/o"},
			},
			hostapi.ErrUnsupported,
		},
	} {
		_, err := w.mgr.Create(t.Context(), machine.CreateRequest{ID: "b", Volumes: c.volumes}, base, "")
		if !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
		w.checkNoLeftovers()
	}
	for _, id := range []hostapi.VolumeID{"x", "y", "z", "f"} {
		if v := w.volume(id); v.Machine != "" || v.Dirty {
			t.Errorf("volume %s = %+v, want it untouched", id, v)
		}
	}
	// A fence lower than that of an earlier writer comes from one that is not the writer any more.
	w.destroy("a")
	late := withVolumes("b")
	late.Volumes[0].Fence = 0
	if _, err := w.mgr.Create(t.Context(), late, base, ""); !errors.Is(err, hostapi.ErrInUse) {
		t.Errorf("a writer with a low fence: got %v, want ErrInUse", err)
	}
	w.checkEmpty()
}

// TestMonitorExitWithVolume ends the monitor of a writer. The next one checks the volume.
func TestMonitorExitWithVolume(t *testing.T) {
	w := newFixture(t)
	w.createWithVolumes()
	w.count("a", 1)
	w.failMonitor("a")
	if v := w.volume("v"); v.Machine != "a" || !v.Dirty {
		t.Errorf("volume v = %+v, want it attached to the failed machine", v)
	}
	_, err := w.mgr.Wake(t.Context(), "a")
	w.must(err)
	w.count("a", 2)
	for _, v := range w.host.monitorOf("a").mem.Who.Volumes {
		if !v.Check {
			t.Errorf("volume at %s is mounted without a check", v.Dir)
		}
	}
	if v := w.volume("v"); v.Check == nil || v.Check.Result != "repaired" || v.Check.Log != "replayed" {
		t.Errorf("check of volume v = %+v, want the guest's result", v.Check)
	}
	w.failMonitor("a")
	w.destroy("a")
	if v := w.volume("v"); v.Machine != "" || !v.Dirty {
		t.Errorf("volume v = %+v, want it detached and dirty", v)
	}
	w.checkEmpty()
}

// TestForkWithVolumes checks that children and snapshots have private copies of the moment.
func TestForkWithVolumes(t *testing.T) {
	w := newFixture(t)
	w.createWithVolumes()
	w.count("a", 1)
	got, err := w.mgr.Fork(t.Context(), machine.ForkRequest{Parent: "a", Children: []machine.ChildRequest{{ID: "b"}}})
	w.must(errors.Join(err, got[0].Err))
	_, err = w.mgr.TakeSnapshot(t.Context(), "a", "snapshots/s", nil, nil)
	w.must(err)
	w.count("a", 2)
	w.count("b", 2)
	w.count("b", 3)
	w.wantCounter("v", 2)
	private := []hostapi.AttachedVolume{
		{Volume: "v", Mount: "/vol", SizeMiB: volume.MinMiB, Private: true},
		{Volume: "r", Mount: "/ro", SizeMiB: volume.MinMiB, ReadOnly: true, Private: true},
	}
	if v := got[0].Machine.Volumes; !reflect.DeepEqual(v, private) {
		t.Errorf("volumes of the child = %+v, want %+v", v, private)
	}
	mc, err := w.mgr.Create(t.Context(), machine.CreateRequest{ID: "c", Persistent: true}, "snapshots/s", "")
	w.must(err)
	if !reflect.DeepEqual(mc.Volumes, private) || w.host.monitorOf("c").mem.Who.Volumes != nil {
		t.Errorf("volumes of a machine from the snapshot = %+v, mounts %+v; want %+v, mounted in its memory",
			mc.Volumes, w.host.monitorOf("c").mem.Who.Volumes, private)
	}
	w.count("c", 2)
	if _, err := w.mgr.Create(t.Context(), withVolumes("d"), "snapshots/s", ""); !errors.Is(err, hostapi.ErrInUse) {
		t.Errorf("create with a volume of which the snapshot brings a copy: got %v, want ErrInUse", err)
	}
	made, err := w.mgr.CreateVolume(t.Context(), volume.Request{ID: "promoted"}, "v", "b")
	w.must(err)
	if made.SizeMiB != volume.MinMiB || !made.Dirty {
		t.Errorf("promoted copy = %+v, want the size of the volume, and dirty", made)
	}
	w.destroy("b")
	w.wantCounter("promoted", 3)
	w.wantCounter("v", 2)
	if _, err := w.mgr.CreateVolume(t.Context(), volume.Request{ID: "n"}, "v", "b"); !errors.Is(err,
		hostapi.ErrNotFound) {
		t.Errorf("copy of what a removed machine had: got %v, want ErrNotFound", err)
	}
	w.must(w.mgr.Hibernate(t.Context(), "c"))
	_, err = w.mgr.Wake(t.Context(), "c")
	w.must(err)
	w.count("c", 3)
	w.destroy("c")
	w.destroy("a")
	w.must(w.store.Delete("snapshots/s"))
	w.checkEmpty()
}

// TestHibernateWithVolumes checks that memory and volume are of one moment after every wake, also one that failed.
func TestHibernateWithVolumes(t *testing.T) {
	w := newFixture(t)
	w.createWithVolumes()
	w.count("a", 1)
	w.must(w.mgr.Hibernate(t.Context(), "a"))
	if v := w.volume("v"); v.Machine != "a" {
		t.Errorf("volume v = %+v, want it attached to the hibernated machine", v)
	}
	w.host.busy = true // the guest writes before the wake fails
	w.onStep(func(_, step string) error {
		if step == "confirm" {
			return errInjected
		}
		return nil
	})
	if _, err := w.mgr.Wake(t.Context(), "a"); !errors.Is(err, errInjected) {
		t.Fatalf("wake: got %v, want the injected error", err)
	}
	w.host.busy = false
	w.onStep(nil)
	w.wantCounter("v", 2)
	w.restart(nil)
	_, err := w.mgr.Wake(t.Context(), "a")
	w.must(err)
	w.count("a", 2)
	w.must(w.mgr.Stop(t.Context(), "a"))
	_, err = w.mgr.Wake(t.Context(), "a")
	w.must(err)
	w.count("a", 3)
	w.destroy("a")
	w.wantCounter("v", 3)
	w.checkEmpty()
}

// TestVolumesAreDurable checks that the file of a volume is made durable when its writer ends, and under its name
// before a machine that was woken writes to it.
func TestVolumesAreDurable(t *testing.T) {
	w := newFixture(t)
	w.createWithVolumes()
	// The inode of a file that was replaced is kept, so that it is not used again.
	held := filepath.Join(w.dir, "held")
	for name, do := range map[string]func(){
		"hibernated and woken": func() {
			w.must(os.Link(w.volumes.Path("v"), held))
			w.must(w.mgr.Hibernate(t.Context(), "a"))
			_, err := w.mgr.Wake(t.Context(), "a")
			w.must(err)
			w.must(os.Remove(held))
		},
		"stopped": func() {
			w.must(w.mgr.Stop(t.Context(), "a"))
		},
	} {
		before := inodeOf(w.volumes.Path("v"))
		had := w.syncs("v")
		do()
		if inodeOf(w.volumes.Path("v")) != before {
			had = 0
		}
		if w.syncs("v") <= had {
			t.Errorf("the volume of a machine that was %s may be lost in a crash of the host", name)
		}
		if name == "stopped" {
			_, err := w.mgr.Wake(t.Context(), "a")
			w.must(err)
		}
	}
	had := w.syncs("v")
	w.must(w.detach("a", "v", false))
	if w.syncs("v") <= had {
		t.Error("a volume that was detached may be lost in a crash of the host")
	}
	w.must(w.attach("a", "v", false))
	had = w.syncs("v")
	w.destroy("a")
	if w.syncs("v") <= had {
		t.Error("the volume of a machine that was destroyed may be lost in a crash of the host")
	}
}

// TestWakeAfterAnotherWriter checks that old memory is not restored over a volume that another machine has written to.
func TestWakeAfterAnotherWriter(t *testing.T) {
	w := newFixture(t)
	w.createWithVolumes()
	w.must(w.mgr.Hibernate(t.Context(), "a"))
	w.must(w.volumes.Detach("v", "a", false)) // as nothing here does
	_, err := w.volumes.Attach("v", "other", 2)
	w.must(err)
	if _, err := w.mgr.Wake(t.Context(), "a"); !errors.Is(err, hostapi.ErrInUse) {
		t.Errorf("wake while another machine writes: got %v, want ErrInUse", err)
	}
	w.must(w.volumes.Detach("v", "other", true))
	if _, err := w.mgr.Wake(t.Context(), "a"); err == nil {
		t.Error("wake after another machine has written: got no error")
	}
	w.wantState("a", hostapi.Hibernated)
}

// TestDataDiskVolume attaches a copy of a template's data disk in its place.
func TestDataDiskVolume(t *testing.T) {
	w := newFixture(t)
	snap, err := w.store.Get(base)
	w.must(err)
	_, err = w.mgr.CreateVolume(t.Context(), volume.Request{
		ID: "d", From: snap.DiskPaths()[1], Source: machine.DiskSource(base, "data"),
	}, "", "")
	w.must(err)
	request := machine.CreateRequest{ID: "a", Persistent: true, Volumes: []hostapi.VolumeAttachment{
		{Volume: "d", Disk: "data", Fence: 1},
	}}
	mc, err := w.mgr.Create(t.Context(), request, base, "")
	w.must(err)
	want := []hostapi.AttachedVolume{{Volume: "d", Mount: "/data", SizeMiB: 1}}
	if !reflect.DeepEqual(mc.Volumes, want) || w.host.monitorOf("a").mem.Who.Volumes != nil {
		t.Errorf("volumes = %+v and mounts %+v, want %+v, mounted in the template's memory",
			mc.Volumes, w.host.monitorOf("a").mem.Who.Volumes, want)
	}
	w.count("a", 1)
	w.wantCounter("d", 1)
	got, err := w.mgr.Fork(t.Context(), machine.ForkRequest{Parent: "a", Children: []machine.ChildRequest{{ID: "b"}}})
	w.must(errors.Join(err, got[0].Err))
	w.count("b", 2)
	w.must(w.mgr.Hibernate(t.Context(), "a"))
	w.restart(nil)
	_, err = w.mgr.Wake(t.Context(), "a")
	w.must(err)
	w.count("a", 2)
	w.must(w.mgr.Stop(t.Context(), "a"))
	_, err = w.mgr.Wake(t.Context(), "a")
	w.must(err)
	w.count("a", 3)
	mounts := []guestapi.VolumeMount{{Disk: 1, Dir: "/data", Bytes: 1 << 20, Check: true}}
	if m := w.host.monitorOf("a").mem.Who; !reflect.DeepEqual(m.Volumes, mounts) ||
		!reflect.DeepEqual(m.Mounts, mounted[1:]) {
		t.Errorf("a guest that boots mounts %+v and %+v, want %+v and %+v", m.Volumes, m.Mounts, mounts, mounted[1:])
	}
	w.destroy("a")
	w.destroy("b")
	w.wantCounter("d", 3)
	if _, err := w.mgr.Create(t.Context(), request, base, ""); !errors.Is(err, hostapi.ErrInvalid) {
		t.Errorf("a volume that was written to in place of a data disk: got %v, want ErrInvalid", err)
	}
	w.checkEmpty()
}

// forkWithDataVolume makes machine a with volume d in place of the data disk, with the counter at 1, and its child b.
func (w *fixture) forkWithDataVolume() {
	w.t.Helper()
	snap, err := w.store.Get(base)
	w.must(err)
	_, err = w.mgr.CreateVolume(w.t.Context(), volume.Request{
		ID: "d", From: snap.DiskPaths()[1], Source: machine.DiskSource(base, "data"),
	}, "", "")
	w.must(err)
	_, err = w.mgr.Create(w.t.Context(), machine.CreateRequest{ID: "a", Persistent: true,
		Volumes: []hostapi.VolumeAttachment{{Volume: "d", Disk: "data", Fence: 1}}}, base, "")
	w.must(err)
	w.count("a", 1)
	got, err := w.mgr.Fork(w.t.Context(), machine.ForkRequest{Parent: "a",
		Children: []machine.ChildRequest{{ID: "b", Persistent: true}}})
	w.must(errors.Join(err, got[0].Err))
}

func (w *fixture) keep() error {
	_, err := w.mgr.KeepCopy(w.t.Context(), volume.Request{ID: "k", Machine: "b", Fence: 1}, "d")
	return err
}

// TestKeepCopy makes a volume of what a child has in place of its parent's volume, while the child runs.
func TestKeepCopy(t *testing.T) {
	w := newFixture(t)
	w.forkWithDataVolume()
	w.must(w.keep())
	v := w.volume("k")
	if v.Machine != "b" || v.Fence != 1 || v.Count != 1 || !v.Dirty || v.SizeMiB != 1 {
		t.Errorf("the volume is %+v", v)
	}
	w.count("b", 2)
	w.wantCounter("k", 2)
	w.wantCounter("d", 1)
	if err := w.keep(); !errors.Is(err, hostapi.ErrNotFound) {
		t.Errorf("kept again: got %v, want ErrNotFound: it is no copy", err)
	}
	resize := func(sizeMiB int) {
		t.Helper()
		_, err := w.mgr.ResizeVolume(t.Context(), "k", sizeMiB)
		w.must(err)
		mc, err := w.mgr.Get("b")
		w.must(err)
		want := []hostapi.AttachedVolume{{Volume: "k", Mount: "/data", SizeMiB: sizeMiB}}
		if !reflect.DeepEqual(mc.Volumes, want) {
			t.Errorf("volumes = %+v, want %+v", mc.Volumes, want)
		}
	}
	resize(2)
	w.restart(nil)
	w.count("b", 3)
	w.must(w.mgr.Hibernate(t.Context(), "b"))
	resize(3)
	w.destroy("a")
	_, err := w.mgr.Wake(t.Context(), "b")
	w.must(err)
	w.count("b", 4)
	w.must(w.mgr.Stop(t.Context(), "b"))
	_, err = w.mgr.Wake(t.Context(), "b")
	w.must(err)
	w.count("b", 5)
	got, err := w.mgr.Fork(t.Context(), machine.ForkRequest{Parent: "b", Children: []machine.ChildRequest{{ID: "c"}}})
	w.must(errors.Join(err, got[0].Err))
	w.count("c", 6)
	_, err = w.mgr.KeepCopy(t.Context(), volume.Request{ID: "l", Machine: "c", Fence: 1}, "k")
	if !errors.Is(err, hostapi.ErrInvalid) {
		t.Errorf("of a machine that is not persistent: got %v, want ErrInvalid", err)
	}
	w.destroy("c")
	w.destroy("b")
	w.wantCounter("k", 5)
	w.checkEmpty()
}

// TestKeepCopyAtRest makes a volume of what a child has that sleeps.
func TestKeepCopyAtRest(t *testing.T) {
	w := newFixture(t)
	w.forkWithDataVolume()
	w.must(w.mgr.Hibernate(t.Context(), "b"))
	w.must(w.keep())
	w.restart(nil)
	_, err := w.mgr.Wake(t.Context(), "b")
	w.must(err)
	w.count("b", 2)
	w.wantCounter("k", 2)
	w.destroy("a")
	w.destroy("b")
	w.checkEmpty()
}

// TestKeepCopyOfPlace refuses copies that are not in place of a data disk.
func TestKeepCopyOfPlace(t *testing.T) {
	w := newFixture(t)
	w.createWithVolumes()
	got, err := w.mgr.Fork(t.Context(), machine.ForkRequest{Parent: "a",
		Children: []machine.ChildRequest{{ID: "b", Persistent: true}}})
	w.must(errors.Join(err, got[0].Err))
	for _, of := range []hostapi.VolumeID{"v", "r"} {
		_, err := w.mgr.KeepCopy(t.Context(), volume.Request{ID: "k", Machine: "b", Fence: 1}, of)
		if !errors.Is(err, hostapi.ErrInvalid) {
			t.Errorf("of volume %s: got %v, want ErrInvalid", of, err)
		}
	}
	w.destroy("a")
	w.destroy("b")
	w.checkEmpty()
}

// TestSnapshotsWithoutPlaces checks that machines from old snapshots work, without volumes.
func TestSnapshotsWithoutPlaces(t *testing.T) {
	w := newFixture(t)
	w.addVolume("v")
	d, err := w.store.Draft()
	w.must(err)
	image, err := (&capture{mem: memory{Frozen: true}, m: &monitor{host: w.host}}).Save(t.Context(), d.ImageDir())
	w.must(err)
	w.must(os.WriteFile(d.DiskPath(), make([]byte, 1<<20), 0o600))
	image.Manifest.Disks = 1
	_, err = d.Commit(snapshot.Snapshot{Ref: "snapshots/old", VCPUs: 1, MemoryMiB: 64, Manifest: image.Manifest})
	w.must(err)
	w.must(w.store.Release("snapshots/old"))
	request := machine.CreateRequest{ID: "a", Persistent: true,
		Volumes: []hostapi.VolumeAttachment{{Volume: "v", Mount: "/m"}}}
	if _, err := w.mgr.Create(t.Context(), request, "snapshots/old", ""); !errors.Is(err, hostapi.ErrUnsupported) {
		t.Errorf("create with a volume from a snapshot without places: got %v, want ErrUnsupported", err)
	}
	request.Volumes = nil
	_, err = w.mgr.Create(t.Context(), request, "snapshots/old", "")
	w.must(err)
	got := slices.DeleteFunc(names(t, filepath.Join(w.dir, "machines", "a")), func(name string) bool {
		return strings.HasPrefix(name, ".") // the kept record, which is made when the record is synced
	})
	if len(got) != 3 {
		t.Errorf("files of a machine without places = %v, want record, disk and monitor", got)
	}
	w.destroy("a")
}

func (w *fixture) attach(id hostapi.MachineID, of hostapi.VolumeID, readOnly bool) error {
	_, err := w.mgr.AttachVolume(w.t.Context(), id,
		hostapi.VolumeAttachment{Volume: of, Mount: "/hot", Fence: 7, ReadOnly: readOnly})
	return err
}

func (w *fixture) detach(id hostapi.MachineID, of hostapi.VolumeID, force bool) error {
	_, err := w.mgr.DetachVolume(w.t.Context(), id, of, force)
	return err
}

// wantSameDisks fails unless the monitor of a machine, and its guest, have the volumes that the machine has.
func (w *fixture) wantSameDisks(id string) {
	w.t.Helper()
	mc, err := w.mgr.Get(hostapi.MachineID(id))
	w.must(err)
	m := w.host.monitorOf(id)
	have := 0
	for _, d := range m.spec.Disks[volumeDisk:] {
		if !isPlace(d) {
			have++
		}
	}
	if have != len(mc.Volumes) || len(m.mem.Volumes) != have {
		w.t.Errorf("machine %s has volumes %+v, its monitor %d and its guest %+v", id, mc.Volumes, have, m.mem.Volumes)
	}
}

// counterOf returns the counter on a file: that of the guest if it has the file.
func (m *monitor) counterOf(path string) uint64 {
	for _, d := range m.spec.Disks {
		if d.Path == path {
			return m.mem.Counter
		}
	}
	n, _ := counterOn(path) // as it was left
	return n
}

// TestAttachAndDetach attaches volumes to a machine that runs.
func TestAttachAndDetach(t *testing.T) {
	w := newFixture(t)
	w.create("a", true)
	w.addVolume("v")
	w.addVolume("r")
	w.must(w.attach("a", "v", false))
	w.wantSameDisks("a")
	if d := w.host.monitorOf("a").spec.Disks[volumeDisk]; d.Volatile || d.Path != w.volumes.Path("v") {
		t.Errorf("disk of the volume = %+v, want its file and flushes that reach the disk", d)
	}
	w.count("a", 1)
	w.wantCounter("v", 1)
	if err := w.attach("a", "v", false); !errors.Is(err, hostapi.ErrInUse) {
		t.Errorf("attach again: got %v, want ErrInUse", err)
	}
	if err := w.detach("a", "r", false); !errors.Is(err, hostapi.ErrNotFound) {
		t.Errorf("detach of a volume that the machine does not have: got %v, want ErrNotFound", err)
	}
	w.host.failNext("volume", guestapi.ErrInUse)
	if err := w.detach("a", "v", false); !errors.Is(err, hostapi.ErrInUse) {
		t.Errorf("detach of a volume that programs use: got %v, want ErrInUse", err)
	}
	w.restart(nil)
	w.count("a", 2)
	w.must(w.detach("a", "v", false))
	w.wantSameDisks("a")
	w.count("a", 3)
	w.wantCounter("v", 2)
	if v := w.volume("v"); v.Machine != "" || v.Dirty || v.Fence != 7 {
		t.Errorf("detached volume = %+v, want it clean", v)
	}
	// A child is made on the snapshot that its parent runs on, whose drives are empty.
	got, err := w.mgr.Fork(t.Context(), machine.ForkRequest{Parent: "a", Children: []machine.ChildRequest{{ID: "b"}}})
	w.must(errors.Join(err, got[0].Err))
	w.count("b", 4)
	w.host.failNext("swap", errInjected)
	if err := w.attach("a", "v", false); !errors.Is(err, errInjected) {
		t.Errorf("attach with a monitor that fails: got %v, want its error", err)
	}
	if v := w.volume("v"); v.Machine != "" {
		t.Errorf("volume after a failed attach = %+v, want it detached", v)
	}
	w.must(w.mgr.Pause(t.Context(), "a"))
	if err := w.attach("a", "v", false); !errors.Is(err, hostapi.ErrWrongState) {
		t.Errorf("attach to a paused machine: got %v, want ErrWrongState", err)
	}
	w.destroy("a")
	w.destroy("b")
	w.checkEmpty()
}

// TestDetachByForce takes volumes from machines whose guests cannot unmount them.
func TestDetachByForce(t *testing.T) {
	w := newFixture(t)
	w.createWithVolumes()
	w.count("a", 1)
	w.must(w.mgr.Hibernate(t.Context(), "a"))
	if err := w.detach("a", "v", false); !errors.Is(err, hostapi.ErrWrongState) {
		t.Errorf("detach from a hibernated machine: got %v, want ErrWrongState", err)
	}
	w.must(w.detach("a", "v", true))
	if v := w.volume("v"); v.Machine != "" || !v.Dirty {
		t.Errorf("volume = %+v, want it detached and dirty", v)
	}
	mc, err := w.mgr.Wake(t.Context(), "a")
	if err != nil || mc.BootMode != hostapi.BootCold || len(mc.Volumes) != 1 {
		t.Errorf("machine without its volume = %+v, %v; want it booted with its copy of the other", mc, err)
	}
	w.count("a", 2)
	w.destroy("a")
	again := withVolumes("b")
	again.Volumes = again.Volumes[:1]
	again.Volumes[0].Fence = 2
	_, err = w.mgr.Create(t.Context(), again, base, "")
	w.must(err)
	if v := w.host.monitorOf("b").mem.Who.Volumes; len(v) != 1 || !v[0].Check {
		t.Errorf("mounts = %+v, want a check", v)
	}
	w.host.failNext("volume", errInjected) // as of a guest that does not reply
	w.must(w.detach("b", "v", true))
	w.wantState("b", hostapi.Failed)
	w.destroy("b")
	w.checkEmpty()
}

// TestResizeOfAttachedVolume grows volumes of machines in every state.
func TestResizeOfAttachedVolume(t *testing.T) {
	w := newFixture(t)
	w.createWithVolumes()
	resize := func(sizeMiB int) {
		t.Helper()
		v, err := w.mgr.ResizeVolume(t.Context(), "v", sizeMiB)
		w.must(err)
		mc, err := w.mgr.Get("a")
		w.must(err)
		info, err := os.Stat(w.volumes.Path("v"))
		w.must(err)
		if v.SizeMiB != sizeMiB || mc.Volumes[0].SizeMiB != sizeMiB || info.Size() != int64(sizeMiB)<<20 {
			t.Errorf("volume = %+v, %+v, %d bytes; want %d MiB", v, mc.Volumes[0], info.Size(), sizeMiB)
		}
	}
	w.count("a", 1)
	resize(33)
	w.must(w.mgr.Hibernate(t.Context(), "a"))
	resize(34)
	_, err := w.mgr.Wake(t.Context(), "a")
	w.must(err)
	w.count("a", 2)
	if info, err := os.Stat(w.volumes.Path("v")); err != nil || info.Size() != 34<<20 {
		t.Errorf("disk after a wake = %v, %v; want the size that it was given while the machine slept", info, err)
	}
	w.failMonitor("a")
	resize(35)
	w.destroy("a")
	if _, err := w.mgr.ResizeVolume(t.Context(), "v", 36); err != nil {
		t.Error(err)
	}
	w.checkEmpty()
}

// TestGrowingVolumeStopsItsWriter lets a volume grow while space runs out: its writer is stopped first.
func TestGrowingVolumeStopsItsWriter(t *testing.T) {
	w := newFixture(t)
	w.createWithVolumes()
	w.create("b", true)
	w.space.grow("v", 2<<20)
	w.space.set(100<<20, 0) // below half of the reserve of 256 MiB
	w.awaitPause("a", hostapi.PausedNoSpace)
	w.wantState("b", hostapi.Running)
	if mc, err := w.mgr.Get("a"); err != nil || mc.DiskBytes >= 2<<20 {
		t.Errorf("disks of the machine take %d bytes, %v; want those of its own alone", mc.DiskBytes, err)
	}
	w.space.grow("v", 0)
	w.space.set(300<<20, 0)
	w.awaitPause("a", "")
	w.count("a", 1)
	w.destroy("a")
	w.destroy("b")
	w.checkEmpty()
}

// TestOldMemoryIsNotUsedAgain checks that a machine that was woken never goes back to the memory from before, over a
// volume that it has written to since: not when its node ends, and not when its monitor ends, too.
func TestOldMemoryIsNotUsedAgain(t *testing.T) {
	w := newFixture(t)
	w.createWithVolumes()
	w.count("a", 1)
	w.must(w.mgr.Hibernate(t.Context(), "a"))
	_, err := w.mgr.Wake(t.Context(), "a")
	w.must(err)
	w.count("a", 2)
	w.restart(nil)
	w.wantState("a", hostapi.Running)
	w.count("a", 3)
	w.failMonitor("a")
	w.restart(nil)
	mc, err := w.mgr.Wake(t.Context(), "a")
	if err != nil || mc.BootMode != hostapi.BootCold {
		t.Fatalf("wake after the end of the monitor: boot mode %q, %v; want a cold boot", mc.BootMode, err)
	}
	w.count("a", 4)
	w.destroy("a")
	w.wantCounter("v", 4)
	w.checkEmpty()
}

// TestSnapshotWithOneMoreVolume restores a machine from a snapshot that has volumes, with a volume beside them.
func TestSnapshotWithOneMoreVolume(t *testing.T) {
	w := newFixture(t)
	w.addVolume("v")
	request := withVolumes("a")
	request.Volumes = request.Volumes[:1]
	_, err := w.mgr.Create(t.Context(), request, base, "")
	w.must(err)
	_, err = w.mgr.TakeSnapshot(t.Context(), "a", "snapshots/s", nil, nil)
	w.must(err)
	w.addVolume("x")
	mc, err := w.mgr.Create(t.Context(), machine.CreateRequest{ID: "b", Persistent: true,
		Volumes: []hostapi.VolumeAttachment{{Volume: "x", Mount: "/vol2", Fence: 1}}}, "snapshots/s", "")
	w.must(err)
	want := []hostapi.AttachedVolume{
		{Volume: "x", Mount: "/vol2", SizeMiB: volume.MinMiB},
		{Volume: "v", Mount: "/vol", SizeMiB: volume.MinMiB, Private: true},
	}
	if !reflect.DeepEqual(mc.Volumes, want) || mc.BootMode != hostapi.BootSnapshot {
		t.Errorf("volumes = %+v, boot mode %s; want %+v and a restore", mc.Volumes, mc.BootMode, want)
	}
	if v := w.volume("x"); v.Machine != "b" {
		t.Errorf("volume x = %+v, want it attached to machine b", v)
	}
	w.destroy("b")
	w.destroy("a")
	w.must(w.store.Delete("snapshots/s"))
	w.checkEmpty()
}
