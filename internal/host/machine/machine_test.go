package machine_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
)

func TestLifeOfAMachine(t *testing.T) {
	w := newFixture(t)
	mc := w.create("a", false)
	if mc.State != hostapi.Running || mc.BootMode != hostapi.BootSnapshot || mc.Boot <= 0 || mc.GuestIP == "" ||
		mc.Template != "base" || mc.PID == 0 || len(mc.Phases) == 0 || mc.Generation != 1 {
		t.Errorf("machine %+v", mc)
	}
	w.count("a", 1)
	w.must(w.mgr.Pause(t.Context(), "a"))
	w.must(w.mgr.Pause(t.Context(), "a"))
	w.wantState("a", hostapi.Paused)
	if _, err := w.mgr.Guest(t.Context(), "a"); !errors.Is(err, hostapi.ErrWrongState) {
		t.Errorf("guest of a paused machine: %v, want ErrWrongState", err)
	}
	w.must(w.mgr.Resume(t.Context(), "a"))
	w.must(w.mgr.Resume(t.Context(), "a"))
	w.count("a", 2)
	if _, err := w.mgr.Guest(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if u, err := w.mgr.Usage(t.Context(), "a"); err != nil || u.CPU == 0 || u.CPUPercent <= 0 {
		t.Errorf("usage %+v, %v", u, err)
	}
	if out, err := w.mgr.Console(t.Context(), "a"); err != nil || len(out) != 0 {
		t.Errorf("console %q, %v", out, err)
	}
	w.checkNoLeftovers()
	w.destroy("a")
	w.destroy("a")
	w.checkEmpty()
}

func TestIdentityOfRestoredGuests(t *testing.T) {
	w := newFixture(t)
	before := time.Now()
	w.create("a", false)
	w.create("b", false)
	a, b := w.host.monitorOf("a").mem.Who, w.host.monitorOf("b").mem.Who
	if len(a.Entropy) != 64 || bytes.Equal(a.Entropy, b.Entropy) {
		t.Error("entropy is not fresh for each")
	}
	if a.MachineID != "a" || a.Hostname != "a" || a.Time.Before(before) || a.Network == nil || a.DiskGrow {
		t.Errorf("identity %+v", a)
	}
	w.must(w.mgr.Hibernate(t.Context(), "a"))
	if _, err := w.mgr.Wake(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	again := w.host.monitorOf("a").mem.Who
	if again.Generation != a.Generation+1 || bytes.Equal(again.Entropy, a.Entropy) || !again.Time.After(a.Time) {
		t.Errorf("identity after waking %+v", again)
	}
}

func TestRefusals(t *testing.T) {
	w := newFixture(t)
	w.create("a", false)
	create := func(req hostapi.Create, from snapshot.Ref) error {
		_, err := w.mgr.Create(t.Context(), req, from, "")
		return err
	}
	fork := func(parent string, ids ...string) error {
		req := hostapi.Fork{Parent: hostapi.MachineID(parent)}
		for _, id := range ids {
			req.Children = append(req.Children, hostapi.Child{ID: hostapi.MachineID(id)})
		}
		_, err := w.mgr.Fork(t.Context(), req)
		return err
	}
	_, wake := w.mgr.Wake(t.Context(), "none")
	_, take := w.mgr.TakeSnapshot(t.Context(), "none", "snapshots/x", nil, nil)
	_, name := w.mgr.TakeSnapshot(t.Context(), "a", "snapshots/../x", nil, nil)
	for what, tc := range map[string]struct{ got, want error }{
		"taken":         {create(hostapi.Create{ID: "a"}, base), hostapi.ErrExists},
		"bad-id":        {create(hostapi.Create{ID: "../b"}, base), hostapi.ErrInvalid},
		"no-id":         {create(hostapi.Create{}, base), hostapi.ErrInvalid},
		"no-snapshot":   {create(hostapi.Create{ID: "b"}, "snapshots/none"), hostapi.ErrNotFound},
		"smaller-disk":  {create(hostapi.Create{ID: "b", DiskMiB: -1}, base), hostapi.ErrInvalid},
		"fork-none":     {fork("none", "b"), hostapi.ErrNotFound},
		"fork-to-none":  {fork("a"), hostapi.ErrInvalid},
		"fork-to-self":  {fork("a", "a"), hostapi.ErrExists},
		"pause-none":    {w.mgr.Pause(t.Context(), "none"), hostapi.ErrNotFound},
		"wake-none":     {wake, hostapi.ErrNotFound},
		"snapshot-none": {take, hostapi.ErrNotFound},
		"snapshot-name": {name, hostapi.ErrInvalid},
	} {
		if !errors.Is(tc.got, tc.want) {
			t.Errorf("%s: %v, want %v", what, tc.got, tc.want)
		}
	}
	w.must(w.mgr.Hibernate(t.Context(), "a"))
	if err := fork("a", "b"); !errors.Is(err, hostapi.ErrWrongState) {
		t.Errorf("fork of a hibernated machine: %v", err)
	}
	if err := w.mgr.Pause(t.Context(), "a"); !errors.Is(err, hostapi.ErrWrongState) {
		t.Errorf("pause of a hibernated machine: %v", err)
	}
	w.checkNoLeftovers()
	w.destroy("a")
	w.checkEmpty()
}

func TestForkTree(t *testing.T) {
	for _, state := range []hostapi.State{hostapi.Running, hostapi.Paused} {
		t.Run(string(state), func(t *testing.T) {
			w := newFixture(t)
			w.create("a", false)
			w.count("a", 1)
			if state == hostapi.Paused {
				w.must(w.mgr.Pause(t.Context(), "a"))
			}
			req := hostapi.Fork{Parent: "a"}
			for i := range 16 {
				req.Children = append(req.Children, hostapi.Child{ID: hostapi.MachineID(fmt.Sprintf("k%d", i))})
			}
			req.Children = append(req.Children, hostapi.Child{ID: "a"}) // one cannot be
			got, err := w.mgr.Fork(t.Context(), req)
			w.must(err)
			w.wantState("a", state)
			for i, f := range got[:16] {
				if f.Err != nil || f.Machine.Parent != "a" || f.Machine.BootMode != hostapi.BootFork {
					t.Errorf("child %d: %+v, %v", i, f.Machine, f.Err)
				}
				w.count(string(f.Machine.ID), 2)
			}
			if !errors.Is(got[16].Err, hostapi.ErrExists) {
				t.Errorf("child with its parent's id: %v", got[16].Err)
			}
			w.must(w.mgr.Resume(t.Context(), "a"))
			w.count("a", 2)
			w.checkNoLeftovers()
			w.destroy("a")
			for i := range 16 {
				w.count(fmt.Sprintf("k%d", i), 3)
				w.destroy(fmt.Sprintf("k%d", i))
			}
			w.checkEmpty()
		})
	}
}

// TestParentGoesOn fails every part of a fork that the parent takes part in.
func TestParentGoesOn(t *testing.T) {
	for _, op := range []string{"freeze", "pause", "capture", "thaw", "load", "prepare", "link"} {
		t.Run(op, func(t *testing.T) {
			w := newFixture(t)
			w.create("a", false)
			w.count("a", 1)
			w.host.failNext(op, errors.New("not today"))
			got, err := w.mgr.Fork(t.Context(), hostapi.Fork{Parent: "a", Children: []hostapi.Child{{ID: "b"}}})
			if healed := op == "thaw"; healed != (err == nil && got[0].Err == nil) {
				t.Errorf("fork: %+v, %v", got, err)
			}
			w.count("a", 2)
			w.checkNoLeftovers()
			if _, err := w.mgr.Fork(t.Context(), hostapi.Fork{Parent: "a", Children: []hostapi.Child{{ID: "c"}}}); err != nil {
				t.Error(err)
			}
			w.count("a", 3)
			w.count("c", 3)
		})
	}
}

func TestChainOfForksAndSleeps(t *testing.T) {
	w := newFixture(t)
	w.create("m0", false)
	count := uint64(0)
	for i := range 8 {
		id, next := fmt.Sprintf("m%d", i), fmt.Sprintf("m%d", i+1)
		count++
		w.count(id, count)
		if i%2 == 0 { // what woke runs on the image that it slept in, and its children with it
			w.must(w.mgr.Hibernate(t.Context(), hostapi.MachineID(id)))
			_, err := w.mgr.Wake(t.Context(), hostapi.MachineID(id))
			w.must(err)
		}
		_, err := w.mgr.Fork(
			t.Context(),
			hostapi.Fork{Parent: hostapi.MachineID(id), Children: []hostapi.Child{{ID: hostapi.MachineID(next)}}},
		)
		w.must(err)
		w.destroy(id)
	}
	w.count("m8", count+1)
	w.restart(nil)
	w.count("m8", count+2)
	w.destroy("m8")
	w.checkEmpty()
}

func TestSnapshotOutlivesItsMachineAndItsName(t *testing.T) {
	w := newFixture(t)
	w.create("a", false)
	w.count("a", 1)
	snap, err := w.mgr.TakeSnapshot(t.Context(), "a", "snapshots/s", nil, nil)
	w.must(err)
	if _, err := w.mgr.TakeSnapshot(t.Context(), "a", "snapshots/s", nil, nil); !errors.Is(err, hostapi.ErrExists) {
		t.Errorf("second snapshot of one name: %v", err)
	}
	w.count("a", 2)
	w.destroy("a")
	_, err = w.mgr.Create(t.Context(), hostapi.Create{ID: "b", Snapshot: "s"}, snap.Ref, "")
	w.must(err)
	w.must(w.store.Delete(snap.Ref))
	w.restart(nil)
	_, err = w.mgr.Fork(t.Context(), hostapi.Fork{Parent: "b", Children: []hostapi.Child{{ID: "c"}}})
	w.must(err)
	w.count("b", 2)
	w.count("c", 2)
	w.destroy("b")
	w.count("c", 3)
	w.destroy("c")
	w.checkEmpty()
}

func TestTenSleeps(t *testing.T) {
	w := newFixture(t)
	w.create("a", true)
	for i := range uint64(10) {
		w.count("a", i+1)
		w.must(w.mgr.Hibernate(t.Context(), "a"))
		w.must(w.mgr.Hibernate(t.Context(), "a"))
		w.checkNoLeftovers()
		if i%3 == 0 {
			w.restart(nil)
		}
		w.wantState("a", hostapi.Hibernated)
		mc, err := w.mgr.Wake(t.Context(), "a")
		w.must(err)
		if mc.Generation != i+2 || mc.BootMode != hostapi.BootWake {
			t.Errorf("woken machine %+v", mc)
		}
		if got := names(t, filepath.Join(w.dir, "snapshots")); len(got) != 1 {
			t.Errorf("images %v, want the one it runs on", got)
		}
	}
	w.count("a", 11)
	w.destroy("a")
	w.checkEmpty()
}

// TestSleepIsUsedOnce is about the worst a host can do: restore old memory over a newer disk.
func TestSleepIsUsedOnce(t *testing.T) {
	w := newFixture(t)
	w.create("a", true)
	w.count("a", 1)
	w.must(w.mgr.Hibernate(t.Context(), "a"))
	_, err := w.mgr.Wake(t.Context(), "a")
	w.must(err)
	w.count("a", 2)
	w.host.monitorOf("a").exit(errors.New("power"))
	w.eventually(
		"the death is seen",
		func() bool { mc, err := w.mgr.Get("a"); return err == nil && mc.State == hostapi.Failed },
	)
	w.restart(nil)
	w.wantState("a", hostapi.Failed)
	mc, err := w.mgr.Wake(t.Context(), "a")
	w.must(err)
	if mc.BootMode != hostapi.BootCold {
		t.Errorf("boot mode %q, want cold", mc.BootMode)
	}
	w.count("a", 3)
	// What booted cold runs on no image; it can be forked and put to sleep all the same.
	_, err = w.mgr.Fork(t.Context(), hostapi.Fork{Parent: "a", Children: []hostapi.Child{{ID: "b"}, {ID: "c"}}})
	w.must(err)
	w.count("b", 4)
	w.count("c", 4)
	w.checkNoLeftovers()
	w.must(w.mgr.Hibernate(t.Context(), "a"))
	w.destroy("b")
	w.destroy("c")
	w.destroy("a")
	w.checkEmpty()
}

func TestTwoWakesMakeOneMachine(t *testing.T) {
	w := newFixture(t)
	w.create("a", true)
	w.must(w.mgr.Hibernate(t.Context(), "a"))
	before := w.host.loads
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if mc, err := w.mgr.Wake(t.Context(), "a"); err != nil || mc.State != hostapi.Running {
				t.Errorf("wake: %+v, %v", mc, err)
			}
		})
	}
	wg.Wait()
	if got := w.host.loads - before; got != 1 {
		t.Errorf("%d machines came to life, want 1", got)
	}
	w.count("a", 1)
	w.checkNoLeftovers()
}

