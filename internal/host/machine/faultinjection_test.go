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

// faultCase is an operation that tests fail, and abandon, after each of its steps.
type faultCase struct {
	name string
	prep func(w *fixture)
	do   func(w *fixture) error
	// check checks the state after the operation failed, or after the process was killed in it.
	check     func(w *fixture, killed bool)
	retryable bool // a failure leaves something; the next call continues
}

var faultCases = []faultCase{
	{
		name: "create",
		prep: func(w *fixture) {},
		do: func(w *fixture) error {
			_, err := w.mgr.Create(
				w.t.Context(),
				machine.CreateRequest{ID: "b", Persistent: true, Egress: baseEgress},
				base,
				"",
			)
			return err
		},
		check: func(w *fixture, killed bool) { w.wantRemovedOr("b", killed, 1) },
	},
	{
		name: "create-with-volumes",
		prep: func(w *fixture) { w.addVolume("v"); w.addVolume("r") },
		do: func(w *fixture) error {
			_, err := w.mgr.Create(w.t.Context(), withVolumes("b"), base, "")
			return err
		},
		check: func(w *fixture, killed bool) { w.wantRemovedOr("b", killed, 1) },
	},
	{
		name:      "attach",
		prep:      func(w *fixture) { w.create("a", true); w.addVolume("v") },
		do:        func(w *fixture) error { return w.attach("a", "v", false) },
		check:     func(w *fixture, _ bool) { w.wantSameDisks("a"); w.count("a", 1) },
		retryable: true,
	},
	{
		name:      "attach-read-only",
		prep:      func(w *fixture) { w.create("a", true); w.addVolume("v") },
		do:        func(w *fixture) error { return w.attach("a", "v", true) },
		check:     func(w *fixture, _ bool) { w.wantSameDisks("a"); w.count("a", 1) },
		retryable: true,
	},
	{
		name:  "detach",
		prep:  func(w *fixture) { w.createWithVolumes(); w.count("a", 1) },
		do:    func(w *fixture) error { return w.detach("a", "v", false) },
		check: func(w *fixture, _ bool) { w.wantSameDisks("a"); w.count("a", 2) },
		// A volume that is unmounted is taken from the machine, whatever fails.
		retryable: true,
	},
	{
		name: "detach-hibernated",
		prep: func(w *fixture) {
			w.createWithVolumes()
			w.count("a", 1)
			w.must(w.mgr.Hibernate(w.t.Context(), "a"))
		},
		do: func(w *fixture) error { return w.detach("a", "v", true) },
		check: func(w *fixture, _ bool) {
			_, err := w.mgr.Wake(w.t.Context(), "a")
			w.must(err)
			w.wantCounter("v", w.host.monitorOf("a").counterOf(w.volumes.Path("v")))
		},
		retryable: true,
	},
	{
		name: "fork-with-volumes",
		prep: func(w *fixture) { w.createWithVolumes(); w.count("a", 1) },
		do: func(w *fixture) error {
			got, err := w.mgr.Fork(w.t.Context(),
				machine.ForkRequest{Parent: "a", Children: []machine.ChildRequest{{ID: "b"}, {ID: "c"}}})
			for _, f := range got {
				err = errors.Join(err, f.Err)
			}
			return err
		},
		check: func(w *fixture, killed bool) {
			w.count("a", 2)
			w.wantCounter("v", 2)
			w.wantRemovedOr("b", true, 2)
			w.wantRemovedOr("c", true, 2)
		},
	},
	{
		name: "keep",
		prep: func(w *fixture) { w.forkWithDataVolume() },
		do:   func(w *fixture) error { return w.keep() },
		check: func(w *fixture, _ bool) {
			w.count("b", 2) // whose disk it is
			w.count("a", 2)
			w.wantCounter("d", 2)
		},
	},
	{
		name: "hibernate-with-volumes",
		prep: func(w *fixture) { w.createWithVolumes(); w.count("a", 1) },
		do:   func(w *fixture) error { return w.mgr.Hibernate(w.t.Context(), "a") },
		check: func(w *fixture, killed bool) {
			wakeAndCount(w, killed)
			w.wantCounter("v", 2)
		},
	},
	{
		name: "wake-with-volumes",
		prep: func(w *fixture) {
			w.createWithVolumes()
			w.count("a", 1)
			w.must(w.mgr.Hibernate(w.t.Context(), "a"))
		},
		do: func(w *fixture) error {
			_, err := w.mgr.Wake(w.t.Context(), "a")
			return err
		},
		check: func(w *fixture, killed bool) {
			wakeAndCount(w, killed)
			w.wantCounter("v", 2)
		},
	},
	{
		name:      "destroy-with-volumes",
		retryable: true,
		prep:      func(w *fixture) { w.createWithVolumes(); w.count("a", 1) },
		do:        func(w *fixture) error { return w.mgr.Destroy(w.t.Context(), "a", "test") },
		check:     func(w *fixture, _ bool) { w.wantCounter("v", 1) },
	},
	{
		name: "boot",
		prep: func(w *fixture) {},
		do: func(w *fixture) error {
			dir := filepath.Join(w.dir, string(base))
			_, err := w.mgr.Boot(
				w.t.Context(),
				machine.Boot{ID: "b", Disk: filepath.Join(dir, "disk.img"), VCPUs: 1, MemoryMiB: 64,
					Data: []machine.BootDisk{
						{DataDisk: dataDisks[0], Path: filepath.Join(dir, "disk-data.img")},
						{DataDisk: dataDisks[1], Path: filepath.Join(dir, "disk-more.img")},
					}},
			)
			return err
		},
		check: func(w *fixture, _ bool) { w.wantRemovedOr("b", false, 0) },
	},
	{
		name: "boot-from-premount",
		prep: func(w *fixture) { w.makePreMount() },
		do: func(w *fixture) error {
			_, err := w.mgr.Boot(
				w.t.Context(),
				machine.Boot{
					ID:        "b",
					Disk:      filepath.Join(w.dir, string(base), "disk.img"),
					VCPUs:     1,
					MemoryMiB: 64,
					From:      preMount,
				},
			)
			return err
		},
		check: func(w *fixture, _ bool) { w.wantRemovedOr("b", false, 0) },
	},
	{
		name: "fork",
		prep: func(w *fixture) { w.create("a", true); w.count("a", 1) },
		do: func(w *fixture) error {
			got, err := w.mgr.Fork(
				w.t.Context(),
				machine.ForkRequest{Parent: "a", Children: []machine.ChildRequest{{ID: "b"}, {ID: "c"}, {ID: "d"}}},
			)
			for _, f := range got {
				err = errors.Join(err, f.Err)
			}
			return err
		},
		check: func(w *fixture, killed bool) {
			w.count("a", 2)
			for _, id := range []string{"b", "c", "d"} {
				w.wantRemovedOr(id, true, 2)
			}
		},
	},
	{
		name: "fork-of-booted",
		prep: func(w *fixture) {
			w.create("a", true)
			w.count("a", 1)
			w.failMonitor("a")
			_, err := w.mgr.Wake(w.t.Context(), "a")
			w.must(err)
		},
		do: func(w *fixture) error {
			got, err := w.mgr.Fork(
				w.t.Context(),
				machine.ForkRequest{Parent: "a", Children: []machine.ChildRequest{{ID: "b"}, {ID: "c"}}},
			)
			for _, f := range got {
				err = errors.Join(err, f.Err)
			}
			return err
		},
		check: func(w *fixture, killed bool) {
			w.count("a", 2)
			w.wantRemovedOr("b", true, 2)
			w.wantRemovedOr("c", true, 2)
		},
	},
	{
		name: "snapshot",
		prep: func(w *fixture) { w.create("a", true); w.count("a", 1) },
		do: func(w *fixture) error {
			_, err := w.mgr.TakeSnapshot(w.t.Context(), "a", "snapshots/s", nil, nil)
			return err
		},
		check: func(w *fixture, killed bool) {
			w.count("a", 2)
			snap, err := w.store.Get("snapshots/s")
			if err != nil {
				return
			}
			if !killed {
				w.t.Error("a failed operation left a snapshot")
			}
			_, err = w.mgr.Create(w.t.Context(), machine.CreateRequest{ID: "b"}, snap.Ref, "")
			w.must(err)
			w.count("b", 2)
			w.destroy("b")
			w.must(w.store.Delete(snap.Ref))
		},
	},
	{
		name:  "pause",
		prep:  func(w *fixture) { w.create("a", true); w.count("a", 1) },
		do:    func(w *fixture) error { return w.mgr.Pause(w.t.Context(), "a") },
		check: func(w *fixture, _ bool) { w.count("a", 2) },
	},
	{
		name:  "egress",
		prep:  func(w *fixture) { w.create("a", true); w.count("a", 1) },
		do:    func(w *fixture) error { return w.mgr.SetEgress(w.t.Context(), "a", otherEgress) },
		check: func(w *fixture, killed bool) { w.count("a", 2); w.wantEgressOneOf("a", killed) },
	},
	{
		name: "egress-hibernated",
		prep: hibernated,
		do:   func(w *fixture) error { return w.mgr.SetEgress(w.t.Context(), "a", otherEgress) },
		check: func(w *fixture, killed bool) {
			w.wantEgressOneOf("a", killed)
			_, err := w.mgr.Wake(w.t.Context(), "a")
			w.must(err)
			w.must(w.checkEgressInForce("a"))
			w.count("a", 2)
		},
	},
	{
		name: "hibernate",
		prep: func(w *fixture) { w.create("a", true); w.setNote("a"); w.count("a", 1) },
		do:   func(w *fixture) error { return w.mgr.Hibernate(w.t.Context(), "a") },
		check: func(w *fixture, killed bool) {
			mc, err := w.mgr.Get("a")
			w.must(err)
			if mc.State == hostapi.Hibernated {
				_, err := w.mgr.Wake(w.t.Context(), "a")
				w.must(err)
			}
			w.wantNote("a")
			w.count("a", 2)
		},
	},
	{
		name:  "stop",
		prep:  func(w *fixture) { w.create("a", true); w.count("a", 1) },
		do:    func(w *fixture) error { return w.mgr.Stop(w.t.Context(), "a") },
		check: wakeAndCount,
	},
	{
		name: "stop-hibernated-after-failed-wake",
		prep: func(w *fixture) { hibernated(w); w.setBusy(); w.failWake("a") },
		do:   func(w *fixture) error { return w.mgr.Stop(w.t.Context(), "a") },
		check: func(w *fixture, _ bool) {
			if _, err := w.mgr.Wake(w.t.Context(), "a"); err != nil {
				w.t.Fatal(err)
			}
			w.count("a", 3) // the guest counted 1 before it was hibernated and 2 when it started
		},
	},
	{
		name:  "stop-hibernated",
		prep:  hibernated,
		do:    func(w *fixture) error { return w.mgr.Stop(w.t.Context(), "a") },
		check: wakeAndCount,
	},
	{
		name: "wake",
		prep: hibernated,
		do:   func(w *fixture) error { _, err := w.mgr.Wake(w.t.Context(), "a"); return err },
		check: func(w *fixture, _ bool) {
			_, err := w.mgr.Wake(w.t.Context(), "a")
			w.must(err)
			w.wantNote("a")
			w.count("a", 2)
		},
	},
	{
		name: "wake-of-busy",
		prep: func(w *fixture) { hibernated(w); w.setBusy() },
		do:   func(w *fixture) error { _, err := w.mgr.Wake(w.t.Context(), "a"); return err },
		check: func(w *fixture, _ bool) {
			_, err := w.mgr.Wake(w.t.Context(), "a")
			w.must(err)
			w.countOn("a", 2)
		},
	},
	{
		name: "wake-of-failed",
		prep: func(w *fixture) {
			w.create("a", true)
			w.count("a", 1)
			w.failMonitor("a")
		},
		do: func(w *fixture) error { _, err := w.mgr.Wake(w.t.Context(), "a"); return err },
		check: func(w *fixture, _ bool) {
			_, err := w.mgr.Wake(w.t.Context(), "a")
			w.must(err)
			w.count("a", 2)
		},
	},
	{
		name:      "destroy",
		retryable: true,
		prep:      func(w *fixture) { w.create("a", true) },
		do:        func(w *fixture) error { return w.mgr.Destroy(w.t.Context(), "a", "test") },
		check: func(w *fixture, killed bool) {
			if _, err := w.mgr.Get("a"); killed && err == nil {
				w.t.Error("a machine that was being destroyed exists again")
			}
		},
	},
	{
		name:      "destroy-hibernated",
		retryable: true,
		prep:      hibernated,
		do:        func(w *fixture) error { return w.mgr.Destroy(w.t.Context(), "a", "test") },
		check: func(w *fixture, killed bool) {
			if _, err := w.mgr.Get("a"); killed && err == nil {
				w.t.Error("a machine that was being destroyed exists again")
			}
		},
	},
}

