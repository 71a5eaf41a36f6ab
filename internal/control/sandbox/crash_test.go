package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/control/sandbox"
)

// operation is something of several steps that may be cut anywhere. prepare gives what it works on; do
// is the operation; after checks what must hold when it was cut and the program was started again.
type operation struct {
	name    string
	prepare func(w *fixture) api.SandboxID
	do      func(w *fixture, ctx context.Context, id api.SandboxID) error
	// lasting sandboxes are there whatever happens; made may be there or not.
	state map[api.Status]bool // that the sandbox may be in afterwards
}

func startedSandbox(w *fixture) api.SandboxID {
	return w.create(alice, api.CreateRequest{Persistent: true, Metadata: map[string]string{"lasting": "1"}}).ID
}

func hibernatedSandbox(w *fixture) api.SandboxID {
	w.t.Helper()
	id := startedSandbox(w)
	if _, err := w.Hibernate(w.t.Context(), alice, id); err != nil {
		w.t.Fatal(err)
	}
	return id
}

var operations = []operation{
	{
		"create",
		func(*fixture) api.SandboxID { return "" },
		func(w *fixture, ctx context.Context, _ api.SandboxID) error {
			_, err := w.Create(ctx, alice, api.CreateRequest{Persistent: true})
			return err
		},
		nil,
	},
	{
		"create-with-key",
		func(*fixture) api.SandboxID { return "" },
		func(w *fixture, ctx context.Context, _ api.SandboxID) error {
			_, err := w.Create(ctx, alice, api.CreateRequest{IdempotencyKey: "k"})
			return err
		},
		nil,
	},
	{"pause", startedSandbox, func(w *fixture, ctx context.Context, id api.SandboxID) error {
		_, err := w.Pause(ctx, alice, id)
		return err
	}, map[api.Status]bool{api.Running: true, api.Paused: true}},
	{"hibernate", startedSandbox, func(w *fixture, ctx context.Context, id api.SandboxID) error {
		_, err := w.Hibernate(ctx, alice, id)
		return err
	}, map[api.Status]bool{api.Running: true, api.Hibernated: true}},
	{"wake", hibernatedSandbox, func(w *fixture, ctx context.Context, id api.SandboxID) error {
		_, err := w.Wake(ctx, alice, id)
		return err
	}, map[api.Status]bool{api.Running: true, api.Hibernated: true}},
	{"fork", startedSandbox, func(w *fixture, ctx context.Context, id api.SandboxID) error {
		_, err := w.ForkTree(ctx, alice, id, api.ForkTreeRequest{Count: 3})
		return err
	}, map[api.Status]bool{api.Running: true}},
	{"snapshot", startedSandbox, func(w *fixture, ctx context.Context, id api.SandboxID) error {
		_, err := w.TakeSnapshot(ctx, alice, id, api.SnapshotRequest{})
		return err
	}, map[api.Status]bool{api.Running: true}},
	{"keep", startedSandbox, func(w *fixture, ctx context.Context, id api.SandboxID) error {
		_, err := w.SetLifecycle(ctx, alice, id, api.LifecyclePatch{Persistent: p(false)})
		return err
	}, map[api.Status]bool{api.Running: true}},
	{"stop", startedSandbox, func(w *fixture, ctx context.Context, id api.SandboxID) error {
		_, err := w.Stop(ctx, alice, id)
		return err
	}, map[api.Status]bool{api.Running: true, api.Hibernated: true}},
	{"network", startedSandbox, func(w *fixture, ctx context.Context, id api.SandboxID) error {
		_, err := w.SetNetwork(ctx, alice, id, api.Network{AllowOut: []string{"a.example"}, DenyOthers: true})
		return err
	}, map[api.Status]bool{api.Running: true}},
	{"delete", startedSandbox, func(w *fixture, ctx context.Context, id api.SandboxID) error {
		return w.Delete(ctx, alice, id)
	}, map[api.Status]bool{api.Running: true, api.Deleted: true}},
}

