//go:build vm

package machine

import (
	"strconv"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// TestDataDisk forks and hibernates a machine with a data disk, and checks that a guest that boots mounts it.
func TestDataDisk(t *testing.T) {
	l := host(t)
	if err := l.Bake(t.Context(), withDataDisk); err != nil {
		t.Fatal(err)
	}
	l.create(t, hostapi.Create{ID: "paired0", Template: withDataDisk, Persistent: true})
	if got := l.run(t, "paired0", "grep -c '^/dev/vdb /data ext4 rw,noatime' /proc/mounts"); got != "1" {
		t.Fatalf("mounts of the data disk = %s, want one", got)
	}
	l.run(t, "paired0", "head -c 3000000 /dev/urandom > /data/blob")
	want := l.run(t, "paired0", "sha256sum < /data/blob")
	l.fork(t, "paired0", "paired1")
	for _, id := range []hostapi.MachineID{"paired0", "paired1"} {
		l.run(t, id, "echo "+string(id)+" > /data/name; sync; echo 3 > /proc/sys/vm/drop_caches")
	}
	for _, id := range []hostapi.MachineID{"paired0", "paired1"} {
		if got := l.run(t, id, "cat /data/name; sha256sum < /data/blob"); got != string(id)+"\n"+want {
			t.Errorf("file in machine %s = %q, want its own content", id, got)
		}
	}
	if err := l.Hibernate(t.Context(), "paired0"); err != nil {
		t.Fatal(err)
	}
	mc, err := l.Wake(t.Context(), "paired0")
	if err != nil {
		t.Fatal(err)
	}
	l.run(t, "paired0", "echo woken >> /data/name; sync")
	kill(t, mc.PID)
	wait(t, "the death is seen", func() bool {
		mc, err := l.Get(t.Context(), "paired0")
		return err == nil && mc.State == hostapi.Failed
	})
	if mc, err = l.Wake(t.Context(), "paired0"); err != nil || mc.BootMode != hostapi.BootCold {
		t.Fatalf("boot mode after the wake = %q, %v; want cold", mc.BootMode, err)
	}
	if got := l.run(t, "paired0", "cat /data/name; sha256sum < /data/blob"); got != "paired0\nwoken\n"+want {
		t.Errorf("file after a cold boot = %q, want the content from before", got)
	}
	destroy(t, "paired1")
}

// TestGrownDataDisk grows a volume in place of a data disk while a machine writes to it: its file system grows, too.
// When the machine ends the volume is unmounted, although a program uses it.
func TestGrownDataDisk(t *testing.T) {
	l := host(t)
	if err := l.Bake(t.Context(), withDataDisk); err != nil {
		t.Fatal(err)
	}
	v := l.volume(t, hostapi.CreateVolume{ID: "data0", Template: withDataDisk, Disk: "data"})
	l.create(t, hostapi.Create{ID: "grown0", Template: withDataDisk,
		Volumes: []hostapi.VolumeAttachment{{Volume: v.ID, Disk: "data", Fence: 1}}})
	size := func() int {
		t.Helper()
		n, err := strconv.Atoi(l.run(t, "grown0", "df -m --output=size /data | tail -n 1 | tr -d ' '"))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := size()
	if _, err := l.ResizeVolume(t.Context(), v.ID, 2*v.SizeMiB); err != nil {
		t.Fatal(err)
	}
	if after := size(); after < before*3/2 {
		t.Errorf("the file system has %d MiB, and had %d before its volume grew from %d to %d MiB", after, before,
			v.SizeMiB, 2*v.SizeMiB)
	}
	l.run(t, "grown0", "cd /data && echo kept > kept && (exec 3>>kept; sleep 600) >/dev/null 2>&1 &")
	destroy(t, "grown0")
	if v, err := l.GetVolume(t.Context(), v.ID); err != nil || v.Machine != "" || v.Dirty {
		t.Errorf("volume after its machine = %+v, %v; want it detached and clean", v, err)
	}
}
