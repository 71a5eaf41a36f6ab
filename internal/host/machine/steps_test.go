package machine_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
)

// operation is one that is failed, and killed, after each of its steps.
type operation struct {
	name string
	prep func(w *world)
	do   func(w *world) error
	// sound looks at what is left when it failed, or when the process was killed in it.
	sound func(w *world, killed bool)
	again bool // a failure leaves something; asking again goes on
}

var operations = []operation{
	{
		name: "create",
		prep: func(w *world) {},
		do: func(w *world) error {
			_, err := w.mgr.Create(w.t.Context(), hostapi.Create{ID: "b", Keep: true, Egress: few}, base, "")
			return err
		},
		sound: func(w *world, killed bool) { w.goneOr("b", killed, 1) },
	},
	{
		name: "boot",
		prep: func(w *world) {},
		do: func(w *world) error {
			dir := filepath.Join(w.dir, string(base))
			_, err := w.mgr.Boot(
				w.t.Context(),
				machine.Boot{ID: "b", Disk: filepath.Join(dir, "disk.img"), VCPUs: 1, MemoryMiB: 64,
					Data: []machine.BootDisk{
						{DataDisk: data[0], Path: filepath.Join(dir, "disk-data.img")},
						{DataDisk: data[1], Path: filepath.Join(dir, "disk-more.img")},
					}},
			)
			return err
		},
		sound: func(w *world, _ bool) { w.goneOr("b", false, 0) },
	},
	{
		name: "boot-on-ground",
		prep: func(w *world) { w.ground() },
		do: func(w *world) error {
			_, err := w.mgr.Boot(
				w.t.Context(),
				machine.Boot{
					ID:        "b",
					Disk:      filepath.Join(w.dir, string(base), "disk.img"),
					VCPUs:     1,
					MemoryMiB: 64,
					Ground:    ground,
				},
			)
			return err
		},
		sound: func(w *world, _ bool) { w.goneOr("b", false, 0) },
	},
	{
		name: "fork",
		prep: func(w *world) { w.create("a", true); w.tick("a", 1) },
		do: func(w *world) error {
			got, err := w.mgr.Fork(
				w.t.Context(),
				hostapi.Fork{Parent: "a", Children: []hostapi.Child{{ID: "b"}, {ID: "c"}, {ID: "d"}}},
			)
			for _, f := range got {
				err = errors.Join(err, f.Err)
			}
			return err
		},
		sound: func(w *world, killed bool) {
			w.tick("a", 2)
			for _, id := range []string{"b", "c", "d"} {
				w.goneOr(id, true, 2)
			}
		},
	},
	{
		name: "fork-of-booted",
		prep: func(w *world) {
			w.create("a", true)
			w.tick("a", 1)
			w.must(w.mgr.Hibernate(w.t.Context(), "a"))
			w.host.failNext("load", errors.New("lost"))
			_, _ = w.mgr.Wake(w.t.Context(), "a")
			_, err := w.mgr.Wake(w.t.Context(), "a")
			w.must(err)
		},
		do: func(w *world) error {
			got, err := w.mgr.Fork(
				w.t.Context(),
				hostapi.Fork{Parent: "a", Children: []hostapi.Child{{ID: "b"}, {ID: "c"}}},
			)
			for _, f := range got {
				err = errors.Join(err, f.Err)
			}
			return err
		},
		sound: func(w *world, killed bool) {
			w.tick("a", 2)
			w.goneOr("b", true, 2)
			w.goneOr("c", true, 2)
		},
	},
	{
		name: "snapshot",
		prep: func(w *world) { w.create("a", true); w.tick("a", 1) },
		do: func(w *world) error {
			_, err := w.mgr.TakeSnapshot(w.t.Context(), "a", "snapshots/s", nil, nil)
			return err
		},
		sound: func(w *world, killed bool) {
			w.tick("a", 2)
			snap, err := w.store.Get("snapshots/s")
			if err != nil {
				return
			}
			if !killed {
				w.t.Error("a snapshot is left of a failed operation")
			}
			_, err = w.mgr.Create(w.t.Context(), hostapi.Create{ID: "b"}, snap.Ref, "")
			w.must(err)
			w.tick("b", 2)
			w.destroy("b")
			w.must(w.store.Delete(snap.Ref))
		},
	},
	{
		name:  "pause",
		prep:  func(w *world) { w.create("a", true); w.tick("a", 1) },
		do:    func(w *world) error { return w.mgr.Pause(w.t.Context(), "a") },
		sound: func(w *world, _ bool) { w.tick("a", 2) },
	},
	{
		name:  "egress",
		prep:  func(w *world) { w.create("a", true); w.tick("a", 1) },
		do:    func(w *world) error { return w.mgr.SetEgress(w.t.Context(), "a", other) },
		sound: func(w *world, killed bool) { w.tick("a", 2); w.either("a", killed) },
	},
	{
		name: "egress-asleep",
		prep: asleep,
		do:   func(w *world) error { return w.mgr.SetEgress(w.t.Context(), "a", other) },
		sound: func(w *world, killed bool) {
			w.either("a", killed)
			_, err := w.mgr.Wake(w.t.Context(), "a")
			w.must(err)
			w.must(w.guarded("a"))
			w.tick("a", 2)
		},
	},
	{
		name: "hibernate",
		prep: func(w *world) { w.create("a", true); w.tick("a", 1) },
		do:   func(w *world) error { return w.mgr.Hibernate(w.t.Context(), "a") },
		sound: func(w *world, killed bool) {
			mc, err := w.mgr.Get("a")
			w.must(err)
			if mc.State == hostapi.Hibernated {
				_, err := w.mgr.Wake(w.t.Context(), "a")
				w.must(err)
			}
			w.tick("a", 2)
		},
	},
	{
		name:  "stop",
		prep:  func(w *world) { w.create("a", true); w.tick("a", 1) },
		do:    func(w *world) error { return w.mgr.Stop(w.t.Context(), "a") },
		sound: bootsOrRuns,
	},
	{
		name:  "stop-asleep",
		prep:  asleep,
		do:    func(w *world) error { return w.mgr.Stop(w.t.Context(), "a") },
		sound: bootsOrRuns,
	},
	{
		name: "wake",
		prep: asleep,
		do:   func(w *world) error { _, err := w.mgr.Wake(w.t.Context(), "a"); return err },
		sound: func(w *world, _ bool) {
			_, err := w.mgr.Wake(w.t.Context(), "a")
			w.must(err)
			w.tick("a", 2)
		},
	},
	{
		name: "wake-of-failed",
		prep: func(w *world) {
			asleep(w)
			w.host.failNext("load", errors.New("lost"))
			_, _ = w.mgr.Wake(w.t.Context(), "a")
			w.state("a", hostapi.Failed)
		},
		do: func(w *world) error { _, err := w.mgr.Wake(w.t.Context(), "a"); return err },
		sound: func(w *world, _ bool) {
			_, err := w.mgr.Wake(w.t.Context(), "a")
			w.must(err)
			w.tick("a", 2)
		},
	},
	{
		name:  "destroy",
		again: true,
		prep:  func(w *world) { w.create("a", true) },
		do:    func(w *world) error { return w.mgr.Destroy(w.t.Context(), "a", "test") },
		sound: func(w *world, killed bool) {
			if _, err := w.mgr.Get("a"); killed && err == nil {
				w.t.Error("a machine that was being destroyed is back")
			}
		},
	},
	{
		name:  "destroy-asleep",
		again: true,
		prep:  asleep,
		do:    func(w *world) error { return w.mgr.Destroy(w.t.Context(), "a", "test") },
		sound: func(w *world, killed bool) {
			if _, err := w.mgr.Get("a"); killed && err == nil {
				w.t.Error("a machine that was being destroyed is back")
			}
		},
	},
}

