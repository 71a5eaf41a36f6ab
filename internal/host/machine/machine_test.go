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
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/host/snapshot"
)

func TestMachineLifecycle(t *testing.T) {
	w := newFixture(t)
	mc := w.create("a", false)
	if mc.State != hostapi.Running || mc.BootMode != hostapi.BootSnapshot || mc.Boot <= 0 || mc.GuestIP == "" ||
		mc.Template != "base" || mc.PID == 0 || len(mc.Phases) == 0 || mc.Generation != 1 {
		t.Errorf("created machine = %+v, want a running one of template base with all fields", mc)
	}
	w.count("a", 1)
	w.must(w.mgr.Pause(t.Context(), "a"))
	w.must(w.mgr.Pause(t.Context(), "a"))
	w.wantState("a", hostapi.Paused)
	if _, err := w.mgr.Guest(t.Context(), "a"); !errors.Is(err, hostapi.ErrWrongState) {
		t.Errorf("guest of a paused machine: got %v, want ErrWrongState", err)
	}
	w.must(w.mgr.Resume(t.Context(), "a"))
	w.must(w.mgr.Resume(t.Context(), "a"))
	w.count("a", 2)
	if _, err := w.mgr.Guest(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if u, err := w.mgr.Usage(t.Context(), "a"); err != nil || u.CPU == 0 || u.CPUPercent <= 0 {
		t.Errorf("usage = %+v, %v; want processor time", u, err)
	}
	if out, err := w.mgr.Console(t.Context(), "a"); err != nil || len(out) != 0 {
		t.Errorf("console = %q, %v; want an empty one", out, err)
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
		t.Error("entropy of two machines: got the same or no 64 bytes, want fresh ones")
	}
	if a.MachineID != "a" || a.Hostname != "a" || a.Time.Before(before) || a.Network == nil || a.DiskGrow {
		t.Errorf("identity = %+v, want that of machine a", a)
	}
	w.must(w.mgr.Hibernate(t.Context(), "a"))
	if _, err := w.mgr.Wake(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	again := w.host.monitorOf("a").mem.Who
	if again.Generation != a.Generation+1 || bytes.Equal(again.Entropy, a.Entropy) || !again.Time.After(a.Time) {
		t.Errorf("identity after a wake = %+v, want a new generation, entropy and time", again)
	}
}

func TestRefusals(t *testing.T) {
	w := newFixture(t)
	w.create("a", false)
	create := func(req machine.CreateRequest, from snapshot.Ref) error {
		_, err := w.mgr.Create(t.Context(), req, from, "")
		return err
	}
	fork := func(parent string, ids ...string) error {
		req := machine.ForkRequest{Parent: hostapi.MachineID(parent)}
		for _, id := range ids {
			req.Children = append(req.Children, machine.ChildRequest{ID: hostapi.MachineID(id)})
		}
		_, err := w.mgr.Fork(t.Context(), req)
		return err
	}
	_, wake := w.mgr.Wake(t.Context(), "none")
	_, take := w.mgr.TakeSnapshot(t.Context(), "none", "snapshots/x", nil, nil)
	_, name := w.mgr.TakeSnapshot(t.Context(), "a", "snapshots/../x", nil, nil)
	for what, tc := range map[string]struct{ got, want error }{
		"taken":         {create(machine.CreateRequest{ID: "a"}, base), hostapi.ErrExists},
		"bad-id":        {create(machine.CreateRequest{ID: "../b"}, base), hostapi.ErrInvalid},
		"no-id":         {create(machine.CreateRequest{}, base), hostapi.ErrInvalid},
		"no-snapshot":   {create(machine.CreateRequest{ID: "b"}, "snapshots/none"), hostapi.ErrNotFound},
		"smaller-disk":  {create(machine.CreateRequest{ID: "b", DiskMiB: -1}, base), hostapi.ErrInvalid},
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
		t.Errorf("fork of a hibernated machine: got %v, want ErrWrongState", err)
	}
	if err := w.mgr.Pause(t.Context(), "a"); !errors.Is(err, hostapi.ErrWrongState) {
		t.Errorf("pause of a hibernated machine: got %v, want ErrWrongState", err)
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
			req := machine.ForkRequest{Parent: "a"}
			for i := range 16 {
				req.Children = append(req.Children, machine.ChildRequest{ID: hostapi.MachineID(fmt.Sprintf("k%d", i))})
			}
			req.Children = append(req.Children, machine.ChildRequest{ID: "a"}) // this one fails
			got, err := w.mgr.Fork(t.Context(), req)
			w.must(err)
			w.wantState("a", state)
			for i, f := range got[:16] {
				if f.Err != nil || f.Machine.Parent != "a" || f.Machine.BootMode != hostapi.BootFork {
					t.Errorf("child %d = %+v, %v; want a forked machine", i, f.Machine, f.Err)
				}
				w.count(string(f.Machine.ID), 2)
			}
			if !errors.Is(got[16].Err, hostapi.ErrExists) {
				t.Errorf("child with its parent's id: got %v, want ErrExists", got[16].Err)
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

// TestParentContinuesAfterFailedFork fails every part of a fork that involves the parent.
func TestParentContinuesAfterFailedFork(t *testing.T) {
	for _, op := range []string{"freeze", "pause", "capture", "thaw", "load", "prepare", "link"} {
		t.Run(op, func(t *testing.T) {
			w := newFixture(t)
			w.create("a", false)
			w.count("a", 1)
			w.host.failNext(op, errors.New("not today"))
			got, err := w.mgr.Fork(
				t.Context(),
				machine.ForkRequest{Parent: "a", Children: []machine.ChildRequest{{ID: "b"}}},
			)
			if healed := op == "thaw"; healed != (err == nil && got[0].Err == nil) {
				t.Errorf("fork with a failing %s: got %+v, %v", op, got, err)
			}
			w.count("a", 2)
			w.checkNoLeftovers()
			_, err = w.mgr.Fork(
				t.Context(),
				machine.ForkRequest{Parent: "a", Children: []machine.ChildRequest{{ID: "c"}}},
			)
			if err != nil {
				t.Errorf("second fork: %v", err)
			}
			w.count("a", 3)
			w.count("c", 3)
		})
	}
}

func TestChainOfForksAndHibernations(t *testing.T) {
	w := newFixture(t)
	w.create("m0", false)
	count := uint64(0)
	for i := range 8 {
		id, next := fmt.Sprintf("m%d", i), fmt.Sprintf("m%d", i+1)
		count++
		w.count(id, count)
		if i%2 == 0 { // after a wake the machine runs on the image it hibernated in, as do its children
			w.must(w.mgr.Hibernate(t.Context(), hostapi.MachineID(id)))
			_, err := w.mgr.Wake(t.Context(), hostapi.MachineID(id))
			w.must(err)
		}
		_, err := w.mgr.Fork(
			t.Context(),
			machine.ForkRequest{
				Parent:   hostapi.MachineID(id),
				Children: []machine.ChildRequest{{ID: hostapi.MachineID(next)}},
			},
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
		t.Errorf("second snapshot of one name: got %v, want ErrExists", err)
	}
	w.count("a", 2)
	w.destroy("a")
	_, err = w.mgr.Create(t.Context(), machine.CreateRequest{ID: "b", Snapshot: "s"}, snap.Ref, "")
	w.must(err)
	w.must(w.store.Delete(snap.Ref))
	w.restart(nil)
	_, err = w.mgr.Fork(t.Context(), machine.ForkRequest{Parent: "b", Children: []machine.ChildRequest{{ID: "c"}}})
	w.must(err)
	w.count("b", 2)
	w.count("c", 2)
	w.destroy("b")
	w.count("c", 3)
	w.destroy("c")
	w.checkEmpty()
}

func TestTenHibernations(t *testing.T) {
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
			t.Errorf("machine after wake %d = %+v, want a new generation and boot mode wake", i, mc)
		}
		if got := names(t, filepath.Join(w.dir, "snapshots")); len(got) != 1 {
			t.Errorf("images = %v, want only the one that it runs on", got)
		}
	}
	w.count("a", 11)
	w.destroy("a")
	w.checkEmpty()
}

// TestHibernationImageIsUsedOnce checks that old memory is never restored over a newer disk.
func TestHibernationImageIsUsedOnce(t *testing.T) {
	w := newFixture(t)
	w.create("a", true)
	w.count("a", 1)
	w.must(w.mgr.Hibernate(t.Context(), "a"))
	_, err := w.mgr.Wake(t.Context(), "a")
	w.must(err)
	w.count("a", 2)
	w.host.monitorOf("a").exit(errors.New("power"))
	w.eventually(
		"the exit is handled",
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
	// A machine that booted cold runs on no image; it can be forked and hibernated all the same.
	_, err = w.mgr.Fork(
		t.Context(),
		machine.ForkRequest{Parent: "a", Children: []machine.ChildRequest{{ID: "b"}, {ID: "c"}}},
	)
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
				t.Errorf("wake = %+v, %v; want a running machine", mc, err)
			}
		})
	}
	wg.Wait()
	if got := w.host.loads - before; got != 1 {
		t.Errorf("%d guests were started, want 1", got)
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
		t.Fatal("got no error, want the injected one")
	}
	w.checkNoLeftovers()
	w.wantState("a", hostapi.Hibernated)
	_, err := w.mgr.Wake(t.Context(), "a")
	w.must(err)
	w.count("a", 2)

	w.must(w.mgr.Hibernate(t.Context(), "a"))
	w.host.failNext("load", errors.New("lost on the way"))
	if _, err := w.mgr.Wake(t.Context(), "a"); err == nil {
		t.Fatal("got no error, want the injected one")
	}
	w.checkNoLeftovers()
	w.wantState("a", hostapi.Hibernated)
	_, err = w.mgr.Wake(t.Context(), "a")
	w.must(err)
	w.count("a", 3)
	w.destroy("a")
	w.checkEmpty()
}

func TestMonitorExit(t *testing.T) {
	w := newFixture(t)
	w.create("kept", true)
	w.create("other", false)
	w.create("full", true)
	w.host.monitorOf("kept").exit(errors.New("signal 11"))
	w.host.monitorOf("other").exit(errors.New("signal 11"))
	w.eventually("the exits are handled", func() bool {
		_, err := w.mgr.Get("other")
		mc, _ := w.mgr.Get("kept")
		return errors.Is(err, hostapi.ErrNotFound) && mc.State == hostapi.Failed && mc.Reason == "signal 11"
	})
	w.cgroups.mu.Lock()
	w.cgroups.oom = true
	w.cgroups.mu.Unlock()
	w.host.monitorOf("full").exit(errors.New("signal 9"))
	w.eventually("the reason is recorded", func() bool {
		mc, _ := w.mgr.Get("full")
		return mc.State == hostapi.Failed && mc.Reason == "out of memory: the monitor reached its limit on the host"
	})
	w.eventually("the events are emitted", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.events) == 3 && w.events[0].Type == "died"
	})
	w.eventually("everything is released", func() bool { return len(names(t, filepath.Join(w.dir, "machines"))) == 2 })
	w.destroy("kept")
	w.destroy("full")
	w.checkEmpty()
}

