package agent_test

import (
	"errors"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/volumetest"
)

func TestVolumes(t *testing.T) {
	volumetest.Run(t, func(t *testing.T) volumetest.Lab {
		return volumetest.Lab{Host: newFixture(t).host, Template: "base"}
	})
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