func TestFailedWakeCanBeTriedAgain(t *testing.T) {
	w := newFixture(t)
	w.create("a", false)
	w.count("a", 1)
	w.must(w.mgr.Hibernate(t.Context(), "a"))
	w.host.failNext("prepare", errors.New("no monitor today"))
	if _, err := w.mgr.Wake(t.Context(), "a"); err == nil {
		t.Fatal("no error")
	}
	w.checkNoLeftovers()
	w.wantState("a", hostapi.Hibernated)
	_, err := w.mgr.Wake(t.Context(), "a")
	w.must(err)
	w.count("a", 2)

	w.must(w.mgr.Hibernate(t.Context(), "a"))
	w.host.failNext("load", errors.New("lost on the way"))
	if _, err := w.mgr.Wake(t.Context(), "a"); err == nil {
		t.Fatal("no error")
	}
	w.checkNoLeftovers()
	w.wantState("a", hostapi.Failed)
	_, err = w.mgr.Wake(t.Context(), "a")
	w.must(err)
	w.count("a", 3)
	w.destroy("a")
	w.checkEmpty()
}

func TestDeath(t *testing.T) {
	w := newFixture(t)
	w.create("kept", true)
	w.create("other", false)
	w.create("full", true)
	w.host.monitorOf("kept").exit(errors.New("signal 11"))
	w.host.monitorOf("other").exit(errors.New("signal 11"))
	w.eventually("the deaths are seen", func() bool {
		_, err := w.mgr.Get("other")
		mc, _ := w.mgr.Get("kept")
		return errors.Is(err, hostapi.ErrNotFound) && mc.State == hostapi.Failed && mc.Reason == "signal 11"
	})
	w.cgroups.mu.Lock()
	w.cgroups.oom = true
	w.cgroups.mu.Unlock()
	w.host.monitorOf("full").exit(errors.New("signal 9"))
	w.eventually("the reason is seen", func() bool {
		mc, _ := w.mgr.Get("full")
		return mc.State == hostapi.Failed && mc.Reason == "out of memory: the monitor reached its limit on the host"
	})
	w.eventually("the events are told", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.events) == 3 && w.events[0].Type == "died"
	})
	w.eventually("all is given back", func() bool { return len(names(t, filepath.Join(w.dir, "machines"))) == 2 })
	w.destroy("kept")
	w.destroy("full")
	w.checkEmpty()
}

