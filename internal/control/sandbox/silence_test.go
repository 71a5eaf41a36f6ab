package sandbox_test

import (
	"slices"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/sandbox"
)

// TestSandboxThatDoesNotAnswer follows a sandbox whose guest does not answer, as its host says: get and list show since
// when, also after a restart, and events say when that began and ended.
func TestSandboxThatDoesNotAnswer(t *testing.T) {
	w := newFixture(t)
	w.run()
	ctx := t.Context()
	s := w.create(alice, api.CreateRequest{Persistent: true})
	since := func() time.Time {
		got, err := w.Get(ctx, alice, s.ID)
		if err != nil {
			t.Fatal(err)
		}
		if got.Status != api.Running {
			t.Errorf("the sandbox is %s, want it running", got.Status)
		}
		if got.UnresponsiveSince == nil {
			return time.Time{}
		}
		return *got.UnresponsiveSince
	}
	began := time.Now().Add(-time.Minute)
	w.host.SetUnresponsive(hostapi.MachineID(s.ID), began)
	w.until("the sandbox is shown as unresponsive", func() bool { return since().Equal(began) })
	list, err := w.List(ctx, alice, api.SandboxFilter{})
	if err != nil || len(list.Sandboxes) != 1 || list.Sandboxes[0].UnresponsiveSince == nil {
		t.Errorf("list: got %+v, %v; want it unresponsive", list, err)
	}
	w.restart() // what the host says is found without an event
	w.run()
	w.until("the sandbox is shown as unresponsive", func() bool { return since().Equal(began) })
	w.host.SetUnresponsive(hostapi.MachineID(s.ID), time.Time{})
	w.until("the sandbox is shown as before", func() bool { return since().IsZero() })
	events, err := w.Events(ctx, alice, s.ID, sandbox.EventQuery{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range events {
		got = append(got, e.Type)
	}
	if !slices.Contains(got, api.EventUnresponsive) || got[len(got)-1] != api.EventResponsive {
		t.Errorf("events %v, want one of each change", got)
	}
}
