//go:build e2e

package chaos

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
)

// TestStoppedMonitor stops the monitor of a sandbox, so that its guest does not reply. No request may wait for it for
// ever, its neighbour must not notice, and it can be deleted although another operation waits for it.
func TestStoppedMonitor(t *testing.T) {
	l := open(t)
	stuck, neighbour := l.create(true), l.create(false)
	ctx, cancel := within()
	defer cancel()
	usage, err := l.client.Sandboxes.Usage(ctx, stuck)
	if err != nil || usage.PID == 0 {
		t.Fatalf("usage = %+v, %v; want the process of the monitor", usage, err)
	}
	if err := syscall.Kill(usage.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(usage.PID, syscall.SIGCONT) }) // the test has failed if it still exists
	_, err = l.client.Sandboxes.Exec(ctx, stuck, api.ExecRequest{Cmd: "true", TimeoutSeconds: 3})
	if c := code(err); c != api.Timeout && c != api.Unavailable {
		t.Errorf("exec with a timeout in a guest that does not reply = %v, want timeout or unavailable", err)
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for shown := false; !shown; <-tick.C {
		s, err := l.client.Sandboxes.Get(ctx, stuck)
		if err != nil {
			t.Fatalf("while its guest does not reply: %v; want unresponsive_since", err)
		}
		shown = s.UnresponsiveSince != nil && s.Status == api.Running
	}
	if got := l.must(neighbour, "echo here"); got != "here" {
		t.Errorf("output of the neighbour = %q, want here", got)
	}
	hibernated := make(chan error, 1)
	begun, cancelBegun := context.WithCancel(ctx)
	defer cancelBegun()
	go func() { hibernated <- l.client.Sandboxes.Hibernate(begun, stuck) }()
	if err := l.client.Sandboxes.Delete(ctx, stuck); err != nil {
		t.Errorf("delete of a sandbox that does not reply: %v", err)
	}
	if err := <-hibernated; err == nil || ctx.Err() != nil {
		t.Errorf("hibernate of a deleted sandbox that does not reply = %v, want an error before the delete ends", err)
	}
}