func TestUnconfirmedGuestIsDestroyed(t *testing.T) {
	w := newFixture(t)
	w.host.unresponsive = true
	ctx, cancel := deadline(t, 50*time.Millisecond)
	defer cancel()
	if _, err := w.mgr.Create(ctx, hostapi.Create{ID: "a"}, base, ""); !errors.Is(err, errTooLate) {
		t.Errorf("create: %v, want errTooLate", err)
	}
	w.host.unresponsive = false
	w.checkEmpty()
}

func TestFullDiskLeavesNothing(t *testing.T) {
	w := newFixture(t)
	w.create("a", true)
	w.count("a", 1)
	for name, do := range map[string]func() error{
		"snapshot":  func() error { _, err := w.mgr.TakeSnapshot(t.Context(), "a", "snapshots/s", nil, nil); return err },
		"hibernate": func() error { return w.mgr.Hibernate(t.Context(), "a") },
	} {
		w.host.failNext("save", fmt.Errorf("write: %w", syscall.ENOSPC))
		if err := do(); !errors.Is(err, hostapi.ErrNoSpace) {
			t.Errorf("%s with a disk that fills up: %v, want ErrNoSpace", name, err)
		}
		w.checkNoLeftovers()
		w.wantState("a", hostapi.Running)
		w.free = 64 << 20
		if err := do(); !errors.Is(err, hostapi.ErrNoSpace) {
			t.Errorf("%s with a full disk: %v, want ErrNoSpace", name, err)
		}
		w.free = 1 << 40
	}
	w.count("a", 2)
	w.free = 64 << 20
	if _, err := w.mgr.Create(t.Context(), hostapi.Create{ID: "b"}, base, ""); !errors.Is(err, hostapi.ErrNoSpace) {
		t.Errorf("create with a full disk: %v, want ErrNoSpace", err)
	}
	w.destroy("a")
	w.checkEmpty()
}