// otherEgress is a policy that tests change to.
var otherEgress = hostapi.Egress{Deny: []string{"b.example"}}

// wantEgressOneOf fails unless a machine has baseEgress or, if it may, otherEgress.
func (w *fixture) wantEgressOneOf(id string, may bool) {
	w.t.Helper()
	mc, err := w.mgr.Get(hostapi.MachineID(id))
	w.must(err)
	if !mc.Egress.Equal(baseEgress) && !(may && mc.Egress.Equal(otherEgress)) {
		w.t.Errorf("egress policy of machine %s = %+v, want the first or, with %v, the other", id, mc.Egress, may)
	}
}

func hibernated(w *fixture) {
	w.create("a", true)
	w.setNote("a")
	w.count("a", 1)
	w.must(w.mgr.Hibernate(w.t.Context(), "a"))
}

// failMonitor ends the monitor of a persistent machine, which is failed then.
func (w *fixture) failMonitor(id string) {
	w.t.Helper()
	w.host.monitorOf(id).exit(errors.New("signal 11"))
	w.eventually("the exit is handled", func() bool {
		mc, err := w.mgr.Get(hostapi.MachineID(id))
		return err == nil && mc.State == hostapi.Failed
	})
}

// wantRemovedOr fails unless a machine does not exist or, if it may, runs with the given count.
func (w *fixture) wantRemovedOr(id string, may bool, count uint64) {
	w.t.Helper()
	_, err := w.mgr.Get(hostapi.MachineID(id))
	if errors.Is(err, hostapi.ErrNotFound) {
		return
	}
	if !may {
		w.t.Errorf("machine %s exists, want it removed", id)
	}
	w.count(id, count)
}