func TestUnconfirmedGuestIsDestroyed(t *testing.T) {
	w := newFixture(t)
	w.host.unresponsive = true
	ctx, cancel := deadline(t, 50*time.Millisecond)
	defer cancel()
	if _, err := w.mgr.Create(ctx, machine.CreateRequest{ID: "a"}, base, ""); !errors.Is(err, errTooLate) {
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
		"snapshot": func() error {
			_, err := w.mgr.TakeSnapshot(t.Context(), "a", "snapshots/s", nil, nil)
			return err
		},
		"hibernate": func() error { return w.mgr.Hibernate(t.Context(), "a") },
	} {
		w.host.failNext("save", fmt.Errorf("write: %w", syscall.ENOSPC))
		if err := do(); !errors.Is(err, hostapi.ErrNoSpace) {
			t.Errorf("%s with a disk that fills up: %v, want ErrNoSpace", name, err)
		}
		w.checkNoLeftovers()
		w.wantState("a", hostapi.Running)
		w.space.set(64<<20, 0)
		if err := do(); !errors.Is(err, hostapi.ErrNoSpace) {
			t.Errorf("%s with a full disk: %v, want ErrNoSpace", name, err)
		}
		w.space.set(1<<40, 0)
	}
	w.count("a", 2)
	w.space.set(64<<20, 0)
	if _, err := w.mgr.Create(t.Context(), machine.CreateRequest{ID: "b"}, base, ""); !errors.Is(
		err,
		hostapi.ErrNoSpace,
	) {
		t.Errorf("create with a full disk: %v, want ErrNoSpace", err)
	}
	w.destroy("a")
	w.checkEmpty()
}