// other is a policy that tests change to.
var other = hostapi.Egress{Deny: []string{"b.example"}}

// either fails unless a machine has the policy it began with or, if it may, the other one.
func (w *world) either(id string, may bool) {
	w.t.Helper()
	mc, err := w.mgr.Get(hostapi.MachineID(id))
	w.must(err)
	if !mc.Egress.Equal(few) && !(may && mc.Egress.Equal(other)) {
		w.t.Errorf("machine %s has the policy %+v", id, mc.Egress)
	}
}

func asleep(w *world) {
	w.create("a", true)
	w.tick("a", 1)
	w.must(w.mgr.Hibernate(w.t.Context(), "a"))
}

// goneOr fails unless a machine is not there or, if it may, runs and counts on.
func (w *world) goneOr(id string, may bool, count uint64) {
	w.t.Helper()
	_, err := w.mgr.Get(hostapi.MachineID(id))
	if errors.Is(err, hostapi.ErrNotFound) {
		return
	}
	if !may {
		w.t.Errorf("machine %s is left", id)
	}
	w.tick(id, count)
}

// at answers a hook that answers err at the nth step, once, and a function that tells how many there were.
func at(nth int, err error) (hook func(op, step string) error, seen func() (int, string)) {
	var mu sync.Mutex
	count, where := 0, ""
	hook = func(op, step string) error {
		mu.Lock()
		defer mu.Unlock()
		if count++; count-1 != nth {
			return nil
		}
		where = op + "/" + step
		return err
	}
	return hook, func() (int, string) { mu.Lock(); defer mu.Unlock(); return count, where }
}

