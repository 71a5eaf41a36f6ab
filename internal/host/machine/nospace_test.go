package machine_test

import (
	"cmp"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
)

// diskSpace is the disk of a fixture.
type diskSpace struct {
	mu          sync.Mutex
	free        int64
	reclaimable int64
	total       int64            // 0: 1 TiB
	allocated   map[string]int64 // by directory of the machine
	grows       map[string]int64 // by how much it grows with every look, by directory
}

func (d *diskSpace) set(free, reclaimable int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.free, d.reclaimable = free, reclaimable
}

func (d *diskSpace) left() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.reclaimable
}

func (d *diskSpace) read(string) (total, free int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return cmp.Or(d.total, 1<<40), d.free, nil
}

func (d *diskSpace) reclaim(bytes int64) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	given := min(bytes, d.reclaimable)
	d.free, d.reclaimable = d.free+given, d.reclaimable-given
	return given
}

// grow makes a machine's disks grow by so many bytes with every look at one of them.
func (d *diskSpace) grow(id string, bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.grows == nil {
		d.grows, d.allocated = map[string]int64{}, map[string]int64{}
	}
	d.grows[id] = bytes
}

// shrink makes a machine's disks take nothing.
func (d *diskSpace) shrink(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.grows[id], d.allocated[id] = 0, 0
}

func (d *diskSpace) measure(path string) (int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := filepath.Base(filepath.Dir(path))
	if d.grows[id] != 0 {
		d.allocated[id] += d.grows[id]
	}
	return d.allocated[id], nil
}

// eventTypes returns the types of the events of a machine.
func (w *fixture) eventTypes(id string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, e := range w.events {
		if e.Machine == hostapi.MachineID(id) && (e.Type == "paused" || e.Type == "resumed") {
			all = append(all, e.Type+" "+e.Reason)
		}
	}
	return all
}

// awaitPause waits until a machine has the pause reason.
func (w *fixture) awaitPause(id string, want hostapi.PauseReason) {
	w.t.Helper()
	w.eventually("machine "+id+" has pause reason "+string(want), func() bool {
		v, err := w.mgr.Get(hostapi.MachineID(id))
		return err == nil && v.PauseReason == want
	})
}

// fill makes the disk full, and a guest write to it.
func (w *fixture) fill(id string) {
	w.t.Helper()
	w.space.set(0, 0)
	w.host.setFull(true)
	w.host.monitorOf(id).write()
	w.awaitPause(id, hostapi.PausedNoSpace)
}

// TestMonitorStopsGuestForLackOfSpace follows a machine whose monitor stops the guest: it is shown as paused with the
// reason, nothing can be done with it but to remove it, others run, and it continues when there is space.
func TestMonitorStopsGuestForLackOfSpace(t *testing.T) {
	w := newFixture(t)
	w.create("a", true)
	w.create("b", true)
	w.count("a", 1)
	w.fill("a")
	w.wantState("a", hostapi.Paused)
	w.wantState("b", hostapi.Running)
	w.count("b", 1)
	ctx := t.Context()
	for name, do := range map[string]func() error{
		"guest":     func() error { _, err := w.mgr.Guest(ctx, "a"); return err },
		"pause":     func() error { return w.mgr.Pause(ctx, "a") },
		"resume":    func() error { return w.mgr.Resume(ctx, "a") },
		"hibernate": func() error { return w.mgr.Hibernate(ctx, "a") },
		"stop":      func() error { return w.mgr.Stop(ctx, "a") },
		"wake":      func() error { _, err := w.mgr.Wake(ctx, "a"); return err },
		"snapshot":  func() error { _, err := w.mgr.TakeSnapshot(ctx, "a", "snapshots/s", nil, nil); return err },
		"fork": func() error {
			_, err := w.mgr.Fork(ctx, machine.ForkRequest{Parent: "a", Children: []machine.ChildRequest{{ID: "c"}}})
			return err
		},
	} {
		if err := do(); !errors.Is(err, hostapi.ErrNoSpace) {
			t.Errorf("%s of a machine that waits for space: %v, want ErrNoSpace", name, err)
		}
	}
	if _, err := w.mgr.Guest(ctx, "b"); err != nil {
		t.Errorf("guest of its neighbour: %v, want none", err)
	}
	w.host.setFull(false)
	w.space.set(1<<40, 0)
	w.awaitPause("a", "")
	w.wantState("a", hostapi.Running)
	w.count("a", 2)
	if got := w.eventTypes("a"); len(got) != 2 || got[0] != "paused no_space" || got[1] != "resumed no_space" {
		t.Errorf("events = %v, want one pause and one resumption, both with the reason no_space", got)
	}
	w.destroy("a")
	w.destroy("b")
	w.checkEmpty()
}

