package machine_test

import (
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/host/volume"
)

// newWarmFixture returns a fixture with one warm monitor and machine a, whose create requested it.
func newWarmFixture(t *testing.T) *fixture {
	t.Helper()
	w := newFixture(t)
	w.warmMonitors = 1
	w.restart(nil)
	w.create("a", false)
	w.waitWarm(2)
	return w
}

// waitWarm waits until so many monitors run and one of them is in the pool: it runs a moment before.
func (w *fixture) waitWarm(monitors int) {
	w.t.Helper()
	w.eventually(
		"there is a warm monitor",
		func() bool { return len(w.host.alive()) == monitors && w.mgr.WarmMonitors() == 1 },
	)
}

func usedWarm(mc machine.View) bool {
	for _, p := range mc.Phases {
		if p.Name == "adopt" {
			return true
		}
	}
	return false
}

// countByPID is count for a machine that was made of a warm monitor.
func (w *fixture) countByPID(id string, want uint64) {
	w.t.Helper()
	mc, err := w.mgr.Get(hostapi.MachineID(id))
	w.must(err)
	for _, m := range w.host.alive() {
		if m.PID() == mc.PID {
			if got, err := m.count(); err != nil || got != want {
				w.t.Fatalf("machine %s counts %d, %v; want %d", id, got, err, want)
			}
			return
		}
	}
	w.t.Fatalf("machine %s has no monitor", id)
}

// checkCounts fails unless the host has as much of everything as machines and warm monitors.
func (w *fixture) checkCounts(warm int) {
	w.t.Helper()
	want := len(w.mgr.List()) + warm
	w.network.mu.Lock()
	slots, found := len(w.network.taken), len(w.network.found)
	w.network.mu.Unlock()
	w.cgroups.mu.Lock()
	groups := len(w.cgroups.names) + len(w.cgroups.found)
	w.cgroups.mu.Unlock()
	dirs := names(w.t, filepath.Join(w.dir, "machines"))
	if got := len(w.host.alive()); got != want || slots != want || found != 0 || groups != want || len(dirs) != want {
		w.t.Errorf(
			"%d monitors, %d slots (%d unclaimed), %d groups, directories %v; want %d of each",
			got,
			slots,
			found,
			groups,
			dirs,
			want,
		)
	}
}

func TestWarmMonitorBecomesAMachine(t *testing.T) {
	w := newWarmFixture(t)
	w.checkCounts(1)
	for i, id := range []string{"b", "c"} {
		mc := w.create(id, false)
		if !usedWarm(mc) {
			t.Errorf("machine %s was not made of the warm monitor: phases %v", id, mc.Phases)
		}
		if mc.State != hostapi.Running || mc.GuestIP == "" || mc.ID != hostapi.MachineID(id) {
			t.Errorf("machine = %+v, want %s running", mc, id)
		}
		w.countByPID(id, 1)
		w.waitWarm(3 + i)
	}
	got, err := w.mgr.Fork(t.Context(), machine.ForkRequest{Parent: "b", Children: []machine.ChildRequest{{ID: "d"}}})
	w.must(err)
	w.must(got[0].Err)
	w.countByPID("d", 2)
	w.must(w.mgr.Hibernate(t.Context(), "c"))
	_, err = w.mgr.Wake(t.Context(), "c")
	w.must(err)
	w.countByPID("c", 2)
	for _, id := range []string{"a", "b", "c", "d"} {
		w.destroy(id)
	}
	w.checkCounts(1)
	w.stop()
	w.checkCounts(0)
	if memory, err := w.mgr.Memory(); err != nil || memory.FreeMiB < memory.TotalMiB {
		t.Errorf("memory = %+v, %v; want all of it free", memory, err)
	}
	w.must(w.store.Delete(base))
	if _, err := w.store.Get(base); err == nil {
		t.Error("the template is still acquired after its warm monitor ended")
	}
}

// TestWarmMonitorIsNotForAll checks that larger disks get a monitor of their own.
func TestWarmMonitorIsNotForAll(t *testing.T) {
	w := newWarmFixture(t)
	mc, err := w.mgr.Create(t.Context(), machine.CreateRequest{ID: "c", DiskMiB: 4}, base, "")
	w.must(err)
	if usedWarm(mc) {
		t.Error("a machine with a larger disk was made of a warm monitor")
	}
	w.checkCounts(1)
}

// allVolumes is a create of machine b with volume v, a copy of volume r, and volume d in place of data disk "data".
func (w *fixture) allVolumes() machine.CreateRequest {
	w.t.Helper()
	w.addVolume("v")
	w.addVolume("r")
	snap, err := w.store.Get(base)
	w.must(err)
	_, err = w.mgr.CreateVolume(w.t.Context(), volume.Request{
		ID: "d", From: snap.DiskPaths()[1], Source: machine.DiskSource(base, "data"),
	}, "", "")
	w.must(err)
	req := withVolumes("b")
	req.Volumes = append(req.Volumes, hostapi.VolumeAttachment{Volume: "d", Disk: "data", Fence: 1})
	return req
}

