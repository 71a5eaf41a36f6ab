package agent_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/volumetest"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
)

func TestVolumes(t *testing.T) {
	f := &fleet{store: blobtest.NewFaulty(blobtest.NewMemory(), nil)}
	volumetest.Run(t, func(t *testing.T) volumetest.Lab {
		return volumetest.Lab{Host: f.host(t, 1).host, Template: "base", Objects: true,
			Disk: hostapi.DataDisk{Name: "data", SizeMiB: 1, Mount: "/data"}}
	})
}

// TestBackupsOfVolumes restores volumes on another host after their own is gone.
func TestBackupsOfVolumes(t *testing.T) {
	f := newFleet(t)
	disk := func(w *fixture, id hostapi.VolumeID) string {
		return filepath.Join(w.dir, "volumes", string(id), "disk.img")
	}
	_, err := f.a.host.CreateVolume(t.Context(), hostapi.CreateVolume{ID: "v", SizeMiB: 64})
	f.a.must(err)
	f.a.create(hostapi.Create{ID: "m", Template: "base",
		Volumes: []hostapi.VolumeAttachment{{Volume: "v", Mount: "/mnt/v", Fence: 1}}})
	first, err := f.a.host.BackupVolume(t.Context(), "ws", "v", "one", nil)
	f.a.must(err)
	file, err := os.OpenFile(disk(f.a, "v"), os.O_WRONLY, 0)
	f.a.must(err)
	_, err = file.WriteAt([]byte("changed"), 32<<20)
	f.a.must(errors.Join(err, file.Close()))
	second, err := f.a.host.BackupVolume(t.Context(), "ws", "v", "two", map[string]string{"a": "b"})
	f.a.must(err)
	if first.Bytes == 0 || second.Bytes != 4096 {
		t.Errorf("backed up %+v, then %+v; want one page the second time", first, second)
	}
	want, err := os.ReadFile(disk(f.a, "v"))
	f.a.must(err)
	f.a.stop() // host a is gone

	stranger := f.host(t, 2)
	f.b.diskFull.Store(true)
	restore := func(w *fixture, workspace string, req hostapi.CreateVolume) error {
		_, err := w.host.RestoreVolume(t.Context(), workspace, "two", req)
		return err
	}
	for name, c := range map[string]struct{ err, want error }{
		"full disk":         {restore(f.b, "ws", hostapi.CreateVolume{ID: "r"}), hostapi.ErrNoSpace},
		"another workspace": {restore(f.b, "other", hostapi.CreateVolume{ID: "r"}), hostapi.ErrNotFound},
		"another key":       {restore(stranger, "ws", hostapi.CreateVolume{ID: "r"}), hostapi.ErrNotFound},
		"two sources":       {restore(f.b, "ws", hostapi.CreateVolume{ID: "r", From: "v"}), hostapi.ErrInvalid},
		"no object store":   {restore(newFixture(t), "ws", hostapi.CreateVolume{ID: "r"}), hostapi.ErrUnsupported},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("restore, %s: got %v, want %v", name, c.err, c.want)
		}
	}
	f.b.diskFull.Store(false)
	f.b.must(restore(f.b, "ws", hostapi.CreateVolume{ID: "r"}))
	got, err := os.ReadFile(disk(f.b, "r"))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the restored volume has %d bytes, %v; want those of the backup", len(got), err)
	}
	v, err := f.b.host.GetVolume(t.Context(), "r")
	if err != nil || !v.Dirty {
		t.Errorf("volume restored of a moment when it was mounted = %+v, %v; want it dirty", v, err)
	}
	all, err := f.b.host.Backups(t.Context(), "ws")
	if err != nil || len(all) != 2 || all[1].Labels["a"] != "b" {
		t.Errorf("backups = %+v, %v; want two", all, err)
	}
	f.b.must(f.b.host.DeleteBackup(t.Context(), "ws", "two"))
	if err := restore(f.b, "ws", hostapi.CreateVolume{ID: "q"}); !errors.Is(err, hostapi.ErrNotFound) {
		t.Errorf("restore of a deleted backup: got %v, want ErrNotFound", err)
	}
}

// TestVolumesOfDataDisks makes volumes of a template's data disk and attaches them in its place.
func TestVolumesOfDataDisks(t *testing.T) {
	w := newFixture(t)
	for name, req := range map[string]hostapi.CreateVolume{
		"no such disk":     {ID: "v", Template: "base", Disk: "none"},
		"no disk":          {ID: "v", Template: "base"},
		"no template":      {ID: "v", Disk: "data"},
		"two sources":      {ID: "v", Template: "base", Disk: "data", From: "x"},
		"only a machine":   {ID: "v", Machine: "x"},
		"size of a source": {ID: "v", SizeMiB: 8},
	} {
		if _, err := w.host.CreateVolume(t.Context(), req); !errors.Is(err, hostapi.ErrInvalid) {
			t.Errorf("create of a volume, %s: got %v, want ErrInvalid", name, err)
		}
	}
	v, err := w.host.CreateVolume(t.Context(), hostapi.CreateVolume{ID: "v", Template: "base", Disk: "data"})
	if err != nil || v.SizeMiB != 1 {
		t.Fatalf("volume of a data disk = %+v, %v; want its size", v, err)
	}
	attach := hostapi.Create{ID: "a", Template: "base", Persistent: true, Volumes: []hostapi.VolumeAttachment{
		{Volume: "v", Disk: "data", Fence: 1},
	}}
	mc := w.create(attach)
	if len(mc.Volumes) != 1 || mc.Volumes[0].Mount != "/data" || len(mc.Disks) != 1 {
		t.Errorf("machine = %+v, want the volume at the mount point of the data disk", mc)
	}
	w.restart()
	if _, err := w.host.Wake(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := w.host.Destroy(t.Context(), "a", "test"); err != nil {
		t.Fatal(err)
	}
	attach.Volumes[0].Fence = 2
	if _, err := w.host.Create(t.Context(), attach); !errors.Is(err, hostapi.ErrInvalid) {
		t.Errorf("a volume that was written to in place of a data disk: got %v, want ErrInvalid", err)
	}
	if err := w.host.DeleteVolume(t.Context(), "v"); err != nil {
		t.Fatal(err)
	}
}