// What can be had again makes room for a machine, and no more of it goes than that needs.
func TestSpaceIsGivenBack(t *testing.T) {
	w := newFixture(t)
	w.create("a", true)
	w.free = 64 << 20
	w.reclaimable = 1 << 30
	w.create("b", true)
	if want := int64(1<<30 - (256-64)<<20); w.reclaimable != want {
		t.Errorf("%d MiB are left of what could go, want %d", w.reclaimable>>20, want>>20)
	}
	w.free, w.reclaimable = 64<<20, 1
	if _, err := w.mgr.Create(t.Context(), hostapi.Create{ID: "c"}, base, ""); !errors.Is(err, hostapi.ErrNoSpace) {
		t.Errorf("create where too little can go: %v, want ErrNoSpace", err)
	}
	w.destroy("a")
	w.destroy("b")
	w.checkEmpty()
}

func TestDamagedSnapshotIsRefused(t *testing.T) {
	w := newFixture(t)
	snap, err := w.store.Get(base)
	w.must(err)
	w.must(os.Truncate(filepath.Join(snap.Image().Dir, "memory"), 1))
	var damaged *snapshot.DamagedError
	if _, err := w.mgr.Create(t.Context(), hostapi.Create{ID: "a"}, base, ""); !errors.As(err, &damaged) {
		t.Errorf("create: %v, want a DamagedError", err)
	}
	w.checkEmpty()
}

