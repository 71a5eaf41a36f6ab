package sandbox_test

import (
	"context"
	"reflect"
	"slices"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/volume/lease"
)

// call is one verb on somebody's sandbox or snapshot.
type call struct {
	name string
	do   func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, snap api.SnapshotID) error
}

// calls are all verbs that name a sandbox or a snapshot.
var calls = []call{
	{"Get", func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
		_, err := w.Get(ctx, who, id)
		return err
	}},
	{"Delete", func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
		return w.Delete(ctx, who, id)
	}},
	{"Pause", func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
		_, err := w.Pause(ctx, who, id)
		return err
	}},
	{"Resume", func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
		_, err := w.Resume(ctx, who, id)
		return err
	}},
	{"Hibernate", func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
		_, err := w.Hibernate(ctx, who, id)
		return err
	}},
	{"Stop", func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
		_, err := w.Stop(ctx, who, id)
		return err
	}},
	{"Wake", func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
		_, err := w.Wake(ctx, who, id)
		return err
	}},
	{"Lifecycle", func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
		_, err := w.Lifecycle(ctx, who, id)
		return err
	}},
	{
		"SetLifecycle",
		func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
			_, err := w.SetLifecycle(ctx, who, id, api.LifecyclePatch{TTLSeconds: p(int64(1))})
			return err
		},
	},
	{"Network", func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
		_, err := w.Network(ctx, who, id)
		return err
	}},
	{"SetNetwork", func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
		_, err := w.SetNetwork(ctx, who, id, api.Network{DenyOthers: true})
		return err
	}},
	{"SetOwner", func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
		return w.SetOwner(ctx, who, id, hostapi.Owner{Kind: "database", ID: "dbs2"})
	}},
	{
		"TakeSnapshot",
		func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
			_, err := w.TakeSnapshot(ctx, who, id, api.SnapshotRequest{})
			return err
		},
	},
	{"Snapshot", func(w *fixture, ctx context.Context, who auth.Principal, _ api.SandboxID, snap api.SnapshotID) error {
		_, err := w.Snapshot(ctx, who, snap)
		return err
	}},
	{
		"PushSnapshot",
		func(w *fixture, ctx context.Context, who auth.Principal, _ api.SandboxID, snap api.SnapshotID) error {
			_, err := w.PushSnapshot(ctx, who, snap)
			return err
		},
	},
	{
		"DeleteSnapshot",
		func(w *fixture, ctx context.Context, who auth.Principal, _ api.SandboxID, snap api.SnapshotID) error {
			return w.DeleteSnapshot(ctx, who, snap)
		},
	},
	{"Create", func(w *fixture, ctx context.Context, who auth.Principal, _ api.SandboxID, snap api.SnapshotID) error {
		_, err := w.Create(ctx, who, api.CreateRequest{FromSnapshot: snap})
		return err
	}},
	{"Fork", func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
		_, err := w.Fork(ctx, who, id, api.ForkRequest{})
		return err
	}},
	{"ForkTree", func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
		_, err := w.ForkTree(ctx, who, id, api.ForkTreeRequest{})
		return err
	}},
	{"Promote", func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
		_, err := w.Promote(ctx, who, id, api.PromoteRequest{CleanupSiblings: true})
		return err
	}},
	{"Guest", func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
		_, err := w.Guest(ctx, who, id)
		return err
	}},
	{"Touch", func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
		return w.Touch(ctx, who, id)
	}},
	{
		"GuestAndSandbox",
		func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
			_, _, err := w.GuestAndSandbox(ctx, who, id)
			return err
		},
	},
	{"Usage", func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
		_, err := w.Usage(ctx, who, id)
		return err
	}},
	{"Logs", func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
		_, err := w.Logs(ctx, who, id)
		return err
	}},
	{"Events", func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
		_, err := w.Events(ctx, who, id, sandbox.EventQuery{})
		return err
	}},
	{
		"FollowEvents",
		func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
			return w.FollowEvents(
				ctx,
				who,
				id,
				sandbox.EventQuery{},
				func(sandbox.Event) error { return context.Canceled },
			)
		},
	},
	{"Ports", func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
		_, err := w.Ports(ctx, who, id)
		return err
	}},
	{
		"DeclarePort",
		func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
			_, err := w.DeclarePort(ctx, who, id, api.PortRequest{Port: 99})
			return err
		},
	},
	{"RemovePort", func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
		return w.RemovePort(ctx, who, id, 80)
	}},
	{
		"ChangeVolumes",
		func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
			_, err := w.ChangeVolumes(ctx, who, id, lease.Change{Doing: "change",
				Do: func(ctx context.Context, b api.Sandbox) (hostapi.Machine, []api.SandboxVolume, error) {
					m, err := w.host.Get(ctx, hostapi.MachineID(b.ID))
					return m, nil, err
				}})
			return err
		},
	},
	{"Explain", func(w *fixture, ctx context.Context, who auth.Principal, id api.SandboxID, _ api.SnapshotID) error {
		_, err := w.Explain(ctx, who, id)
		return err
	}},
}

