//go:build vm

package machine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

func (l *lab) fork(t *testing.T, parent hostapi.MachineID, ids ...hostapi.MachineID) []hostapi.ForkResult {
	t.Helper()
	req := hostapi.Fork{Parent: parent}
	for _, id := range ids {
		req.Children = append(req.Children, hostapi.Child{ID: id})
	}
	got, err := l.Fork(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range got {
		if err := f.Err(); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %s in %v: %v", f.Machine.ID, f.Machine.BootMode, f.Machine.Boot, f.Machine.Phases)
		t.Cleanup(func() { destroy(t, f.Machine.ID) })
	}
	mc, err := l.Get(t.Context(), parent)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s stood still for %v: %v", parent, mc.Pause, mc.Phases)
	return got
}

func TestCreate(t *testing.T) {
	l := host(t)
	began := time.Now()
	mc := l.create(t, hostapi.Create{ID: "create1", Env: map[string]string{"COLOUR": "green"}})
	got := l.run(t, mc.ID, "echo $COLOUR $(hostname) $((6*7))")
	t.Logf("create to first exec: %v", time.Since(began))
	if got != "green create1 42" {
		t.Errorf("output of the guest = %q", got)
	}
	if mc.BootMode != hostapi.BootSnapshot || mc.GuestIP == "" || mc.PID == 0 {
		t.Errorf("machine = %+v, want it running with all fields", mc)
	}
	if u, err := l.Usage(t.Context(), mc.ID); err != nil || u.PSSBytes == 0 || u.CPU == 0 {
		t.Errorf("usage = %+v, %v; want processor time and memory", u, err)
	}
	// Timers of a restored guest must work.
	if got := l.run(t, mc.ID, "sleep 1; echo awake"); got != "awake" {
		t.Errorf("output of the guest = %q", got)
	}
	if err := l.Pause(t.Context(), mc.ID); err != nil {
		t.Fatal(err)
	}
	if err := l.Resume(t.Context(), mc.ID); err != nil {
		t.Fatal(err)
	}
	if got := l.run(t, mc.ID, "echo again"); got != "again" {
		t.Errorf("output of the guest = %q", got)
	}
}

func TestGrownDisk(t *testing.T) {
	l := host(t)
	small := l.create(t, hostapi.Create{ID: "grow1"})
	large := l.create(t, hostapi.Create{ID: "grow2", DiskMiB: 2 * small.DiskMiB})
	blocks := func(id hostapi.MachineID) (n int) {
		if _, err := fmt.Sscan(l.run(t, id, "stat -f -c %b /"), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if s, g := blocks(small.ID), blocks(large.ID); g < s*3/2 || large.DiskMiB != 2*small.DiskMiB {
		t.Errorf("file system of %d blocks grew to %d, want more", s, g)
	}
	l.run(t, large.ID, "dd if=/dev/zero of=/root/big bs=1M count=64 conv=fsync 2>/dev/null; sync")
}

// TestHazards checks what must differ between clones, and what must be right in each.
func TestHazards(t *testing.T) {
	l := host(t)
	a := l.create(t, hostapi.Create{ID: "hazard1", Hostname: "one"})
	l.run(t, a.ID, "cat /dev/urandom | head -c 8 > /dev/null")
	l.fork(t, a.ID, "hazard2", "hazard3")
	b := l.create(t, hostapi.Create{ID: "hazard4"})
	ids := []hostapi.MachineID{a.ID, "hazard2", "hazard3", b.ID}
	for name, command := range map[string]string{
		"entropy":    "head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n'",
		"machine-id": "cat /etc/machine-id",
		"boot-id":    "cat /proc/sys/kernel/random/boot_id",
		"hostname":   "hostname",
	} {
		var all []string
		for _, id := range ids {
			all = append(all, l.run(t, id, command))
		}
		slices.Sort(all)
		if n := len(slices.Compact(slices.Clone(all))); n != len(ids) || all[0] == "" {
			t.Errorf("%s of %d machines = %q, want all different", name, len(ids), all)
		}
	}
	for _, id := range ids {
		var sec int64
		before := time.Now().Unix()
		if _, err := fmt.Sscan(l.run(t, id, "date +%s"), &sec); err != nil {
			t.Fatal(err)
		}
		if after := time.Now().Unix(); sec < before-10 ||
			sec > after+10 { // the machine may be busy between the two readings
			t.Errorf("clock of %s = %d, want %d to %d", id, sec, before, after)
		}
	}
}

// counts is a program for guests: it prints "counts" if the number in /mem/count changes within 5 seconds.
const counts = `a=$(cat /mem/count)
for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.5; b=$(cat /mem/count); [ "$a" != "$b" ] && break; done
[ "$a" != "$b" ] && echo counts`

func TestForkKeepsMemoryAndDisk(t *testing.T) {
	l := host(t)
	l.create(t, hostapi.Create{ID: "fork0"})
	// Memory: a file in tmpfs and a program that counts. Disk: a file that was never synced.
	l.run(
		t,
		"fork0",
		"mkdir -p /mem && mount -t tmpfs tmpfs /mem && head -c 3000000 /dev/urandom | tee /mem/blob > /root/blob",
	)
	l.run(t, "fork0", "(i=0; while true; do i=$((i+1)); echo $i > /mem/count; sleep 0.2; done) >/dev/null 2>&1 &")
	want := l.run(t, "fork0", "sha256sum < /mem/blob")
	children := []hostapi.MachineID{"fork1", "fork2", "fork3", "fork4"}
	l.fork(t, "fork0", children...)
	for _, id := range append(children, "fork0") {
		if got := l.run(t, id, "sha256sum < /mem/blob"); got != want {
			t.Errorf("memory of %s differs from its parent's", id)
		}
		if got := l.run(t, id, "sha256sum < /root/blob"); got != want {
			t.Errorf("disk of %s differs from its parent's", id)
		}
		if got := l.run(t, id, counts); got != "counts" {
			t.Errorf("program in %s does not count", id)
		}
		l.run(t, id, "echo "+string(id)+" > /root/name; echo "+string(id)+" > /mem/name; sync")
	}
	for _, id := range append(children, "fork0") {
		if got := l.run(t, id, "cat /root/name /mem/name"); got != string(id)+"\n"+string(id) {
			t.Errorf("file in %s = %q, want its own content", id, got)
		}
	}
	// A grandchild, of a paused parent.
	if err := l.Pause(t.Context(), "fork1"); err != nil {
		t.Fatal(err)
	}
	l.fork(t, "fork1", "fork5")
	if mc, err := l.Get(t.Context(), "fork1"); err != nil || mc.State != hostapi.Paused {
		t.Errorf("state of the parent = %+v, %v; want paused", mc.State, err)
	}
	if got := l.run(t, "fork5", "sha256sum < /mem/blob; cat /mem/name"); got != want+"\nfork1" {
		t.Errorf("output of the grandchild = %q", got)
	}
}

func TestSnapshotAndManyFromIt(t *testing.T) {
	l := host(t)
	l.create(t, hostapi.Create{ID: "snap0"})
	l.run(t, "snap0", "echo kept > /root/file; mkdir -p /mem && mount -t tmpfs tmpfs /mem && echo kept > /mem/file")
	snap, err := l.TakeSnapshot(t.Context(), "snap0", "snapone", map[string]string{"name": "one"})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("snapshot %+v", snap)
	l.run(t, "snap0", "echo changed > /root/file")
	destroy(t, "snap0")
	for i := range 3 {
		mc := l.create(t, hostapi.Create{ID: hostapi.MachineID(fmt.Sprintf("snap%d", i+1)), Snapshot: "snapone"})
		if got := l.run(t, mc.ID, "cat /root/file /mem/file"); got != "kept\nkept" {
			t.Errorf("file in %s = %q, want that of the snapshot", mc.ID, got)
		}
	}
	if err := l.DeleteSnapshot(t.Context(), "snapone"); err != nil {
		t.Fatal(err)
	}
	l.fork(t, "snap1", "snap4")
	if got := l.run(t, "snap4", "cat /root/file"); got != "kept" {
		t.Errorf("file in the child = %q, want the parent's", got)
	}
}

func TestTenHibernations(t *testing.T) {
	l := host(t)
	l.create(t, hostapi.Create{ID: "sleep0", Persistent: true})
	l.run(t, "sleep0", "mkdir -p /mem && mount -t tmpfs tmpfs /mem && : > /mem/all && : > /root/all")
	for i := range 10 {
		l.run(t, "sleep0", fmt.Sprintf("(echo %d; head -c 100000 /dev/urandom) | tee -a /mem/all >> /root/all", i))
		want := l.run(t, "sleep0", "sha256sum < /mem/all")
		began := time.Now()
		if err := l.Hibernate(t.Context(), "sleep0"); err != nil {
			t.Fatal(err)
		}
		hibernated := time.Since(began)
		if mc, err := l.Get(t.Context(), "sleep0"); err == nil {
			t.Log(mc.Phases)
		}
		mc, err := l.Wake(t.Context(), "sleep0")
		if err != nil {
			t.Fatal(err)
		}
		got := l.run(t, "sleep0", "sha256sum < /mem/all; sha256sum < /root/all")
		t.Logf("hibernated in %v, woken in %v: %v", hibernated, mc.Boot, mc.Phases)
		if got != want+"\n"+want {
			t.Fatalf("after hibernation %d: %q, want twice %q", i, got, want)
		}
		if mc.Generation != uint64(i)+2 {
			t.Errorf("generation %d after hibernation %d", mc.Generation, i)
		}
	}
	l.fork(t, "sleep0", "sleep1") // runs on the image that its parent hibernated in
	if a, b := l.run(t, "sleep0", "sha256sum < /mem/all"), l.run(t, "sleep1", "sha256sum < /mem/all"); a != b {
		t.Errorf("child of a woken machine has %q, want %q of its parent", b, a)
	}
}

func TestMonitorExitKeepsTheDisk(t *testing.T) {
	l := host(t)
	mc := l.create(t, hostapi.Create{ID: "death0", Persistent: true})
	l.run(t, "death0", "echo kept > /root/file; sync")
	kill(t, mc.PID)
	wait(t, "the death is seen", func() bool {
		mc, err := l.Get(t.Context(), "death0")
		return err == nil && mc.State == hostapi.Failed
	})
	mc, err := l.Wake(t.Context(), "death0")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("booted cold in %v: %v", mc.Boot, mc.Phases)
	if got := l.run(t, "death0", "cat /root/file; hostname"); mc.BootMode != hostapi.BootCold || got != "kept\ndeath0" {
		t.Errorf("file in the machine that booted %s = %q, want the content from before", mc.BootMode, got)
	}
	l.fork(t, "death0", "death1")
	if got := l.run(t, "death1", "cat /root/file; hostname"); got != "kept\ndeath1" {
		t.Errorf("file in the child = %q, want the parent's", got)
	}
}
