package sandbox_test

import (
	"context"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/quota/quotatest"
)

// refused checks that a quota refused a request, and what the error says of it.
func refused(t *testing.T, err error, kind quota.Kind, used, allowed, requested int64) {
	t.Helper()
	e := wantCode(t, err, api.QuotaExceeded, string(kind))
	d := e.Details
	if d["kind"] != kind || d["used"] != used || d["allowed"] != allowed || d["requested"] != requested ||
		d["limit"] != allowed || !e.Retryable {
		t.Errorf("details of %v are %v; want %s with used %d, allowed %d, requested %d",
			e, d, kind, used, allowed, requested)
	}
}

func TestQuotaRace(t *testing.T) { checkQuotaRace(t, newFixture(t)) }

// checkQuotaRace sends many creates at once against a quota: exactly as many as the quota allows succeed.
func checkQuotaRace(t *testing.T, w *fixture) {
	t.Helper()
	const requests, allowed = 100, 10
	w.allow(alice, quota.Sandboxes, allowed)
	quotatest.Race(t, requests, allowed, func(int) error {
		_, err := w.Create(t.Context(), alice, api.CreateRequest{})
		return err
	})
	if n := w.used(alice, quota.Sandboxes); n != allowed {
		t.Errorf("%d sandboxes exist, want %d", n, allowed)
	}
}

// TestQuotaBounds: of each kind a workspace may have what its quota says, and not one more, until it gives some back.
func TestQuotaBounds(t *testing.T) {
	create := func(w *fixture, _ api.SandboxID) (func() error, error) {
		s, err := w.Create(w.t.Context(), alice, api.CreateRequest{})
		return func() error { return w.Delete(w.t.Context(), alice, s.ID) }, err
	}
	snapshot := func(w *fixture, box api.SandboxID) (func() error, error) {
		s, err := w.TakeSnapshot(w.t.Context(), alice, box, api.SnapshotRequest{})
		return func() error { return w.DeleteSnapshot(w.t.Context(), alice, s.ID) }, err
	}
	fork := func(w *fixture, box api.SandboxID) (func() error, error) {
		f, err := w.Fork(w.t.Context(), alice, box, api.ForkRequest{Count: 1})
		return func() error { return w.Delete(w.t.Context(), alice, f.Children[0].ID) }, err
	}
	for name, c := range map[string]struct {
		kind    quota.Kind
		allowed int64 // for two more beside what the sandbox box uses
		used    int64 // when the third is refused
		more    int64 // that it takes
		do      func(w *fixture, box api.SandboxID) (undo func() error, err error)
	}{
		"sandboxes":     {quota.Sandboxes, 3, 3, 1, create},
		"vcpus":         {quota.VCPUs, 3, 3, 1, create},
		"memory":        {quota.Memory, 3*256 + 255, 3 * 256, 256, create},
		"disk":          {quota.Disk, 3*2048 + 2047, 3 * 2048, 2048, create},
		"fork":          {quota.Sandboxes, 3, 3, 1, fork},
		"fork-vcpus":    {quota.VCPUs, 3, 3, 1, fork},
		"fork-memory":   {quota.Memory, 3 * 256, 3 * 256, 256, fork},
		"fork-disk":     {quota.Disk, 3 * 2048, 3 * 2048, 2048, fork},
		"snapshots":     {quota.Snapshots, 2, 2, 1, snapshot},
		"snapshot-size": {quota.SnapshotSize, 64 + 256 + 2048, 128, 256 + 2048, snapshot},
		"snapshot-disk": {quota.Disk, 2048 + 64 + 256 + 2048, 2048 + 128, 256 + 2048, snapshot},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			box := w.create(alice, api.CreateRequest{})
			w.allow(alice, c.kind, c.allowed)
			undo, err := c.do(w, box.ID)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.do(w, box.ID); err != nil {
				t.Fatal(err)
			}
			_, err = c.do(w, box.ID)
			refused(t, err, c.kind, c.used, c.allowed, c.more)
			w.create(bob, api.CreateRequest{}) // another workspace has its own quota
			if err := undo(); err != nil {
				t.Fatal(err)
			}
			if _, err := c.do(w, box.ID); err != nil {
				t.Errorf("after one was removed: %v", err)
			}
		})
	}
}

