package machine_test

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
)

// note is what tests leave in the memory of a guest; a cold boot forgets it.
const note = "remember"

func (w *fixture) setNote(id string) {
	m := w.host.monitorOf(id)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mem.Note = note
}

// wantNote fails if a machine has lost its memory since setNote.
func (w *fixture) wantNote(id string) {
	w.t.Helper()
	m := w.host.monitorOf(id)
	if m == nil {
		w.t.Fatalf("machine %s has no monitor", id)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mem.Note != note {
		w.t.Errorf("machine %s has lost its memory", id)
	}
}

// setBusy makes guests count, in memory and on disk, as soon as they are thawed.
func (w *fixture) setBusy() {
	w.host.mu.Lock()
	defer w.host.mu.Unlock()
	w.host.busy = true
}

// countOn is count for a busy machine: the counter is at least least, and memory and disk agree.
func (w *fixture) countOn(id string, least uint64) uint64 {
	w.t.Helper()
	w.wantNote(id)
	got, err := w.host.monitorOf(id).count()
	if err != nil || got < least {
		w.t.Fatalf("machine %s counts %d, %v; want at least %d", id, got, err, least)
	}
	return got
}

// failWake lets a wake fail after the guest has run.
func (w *fixture) failWake(id hostapi.MachineID) {
	w.t.Helper()
	w.onStep(func(_, step string) error {
		if step == "confirm" {
			return errInjected
		}
		return nil
	})
	if _, err := w.mgr.Wake(w.t.Context(), id); !errors.Is(err, errInjected) {
		w.t.Fatalf("Wake() = %v, want the injected error", err)
	}
	w.onStep(nil)
	w.wantState(string(id), hostapi.Hibernated)
}

// TestRandomKills kills the process at random steps of hibernations, wakes and recoveries, many times in a row, while
// the guest writes whenever it can. It must lose neither memory nor disk, and nothing that it wrote before the last
// operation that succeeded.
func TestRandomKills(t *testing.T) {
	const kills = 200
	for _, persistent := range []bool{true, false} {
		w := newFixture(t)
		w.create("a", persistent)
		w.setNote("a")
		w.setBusy()
		rng := rand.New(rand.NewPCG(1, 2))
		least := w.countOn("a", 1)
		for done := 0; done < kills; {
			hook, seen := failAt(rng.IntN(16), machine.ErrAbandon)
			w.onStep(hook)
			mc, err := w.mgr.Get("a")
			w.must(err)
			if mc.State == hostapi.Running {
				err = w.mgr.Hibernate(t.Context(), "a")
			} else {
				_, err = w.mgr.Wake(t.Context(), "a")
			}
			if _, where := seen(); where == "" {
				w.onStep(nil)
				w.must(err)
				continue
			}
			done++
			again, _ := failAt(rng.IntN(8), machine.ErrAbandon)
			w.restart(again)
			w.onStep(nil)
			w.checkNoLeftovers()
			if mc, err = w.mgr.Get("a"); err != nil || mc.State == hostapi.Failed {
				_, where := seen()
				t.Fatalf("after a kill at %s: machine %+v, %v", where, mc, err)
			}
			if mc.State == hostapi.Hibernated {
				_, err = w.mgr.Wake(t.Context(), "a")
				w.must(err)
			}
			least = w.countOn("a", least+1)
		}
		w.destroyAll("random kills")
	}
}

func TestWakeOfSilentGuestIsUndone(t *testing.T) {
	w := newFixture(t)
	hibernated(w)
	w.setBusy()
	hook := func(_, step string) error {
		if step == "consume" {
			return machine.ErrAbandon
		}
		return nil
	}
	w.onStep(hook)
	if _, err := w.mgr.Wake(t.Context(), "a"); !errors.Is(err, machine.ErrAbandon) {
		t.Fatalf("Wake() = %v, want ErrAbandon", err)
	}
	w.host.failNext("dial", errors.New("the guest is silent"))
	w.restart(nil)
	w.wantState("a", hostapi.Hibernated)
	w.checkNoLeftovers()
	_, err := w.mgr.Wake(t.Context(), "a")
	w.must(err)
	w.countOn("a", 3)
	w.destroyAll("the wake")
}

// TestMissingImage checks that a machine whose hibernation image does not exist is failed, and boots only when it is
// woken after that was said.
func TestMissingImage(t *testing.T) {
	for _, when := range []string{"before the start", "while the process runs"} {
		w := newFixture(t)
		hibernated(w)
		image := filepath.Join(w.dir, "snapshots", "a-g1")
		if when == "before the start" {
			w.stop()
			w.must(os.RemoveAll(image))
			w.boot()
		} else {
			w.must(w.store.Release("snapshots/a-g1"))
			if mc, err := w.mgr.Wake(t.Context(), "a"); !errors.Is(err, hostapi.ErrWrongState) {
				t.Errorf("image removed %s: Wake() = %+v, %v, want ErrWrongState", when, mc, err)
			}
		}
		mc, err := w.mgr.Get("a")
		if err != nil || mc.State != hostapi.Failed || !strings.Contains(mc.Reason, "image that it hibernated in") {
			t.Errorf("image removed %s: the machine is %s (%q), %v; want it failed", when, mc.State, mc.Reason, err)
		}
		w.restart(nil)
		w.wantState("a", hostapi.Failed)
		mc, err = w.mgr.Wake(t.Context(), "a")
		if err != nil || mc.BootMode != hostapi.BootCold {
			t.Errorf("second wake: boot mode %q, %v, want a cold boot", mc.BootMode, err)
		}
		w.count("a", 2)
		w.destroyAll(when)
	}
}

// TestImageOfAnEarlierRelease wakes a machine whose image has no disks, with a failure on the way.
func TestImageOfAnEarlierRelease(t *testing.T) {
	w := newFixture(t)
	hibernated(w)
	w.stop()
	dir := filepath.Join(w.dir, "snapshots", "a-g1")
	disks, err := filepath.Glob(filepath.Join(dir, "disk*.img"))
	w.must(err)
	if len(disks) != 3 {
		t.Fatalf("disks of the image = %v, want three", disks)
	}
	for _, path := range disks {
		w.must(os.Remove(path))
	}
	path := filepath.Join(dir, "snapshot.json")
	data, err := os.ReadFile(path)
	w.must(err)
	var description map[string]any
	w.must(json.Unmarshal(data, &description))
	description["disk"] = false
	data, err = json.Marshal(description)
	w.must(err)
	w.must(os.WriteFile(path, data, 0o600))
	w.boot()
	w.wantState("a", hostapi.Hibernated)
	w.setBusy()
	w.failWake("a")
	w.restart(nil)
	_, err = w.mgr.Wake(t.Context(), "a")
	w.must(err)
	w.countOn("a", 3)
	w.destroyAll("the wake")
}

// TestDisksOfUsedImageAreRemoved checks that a woken machine does not keep the disks of its hibernation, in this
// process and in the next.
func TestDisksOfUsedImageAreRemoved(t *testing.T) {
	w := newFixture(t)
	hibernated(w)
	gone := func() bool {
		disks, err := filepath.Glob(filepath.Join(w.dir, "snapshots", "a-g*", "disk*.img"))
		return err == nil && len(disks) == 0
	}
	if gone() {
		t.Fatal("the image of a hibernated machine has no disks")
	}
	w.onStep(func(_, step string) error {
		if step == "publish" {
			return machine.ErrAbandon
		}
		return nil
	})
	_, _ = w.mgr.Wake(t.Context(), "a")
	w.restart(nil)
	w.wantState("a", hostapi.Running)
	if !gone() {
		t.Error("the disks of the image are left after a kill")
	}
	w.must(w.mgr.Hibernate(t.Context(), "a"))
	_, err := w.mgr.Wake(t.Context(), "a")
	w.must(err)
	w.eventually("the disks of the image are removed", gone)
}