// TestResumeTellsWhetherThereIsSpace resumes a machine that waits: it must not be said to run while its write finds no
// space, whatever the file system says, and run as soon as there is.
func TestResumeTellsWhetherThereIsSpace(t *testing.T) {
	w := newFixture(t)
	w.create("a", true)
	w.fill("a")
	w.space.set(200<<20, 0) // enough to resume by hand, too little to continue by itself
	if err := w.mgr.Resume(t.Context(), "a"); !errors.Is(err, hostapi.ErrNoSpace) {
		t.Errorf("resume whose write finds no space: %v, want ErrNoSpace", err)
	}
	w.wantState("a", hostapi.Paused)
	w.host.setFull(false)
	if err := w.mgr.Resume(t.Context(), "a"); err != nil {
		t.Errorf("resume with space: %v, want none", err)
	}
	w.wantState("a", hostapi.Running)
	w.count("a", 1)
}

// TestWaitingMachineOutlivesRestart restarts the node while a machine waits for space: it is not failed, it still
// waits, and it continues.
func TestWaitingMachineOutlivesRestart(t *testing.T) {
	for name, stop := range map[string]func(w *fixture){
		"monitor": func(w *fixture) { w.fill("a") },
		"keeper": func(w *fixture) {
			w.space.grow("a", 2<<20)
			w.space.set(100<<20, 0)
			w.awaitPause("a", hostapi.PausedNoSpace)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			w.create("a", false)
			stop(w)
			w.must(w.mgr.SetPersistent(t.Context(), "a", true)) // waits for the end of the operation
			w.restart(nil)
			v, err := w.mgr.Get("a")
			if err != nil || v.State != hostapi.Paused || v.PauseReason != hostapi.PausedNoSpace || v.Reason != "" {
				t.Fatalf("machine after a restart = %s, %q, %q, %v; want paused for no_space",
					v.State, v.PauseReason, v.Reason, err)
			}
			w.space.grow("a", 0)
			w.host.setFull(false)
			w.space.set(1<<40, 0)
			w.awaitPause("a", "")
			w.eventually("the guest runs", func() bool { _, err := w.host.monitorOf("a").count(); return err == nil })
			w.destroy("a")
			w.checkEmpty()
		})
	}
}

// TestGrowingMachineIsStoppedBeforeTheDiskIsFull lets one of two machines grow while space runs out: that one is
// stopped, and continues when the reserve is free again, not before.
func TestGrowingMachineIsStoppedBeforeTheDiskIsFull(t *testing.T) {
	w := newFixture(t)
	w.create("a", true)
	w.create("b", true)
	w.space.grow("a", 2<<20)
	w.space.set(200<<20, 0) // below the reserve of 256 MiB, above half of it
	w.count("a", 1)
	w.space.set(100<<20, 0)
	w.awaitPause("a", hostapi.PausedNoSpace)
	w.wantState("b", hostapi.Running)
	w.count("b", 1)
	w.space.set(200<<20, 0)
	w.space.grow("a", 0)
	if _, err := w.mgr.Guest(t.Context(), "a"); !errors.Is(err, hostapi.ErrNoSpace) {
		t.Errorf("guest of a machine that waits below the reserve: %v, want ErrNoSpace", err)
	}
	w.space.set(300<<20, 0)
	w.awaitPause("a", "")
	w.count("a", 2)
	w.destroy("a")
	w.destroy("b")
	w.checkEmpty()
}

