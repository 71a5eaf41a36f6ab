//go:build vm

package machine

import (
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