func TestRemnants(t *testing.T) {
	w := newFixture(t)
	w.create("a", true)
	w.stop()
	machines := filepath.Join(w.dir, "machines")
	for name, intent := range map[string]string{
		"empty": "", "older": `{"version":0}`, "newer": `{"version":1,"id":"newer","unknown":true}`, "mixed": `{"version":1,"id":"a"}`,
	} {
		w.must(os.MkdirAll(filepath.Join(machines, name), 0o711))
		w.must(os.WriteFile(filepath.Join(machines, name, "machine.json"), []byte(intent), 0o600))
		w.must(os.WriteFile(filepath.Join(machines, name, "disk.img"), nil, 0o600))
	}
	w.must(os.MkdirAll(filepath.Join(machines, "none", "vm"), 0o711))
	w.boot()
	if got, want := names(t, machines), []string{"a", "mixed", "newer", "older"}; !slices.Equal(got, want) {
		t.Errorf("directories %v, want %v: what is not understood is left alone, what never was is removed", got, want)
	}
	if list := w.mgr.List(); len(list) != 1 {
		t.Errorf("machines %v, want one", list)
	}
	if _, err := w.mgr.Create(t.Context(), hostapi.Create{ID: "older"}, base, ""); !errors.Is(err, hostapi.ErrExists) {
		t.Errorf("create over what was left alone: %v, want ErrExists", err)
	}
	if _, err := os.Stat(filepath.Join(machines, "older", "disk.img")); err != nil {
		t.Error(err)
	}
	w.count("a", 1)
}

func TestMachineThatCannotBeTakenOver(t *testing.T) {
	w := newFixture(t)
	w.create("a", true)
	w.create("b", false)
	w.count("a", 1)
	w.stop()
	w.host.adoptErr = errors.New("it talks nonsense")
	w.boot()
	w.host.adoptErr = nil
	w.wantState("a", hostapi.Failed)
	if _, err := w.mgr.Get("b"); !errors.Is(err, hostapi.ErrNotFound) {
		t.Errorf("machine b: %v, want ErrNotFound", err)
	}
	w.checkNoLeftovers()
	_, err := w.mgr.Wake(t.Context(), "a")
	w.must(err)
	w.count("a", 2)
	w.destroy("a")
	w.checkEmpty()
}

func TestDestroyConverges(t *testing.T) {
	w := newFixture(t)
	w.create("a", true)
	w.host.failNext("kill", errors.New("it will not die"))
	if err := w.mgr.Destroy(t.Context(), "a", "test"); err == nil {
		t.Fatal("no error")
	}
	w.destroy("a")
	w.checkEmpty()
}

func TestThreeHundredMachines(t *testing.T) {
	w := newFixture(t)
	for i := range 300 {
		id := fmt.Sprintf("m%d", i)
		w.create(id, i%10 == 0)
		w.destroy(id)
	}
	w.checkEmpty()
}

func TestManyAtOnce(t *testing.T) {
	w := newFixture(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			id := hostapi.MachineID(fmt.Sprintf("m%d", i))
			if _, err := w.mgr.Create(t.Context(), hostapi.Create{ID: id}, base, ""); err != nil {
				t.Error(err)
				return
			}
			var inner sync.WaitGroup
			for j := range 3 {
				kid := hostapi.MachineID(fmt.Sprintf("%sk%d", id, j))
				inner.Go(func() {
					_, err := w.mgr.Fork(
						t.Context(),
						hostapi.Fork{Parent: id, Children: []hostapi.Child{{ID: kid}, {ID: kid + "b"}}},
					)
					if err != nil && !errors.Is(err, hostapi.ErrWrongState) {
						t.Error(err)
					}
				})
				inner.Go(func() { w.mgr.List() })
			}
			inner.Go(func() {
				if err := w.mgr.Hibernate(t.Context(), id); err != nil && !errors.Is(err, hostapi.ErrWrongState) {
					t.Error(err)
				}
				if _, err := w.mgr.Wake(t.Context(), id); err != nil {
					t.Error(err)
				}
			})
			inner.Wait()
			for _, mc := range w.mgr.List() {
				if mc.ID == id || mc.Parent == id {
					if err := w.mgr.Destroy(t.Context(), mc.ID, "test"); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	w.checkEmpty()
}
