package sandbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/control/sandbox"
)

// A machine that is missing from one list of its host is in an unknown state, not dead.
func TestMachineMissingFromAListKeepsItsSandbox(t *testing.T) {
	w := newFixture(t)
	persistent := w.create(alice, api.CreateRequest{Persistent: true})
	plain := w.create(alice, api.CreateRequest{})
	w.host.Unlist(hostapi.MachineID(persistent.ID))
	w.host.Unlist(hostapi.MachineID(plain.ID))
	if err := w.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, s := range []api.Sandbox{persistent, plain} {
		if got := w.status(alice, s.ID); got != api.Running {
			t.Errorf("status of sandbox %s after a list without it = %s, want running", s.ID, got)
		}
	}
}

// A host that restarts cannot say which machines exist until it has recovered them.
func TestRecoveringHostEndsNoSandbox(t *testing.T) {
	w := newFixture(t)
	kept := w.create(alice, api.CreateRequest{Persistent: true})
	lost := w.create(alice, api.CreateRequest{})
	snap, err := w.TakeSnapshot(t.Context(), alice, kept.ID, api.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w.host.SetRecovering(true)
	w.host.Lose(hostapi.MachineID(lost.ID))
	if err := w.Reconcile(t.Context()); api.CodeOf(err) != api.Unavailable {
		t.Errorf("Reconcile with a recovering host = %v, want unavailable", err)
	}
	if _, err := w.Guest(t.Context(), alice, lost.ID); api.CodeOf(err) != api.Unavailable {
		t.Errorf("Guest with a recovering host = %v, want unavailable", err)
	}
	for _, s := range []api.Sandbox{kept, lost} {
		if got := w.status(alice, s.ID); got != api.Running {
			t.Errorf("status of sandbox %s while its host recovers = %s, want running", s.ID, got)
		}
	}
	w.host.SetRecovering(false)
	if err := w.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := w.status(alice, kept.ID); got != api.Running {
		t.Errorf("status of a sandbox that its host recovered = %s, want running", got)
	}
	w.ended(lost.ID, sandbox.EndedHostLost)
	if _, err := w.Snapshot(t.Context(), alice, snap.ID); err != nil {
		t.Errorf("Snapshot after its host recovered: %v", err)
	}
}

// What a host says is no statement about machines of another host.
func TestAnotherHostCannotEndASandbox(t *testing.T) {
	w := newFixture(t)
	s := w.create(alice, api.CreateRequest{Persistent: true})
	snap, err := w.TakeSnapshot(t.Context(), alice, s.ID, api.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	owner := w.host
	t.Cleanup(owner.Close)
	w.host = hosttest.New()
	w.host.SetID("hst2")
	w.restart()
	if err := w.Reconcile(t.Context()); api.CodeOf(err) != api.Unavailable {
		t.Errorf("Reconcile with another host = %v, want unavailable", err)
	}
	if got := w.status(alice, s.ID); got != api.Running {
		t.Errorf("status of a sandbox of another host = %s, want running", got)
	}
	if _, err := w.Snapshot(t.Context(), alice, snap.ID); err != nil {
		t.Errorf("Snapshot of another host: %v", err)
	}
}

// A sandbox whose operation takes long delays the events of no other.
func TestSlowSandboxDelaysNoOthersEvents(t *testing.T) {
	w := newFixture(t, slowTimers)
	slow := w.create(alice, api.CreateRequest{Persistent: true})
	other := w.create(alice, api.CreateRequest{})
	w.run()
	w.until("the host's events are followed", func() bool { return w.host.Subscribers() > 0 })
	reached, open := w.gate("hibernate")
	done := make(chan error, 1)
	go func() {
		_, err := w.Hibernate(context.WithoutCancel(t.Context()), alice, slow.ID)
		done <- err
	}()
	<-reached
	for range 3 {
		w.host.Emit(hostapi.Event{Time: time.Now(), Machine: hostapi.MachineID(slow.ID), Type: "adopted"})
	}
	w.host.Kill(hostapi.MachineID(other.ID), "killed by the test")
	w.until(
		"the death of the other sandbox is noticed",
		func() bool { return w.status(alice, other.ID) == api.Deleted },
	)
	open()
	if err := <-done; err != nil {
		t.Errorf("Hibernate: %v", err)
	}
	w.ended(other.ID, sandbox.EndedCrash)
}

// The labels of machines and snapshots name their owner, and the reconciler leaves those of others alone.
func TestOwnerLabels(t *testing.T) {
	w := newFixture(t)
	s := w.create(alice, api.CreateRequest{})
	snap, err := w.TakeSnapshot(t.Context(), alice, s.ID, api.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := hostapi.Owner{Kind: hostapi.OwnerSandbox, ID: string(s.ID)}
	if m, err := w.host.Get(t.Context(), hostapi.MachineID(s.ID)); err != nil || hostapi.OwnerOf(m.Labels) != want {
		t.Errorf("owner of the machine = %v, %v, want %v", hostapi.OwnerOf(m.Labels), err, want)
	}
	if h, err := w.host.GetSnapshot(t.Context(), hostapi.SnapshotID(snap.ID)); err != nil ||
		hostapi.OwnerOf(h.Labels) != want {
		t.Errorf("owner of the snapshot = %v, %v, want %v", hostapi.OwnerOf(h.Labels), err, want)
	}
	labels := map[string]map[string]string{
		"another-service": {hostapi.LabelOwner: "database/dbs1"},
		"build":           {hostapi.LabelOwner: "build/bld1"},
		"old-build":       {hostapi.LabelKind: hostapi.KindBuild, "build": "bld1"},
		"sandbox":         {hostapi.LabelOwner: "sandbox/sbx1"},
		"old-sandbox":     {},
	}
	for name, set := range labels {
		set["store"] = w.db.ID()
		id := hostapi.MachineID(name)
		if _, err := w.host.Create(t.Context(), hostapi.Create{ID: id, Template: "base", Labels: set}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.host.TakeSnapshot(t.Context(), id, hostapi.SnapshotID(name), set); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, left := range map[string]bool{
		"another-service": true, "build": true, "old-build": true, "sandbox": false, "old-sandbox": false,
	} {
		if _, err := w.host.Get(t.Context(), hostapi.MachineID(name)); (err == nil) != left {
			t.Errorf("machine %q after Reconcile: %v, want it left alone: %v", name, err, left)
		}
		if _, err := w.host.GetSnapshot(t.Context(), hostapi.SnapshotID(name)); (err == nil) != left {
			t.Errorf("snapshot %q after Reconcile: %v, want it left alone: %v", name, err, left)
		}
	}
}
