package sandbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/sandbox"
)

// TestLastSeenSurvivesARestart: how processes ended and what a sandbox took is known of one whose machine is
// lost while there was no control plane, after a stop and after a kill; after a stop also what it printed.
func TestLastSeenSurvivesARestart(t *testing.T) {
	for name, killed := range map[string]bool{"stopped": false, "killed": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- w.Run(ctx) }()
				lost, lives := w.create(alice, api.CreateRequest{}), w.create(alice, api.CreateRequest{})
				w.exec(alice, lost.ID, "echo out; echo err >&2; exit 3")
				w.exec(alice, lives.ID, "echo before; exit 4")
				advance(w.cfg.FlushInterval + time.Second)
				if killed { // what a clean end writes is not written
					w.fault = func(op string, committed bool) error {
						if op == "last words" || op == "flush" {
							return errors.New("killed")
						}
						return nil
					}
				}
				cancel()
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				w.fault = nil
				w.host.Lose(hostapi.MachineID(lost.ID))
				w.restart()
				if err := w.Reconcile(t.Context()); err != nil {
					t.Fatal(err)
				}
				end, err := w.Explain(t.Context(), alice, lost.ID)
				if err != nil || end.Reason != sandbox.EndedHostLost {
					t.Fatalf("%+v, %v", end, err)
				}
				if len(end.Processes) != 1 || end.Processes[0].Code != 3 || end.Processes[0].Stdout != "out\n" ||
					end.Processes[0].Stderr != "err\n" {
					t.Errorf("processes %+v, want one that ended with 3", end.Processes)
				}
				if end.Usage == nil || end.Usage.HostCPUPercent == 0 {
					t.Errorf("usage %+v, want what was seen last", end.Usage)
				}
				if got := strings.Contains(end.Console, "console of"); got == killed {
					t.Errorf("console %q", end.Console)
				}
				w.run()
				synctest.Wait()
				w.exec(alice, lives.ID, "echo after; exit 5")
				if l, err := w.Logs(t.Context(), alice, lives.ID); err != nil || len(l.Processes) != 2 ||
					l.Processes[0].Stdout != "before\n" ||
					l.Processes[1].Code != 5 {
					t.Errorf("logs of one that lives: %+v, %v", l.Processes, err)
				}
			})
		})
	}
}

// TestTombstoneIsComplete: the error for a sandbox that ended says how its processes ended and what it used, and
// says so only to its workspace.
func TestTombstoneIsComplete(t *testing.T) {
	w := newFixture(t)
	s := w.create(alice, api.CreateRequest{})
	w.exec(alice, s.ID, "echo private; exit 7")
	if err := w.Delete(t.Context(), alice, s.ID); err != nil {
		t.Fatal(err)
	}
	_, err := w.Get(t.Context(), alice, s.ID)
	e := api.AsError(err)
	list, ok := e.Details["processes"].([]sandbox.ProcessEnd)
	if e.Code != api.NotFound || !ok || len(list) != 1 || list[0].Code != 7 || list[0].Stdout != "" {
		t.Errorf(
			"%s: processes %+v, want one that ended with 7, without what it printed",
			e.Message,
			e.Details["processes"],
		)
	}
	if u, ok := e.Details["metrics"].(*api.Usage); !ok || u.HostRSSBytes == 0 || u.Guest == nil {
		t.Errorf("metrics %+v, want the last of host and guest", e.Details["metrics"])
	}
	if _, err := w.Get(t.Context(), bob, s.ID); len(api.AsError(err).Details) != 0 {
		t.Errorf("details for another workspace = %+v, want none", api.AsError(err).Details)
	}
}