var errInjected = errors.New("injected")

// TestFailureAfterEveryStep lets every operation fail after each of its steps.
func TestFailureAfterEveryStep(t *testing.T) {
	for _, o := range append(streaming(), operations...) {
		t.Run(o.name, func(t *testing.T) {
			for nth := 0; ; nth++ {
				w := newWorld(t)
				o.prep(w)
				hook, seen := at(nth, errInjected)
				w.onStep(hook)
				err := o.do(w)
				w.onStep(nil)
				if total, _ := seen(); total <= nth {
					w.must(err)
					break
				}
				_, where := seen()
				if !errors.Is(err, errInjected) {
					t.Fatalf("after %s: error %v, want the injected one", where, err)
				}
				if !o.again {
					w.clean()
				}
				o.sound(w, false)
				w.finish(where)
			}
		})
	}
}

// TestKillAfterEveryStep kills the process after each step of every operation, and kills the recovery
// after each of its own steps, too.
func TestKillAfterEveryStep(t *testing.T) {
	for _, o := range append(streaming(), operations...) {
		t.Run(o.name, func(t *testing.T) {
			for nth := 0; ; nth++ {
				for again := -1; ; again++ {
					w := newWorld(t)
					o.prep(w)
					hook, seen := at(nth, machine.ErrAbandon)
					w.onStep(hook)
					err := o.do(w)
					total, where := seen()
					if total <= nth {
						w.must(err)
						w.stop()
						return
					}
					if !errors.Is(err, machine.ErrAbandon) {
						t.Fatalf("after %s: error %v, want ErrAbandon", where, err)
					}
					second, steps := at(again, machine.ErrAbandon)
					w.kill(second)
					w.onStep(nil)
					w.clean()
					o.sound(w, true)
					w.finish(fmt.Sprintf("%s and step %d of recovery", where, again))
					// Killing every recovery anew after every step takes a while; a third of them is spread
					// over all operations.
					if total, _ := steps(); total <= again+1 || nth%3 != 0 {
						break
					}
				}
			}
		})
	}
}

// finish destroys everything and fails if anything is left.
func (w *world) finish(where string) {
	w.t.Helper()
	for _, mc := range w.mgr.List() {
		w.destroy(string(mc.ID))
	}
	w.empty()
	w.stop()
	if w.t.Failed() {
		w.t.Fatalf("after %s", where)
	}
}

// bootsOrRuns: a machine that was to be stopped goes on where it was, in memory or on its disk.
func bootsOrRuns(w *world, _ bool) {
	mc, err := w.mgr.Get("a")
	w.must(err)
	if mc.State == hostapi.Hibernated {
		_, err := w.mgr.Wake(w.t.Context(), "a")
		w.must(err)
	}
	w.tick("a", 2)
}