// TestQuotaOfRunning: processors and memory count while a sandbox is in memory, paused or not. A sandbox
// whose wake would be too much stays hibernated.
func TestQuotaOfRunning(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	w.allow(alice, quota.VCPUs, 2)
	one, two := w.create(alice, api.CreateRequest{}), w.create(alice, api.CreateRequest{})
	if _, err := w.Pause(ctx, alice, one.ID); err != nil {
		t.Fatal(err)
	}
	_, err := w.Create(ctx, alice, api.CreateRequest{})
	refused(t, err, quota.VCPUs, 2, 2, 1)
	if _, err := w.Resume(ctx, alice, one.ID); err != nil {
		t.Errorf("resume takes nothing more: %v", err)
	}
	if _, err := w.Hibernate(ctx, alice, one.ID); err != nil {
		t.Fatal(err)
	}
	three := w.create(alice, api.CreateRequest{})
	if got := w.used(alice, quota.Memory); got != 512 {
		t.Errorf("two running sandboxes use %d MiB, want 512", got)
	}
	_, err = w.Wake(ctx, alice, one.ID)
	refused(t, err, quota.VCPUs, 2, 2, 1)
	_, err = w.Guest(ctx, alice, one.ID)
	refused(t, err, quota.VCPUs, 2, 2, 1)
	if got := w.status(alice, one.ID); got != api.Hibernated {
		t.Errorf("a sandbox that may not wake is %s", got)
	}
	_, err = w.Fork(ctx, alice, two.ID, api.ForkRequest{Count: 3})
	refused(t, err, quota.VCPUs, 2, 2, 3)
	if err := w.Delete(ctx, alice, three.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Wake(ctx, alice, one.ID); err != nil {
		t.Errorf("with room again: %v", err)
	}
	w.clean(one.ID, two.ID)
}

// TestQuotaOfPulled: the size of a snapshot that is pulled is known when it is there; one that is too large is removed.
func TestQuotaOfPulled(t *testing.T) {
	w := newFixture(t)
	hosttest.ShareObjects(w.host)
	ctx := t.Context()
	box := w.create(alice, api.CreateRequest{})
	snap, err := w.TakeSnapshot(ctx, alice, box.ID, api.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.PushSnapshot(ctx, alice, snap.ID); err != nil {
		t.Fatal(err)
	}
	if err := w.DeleteSnapshot(ctx, alice, snap.ID); err != nil {
		t.Fatal(err)
	}
	w.allow(alice, quota.SnapshotSize, 63)
	_, err = w.PullSnapshot(ctx, alice, snap.ID, api.PullRequest{})
	refused(t, err, quota.SnapshotSize, 0, 63, 64)
	if page, err := w.Snapshots(ctx, alice, api.SnapshotFilter{}); err != nil || len(page.Snapshots) != 0 {
		t.Errorf("snapshots after a pull that was refused: %v, %v", page, err)
	}
	w.allow(alice, quota.SnapshotSize, 64)
	if _, err := w.PullSnapshot(ctx, alice, snap.ID, api.PullRequest{}); err != nil {
		t.Error(err)
	}
}

// TestQuotaCountsDataDisks: data disks count with their size.
func TestQuotaCountsDataDisks(t *testing.T) {
	w := newFixture(t)
	w.host.AddTemplate(hostapi.Template{Name: "data", VCPUs: 1, MemoryMiB: 256, DiskMiB: 1024, Baked: true,
		User: "user", Workdir: "/", Disks: []hostapi.DataDisk{{Name: "rows", SizeMiB: 64, Mount: "/var/rows"}}})
	w.allow(alice, quota.Disk, 2*1088-1)
	box := w.create(alice, api.CreateRequest{Template: "data"})
	if got := w.used(alice, quota.Disk); got != 1088 {
		t.Errorf("a root disk of 1024 MiB and a data disk of 64 count as %d", got)
	}
	_, err := w.Create(t.Context(), alice, api.CreateRequest{Template: "data"})
	refused(t, err, quota.Disk, 1088, 2*1088-1, 1088)
	_, err = w.Fork(t.Context(), alice, box.ID, api.ForkRequest{Count: 1})
	refused(t, err, quota.Disk, 1088, 2*1088-1, 1088)
}

// TestQuotaOfUsedDisk: what the host measures counts. A workspace that has used up its quota gets nothing new, and the
// host gets the quota, which it enforces while machines run.
func TestQuotaOfUsedDisk(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	w.allow(alice, quota.DiskUsed, 100)
	box := w.create(alice, api.CreateRequest{})
	asleep := w.create(alice, api.CreateRequest{})
	if _, err := w.Hibernate(ctx, alice, asleep.ID); err != nil {
		t.Fatal(err)
	}
	grow := func(mib int64) {
		t.Helper()
		if err := w.host.Grow(ctx, hostapi.MachineID(box.ID), mib<<20); err != nil {
			t.Fatal(err)
		}
		if err := w.Reconcile(ctx); err != nil {
			t.Fatal(err)
		}
		if got := w.used(alice, quota.DiskUsed); got != mib {
			t.Errorf("%d MiB are written and %d are used", mib, got)
		}
	}
	grow(99)
	other := w.create(alice, api.CreateRequest{})
	if _, err := w.Pause(ctx, alice, box.ID); err != nil { // a change of state keeps what was measured
		t.Fatal(err)
	}
	grow(100)
	_, err := w.Create(ctx, alice, api.CreateRequest{})
	refused(t, err, quota.DiskUsed, 100, 100, 1)
	_, err = w.Fork(ctx, alice, other.ID, api.ForkRequest{Count: 1})
	refused(t, err, quota.DiskUsed, 100, 100, 1)
	_, err = w.Wake(ctx, alice, asleep.ID)
	refused(t, err, quota.DiskUsed, 100, 100, 1)
	w.run()
	w.until("the host knows the bounds", func() bool {
		b := w.host.GroupBounds()
		return b.Of(string(alice.Workspace)) == 100 && b.Of(string(bob.Workspace)) == 0
	})
	w.allow(alice, quota.DiskUsed, 200)
	w.EnforceQuotas()
	w.until("the host knows the new bound", func() bool {
		return w.host.GroupBounds().Of(string(alice.Workspace)) == 200
	})
	if _, err := w.Wake(ctx, alice, asleep.ID); err != nil {
		t.Errorf("with a larger quota: %v", err)
	}
}

// TestEgressRateOfWorkspace: sandboxes send at most what their workspace allows, and may ask for less.
func TestEgressRateOfWorkspace(t *testing.T) {
	w := newFixture(t)
	w.allow(alice, quota.EgressRate, 50)
	limit := func(want int, req api.CreateRequest) {
		t.Helper()
		s, err := w.Create(t.Context(), alice, req)
		if err != nil {
			t.Fatal(err)
		}
		m, err := w.host.Get(t.Context(), hostapi.MachineID(s.ID))
		if err != nil || m.Limits.NetworkOutMbit != want {
			t.Errorf("the machine may send %d Mbit/s, %v; want %d", m.Limits.NetworkOutMbit, err, want)
		}
	}
	limit(50, api.CreateRequest{})
	limit(20, api.CreateRequest{Limits: &api.Limits{NetworkOutMbit: 20}})
	_, err := w.Create(t.Context(), alice, api.CreateRequest{Limits: &api.Limits{NetworkOutMbit: 51}})
	if e := wantCode(t, err, api.Invalid, "more than the workspace"); e.Details["field"] != "limits.network_out_mbit" {
		t.Errorf("the error names %v", e.Details["field"])
	}
	w.allow(alice, quota.EgressRate, 0)
	limit(0, api.CreateRequest{})
}

// TestConnectionsOfWorkspace: sandboxes open at most as many connections as their workspace allows.
func TestConnectionsOfWorkspace(t *testing.T) {
	w := newFixture(t)
	w.allow(alice, quota.Connections, 500)
	w.allow(alice, quota.ConnectRate, 20)
	s := w.create(alice, api.CreateRequest{Limits: &api.Limits{Connections: 100}})
	m, err := w.host.Get(t.Context(), hostapi.MachineID(s.ID))
	if want := (hostapi.Limits{Connections: 100, NewConnections: 20}); err != nil || m.Limits != want {
		t.Errorf("the machine has %+v, %v; want %+v", m.Limits, err, want)
	}
	for field, l := range map[string]api.Limits{
		"limits.connections": {Connections: 501}, "limits.new_connections": {NewConnections: 21},
	} {
		_, err := w.Create(t.Context(), alice, api.CreateRequest{Limits: &l})
		if e := wantCode(t, err, api.Invalid, "more than the"); e.Details["field"] != field {
			t.Errorf("the error names %v, want %s", e.Details["field"], field)
		}
	}
}

func TestSuspension(t *testing.T) { checkSuspension(t, newFixture(t)) }

// checkSuspension suspends a workspace: its running sandboxes hibernate and every request is refused, until it is
// active again. Other workspaces notice nothing.
func checkSuspension(t *testing.T, w *fixture) {
	t.Helper()
	ctx := t.Context()
	running, paused := w.create(alice, api.CreateRequest{}), w.create(alice, api.CreateRequest{Persistent: true})
	if _, err := w.Pause(ctx, alice, paused.ID); err != nil {
		t.Fatal(err)
	}
	other := w.create(bob, api.CreateRequest{})
	snap, err := w.TakeSnapshot(ctx, alice, running.ID, api.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w.run()
	w.suspend(alice, true)
	for verb, do := range map[string]func() error{
		"create": func() error { _, err := w.Create(ctx, alice, api.CreateRequest{}); return err },
		"get":    func() error { _, err := w.Get(ctx, alice, running.ID); return err },
		"guest":  func() error { _, err := w.Guest(ctx, alice, running.ID); return err },
		"wake":   func() error { _, err := w.Wake(ctx, alice, paused.ID); return err },
		"fork": func() error {
			_, err := w.Fork(ctx, alice, running.ID, api.ForkRequest{Count: 1})
			return err
		},
		"delete":   func() error { return w.Delete(ctx, alice, running.ID) },
		"snapshot": func() error { _, err := w.Snapshot(ctx, alice, snap.ID); return err },
		"pull":     func() error { _, err := w.PullSnapshot(ctx, alice, snap.ID, api.PullRequest{}); return err },
		"ingress": func() error {
			_, _, err := w.OpenForIngress(ctx, running.ID, func(auth.Principal, api.Sandbox) error { return nil })
			return err
		},
	} {
		wantCode(t, do(), api.WorkspaceSuspended, verb)
	}
	w.until("the sandboxes hibernate", func() bool {
		states, _ := w.rows()
		return states[string(running.ID)] == string(api.Hibernated) &&
			states[string(paused.ID)] == string(api.Hibernated)
	})
	if got := w.status(bob, other.ID); got != api.Running {
		t.Errorf("a sandbox of another workspace is %s", got)
	}
	w.suspend(alice, false)
	if _, err := w.Wake(ctx, alice, running.ID); err != nil {
		t.Errorf("wake after the workspace was resumed: %v", err)
	}
}

// suspend suspends or resumes a workspace.
func (w *fixture) suspend(p auth.Principal, suspend bool) {
	w.t.Helper()
	changed, err := w.limits.SetSuspended(w.t.Context(), p.Workspace, suspend)
	if err != nil || !changed {
		w.t.Fatalf("suspended %v: changed %v, %v", suspend, changed, err)
	}
	w.EnforceQuotas()
}

// TestSuspensionDuringCreate: a sandbox whose create was admitted before its workspace was suspended hibernates, too.
func TestSuspensionDuringCreate(t *testing.T) {
	w := newFixture(t)
	reached, open := w.gate("create")
	defer open()
	w.run()
	made := make(chan api.SandboxID, 1)
	go func() {
		s, err := w.Create(context.WithoutCancel(t.Context()), alice, api.CreateRequest{})
		if err != nil {
			t.Error(err)
		}
		made <- s.ID
	}()
	<-reached
	w.suspend(alice, true)
	open()
	id := <-made
	w.until("the sandbox hibernates", func() bool {
		states, _ := w.rows()
		return states[string(id)] == string(api.Hibernated)
	})
}