// TestWarmMonitorWithVolumes checks that a warm monitor gets the disks of volumes, and disks that keep what was
// flushed, before its guest runs.
func TestWarmMonitorWithVolumes(t *testing.T) {
	w := newWarmFixture(t)
	req := w.allVolumes()
	mc, err := w.mgr.Create(t.Context(), req, base, "")
	w.must(err)
	if !usedWarm(mc) || len(mc.Volumes) != 3 {
		t.Fatalf("machine = %+v, want one of the warm monitor with three volumes", mc)
	}
	var m *monitor
	for _, one := range w.host.alive() {
		if one.PID() == mc.PID {
			m = one
		}
	}
	for n, d := range m.spec.Disks {
		if d.Volatile {
			t.Errorf("disk %d = %+v, want flushes that reach the disk", n, d)
		}
	}
	if got, want := m.spec.Disks[volumeDisk].Path, w.volumes.Path("v"); got != want {
		t.Errorf("disk of volume v is %s, want %s", got, want)
	}
	if got, want := m.spec.Disks[1].Path, w.volumes.Path("d"); got != want {
		t.Errorf("disk of volume d is %s, want %s", got, want)
	}
	w.countByPID("b", 1)
	for id, want := range map[hostapi.VolumeID]uint64{"v": 1, "r": 0, "d": 1} {
		w.wantCounter(id, want)
	}
	w.waitWarm(3)
	w.checkCounts(1)
	w.restart(nil)
	w.countByPID("b", 2)
	w.must(w.mgr.Hibernate(t.Context(), "b"))
	_, err = w.mgr.Wake(t.Context(), "b")
	w.must(err)
	w.countByPID("b", 3)
	w.wantCounter("d", 3)
	w.destroy("b")
	w.destroy("a")
	for _, id := range []hostapi.VolumeID{"v", "d"} {
		if v := w.volume(id); v.Machine != "" {
			t.Errorf("volume = %+v, want it detached", v)
		}
	}
}

func TestWarmMonitorThatEndedIsNotUsed(t *testing.T) {
	w := newWarmFixture(t)
	for _, m := range w.host.alive() {
		if mc, err := w.mgr.Get("a"); err == nil && m.PID() != mc.PID {
			m.exit(errors.New("killed"))
		}
	}
	if usedWarm(w.create("b", false)) {
		t.Error("a machine was made of a warm monitor that had ended")
	}
	w.countByPID("b", 1)
	w.waitWarm(3)
	w.checkCounts(1)
}

// TestWarmMonitorAfterKill checks that the next manager removes the warm monitor of one that was killed, and takes over
// the machine that was made of another.
func TestWarmMonitorAfterKill(t *testing.T) {
	w := newWarmFixture(t)
	w.create("b", false)
	w.countByPID("b", 1)
	w.waitWarm(3)
	w.onStep(func(op, step string) error {
		if op == "warm" && step == "discard" {
			return machine.ErrAbandon
		}
		return nil
	})
	w.restart(nil)
	w.countByPID("b", 2)
	w.checkCounts(0)
	w.destroy("a")
	w.destroy("b")
	w.checkCounts(0)
}

// TestCreateFromWarmMonitorAtEveryStep checks that a create that fails, or is killed, after any step leaves neither the
// machine nor the warm monitor that it took.
func TestCreateFromWarmMonitorAtEveryStep(t *testing.T) {
	w := newWarmFixture(t)
	req := w.allVolumes()
	var mu sync.Mutex
	var steps []string
	w.onStep(func(op, step string) error {
		mu.Lock()
		defer mu.Unlock()
		if op == "create" && !slices.Contains(steps, step) {
			steps = append(steps, step)
		}
		return nil
	})
	_, err := w.mgr.Create(t.Context(), req, base, "")
	w.must(err)
	w.onStep(nil)
	if len(steps) < 10 {
		t.Fatalf("steps of a create = %v, want at least 10", steps)
	}
	for _, killed := range []bool{false, true} {
		for _, at := range steps {
			t.Run(at, func(t *testing.T) {
				w := newWarmFixture(t)
				req := w.allVolumes()
				fault := errors.New("fault")
				if killed {
					fault = machine.ErrAbandon
				}
				w.onStep(func(op, step string) error {
					if op == "create" && step == at {
						return fault
					}
					return nil
				})
				_, err := w.mgr.Create(t.Context(), req, base, "")
				if !errors.Is(err, fault) {
					t.Fatalf("create: got %v, want the injected error", err)
				}
				w.onStep(nil)
				w.restart(nil)
				_, err = w.mgr.Get("b")
				exists := err == nil
				if exists && !(killed && at == "publish") {
					t.Error("the machine exists after a failed create")
				}
				for _, id := range []hostapi.VolumeID{"v", "d"} {
					if v := w.volume(id); (v.Machine != "") != exists {
						t.Errorf("volume = %+v, want it attached only if the machine exists", v)
					}
				}
				w.checkCounts(0)
				w.countByPID("a", 1)
			})
		}
	}
}
