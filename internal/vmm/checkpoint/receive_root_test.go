//go:build root

package checkpoint_test

import (
	"net"
	"os"
	"testing"

	"github.com/pandastack/pandastack/internal/lib/proc"
	"github.com/pandastack/pandastack/internal/vmm/checkpoint"
)

// TestReceivedDescriptors restores a process with a descriptor that its stub got after it was started.
func TestReceivedDescriptors(t *testing.T) {
	c, theirs := pair(t)
	p := start(t, proc.Command{
		Path: "/usr/bin/python3", Args: []string{"-c", counterProgram}, Files: []*os.File{theirs},
		Env: []string{"PATH=/usr/bin"},
	})
	_ = theirs.Close()
	if got := c.request(t, "5"); got != "5" {
		t.Fatalf("got sum %s, want 5", got)
	}
	cp, content := dumpProcess(t, p)
	for _, sent := range []int{0, 1, 2, 3} {
		stubProcess, handover, plan := startStub(t, &cp, content, nil)
		plan.Handover, plan.Received = plan.Roles["socket"], [][]string{{"socket", "unused"}, {"socket"}}
		ours, theirs := pair(t)
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		messages := [][]*os.File{{null, null}, {theirs}}
		if sent == 3 { // the first has fewer than announced
			messages[0] = messages[0][:1]
		}
		for _, files := range messages[:min(sent, 2)] {
			if err := checkpoint.Send(handover.Conn.(*net.UnixConn), files...); err != nil {
				t.Fatal(err)
			}
		}
		_, _ = null.Close(), theirs.Close()
		stub := checkpoint.Attach(stubProcess.PID())
		err = stub.Restore(t.Context(), plan)
		stub.Close()
		if sent != 2 {
			if err == nil {
				t.Errorf("restore after %d of 2 messages: got no error", sent)
			}
			continue
		}
		if err != nil {
			t.Fatalf("Restore: %v; output %s", err, stubProcess.Tail(5))
		}
		if got := ours.request(t, "2"); got != "7" {
			t.Errorf("the restored process returned sum %s, want 7", got)
		}
	}
	if err := checkpoint.Send(nil); err == nil {
		t.Error("send of no files: got no error")
	}
}