// faultInjector lets steps of host and store fail: the step with number at, counted from 0, and with dead all
// steps after it, as if the program were gone.
type faultInjector struct {
	at, n int
	dead  bool
	hit   bool
}

var errCut = errors.New("cut here")

func (c *faultInjector) step() error {
	n := c.n
	c.n++
	if n == c.at || c.dead && n > c.at {
		c.hit = true
		return errCut
	}
	return nil
}

func (c *faultInjector) install(w *fixture) {
	quiet := map[string]bool{"capacity": true, "console": true, "usage": true, "templates": true}
	w.host.SetHook(hosttest.Hook(func(ctx context.Context, op, id string, after bool) error {
		if quiet[op] {
			return nil
		}
		return c.step()
	}))
	w.fault = func(op string, committed bool) error { return c.step() }
}

func (c *faultInjector) remove(w *fixture) {
	w.host.SetHook(nil)
	w.fault = nil
}

// TestFailureAtEveryStep fails or kills every operation at every step: before and after each call of the host
// and each commit. Afterwards the program starts again and reconciles; then every machine must have its
// row and every row its machine in the same state, every snapshot must have an owner, and what existed before
// must still exist.
func TestFailureAtEveryStep(t *testing.T) {
	for _, op := range operations {
		for _, dead := range []bool{false, true} {
			t.Run(
				fmt.Sprintf("%s-%v", op.name, map[bool]string{true: "killed", false: "failed"}[dead]),
				func(t *testing.T) {
					for at := 0; ; at++ {
						c := &faultInjector{at: at, dead: dead}
						failOnce(t, op, c)
						if !c.hit {
							if at < 3 {
								t.Errorf("only %d steps were cut: the test sees nothing", at)
							}
							t.Logf("cut at %d steps", at)
							return
						}
					}
				},
			)
		}
	}
}

