package sandbox_test

import (
	"slices"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/sandbox"
)

// TestSandboxThatWaitsForSpace follows a sandbox that its host has paused: get and list say why, so do the errors of
// verbs, also after a restart, and events say when it paused and continued.
func TestSandboxThatWaitsForSpace(t *testing.T) {
	w := newFixture(t)
	w.run()
	ctx := t.Context()
	s := w.create(alice, api.CreateRequest{Persistent: true})
	reason := func() string {
		got, err := w.Get(ctx, alice, s.ID)
		if err != nil {
			t.Fatal(err)
		}
		return got.PauseReason
	}
	if m := w.host.Machines(); len(m) != 1 || m[0].Group != string(alice.Workspace) {
		t.Errorf("machines = %+v, want one in the group %s", m, alice.Workspace)
	}
	w.host.SetWaiting(hostapi.MachineID(s.ID), true)
	w.until("the sandbox waits for space", func() bool { return reason() == "no_space" })
	list, err := w.List(ctx, alice, api.SandboxFilter{})
	if err != nil || len(list.Sandboxes) != 1 || list.Sandboxes[0].Status != api.Paused ||
		list.Sandboxes[0].PauseReason != "no_space" {
		t.Errorf("list: got %+v, %v; want it paused with the reason no_space", list, err)
	}
	_, err = w.Guest(ctx, alice, s.ID)
	wantCode(t, err, api.NoSpace, "the guest of a sandbox that waits")
	_, err = w.Pause(ctx, alice, s.ID)
	wantCode(t, err, api.NoSpace, "pause of a sandbox that waits and continues by itself")
	_, err = w.Resume(ctx, alice, s.ID)
	wantCode(t, err, api.NoSpace, "resume of a sandbox that waits")
	w.restart()
	w.run()
	if got := reason(); got != "no_space" {
		t.Errorf("pause reason after a restart = %q, want no_space", got)
	}
	w.host.SetWaiting(hostapi.MachineID(s.ID), false)
	w.until("the sandbox runs", func() bool { return w.status(alice, s.ID) == api.Running })
	if got := reason(); got != "" {
		t.Errorf("pause reason of a running sandbox = %q, want none", got)
	}
	events, err := w.Events(ctx, alice, s.ID, sandbox.EventQuery{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range events {
		if why, ok := e.Payload["reason"].(string); ok {
			got = append(got, e.Type+" "+why)
		}
	}
	if want := []string{"sandbox.paused no_space", "sandbox.resumed no_space"}; !slices.Equal(got, want) {
		t.Errorf("events with a reason = %v, want %v", got, want)
	}
	if err := w.Delete(ctx, alice, s.ID); err != nil {
		t.Errorf("delete: %v, want none", err)
	}
}