// unowned are the methods that take no sandbox or snapshot of an owner: those of the controllers, OpenForIngress, which
// asks whether to admit the caller (TestOpenForIngress), and those whose ids are looked up in the caller's own part of
// the object store; see TestPullOfAnotherWorkspacesSnapshot.
var unowned = map[string]bool{
	"PullSnapshot":   true,
	"DeletePushed":   true,
	"OpenForIngress": true,
	"Run":            true,
	"RelieveMemory":  true, "Reap": true,
	"Reconcile": true,
	"List":      true,
	"Snapshots": true,
	"Counts":    true,
	"Capacity":  true,

	"EnforceQuotas": true,
}

func TestEveryVerbIsInTheTable(t *testing.T) {
	have := map[string]bool{}
	for _, c := range calls {
		have[c.name] = true
	}
	for m := range reflect.TypeFor[*sandbox.Service]().Methods() {
		if !have[m.Name] && !unowned[m.Name] {
			t.Errorf("method %s is in neither table: who may call it is not tested", m.Name)
		}
	}
}

// TestPullOfAnotherWorkspacesSnapshot: for a caller, a snapshot of another workspace is one that was never pushed.
func TestPullOfAnotherWorkspacesSnapshot(t *testing.T) {
	w := newFixture(t)
	s := w.create(alice, api.CreateRequest{})
	snap, err := w.TakeSnapshot(t.Context(), alice, s.ID, api.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, theirs := w.PullSnapshot(t.Context(), bob, snap.ID, api.PullRequest{})
	wantCode(t, theirs, api.NotFound, "pull of another's")
	if got, err := w.Snapshot(t.Context(), alice, snap.ID); err != nil || got.ID != snap.ID {
		t.Errorf("it is %+v, %v afterwards", got, err)
	}
	_, stranger := w.PullSnapshot(t.Context(), auth.Principal{}, snap.ID, api.PullRequest{})
	wantCode(t, stranger, api.Unauthenticated, "pull by a stranger")
	wantCode(t, w.DeletePushed(t.Context(), auth.Principal{}, snap.ID), api.Unauthenticated, "deletion by a stranger")
}

// TestIsolation: calls for another workspace's sandbox, alive or ended, have the same result as for one that does not
// exist, and change nothing.
func TestIsolation(t *testing.T) { checkIsolation(t, newFixture(t)) }

func checkIsolation(t *testing.T, w *fixture) {
	w.t = t
	ctx := t.Context()
	s := w.create(alice, api.CreateRequest{})
	tree, err := w.ForkTree(ctx, alice, s.ID, api.ForkTreeRequest{Count: 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.DeclarePort(ctx, alice, s.ID, api.PortRequest{Port: 80}); err != nil {
		t.Fatal(err)
	}
	snap, err := w.TakeSnapshot(ctx, alice, s.ID, api.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	dead := w.create(alice, api.CreateRequest{})
	if err := w.Delete(ctx, alice, dead.ID); err != nil {
		t.Fatal(err)
	}
	before := len(w.host.Calls())
	for _, c := range calls {
		for name, id := range map[string]api.SandboxID{"alive": s.ID, "child": tree.Children[0].ID, "dead": dead.ID} {
			theirs := c.do(w, ctx, bob, id, snap.ID)
			unknown := c.do(w, ctx, bob, api.NewSandboxID(), api.NewSnapshotID())
			e := wantCode(t, theirs, api.NotFound, c.name+" of another's "+name)
			n := wantCode(t, unknown, api.NotFound, c.name+" with unknown ids")
			if len(e.Details) != len(n.Details) || len(e.Message) != len(n.Message) {
				t.Errorf("%s: %q tells %q apart from %q", c.name, name, e.Message, n.Message)
			}
			wantCode(t, c.do(w, ctx, auth.Principal{}, id, snap.ID), c.stranger(), c.name+" by a stranger")
		}
	}
	if calls := w.host.Calls()[before:]; len(calls) != 0 {
		t.Errorf("refused calls reached the host: %v", calls)
	}
	if page, err := w.List(ctx, bob, api.SandboxFilter{}); err != nil || len(page.Sandboxes) != 0 {
		t.Errorf("bob sees %v, %v", page, err)
	}
	if page, err := w.Snapshots(ctx, bob, api.SnapshotFilter{}); err != nil || len(page.Snapshots) != 0 {
		t.Errorf("bob sees %v, %v", page, err)
	}
	_, err = w.List(ctx, auth.Principal{}, api.SandboxFilter{})
	wantCode(t, err, api.Unauthenticated, "list by a stranger")
	_, err = w.Snapshots(ctx, auth.Principal{}, api.SnapshotFilter{})
	wantCode(t, err, api.Unauthenticated, "snapshots by a stranger")
}

// stranger is what a caller without a workspace is answered.
func (c call) stranger() api.Code {
	if c.name == "Explain" {
		return api.NotFound
	}
	return api.Unauthenticated
}

// reads are the verbs that users of a workspace may call for the sandboxes that services own in it, and those that take
// a snapshot instead.
var reads = map[string]bool{
	"Get": true, "Usage": true, "Logs": true, "Events": true, "FollowEvents": true, "Ports": true, "Explain": true,
	"Lifecycle": true, "Network": true,
	"Create": true, "Snapshot": true, "PushSnapshot": true, "DeleteSnapshot": true,
}

// TestSandboxesOfServices: what a service's object owns, users of the workspace can see, but neither list nor use nor
// end; it is the same between objects, and for what users own.
func TestSandboxesOfServices(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	database, other := alice, alice
	database.Owner = hostapi.Owner{Kind: "database", ID: "dbs1"}
	other.Owner = hostapi.Owner{Kind: "database", ID: "dbs2"}
	s := w.create(database, api.CreateRequest{})
	own := w.create(alice, api.CreateRequest{})
	snap, err := w.TakeSnapshot(ctx, database, s.ID, api.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	before := len(w.host.Calls())
	for _, c := range calls {
		if reads[c.name] {
			continue
		}
		e := wantCode(t, c.do(w, ctx, alice, s.ID, snap.ID), api.Forbidden, c.name+" by a user")
		if e.Details["owner"] != "database/dbs1" {
			t.Errorf("%s by a user: details are %v", c.name, e.Details)
		}
		wantCode(t, c.do(w, ctx, other, s.ID, snap.ID), api.Forbidden, c.name+" by another object")
		wantCode(t, c.do(w, ctx, database, own.ID, snap.ID), api.Forbidden, c.name+" by a service of a user's own")
	}
	if calls := w.host.Calls()[before:]; len(calls) != 0 {
		t.Errorf("refused calls reached the host: %v", calls)
	}
	if got, err := w.Get(ctx, alice, s.ID); err != nil || got.Status != api.Running {
		t.Errorf("a user gets %+v, %v", got, err)
	}
	for _, who := range []struct {
		p    auth.Principal
		want []api.SandboxID
	}{{alice, []api.SandboxID{own.ID}}, {database, []api.SandboxID{s.ID}}, {other, nil}} {
		page, err := w.List(ctx, who.p, api.SandboxFilter{})
		var got []api.SandboxID
		for _, s := range page.Sandboxes {
			got = append(got, s.ID)
		}
		if err != nil || !slices.Equal(got, who.want) {
			t.Errorf("%v lists %v, %v; want %v", who.p.Owner, got, err, who.want)
		}
	}
	_, _, err = w.OpenForIngress(ctx, s.ID, func(auth.Principal, api.Sandbox) error { return nil })
	wantCode(t, err, api.NotFound, "a port of it")

	// A fork belongs to its parent's owner until that gives it away.
	forked, err := w.Fork(ctx, database, s.ID, api.ForkRequest{})
	if err != nil {
		t.Fatal(err)
	}
	child := forked.Children[0].ID
	if err := w.SetOwner(ctx, database, child, other.Owner); err != nil {
		t.Fatal(err)
	}
	wantCode(t, w.Touch(ctx, database, child), api.Forbidden, "use by the earlier owner")
	if err := w.Delete(ctx, other, child); err != nil {
		t.Error(err)
	}
}
