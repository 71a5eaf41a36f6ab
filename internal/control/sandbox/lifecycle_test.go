package sandbox_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/sandbox"
)

func TestLifecycle(t *testing.T) { checkLifecycle(t, newFixture(t)) }

func checkLifecycle(t *testing.T, w *fixture) {
	w.t = t
	ctx := t.Context()
	s := w.create(
		alice,
		api.CreateRequest{
			Template: "ubuntu-24.04",
			Metadata: map[string]string{"a": "1", "secret.b": "2"},
			Env:      map[string]string{"X": "y"},
		},
	)
	if !s.ID.Valid() || s.Status != api.Running || s.Template != "base" || s.User != "user" || s.TTLSeconds != 300 ||
		s.BootMode != "snapshot" ||
		!s.Egress {
		t.Errorf("created %+v", s)
	}
	if s.Metadata["a"] != "1" || s.Metadata["secret.b"] == "2" {
		t.Errorf("metadata %v: the secret must not be shown", s.Metadata)
	}
	if got := w.exec(alice, s.ID, "echo $X > f; cat f; hostname"); got != "y\n"+string(s.ID)+"\n" {
		t.Errorf("exec gave %q", got)
	}
	for _, step := range []struct {
		do   func() (api.Sandbox, error)
		want api.Status
	}{
		{func() (api.Sandbox, error) { return w.Pause(ctx, alice, s.ID) }, api.Paused},
		{func() (api.Sandbox, error) { return w.Pause(ctx, alice, s.ID) }, api.Paused},
		{func() (api.Sandbox, error) { return w.Resume(ctx, alice, s.ID) }, api.Running},
		{func() (api.Sandbox, error) { return w.Hibernate(ctx, alice, s.ID) }, api.Hibernated},
		{func() (api.Sandbox, error) { return w.Wake(ctx, alice, s.ID) }, api.Running},
		{func() (api.Sandbox, error) { return w.Wake(ctx, alice, s.ID) }, api.Running},
		{func() (api.Sandbox, error) { return w.Pause(ctx, alice, s.ID) }, api.Paused},
		{func() (api.Sandbox, error) { return w.Hibernate(ctx, alice, s.ID) }, api.Hibernated},
	} {
		got, err := step.do()
		if err != nil || got.Status != step.want {
			t.Fatalf("got %s, %v; want %s", got.Status, err, step.want)
		}
	}
	if got := w.exec(alice, s.ID, "cat f"); got != "y\n" {
		t.Errorf("after auto-wake the file holds %q", got)
	}
	for range 2 {
		if err := w.Delete(ctx, alice, s.ID); err != nil {
			t.Fatal(err)
		}
	}
	w.clean()
	_, err := w.Get(ctx, alice, s.ID)
	e := wantCode(t, err, api.NotFound, "get after the end")
	if e.Details["reason"] != "deleted" || e.Details["by"] != alice.KeyPrefix ||
		!strings.Contains(e.Message, "deleted by its user") {
		t.Errorf("Get after the end = %q, %v, want when and why it ended", e.Message, e.Details)
	}
	types := []string{}
	events, err := w.Events(ctx, alice, s.ID, sandbox.EventQuery{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		types = append(types, strings.TrimPrefix(e.Type, "sandbox."))
	}
	want := "created running paused resumed hibernated woken paused hibernated woken deleted"
	if got := strings.Join(types, " "); got != want {
		t.Errorf("events %s, want %s", got, want)
	}
}

func TestCreateRefuses(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	w.allow(alice, quota.Sandboxes, 2)
	rows := []struct {
		name string
		req  api.CreateRequest
		code api.Code
	}{
		{"template", api.CreateRequest{Template: "nosuch"}, api.Invalid},
		{"cpu", api.CreateRequest{Template: "base", CPU: 64}, api.Invalid},
		{"memory", api.CreateRequest{Template: "base", MemoryMB: 1}, api.Invalid},
		{"snapshot", api.CreateRequest{FromSnapshot: api.NewSnapshotID()}, api.NotFound},
		{"env", api.CreateRequest{Env: map[string]string{"1": "x"}}, api.Invalid},
		{"metadata", api.CreateRequest{Metadata: map[string]string{"": "x"}}, api.Invalid},
	}
	for _, r := range rows {
		_, err := w.Create(ctx, alice, r.req)
		wantCode(t, err, r.code, r.name)
	}
	one, two := w.create(alice, api.CreateRequest{}), w.create(alice, api.CreateRequest{})
	_, err := w.Create(ctx, alice, api.CreateRequest{})
	wantCode(t, err, api.QuotaExceeded, "third of two")
	_, err = w.Fork(ctx, alice, one.ID, api.ForkRequest{})
	wantCode(t, err, api.QuotaExceeded, "fork over the quota")
	w.create(bob, api.CreateRequest{})
	if err := w.Delete(ctx, alice, two.ID); err != nil {
		t.Fatal(err)
	}
	w.host.SetMaxRunning(2)
	_, err = w.Create(ctx, alice, api.CreateRequest{})
	if e := wantCode(t, err, api.NoCapacity, "no room"); !e.Retryable {
		t.Error("no_capacity is not retryable")
	}
	w.host.SetMaxRunning(100)
	for host, code := range map[error]api.Code{hostapi.ErrNoSpace: api.NoSpace, hostapi.ErrInvalid: api.Invalid,
		hostapi.ErrUnsupported: api.Unsupported, errors.New("/secret/path broke"): api.Internal} {
		w.host.Fail("create", fmt.Errorf("host: %w", host))
		_, err = w.Create(ctx, alice, api.CreateRequest{})
		if e := wantCode(t, err, code, "host returned "+host.Error()); strings.Contains(e.Message, "/secret") {
			t.Errorf("message %q tells what is the host's", e.Message)
		}
	}
	if n := len(w.host.Machines()); n != 2 {
		t.Errorf("%d machines after refused creates, want 2", n)
	}
}

func TestWrongStates(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	s := w.create(alice, api.CreateRequest{})
	if _, err := w.Pause(ctx, alice, s.ID); err != nil {
		t.Fatal(err)
	}
	_, err := w.Guest(ctx, alice, s.ID)
	if e := wantCode(t, err, api.WrongState, "guest of a paused sandbox"); !strings.Contains(e.Message, "resume") {
		t.Errorf("message %q names no remedy", e.Message)
	}
	_, err = w.Wake(ctx, alice, s.ID)
	wantCode(t, err, api.WrongState, "wake of a paused sandbox")
	if _, err := w.Hibernate(ctx, alice, s.ID); err != nil {
		t.Fatal(err)
	}
	_, err = w.Pause(ctx, alice, s.ID)
	wantCode(t, err, api.WrongState, "pause of a hibernated sandbox")
	_, err = w.Resume(ctx, alice, s.ID)
	wantCode(t, err, api.WrongState, "resume of a hibernated sandbox")
	w.host.SetMaxRunning(0)
	_, err = w.Wake(ctx, alice, s.ID)
	wantCode(t, err, api.NoCapacity, "wake without room")
	if got := w.status(alice, s.ID); got != api.Hibernated {
		t.Errorf("after a wake that failed it is %s, want hibernated", got)
	}
}

func TestList(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	var all []api.SandboxID
	for n := range 7 {
		s := w.create(alice, api.CreateRequest{Metadata: map[string]string{"odd": fmt.Sprint(n % 2)}})
		all = append(all, s.ID)
	}
	slices.Reverse(all)
	w.create(bob, api.CreateRequest{})
	if _, err := w.Pause(ctx, alice, all[0]); err != nil {
		t.Fatal(err)
	}
	ids := func(f api.SandboxFilter) (out []api.SandboxID) {
		t.Helper()
		for {
			page, err := w.List(ctx, alice, f)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range page.Sandboxes {
				out = append(out, s.ID)
			}
			if f.Cursor = page.Next; f.Cursor == "" {
				return out
			}
		}
	}
	for _, limit := range []int{0, 1, 3, 7, 100} {
		if got := ids(api.SandboxFilter{Limit: limit}); !slices.Equal(got, all) {
			t.Errorf("limit %d: %v, want %v", limit, got, all)
		}
	}
	oldest := slices.Clone(all)
	slices.Reverse(oldest)
	for _, limit := range []int{0, 1, 3} {
		if got := ids(api.SandboxFilter{Limit: limit, Oldest: true}); !slices.Equal(got, oldest) {
			t.Errorf("oldest first, limit %d: %v, want %v", limit, got, oldest)
		}
	}
	third, err := w.Get(ctx, alice, oldest[2])
	if err != nil {
		t.Fatal(err)
	}
	if got := ids(api.SandboxFilter{Since: third.CreatedAt, Oldest: true, Limit: 2}); !slices.Equal(got, oldest[2:]) {
		t.Errorf("since the third: %v, want %v", got, oldest[2:])
	}
	if got := ids(api.SandboxFilter{Statuses: []api.Status{api.Paused}}); !slices.Equal(got, all[:1]) {
		t.Errorf("paused: %v", got)
	}
	if got := ids(api.SandboxFilter{Metadata: map[string]string{"odd": "1"}, Limit: 2}); len(got) != 3 {
		t.Errorf("odd: %v, want 3", got)
	}
	if got := ids(api.SandboxFilter{Template: "ubuntu-24.04"}); len(got) != 7 {
		t.Errorf("by alias: %v, want 7", got)
	}
	for name, f := range map[string]api.SandboxFilter{"limit": {Limit: -1}, "cursor": {Cursor: "x"},
		"letters": {Cursor: "!!"}, "status": {Statuses: []api.Status{"odd"}}} {
		_, err := w.List(ctx, alice, f)
		wantCode(t, err, api.Invalid, name)
	}
}

func TestForks(t *testing.T) { checkForks(t, newFixture(t)) }

func checkForks(t *testing.T, w *fixture) {
	w.t = t
	ctx := t.Context()
	parent := w.create(
		alice,
		api.CreateRequest{Metadata: map[string]string{"a": "1"}, Env: map[string]string{"E": "1"}},
	)
	w.exec(alice, parent.ID, "echo data > f")
	one, err := w.Fork(
		ctx,
		alice,
		parent.ID,
		api.ForkRequest{Metadata: map[string]string{"b": "2"}, Env: map[string]string{"F": "2"}},
	)
	if err != nil {
		t.Fatal(err)
	}
	child := one.Children[0]
	if child.ParentID != parent.ID || child.BootMode != "fork" || child.Metadata["a"] != "1" ||
		child.Metadata["b"] != "2" ||
		one.PauseMS == 0 ||
		one.Sandbox.ID != child.ID {
		t.Errorf("fork answered %+v", one)
	}
	if got := w.exec(alice, child.ID, "cat f; echo $E$F; hostname"); got != "data\n12\n"+string(child.ID)+"\n" {
		t.Errorf("child says %q", got)
	}
	if _, err := w.Hibernate(ctx, alice, parent.ID); err != nil {
		t.Fatal(err)
	}
	tree, err := w.ForkTree(
		ctx,
		alice,
		parent.ID,
		api.ForkTreeRequest{Count: 4, Metadata: map[string]string{"explore": "1"}},
	)
	if err != nil || len(tree.Children) != 4 {
		t.Fatalf("tree %+v, %v", tree, err)
	}
	for _, c := range tree.Children {
		if c.Metadata["fork_tree_id"] != string(tree.TreeID) || c.TreeID != tree.TreeID || c.Status != api.Running {
			t.Errorf("child %+v does not carry tree %s", c, tree.TreeID)
		}
	}
	winner := tree.Children[2].ID
	_, err = w.Promote(ctx, alice, winner, api.PromoteRequest{TreeID: "tre-other"})
	wantCode(t, err, api.Invalid, "promote in another tree")
	_, err = w.Promote(ctx, alice, child.ID, api.PromoteRequest{})
	wantCode(t, err, api.Invalid, "promote without a tree")
	won, err := w.Promote(ctx, alice, winner, api.PromoteRequest{CleanupSiblings: true})
	if err != nil || won.TreeID != tree.TreeID || len(won.Deleted) != 3 || len(won.Failures) != 0 {
		t.Errorf("promotion %+v, %v", won, err)
	}
	w.clean(parent.ID, child.ID, winner)
	end, err := w.Explain(ctx, alice, tree.Children[0].ID)
	if err != nil || end.Reason != sandbox.EndedPromotion {
		t.Errorf("a loser ended as %+v, %v", end, err)
	}
	_, err = w.ForkTree(ctx, alice, parent.ID, api.ForkTreeRequest{Count: 17})
	wantCode(t, err, api.Invalid, "17 children")

	w.host.Fail("child", nil)
	w.host.Fail("child", hostapi.ErrNoCapacity)
	part, err := w.ForkTree(ctx, alice, parent.ID, api.ForkTreeRequest{Count: 3})
	if err != nil || len(part.Children) != 2 || len(part.Errors) != 1 || part.Errors[0].Index != 1 ||
		part.Errors[0].Code != api.NoCapacity {
		t.Errorf("tree with a child that failed: %+v, %v", part, err)
	}
	w.host.Fail("child", hostapi.ErrNoSpace)
	_, err = w.Fork(ctx, alice, parent.ID, api.ForkRequest{})
	wantCode(t, err, api.NoSpace, "fork of which nothing came")
	w.clean(parent.ID, child.ID, winner, part.Children[0].ID, part.Children[1].ID)
}

func TestSnapshots(t *testing.T) { checkSnapshots(t, newFixture(t)) }

func checkSnapshots(t *testing.T, w *fixture) {
	w.t = t
	ctx := t.Context()
	s := w.create(alice, api.CreateRequest{Env: map[string]string{"E": "1"}})
	w.exec(alice, s.ID, "echo data > f")
	snap, err := w.TakeSnapshot(
		ctx,
		alice,
		s.ID,
		api.SnapshotRequest{Name: "one", Metadata: map[string]string{"m": "1"}},
	)
	if err != nil || !snap.ID.Valid() || snap.SandboxID != s.ID || snap.SizeBytes == 0 || snap.PauseMS == 0 {
		t.Fatalf("snapshot %+v, %v", snap, err)
	}
	w.exec(alice, s.ID, "echo later > f")
	if err := w.Delete(ctx, alice, s.ID); err != nil {
		t.Fatal(err)
	}
	back := w.create(
		alice,
		api.CreateRequest{Template: "ignored", FromSnapshot: snap.ID, Env: map[string]string{"F": "2"}},
	)
	if back.FromSnapshot != snap.ID || back.Template != "base" {
		t.Errorf("from snapshot: %+v", back)
	}
	if got := w.exec(alice, back.ID, "cat f; echo $E$F"); got != "data\n12\n" {
		t.Errorf("from snapshot it says %q", got)
	}
	_, err = w.Create(ctx, bob, api.CreateRequest{FromSnapshot: snap.ID})
	wantCode(t, err, api.NotFound, "snapshot of another workspace")
	page, err := w.Snapshots(ctx, alice, api.SnapshotFilter{SandboxID: s.ID})
	if err != nil || len(page.Snapshots) != 1 || page.Snapshots[0].Name != "one" {
		t.Errorf("list %+v, %v", page, err)
	}
	w.host.Fail("deletesnapshot", hostapi.ErrInUse)
	wantCode(t, w.DeleteSnapshot(ctx, alice, snap.ID), api.Conflict, "delete of one in use")
	if _, err := w.Snapshot(ctx, alice, snap.ID); err != nil {
		t.Errorf("after a delete that was refused: %v", err)
	}
	if err := w.DeleteSnapshot(ctx, alice, snap.ID); err != nil {
		t.Fatal(err)
	}
	_, err = w.Snapshot(ctx, alice, snap.ID)
	wantCode(t, err, api.NotFound, "deleted snapshot")
	w.host.Fail("takesnapshot", hostapi.ErrNoSpace)
	_, err = w.TakeSnapshot(ctx, alice, back.ID, api.SnapshotRequest{})
	wantCode(t, err, api.NoSpace, "snapshot on a full disk")
	if page, err := w.Snapshots(ctx, alice, api.SnapshotFilter{}); err != nil || len(page.Snapshots) != 0 {
		t.Errorf("snapshots left: %+v, %v", page, err)
	}
}

// Programs find out which sandbox they are in, also in children and in what is made from snapshots.
func TestProgramsKnowTheirSandbox(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	check := func(id api.SandboxID, marked bool) {
		t.Helper()
		if got := w.exec(alice, id, "echo $PANDASTACK_SANDBOX_ID $PANDASTACK_TEMPLATE"); got != string(id)+" base\n" {
			t.Errorf("sandbox %s: variables say %q", id, got)
		}
		if !marked {
			if got := w.exec(alice, id, "echo $GIVEN_ID"); got != "\n" {
				t.Errorf("sandbox %s: nothing was promised, and yet %q", id, got)
			}
			return
		}
		if got := w.exec(alice, id, "echo $GIVEN $GIVEN_ID; cat /run/given/id"); got != "true "+string(
			id,
		)+"\nis "+string(
			id,
		) {
			t.Errorf("sandbox %s: what a face promised says %q", id, got)
		}
	}
	check(w.create(alice, api.CreateRequest{}).ID, false)
	s := w.create(
		alice,
		api.CreateRequest{Env: map[string]string{"GIVEN_ID": "a user's"}, Injected: &api.Injected{
			Env: map[string]string{
				"GIVEN":               "true",
				"GIVEN_ID":            api.SandboxIDPlaceholder,
				"PANDASTACK_TEMPLATE": "not this",
			},
			Files: map[string]string{"/run/given/id": "is " + api.SandboxIDPlaceholder},
		}},
	)
	check(s.ID, true)
	fork, err := w.Fork(ctx, alice, s.ID, api.ForkRequest{})
	if err != nil {
		t.Fatal(err)
	}
	check(fork.Children[0].ID, true)
	snap, err := w.TakeSnapshot(ctx, alice, s.ID, api.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	check(w.create(alice, api.CreateRequest{FromSnapshot: snap.ID}).ID, true)
	if _, err := w.Hibernate(ctx, alice, s.ID); err != nil {
		t.Fatal(err)
	}
	check(s.ID, true) // the exec wakes it
	hosttest.ShareObjects(w.host)
	if _, err := w.PushSnapshot(ctx, alice, snap.ID); err != nil {
		t.Fatal(err)
	}
	if err := w.DeleteSnapshot(ctx, alice, snap.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := w.PullSnapshot(ctx, alice, snap.ID, api.PullRequest{}); err != nil {
		t.Fatal(err)
	}
	check(w.create(alice, api.CreateRequest{FromSnapshot: snap.ID}).ID, true)
}

func TestPortsAndUsage(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	s := w.create(alice, api.CreateRequest{})
	port, err := w.DeclarePort(ctx, alice, s.ID, api.PortRequest{Port: 8000, Label: "web"})
	if err != nil || port.Source != api.PortUser || port.Listening || !strings.Contains(port.ProxyURL, "/proxy/8000") {
		t.Errorf("declared %+v, %v", port, err)
	}
	if _, err := w.DeclarePort(ctx, alice, s.ID, api.PortRequest{Port: 7, Label: "echo"}); err != nil {
		t.Fatal(err)
	}
	all, err := w.Ports(ctx, alice, s.ID)
	if err != nil || len(all) != 2 || all[0].Port != 7 || !all[0].Listening || all[0].Label != "echo" ||
		all[0].Program != "echo" ||
		all[1].Listening {
		t.Errorf("ports %+v, %v", all, err)
	}
	if err := w.RemovePort(ctx, alice, s.ID, 7); err != nil {
		t.Fatal(err)
	}
	wantCode(t, w.RemovePort(ctx, alice, s.ID, 7), api.NotFound, "removed twice")
	if all, err := w.Ports(ctx, alice, s.ID); err != nil || len(all) != 2 || all[0].Source != api.PortDetected {
		t.Errorf("ports %+v, %v", all, err)
	}
	u, err := w.Usage(ctx, alice, s.ID)
	if err != nil || u.PID == 0 || u.Guest == nil || u.Guest.CPUs != 1 {
		t.Errorf("usage %+v, %v", u, err)
	}
	if c, err := w.Capacity(ctx); err != nil || c.Running != 1 {
		t.Errorf("capacity %+v, %v", c, err)
	}
	if n, err := w.Counts(ctx); err != nil || n[api.Running] != 1 || n[api.Paused] != 0 {
		t.Errorf("counts %v, %v", n, err)
	}
	long := time.Hour
	if got, err := w.SetLifecycle(ctx, alice, s.ID, api.LifecyclePatch{TTLSeconds: p(int64(0)),
		Persistent: p(true), TimeoutSeconds: p(int64(long.Seconds()))}); err != nil ||
		got.TTLSeconds != 0 ||
		!got.Persistent ||
		got.ExpiresAt == nil {
		t.Errorf("lifecycle %+v, %v", got, err)
	}
	if m := w.host.Machines()[0]; !m.Persistent {
		t.Error("the machine of a persistent sandbox is not persistent")
	}
}