// failAt returns a hook that returns err at the nth step, and a function that returns how many steps there were and
// which one that was.
func failAt(nth int, err error) (hook func(op, step string) error, seen func() (int, string)) {
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

// TestFailureAfterEveryStep fails every operation after each of its steps.
func TestFailureAfterEveryStep(t *testing.T) {
	for _, o := range append(lazyFaultCases(), faultCases...) {
		t.Run(o.name, func(t *testing.T) {
			for nth := 0; ; nth++ {
				w := newFixture(t)
				o.prep(w)
				hook, seen := failAt(nth, errInjected)
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
				if !o.retryable {
					w.checkNoLeftovers()
				}
				o.check(w, false)
				w.destroyAll(where)
			}
		})
	}
}

// TestKillAfterEveryStep kills the process after each step of every operation, and kills the recovery
// after each of its own steps, too.
func TestKillAfterEveryStep(t *testing.T) {
	for _, o := range append(lazyFaultCases(), faultCases...) {
		t.Run(o.name, func(t *testing.T) {
			for nth := 0; ; nth++ {
				for again := -1; ; again++ {
					w := newFixture(t)
					o.prep(w)
					hook, seen := failAt(nth, machine.ErrAbandon)
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
					second, steps := failAt(again, machine.ErrAbandon)
					w.restart(second)
					w.onStep(nil)
					w.checkNoLeftovers()
					o.check(w, true)
					w.destroyAll(fmt.Sprintf("%s and step %d of recovery", where, again))
					// Killing every recovery after every one of its steps takes too long; this kills a third of them.
					if total, _ := steps(); total <= again+1 || nth%3 != 0 {
						break
					}
				}
			}
		})
	}
}

// destroyAll destroys everything and fails if anything is left.
func (w *fixture) destroyAll(where string) {
	w.t.Helper()
	for _, mc := range w.mgr.List() {
		w.destroy(string(mc.ID))
	}
	w.checkEmpty()
	w.stop()
	if w.t.Failed() {
		w.t.Fatalf("after %s", where)
	}
}

// wakeAndCount checks that a machine that was to be stopped continues with its memory or with its disk.
func wakeAndCount(w *fixture, _ bool) {
	mc, err := w.mgr.Get("a")
	w.must(err)
	if mc.State == hostapi.Hibernated {
		_, err := w.mgr.Wake(w.t.Context(), "a")
		w.must(err)
	}
	w.count("a", 2)
}

// TestFaultCasesCoverEveryStep checks that the operations that are failed and killed after each of their steps have,
// together, all steps of all starts.
func TestFaultCasesCoverEveryStep(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]bool{}
	note := func(_, step string) error {
		mu.Lock()
		defer mu.Unlock()
		seen[step] = true
		return nil
	}
	for _, c := range append(lazyFaultCases(), faultCases...) {
		w := newFixture(t)
		c.prep(w)
		w.onStep(note)
		w.must(c.do(w))
		w.stop()
	}
	w := newWarmFixture(t)
	w.onStep(note) // TestCreateFromWarmMonitorAtEveryStep fails this one
	w.create("b", false)
	mu.Lock() // the next warm monitor is started in the background
	defer mu.Unlock()
	for _, step := range machine.StartSteps() {
		if !seen[step] {
			t.Errorf("no fault case has step %s", step)
		}
	}
}
