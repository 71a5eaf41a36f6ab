package machine_test

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/host/snapshot"
)

// mounted are the mounts of dataDisks.
var mounted = []guestapi.Mount{{Disk: 1, Dir: "/data", Options: []string{"noatime"}}, {Disk: 2, Dir: "/more"}}

// TestDataDisksAreCloned checks that every machine of a template has its own copies of the data disks, of the same
// moment as its memory, and that its snapshots have them too.
func TestDataDisksAreCloned(t *testing.T) {
	w := newFixture(t)
	mc := w.create("a", true)
	if !reflect.DeepEqual(mc.Disks, dataDisks) {
		t.Errorf("disks of machine a = %+v, want %+v", mc.Disks, dataDisks)
	}
	if got := w.host.monitorOf("a").mem.Who.Mounts; got != nil {
		t.Errorf("a restored guest got mounts %v, want none", got)
	}
	w.count("a", 1)
	_, err := w.mgr.TakeSnapshot(t.Context(), "a", "snapshots/s", nil, nil)
	w.must(err)
	w.count("a", 2)
	snap, err := w.store.Get("snapshots/s")
	w.must(err)
	if !reflect.DeepEqual(snap.Data, dataDisks) || len(snap.DiskPaths()) != 3 {
		t.Errorf("data disks of the snapshot = %+v, want %+v", snap.Data, dataDisks)
	}
	_, err = w.mgr.Create(t.Context(), machine.CreateRequest{ID: "b", Persistent: true}, "snapshots/s", "")
	w.must(err)
	w.count("b", 2)
	w.count("a", 3)
	w.must(w.mgr.Stop(t.Context(), "b"))
	_, err = w.mgr.Wake(t.Context(), "b")
	w.must(err)
	w.count("b", 3) // a guest that boots continues with the counter on its disks
	if got := w.host.monitorOf("b").mem.Who.Mounts; !reflect.DeepEqual(got, mounted) {
		t.Errorf("a guest that boots got mounts %v, want %v", got, mounted)
	}
	w.destroy("a")
	w.destroy("b")
	w.must(w.store.Delete("snapshots/s"))
	w.checkEmpty()
}

// TestBootWithDataDisks checks that a cold boot clones data disks and refuses invalid ones.
func TestBootWithDataDisks(t *testing.T) {
	w := newFixture(t)
	dir := filepath.Join(w.dir, string(base))
	boot := func(disks ...machine.BootDisk) (machine.View, error) {
		return w.mgr.Boot(
			t.Context(),
			machine.Boot{ID: "b", Disk: filepath.Join(dir, "disk.img"), VCPUs: 1, MemoryMiB: 64, Data: disks},
		)
	}
	disk := machine.BootDisk{DataDisk: dataDisks[0], Path: filepath.Join(dir, "disk-data.img")}
	for name, change := range map[string]func(*machine.BootDisk){
		"name":  func(d *machine.BootDisk) { d.Name = "../x" },
		"mount": func(d *machine.BootDisk) { d.Mount = "data" },
		"path":  func(d *machine.BootDisk) { d.Path = filepath.Join(dir, "none") },
	} {
		bad := disk
		change(&bad)
		if _, err := boot(bad); err == nil {
			t.Errorf("boot with a bad %s of a disk: got no error", name)
		}
	}
	if _, err := boot(disk, disk); err == nil {
		t.Error("boot with two disks of one name: got no error")
	}
	w.checkEmpty()
	_, err := boot(disk)
	w.must(err)
	w.count("b", 1)
	if got := w.host.monitorOf("b").mem.Who.Mounts; !reflect.DeepEqual(got, mounted[:1]) {
		t.Errorf("mounts of machine b = %v, want %v", got, mounted[:1])
	}
	w.destroy("b")
	w.checkEmpty()
}

// TestOldRecordsHaveNoDataDisks creates a machine from a snapshot whose description has no data disks.
func TestOldRecordsHaveNoDataDisks(t *testing.T) {
	w := newFixture(t)
	d, err := w.store.Draft()
	w.must(err)
	image, err := (&capture{mem: memory{Frozen: true}, m: &monitor{host: w.host}}).Save(t.Context(), d.ImageDir())
	w.must(err)
	w.must(os.WriteFile(d.DiskPath(), make([]byte, 1<<20), 0o600))
	_, err = d.Commit(snapshot.Snapshot{Ref: "snapshots/old", VCPUs: 1, MemoryMiB: 64, Manifest: image.Manifest})
	w.must(err)
	w.must(w.store.Release("snapshots/old"))
	mc, err := w.mgr.Create(t.Context(), machine.CreateRequest{ID: "a"}, "snapshots/old", "")
	w.must(err)
	if mc.Disks != nil {
		t.Errorf("disks = %v, want none", mc.Disks)
	}
	w.count("a", 1)
	w.destroy("a")
}
