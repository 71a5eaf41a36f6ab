package hosttest_test

import (
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/contract/hostapi/volumetest"
)

func TestVolumes(t *testing.T) {
	volumetest.Run(t, func(t *testing.T) volumetest.Lab {
		h := hosttest.New()
		t.Cleanup(h.Close)
		hosttest.ShareObjects(h)
		disk := hostapi.DataDisk{Name: "data", SizeMiB: 64, Mount: "/data"}
		h.AddTemplate(hostapi.Template{Name: "base", VCPUs: 1, MemoryMiB: 256, DiskMiB: 1024, Baked: true,
			Disks: []hostapi.DataDisk{disk}})
		return volumetest.Lab{Host: h, Template: "base", Disk: disk, Guest: h.Guest, Objects: true}
	})
}
