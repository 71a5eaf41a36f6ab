//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/test/nodelab"
)

// TestKillNode kills the node with ten running sandboxes; the next node must adopt them all.
func TestKillNode(t *testing.T) {
	dir := nodelab.DataDir(t)
	n := nodelab.Start(t, dir)
	n.Bake("mini")
	ids := make([]string, 10)
	for i := range ids {
		args := []string{}
		if i%2 == 0 {
			args = append(args, "--persistent")
		}
		ids[i] = n.Create(args...).ID
		n.Sh(ids[i], fmt.Sprintf("echo %d >/dev/shm/number", i))
	}
	n.Kill()
	nodelab.AwaitMonitors(t, dir, len(ids), "after the node was killed")
	n = nodelab.Start(t, dir)
	for i, id := range ids {
		if got := n.Sh(id, "cat /dev/shm/number"); got != strconv.Itoa(i) {
			t.Errorf("file in sandbox %d = %q, want %d", i, got, i)
		}
		if s := n.Get(id); s.Status != "running" {
			t.Errorf("status of sandbox %d = %s, want running", i, s.Status)
		}
	}
	n.JSON(nil, "sandbox", "delete", "--all")
	n.Stop()
	nodelab.NothingLeft(t, dir)
}

// TestKillNodeAtWork kills the node during creates and deletes. On the next node, every sandbox must reply, and nothing
// may exist that belongs to no sandbox.
func TestKillNodeAtWork(t *testing.T) {
	dir := nodelab.DataDir(t)
	n := nodelab.Start(t, dir)
	n.Bake("mini")
	for round := range 3 {
		var all sync.WaitGroup
		begun := make(chan struct{}, 8)
		for range 4 {
			all.Go(func() {
				for range 4 { // these fail once the node is killed
					r := n.CLI("sandbox", "create", "--template", "mini")
					begun <- struct{}{}
					if r.Code != 0 {
						return
					}
					if id := strings.TrimSpace(r.Stdout); round%2 == 0 {
						_ = n.CLI("sandbox", "delete", id)
					} else {
						_ = n.CLI("sandbox", "fork", id)
					}
				}
			})
		}
		for range 3 + round {
			<-begun
		}
		n.Kill()
		go func() {
			for range begun { // drain, so that the creating goroutines end
			}
		}()
		all.Wait()
		close(begun)
		n = nodelab.Start(t, dir)
		var list []nodelab.Sandbox
		nodelab.Eventually(
			t,
			fmt.Sprintf("round %d: interrupted operations are cleaned up", round),
			func() error { // the node does this in the background
				n.JSON(&list, "sandbox", "list")
				for _, s := range list {
					if s.Status != "running" {
						return fmt.Errorf("%s is %s", s.ID, s.Status)
					}
				}
				if got := nodelab.Running(dir); got != len(list) {
					return fmt.Errorf("%d machines run for %d sandboxes", got, len(list))
				}
				return nil
			},
		)
		for _, s := range list {
			if got := n.Sh(s.ID, "echo here"); got != "here" {
				t.Errorf("round %d: output in %s = %q, want here", round, s.ID, got)
			}
		}
		if len(list) > 0 {
			n.JSON(nil, "sandbox", "delete", "--all")
		}
	}
	n.Stop()
	nodelab.NothingLeft(t, dir)
}

// TestCleanRestart stops the node cleanly: persistent sandboxes must come back with their memory, others must end.
func TestCleanRestart(t *testing.T) {
	dir := nodelab.DataDir(t)
	n := nodelab.Start(t, dir)
	n.Bake("mini")
	kept, lost := n.Create("--persistent").ID, n.Create().ID
	n.Sh(kept, "echo memory >/dev/shm/x; echo disk >/tmp/x")
	n.Stop()
	nodelab.AwaitMonitors(t, dir, 0, "after a clean stop")
	n = nodelab.Start(t, dir)
	if got := n.Sh(kept, "cat /dev/shm/x /tmp/x"); got != "memory\ndisk" {
		t.Errorf("files in the persistent sandbox = %q, want memory and disk", got)
	}
	if r := n.CLI("sandbox", "get", lost); r.Code != 5 {
		t.Errorf("get of the other sandbox: exit %d, %s; want 5", r.Code, r.Stdout)
	}
	n.JSON(nil, "sandbox", "delete", kept)
	n.Stop()
	nodelab.NothingLeft(t, dir)
}

// TestHibernateCycles hibernates a sandbox ten times, and compares the checksum of growing files each time.
func TestHibernateCycles(t *testing.T) {
	dir := nodelab.DataDir(t)
	n := nodelab.Start(t, dir)
	n.Bake("mini")
	id := n.Create("--persistent").ID
	sum := func() string {
		return n.Sh(id, "cat /tmp/grows /dev/shm/grows | sha256sum")
	}
	for i := range 10 {
		n.Sh(
			id,
			fmt.Sprintf("head -c 100000 /dev/urandom | tee -a /tmp/grows >>/dev/shm/grows; echo %d >>/tmp/grows", i),
		)
		before := sum()
		n.JSON(nil, "sandbox", "hibernate", id)
		n.JSON(nil, "sandbox", "wake", id)
		if after := sum(); after != before {
			t.Fatalf("checksum after cycle %d = %s, want %s", i+1, after, before)
		}
	}
	n.JSON(nil, "sandbox", "delete", id)
	n.Stop()
	nodelab.NothingLeft(t, dir)
}

// TestChurn creates and deletes 300 sandboxes, and checks that no resources accumulate.
func TestChurn(t *testing.T) {
	dir := nodelab.DataDir(t)
	n := nodelab.Start(t, dir)
	n.Bake("mini")
	descriptors := func() int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.Cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	round := func(count int) {
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				for range count / 3 {
					status, body := n.Send("POST", "/v1/sandboxes", `{"template":"mini"}`)
					if status != 201 {
						t.Errorf("create = %d %s, want 201", status, body)
						return
					}
					_, rest, _ := strings.Cut(body, `"id":"`)
					id, _, _ := strings.Cut(rest, `"`)
					if status, body := n.Send("DELETE", "/v1/sandboxes/"+id, ""); status != 204 {
						t.Errorf("delete = %d %s, want 204", status, body)
					}
				}
			})
		}
		all.Wait()
	}
	round(30)
	before := descriptors()
	round(270)
	nodelab.AwaitMonitors(t, dir, 0, "after all were deleted")
	nodelab.Eventually(t, "the files of 270 sandboxes are closed", func() error {
		if after := descriptors(); after > before+20 {
			return fmt.Errorf("the node has %d open files, want at most 20 more than %d", after, before)
		}
		return nil
	})
	n.Stop()
	nodelab.NothingLeft(t, dir)
}