// TestFullQuotaIsNotRetriedAllTheTime lets a machine wait although the file system has space: the guest is let
// continue now and then, and its state does not flap.
func TestFullQuotaIsNotRetriedAllTheTime(t *testing.T) {
	w := newFixture(t)
	w.create("a", true)
	w.host.setFull(true)
	m := w.host.monitorOf("a")
	m.write()
	w.awaitPause("a", hostapi.PausedNoSpace)
	w.eventually("the guest is let continue twice", func() bool { return m.resumes() >= 2 })
	w.wantState("a", hostapi.Paused)
	if got := w.eventTypes("a"); len(got) != 1 {
		t.Errorf("events = %v, want one pause", got)
	}
	w.host.setFull(false)
	w.awaitPause("a", "")
}

// TestDestroyOfWaitingMachine removes a machine that waits for space.
func TestDestroyOfWaitingMachine(t *testing.T) {
	w := newFixture(t)
	w.create("a", true)
	w.fill("a")
	w.destroy("a")
	w.checkEmpty()
}

// TestPromisedDiskIsBounded makes machines until their disks are larger than what may be promised.
func TestPromisedDiskIsBounded(t *testing.T) {
	w := newFixture(t)
	w.stop()
	w.overcommit = 2
	w.space.total = 5 << 20 // a machine here has three disks of 1 MiB
	w.restart(nil)
	for _, id := range []string{"a", "b", "c"} {
		w.create(id, true)
	}
	_, err := w.mgr.Create(t.Context(), machine.CreateRequest{ID: "d"}, base, "")
	if !errors.Is(err, hostapi.ErrNoSpace) || !strings.Contains(err.Error(), "may be promised") {
		t.Errorf("create of more than may be promised: %v, want ErrNoSpace with the numbers", err)
	}
	if _, err := w.mgr.Fork(t.Context(), machine.ForkRequest{
		Parent: "a", Children: []machine.ChildRequest{{ID: "d"}},
	}); !errors.Is(err, hostapi.ErrNoSpace) {
		t.Errorf("fork of more than may be promised: %v, want ErrNoSpace", err)
	}
	w.destroy("a")
	w.create("d", true)
	for _, id := range []string{"b", "c", "d"} {
		w.destroy(id)
	}
	w.checkEmpty()
}

// TestGroupOverItsDisk lets one machine of a group grow beyond the bound of the group on a disk with plenty of space:
// it is stopped, no more machines of the group are made, machines of another group and those of the same that do not
// grow run, and it continues when the group is within its bound.
func TestGroupOverItsDisk(t *testing.T) {
	w := newFixture(t)
	w.groupDiskMiB = 64
	w.restart(nil)
	ctx := t.Context()
	create := func(id, group string) error {
		req := machine.CreateRequest{ID: hostapi.MachineID(id), Persistent: true, Group: group, Egress: baseEgress}
		_, err := w.mgr.Create(ctx, req, base, "")
		return err
	}
	for id, group := range map[string]string{"a": "g", "b": "g", "c": "h"} {
		w.must(create(id, group))
	}
	w.space.grow("a", 4<<20)
	w.awaitPause("a", hostapi.PausedNoSpace)
	w.wantState("b", hostapi.Running)
	w.wantState("c", hostapi.Running)
	if v, err := w.mgr.Get("a"); err != nil || v.Group != "g" || v.DiskBytes < 64<<20 {
		t.Errorf("machine over the bound = group %q, %d bytes, %v; want g with at least 64 MiB",
			v.Group, v.DiskBytes, err)
	}
	if err := create("d", "g"); !errors.Is(err, hostapi.ErrNoSpace) {
		t.Errorf("create in a group over its bound: %v, want ErrNoSpace", err)
	}
	w.must(create("e", "h"))
	if err := w.mgr.Resume(ctx, "a"); !errors.Is(err, hostapi.ErrNoSpace) {
		t.Errorf("resume of a machine over the bound: %v, want ErrNoSpace", err)
	}
	w.mgr.SetGroupBounds(hostapi.GroupBounds{DefaultMiB: 64, MiB: map[string]int64{"g": 1 << 20}})
	w.awaitPause("a", "") // a bound of its own in place of the default
	w.mgr.SetGroupBounds(hostapi.GroupBounds{MiB: map[string]int64{"g": 64}})
	w.space.grow("a", 4<<20)
	w.awaitPause("a", hostapi.PausedNoSpace)
	w.space.shrink("a")
	w.awaitPause("a", "")
	w.count("a", 1)
	for _, id := range []string{"a", "b", "c", "e"} {
		w.destroy(id)
	}
	w.checkEmpty()
}