func failOnce(t *testing.T, op operation, c *faultInjector) {
	w := newFixture(t, func(cfg *sandbox.Config) { cfg.OrphanGrace = 0 })
	ctx := t.Context()
	id := op.prepare(w)
	c.install(w)
	err := op.do(w, ctx, id)
	c.remove(w)
	if c.hit && c.dead && err == nil && c.at < 3 {
		t.Errorf("cut at %d: no error", c.at)
	}
	if c.dead {
		w.restart()
	}
	for range 2 { // the second finds nothing to do
		if err := w.Reconcile(ctx); err != nil {
			t.Fatalf("cut at %d: reconcile: %v", c.at, err)
		}
	}
	page, err := w.List(ctx, alice, api.SandboxFilter{})
	if err != nil {
		t.Fatal(err)
	}
	var ids []api.SandboxID
	for _, s := range page.Sandboxes {
		ids = append(ids, s.ID)
		if id != "" && s.ID == id && !op.state[s.Status] {
			t.Errorf("cut at %d: the sandbox is %s", c.at, s.Status)
		}
	}
	w.clean(ids...)
	if id != "" && !op.state[w.status(alice, id)] {
		t.Errorf("cut at %d: the sandbox is %s", c.at, w.status(alice, id))
	}
	w.snapshotsMatch(c.at)
	for _, m := range w.host.Machines() {
		if r, err := w.db.Read().Sandbox(ctx, string(m.ID)); err == nil && r.Persistent != m.Persistent {
			t.Errorf("cut at %d: persistent %v, the host keeps it %v", c.at, r.Persistent, m.Persistent)
		}
	}
	w.networksMatch()
	// It can be done again, and everything can be deleted.
	if id == "" || w.status(alice, id) != api.Deleted {
		if err := op.do(w, ctx, id); err != nil && api.CodeOf(err) != api.WrongState {
			t.Errorf("cut at %d: doing it again: %v", c.at, err)
		}
	}
	page, err = w.List(ctx, alice, api.SandboxFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range page.Sandboxes {
		if err := w.Delete(ctx, alice, s.ID); err != nil {
			t.Errorf("cut at %d: delete: %v", c.at, err)
		}
	}
	w.clean()
}

// snapshotsMatch checks that registry and host have the same snapshots.
func (w *fixture) snapshotsMatch(at int) {
	w.t.Helper()
	page, err := w.Snapshots(w.t.Context(), alice, api.SnapshotFilter{})
	if err != nil {
		w.t.Fatal(err)
	}
	have, err := w.host.Snapshots(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	if len(have) != len(page.Snapshots) {
		w.t.Errorf("cut at %d: %d snapshots in the registry, %d on the host", at, len(page.Snapshots), len(have))
	}
}

// TestKeyAfterCrash: a create with a key that was interrupted anywhere returns one sandbox when it is repeated.
func TestKeyAfterCrash(t *testing.T) {
	for at := 0; ; at++ {
		w := newFixture(t)
		c := &faultInjector{at: at, dead: true}
		c.install(w)
		req := api.CreateRequest{IdempotencyKey: "k", Metadata: map[string]string{"a": "1"}}
		_, _ = w.Create(t.Context(), alice, req) // it may be cut
		c.remove(w)
		w.restart()
		if err := w.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		first := w.create(alice, req)
		second := w.create(alice, req)
		if first.ID != second.ID || first.Status != api.Running {
			t.Errorf("cut at %d: %s (%s) and %s", at, first.ID, first.Status, second.ID)
		}
		w.clean(first.ID)
		if !c.hit {
			return
		}
	}
}

func TestHostLosesMachines(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	lost, crashed := w.create(alice, api.CreateRequest{Persistent: true}), w.create(alice, api.CreateRequest{})
	kept := w.create(alice, api.CreateRequest{Persistent: true})
	w.exec(alice, kept.ID, "echo data > f")
	w.host.Lose(hostapi.MachineID(lost.ID))
	w.host.Kill(hostapi.MachineID(crashed.ID), "killed by signal 9")
	w.host.Kill(hostapi.MachineID(kept.ID), "killed by signal 9")
	if err := w.Reconcile(ctx); err != nil {
		t.Fatal(err)
	}
	w.clean(kept.ID)
	for id, want := range map[api.SandboxID]sandbox.Reason{lost.ID: sandbox.EndedHostLost,
		crashed.ID: sandbox.EndedHostLost} {
		if end, err := w.Explain(ctx, alice, id); err != nil || end.Reason != want {
			t.Errorf("ended as %+v, %v; want %s", end, err, want)
		}
	}
	got, err := w.Get(ctx, alice, kept.ID)
	if err != nil || got.Status != api.Failed || got.FailureReason != "killed by signal 9" {
		t.Errorf("a persistent sandbox whose machine died: %+v, %v", got, err)
	}
	_, err = w.Guest(ctx, alice, kept.ID)
	wantCode(t, err, api.WrongState, "guest of a failed sandbox")
	if _, err := w.Wake(ctx, alice, kept.ID); err != nil {
		t.Fatal(err)
	}
	if out := w.exec(alice, kept.ID, "cat f"); out != "data\n" {
		t.Errorf("after its machine died the disk holds %q", out)
	}
}

// ended waits for the tombstone of a sandbox to tell a reason.
func (w *fixture) ended(id api.SandboxID, want sandbox.Reason) sandbox.Tombstone {
	w.t.Helper()
	var end sandbox.Tombstone
	w.until("it ended by "+string(want), func() bool {
		var err error
		end, err = w.Explain(w.t.Context(), alice, id)
		return err == nil && end.Reason == want
	})
	return end
}

func TestDeathIsNoticed(t *testing.T) {
	w := newFixture(t)
	w.run()
	w.until("the service follows the host", func() bool { return w.host.Subscribers() == 1 })
	s := w.create(alice, api.CreateRequest{})
	w.exec(alice, s.ID, "echo out; echo err >&2; exit 3")
	w.host.Kill(hostapi.MachineID(s.ID), "killed by signal 9")
	end := w.ended(s.ID, sandbox.EndedCrash)
	if !strings.Contains(end.Console, "console of") || !strings.Contains(end.Message, "signal 9") {
		t.Errorf("tombstone has message %q, console %q, want what the host reported", end.Message, end.Console)
	}
	if len(end.Processes) != 1 || end.Processes[0].Code != 3 || end.Processes[0].Stdout != "out\n" ||
		end.Processes[0].Stderr != "err\n" ||
		!end.Processes[0].Exited {
		t.Errorf("processes %+v, want one that ended with 3", end.Processes)
	}
}

// TestLateDeathEventAmendsTombstone: a death is found out by a caller before the host tells why.
func TestLateDeathEventAmendsTombstone(t *testing.T) {
	w := newFixture(t)
	w.run()
	w.until("the service follows the host", func() bool { return w.host.Subscribers() == 1 })
	s := w.create(alice, api.CreateRequest{})
	w.host.Lose(hostapi.MachineID(s.ID))
	_, err := w.Guest(t.Context(), alice, s.ID)
	wantCode(t, err, api.NotFound, "guest of a machine that is gone")
	w.ended(s.ID, sandbox.EndedHostLost)
	w.host.Emit(
		hostapi.Event{
			Machine:     hostapi.MachineID(s.ID),
			Type:        "died",
			Reason:      "limit reached",
			OutOfMemory: true,
			Console:     []byte("last words"),
		},
	)
	if end := w.ended(s.ID, sandbox.EndedOutOfMemory); !strings.Contains(end.Message, "limit reached") ||
		end.Console != "last words" {
		t.Errorf("ended as %+v", end)
	}
}

func TestOrphans(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	labels := map[string]string{"workspace": "alice", "store": w.db.ID()}
	foreign := map[string]string{"workspace": "alice", "store": "another"}
	for _, m := range []hostapi.Create{
		{ID: "mine", Template: "base", Persistent: true, Labels: labels}, {ID: "bare", Template: "base"},
		{ID: "foreign", Template: "base", Labels: foreign}, {ID: "foreignkept", Template: "base",
			Persistent: true, Labels: foreign},
	} {
		if _, err := w.host.Create(ctx, m); err != nil {
			t.Fatal(err)
		}
	}
	for id, l := range map[hostapi.SnapshotID]map[string]string{"minesnap": labels, "foreignsnap": foreign} {
		if _, err := w.host.TakeSnapshot(ctx, "mine", id, l); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Reconcile(ctx); err != nil {
		t.Fatal(err)
	}
	w.clean("foreignkept")
	if have, err := w.host.Snapshots(ctx); err != nil || len(have) != 1 || have[0].ID != "foreignsnap" {
		t.Errorf("snapshots %v, %v; want the one of the other store alone", have, err)
	}
	if s, err := w.Get(ctx, alice, "foreignkept"); err != nil || !s.Persistent || s.Status != api.Running {
		t.Errorf("taken in as %+v, %v", s, err)
	}
}

func TestNewOrphansAreLeftAlone(t *testing.T) {
	w := newFixture(t, func(c *sandbox.Config) { c.OrphanGrace = sandbox.Defaults().OrphanGrace })
	if _, err := w.host.Create(t.Context(), hostapi.Create{ID: "new", Template: "base"}); err != nil {
		t.Fatal(err)
	}
	if err := w.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(w.host.Machines()); n != 1 {
		t.Error("a machine seen for the first time was destroyed")
	}
}

func TestStateFollowsTheHost(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	s := w.create(alice, api.CreateRequest{Persistent: true})
	id := hostapi.MachineID(s.ID)
	for _, step := range []struct {
		do   func() error
		want api.Status
	}{
		{func() error { return w.host.Hibernate(ctx, id) }, api.Hibernated},
		{func() error { _, err := w.host.Wake(ctx, id); return err }, api.Running},
		{func() error { return w.host.Pause(ctx, id) }, api.Paused},
		{func() error { return w.host.Hibernate(ctx, id) }, api.Hibernated},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if err := w.Reconcile(ctx); err != nil {
			t.Fatal(err)
		}
		if got := w.status(alice, s.ID); got != step.want {
			t.Errorf("it is %s, want %s", got, step.want)
		}
	}
}