// TestDiskSpaceIsReclaimed checks that a create reclaims disk space, and no more of it than it needs.
func TestDiskSpaceIsReclaimed(t *testing.T) {
	w := newFixture(t)
	w.create("a", true)
	w.space.set(64<<20, 1<<30)
	w.create("b", true)
	if want := int64(1<<30 - (256-64)<<20); w.space.left() != want {
		t.Errorf("%d MiB are left to reclaim, want %d", w.space.left()>>20, want>>20)
	}
	w.space.set(64<<20, 1)
	if _, err := w.mgr.Create(t.Context(), machine.CreateRequest{ID: "c"}, base, ""); !errors.Is(
		err,
		hostapi.ErrNoSpace,
	) {
		t.Errorf("create with too little to reclaim: got %v, want ErrNoSpace", err)
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
	if _, err := w.mgr.Create(t.Context(), machine.CreateRequest{ID: "a"}, base, ""); !errors.As(err, &damaged) {
		t.Errorf("create: %v, want a DamagedError", err)
	}
	w.checkEmpty()
}

func TestRecoverUnknownDirectories(t *testing.T) {
	w := newFixture(t)
	w.create("a", true)
	w.stop()
	machines := filepath.Join(w.dir, "machines")
	for name, intent := range map[string]string{
		"empty": "", "older": `{"version":0}`, "newer": `{"version":1,"id":"newer","unknown":true}`,
		"mixed": `{"version":1,"id":"a"}`,
	} {
		w.must(os.MkdirAll(filepath.Join(machines, name), 0o711))
		w.must(os.WriteFile(filepath.Join(machines, name, "machine.json"), []byte(intent), 0o600))
		w.must(os.WriteFile(filepath.Join(machines, name, "disk.img"), nil, 0o600))
	}
	w.must(os.MkdirAll(filepath.Join(machines, "none", "vm"), 0o711))
	w.boot()
	if got, want := names(t, machines), []string{"a", "mixed", "newer", "older"}; !slices.Equal(got, want) {
		t.Errorf("directories = %v, want %v: unknown records are left alone, empty ones removed", got, want)
	}
	if list := w.mgr.List(); len(list) != 1 {
		t.Errorf("machines = %v, want one", list)
	}
	if _, err := w.mgr.Create(t.Context(), machine.CreateRequest{ID: "older"}, base, ""); !errors.Is(
		err,
		hostapi.ErrExists,
	) {
		t.Errorf("create over a directory that was left alone: got %v, want ErrExists", err)
	}
	if _, err := os.Stat(filepath.Join(machines, "older", "disk.img")); err != nil {
		t.Error(err)
	}
	w.count("a", 1)
}

func TestFailedAdoption(t *testing.T) {
	w := newFixture(t)
	w.create("a", true)
	w.create("b", false)
	w.count("a", 1)
	w.stop()
	w.host.adoptErr = errors.New("bad reply")
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
		t.Fatal("got no error, want the injected one")
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
			if _, err := w.mgr.Create(t.Context(), machine.CreateRequest{ID: id}, base, ""); err != nil {
				t.Error(err)
				return
			}
			var inner sync.WaitGroup
			for j := range 3 {
				child := hostapi.MachineID(fmt.Sprintf("%sk%d", id, j))
				inner.Go(func() {
					_, err := w.mgr.Fork(
						t.Context(),
						machine.ForkRequest{
							Parent:   id,
							Children: []machine.ChildRequest{{ID: child}, {ID: child + "b"}},
						},
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
