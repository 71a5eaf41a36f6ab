//go:build vm

package machine

import (
	"errors"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// volume makes a volume, which is removed with the test.
func (l *lab) volume(t *testing.T, req hostapi.CreateVolume) hostapi.Volume {
	t.Helper()
	v, err := l.CreateVolume(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.DeleteVolume(t.Context(), v.ID); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	return v
}

// TestVolume attaches a volume at create, to a machine that is restored, kills the monitor, forks, hibernates and
// attaches it to another machine.
func TestVolume(t *testing.T) {
	l := host(t)
	l.volume(t, hostapi.CreateVolume{ID: "volume0", SizeMiB: 64})
	attach := []hostapi.VolumeAttachment{{Volume: "volume0", Mount: "/mnt/vol", Fence: 1}}
	mc := l.create(t, hostapi.Create{ID: "holder0", Persistent: true, Volumes: attach})
	if mc.BootMode != hostapi.BootSnapshot {
		t.Errorf("boot mode = %q, want a restore", mc.BootMode)
	}
	l.run(t, "holder0", "test -w /mnt/vol && head -c 3000000 /dev/urandom > /mnt/vol/blob && sync /mnt/vol/blob")
	want := l.run(t, "holder0", "sha256sum < /mnt/vol/blob")
	_, err := l.Create(t.Context(), hostapi.Create{ID: "holder1", Template: template, Volumes: attach})
	if !errors.Is(err, hostapi.ErrInUse) {
		t.Errorf("second writer: got %v, want ErrInUse", err)
	}

	// A child has its own copy; its parent's is the volume.
	l.fork(t, "holder0", "holder2")
	for _, id := range []hostapi.MachineID{"holder0", "holder2"} {
		l.run(t, id, "echo "+string(id)+" > /mnt/vol/name; sync; echo 3 > /proc/sys/vm/drop_caches")
	}
	for _, id := range []hostapi.MachineID{"holder0", "holder2"} {
		if got := l.run(t, id, "cat /mnt/vol/name; sha256sum < /mnt/vol/blob"); got != string(id)+"\n"+want {
			t.Errorf("files in machine %s = %q, want its own", id, got)
		}
	}

	// A read-only attachment is a copy of the moment.
	l.create(t, hostapi.Create{ID: "reader0", Volumes: []hostapi.VolumeAttachment{
		{Volume: "volume0", Mount: "/mnt/read", ReadOnly: true},
	}})
	l.run(t, "holder0", "echo later > /mnt/vol/name; sync")
	got := l.run(t, "reader0", "cat /mnt/read/name; touch /mnt/read/x 2>/dev/null || echo refused")
	if got != "holder0\nrefused" {
		t.Errorf("read-only attachment = %q, want the name of the moment, and no writes", got)
	}

	// It grows while it is mounted.
	if _, err := l.ResizeVolume(t.Context(), "volume0", 128); err != nil {
		t.Fatal(err)
	}
	size := l.run(t, "holder0", "test $(df -m /mnt/vol | awk 'END {print $2}') -gt 90 && echo larger || df -m /mnt/vol")
	if size != "larger" {
		t.Errorf("file system after a resize: %s, want a larger one", size)
	}

	if err := l.Hibernate(t.Context(), "holder0"); err != nil {
		t.Fatal(err)
	}
	if mc, err = l.Wake(t.Context(), "holder0"); err != nil {
		t.Fatal(err)
	}
	l.run(t, "holder0", "echo synced > /mnt/vol/name && sync /mnt/vol/name")
	kill(t, mc.PID)
	wait(t, "the death is seen", func() bool {
		mc, err := l.Get(t.Context(), "holder0")
		return err == nil && mc.State == hostapi.Failed
	})
	if mc, err = l.Wake(t.Context(), "holder0"); err != nil || mc.BootMode != hostapi.BootCold {
		t.Fatalf("boot mode after the wake = %q, %v; want cold", mc.BootMode, err)
	}
	if got := l.run(t, "holder0", "cat /mnt/vol/name; sha256sum < /mnt/vol/blob"); got != "synced\n"+want {
		t.Errorf("files after a cold boot = %q, want what was synced", got)
	}
	v, err := l.GetVolume(t.Context(), "volume0")
	if err != nil || v.Check == nil || v.Check.Result == "damaged" {
		t.Errorf("volume = %+v, %v; want the result of a check", v, err)
	} else {
		t.Logf("check: %+v", *v.Check)
	}

	// Everything that programs wrote is on the volume when its machine ends, synced or not.
	l.run(t, "holder0", "echo last > /mnt/vol/name")
	destroy(t, "holder0")
	if v, err := l.GetVolume(t.Context(), "volume0"); err != nil || v.Machine != "" || v.Dirty {
		t.Errorf("volume = %+v, %v; want it detached and clean", v, err)
	}
	attach[0].Fence = 2
	l.create(t, hostapi.Create{ID: "holder1", Volumes: attach})
	if got := l.run(t, "holder1", "cat /mnt/vol/name; sha256sum < /mnt/vol/blob"); got != "last\n"+want {
		t.Errorf("files in the next machine = %q, want those of the last", got)
	}
	destroy(t, "holder1")
	destroy(t, "holder2")
	destroy(t, "reader0")
}

// TestAttachedVolume attaches volumes to a machine that runs, and takes them from it.
func TestAttachedVolume(t *testing.T) {
	l := host(t)
	l.volume(t, hostapi.CreateVolume{ID: "hot0", SizeMiB: 64})
	l.create(t, hostapi.Create{ID: "open0", Persistent: true})
	attach := func(id hostapi.MachineID, readOnly bool) {
		t.Helper()
		_, err := l.AttachVolume(t.Context(), id,
			hostapi.VolumeAttachment{Volume: "hot0", Mount: "/mnt/hot", Fence: 1, ReadOnly: readOnly})
		if err != nil {
			t.Fatal(err)
		}
	}
	detach := func(id hostapi.MachineID, force bool) error {
		_, err := l.DetachVolume(t.Context(), id, "hot0", force)
		return err
	}
	attach("open0", false)
	l.run(t, "open0", "head -c 3000000 /dev/urandom > /mnt/hot/blob")
	want := l.run(t, "open0", "sha256sum < /mnt/hot/blob")
	if _, err := l.ResizeVolume(t.Context(), "hot0", 128); err != nil {
		t.Fatal(err)
	}

	// Children and woken machines are made of a monitor whose drive was replaced.
	l.fork(t, "open0", "open1")
	for _, id := range []hostapi.MachineID{"open0", "open1"} {
		l.run(t, id, "echo "+string(id)+" > /mnt/hot/name; sync; echo 3 > /proc/sys/vm/drop_caches")
	}
	if err := l.Hibernate(t.Context(), "open0"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Wake(t.Context(), "open0"); err != nil {
		t.Fatal(err)
	}
	for _, id := range []hostapi.MachineID{"open0", "open1"} {
		if got := l.run(t, id, "cat /mnt/hot/name; sha256sum < /mnt/hot/blob"); got != string(id)+"\n"+want {
			t.Errorf("files in machine %s = %q, want its own", id, got)
		}
	}

	l.run(t, "open0", "cd /mnt/hot && sleep 1000 >/dev/null 2>&1 </dev/null &")
	if err := detach("open0", false); !errors.Is(err, hostapi.ErrInUse) {
		t.Errorf("detach while a program is there: got %v, want ErrInUse", err)
	}
	l.run(t, "open0", "echo last > /mnt/hot/name")
	if err := detach("open0", true); err != nil {
		t.Fatal(err)
	}
	if got := l.run(t, "open0", "ls -A /mnt/hot; pgrep sleep || echo none"); got != "none" {
		t.Errorf("after the volume was taken away: %q, want an empty directory and no programs", got)
	}
	if v, err := l.GetVolume(t.Context(), "hot0"); err != nil || v.Machine != "" || v.Dirty {
		t.Errorf("volume = %+v, %v; want it detached and clean", v, err)
	}

	// The other machine has a private copy of it at the same place already.
	l.create(t, hostapi.Create{ID: "open2"})
	for range 3 {
		attach("open2", true)
		got := l.run(t, "open2",
			"cat /mnt/hot/name; sha256sum < /mnt/hot/blob; touch /mnt/hot/x 2>/dev/null || echo no")
		if got != "last\n"+want+"\nno" {
			t.Errorf("read-only attachment = %q, want what was there last", got)
		}
		if err := detach("open2", false); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []hostapi.MachineID{"open0", "open1", "open2"} {
		destroy(t, id)
	}
}
