//go:build e2e

package e2e

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/pandastack/pandastack/test/nodelab"
)

// TestKeepRunning restarts a node as its service does for an upgrade: sandboxes must go on. The stop that a shutdown
// of the machine causes must hibernate persistent sandboxes and leave nothing running.
func TestKeepRunning(t *testing.T) {
	dir := nodelab.DataDir(t)
	socket := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close() //nolint:errcheck // of a test
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "300000")
	t.Setenv("WATCHDOG_PID", "")
	messages := make(chan string, 1<<16)
	go func() { // ends with the socket
		defer close(messages)
		b := make([]byte, 1000)
		for {
			n, err := manager.Read(b)
			if err != nil {
				return
			}
			messages <- string(b[:n])
		}
	}()
	// await reads messages to the service manager up to one.
	await := func(want string) {
		t.Helper()
		timer := time.NewTimer(nodelab.Limit)
		defer timer.Stop()
		for {
			select {
			case got := <-messages:
				if got == want {
					return
				}
			case <-timer.C:
				t.Fatalf("the service manager did not get %s", want)
			}
		}
	}

	n := nodelab.Start(t, dir, "--lifecycle-keep-running")
	await("READY=1")
	n.Bake("mini")
	ids := []string{n.Create().ID, n.Create("--persistent").ID}
	for _, id := range ids {
		n.Sh(id, "nohup sh -c 'while :; do echo x >>/dev/shm/beats; sleep 0.1; done' >/dev/null 2>&1 &")
	}
	await("WATCHDOG=1")
	n.Stop()
	await("STOPPING=1")
	nodelab.AwaitMonitors(t, dir, len(ids), "after the node was terminated")

	n = nodelab.Start(t, dir, "--lifecycle-keep-running")
	await("READY=1")
	for _, id := range ids {
		if s := n.Get(id); s.Status != "running" || s.Generation != 1 {
			t.Errorf("sandbox %s is %s with generation %d, want running with 1", id, s.Status, s.Generation)
		}
		n.Sh(id, "a=$(wc -l </dev/shm/beats); until [ $(wc -l </dev/shm/beats) -gt $a ]; do sleep 0.1; done")
	}
	n.Interrupt()
	nodelab.AwaitMonitors(t, dir, 0, "after the node was interrupted")

	n = nodelab.Start(t, dir)
	if r := n.CLI("sandbox", "get", ids[0]); r.Code == 0 {
		t.Error("the sandbox that is not persistent exists after the node was interrupted")
	}
	if s := n.Get(ids[1]); s.Status != "hibernated" {
		t.Errorf("the persistent sandbox is %s, want hibernated", s.Status)
	}
	n.JSON(nil, "sandbox", "delete", "--all")
	n.Stop()
	nodelab.NothingLeft(t, dir)
}
