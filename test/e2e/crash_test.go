//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// TestKillNode kills the node with ten running sandboxes; the next node must adopt them all.
func TestKillNode(t *testing.T) {
	dir := dataDir(t)
	n := start(t, dir)
	n.bake("mini")
	ids := make([]string, 10)
	for i := range ids {
		args := []string{}
		if i%2 == 0 {
			args = append(args, "--persistent")
		}
		ids[i] = n.create(args...).ID
		n.sh(ids[i], fmt.Sprintf("echo %d >/dev/shm/number", i))
	}
	n.kill()
	awaitMonitors(t, dir, len(ids), "after the node was killed")
	n = start(t, dir)
	for i, id := range ids {
		if got := n.sh(id, "cat /dev/shm/number"); got != strconv.Itoa(i) {
			t.Errorf("file in sandbox %d = %q, want %d", i, got, i)
		}
		if s := n.get(id); s.Status != "running" {
			t.Errorf("status of sandbox %d = %s, want running", i, s.Status)
		}
	}
	n.json(nil, "sandbox", "delete", "--all")
	n.stop()
	nothingLeft(t, dir)
}

// TestKillNodeAtWork kills the node during creates and deletes. On the next node, every sandbox must reply, and nothing
// may exist that belongs to no sandbox.
func TestKillNodeAtWork(t *testing.T) {
	dir := dataDir(t)
	n := start(t, dir)
	n.bake("mini")
	for round := range 3 {
		var all sync.WaitGroup
		begun := make(chan struct{}, 8)
		for range 4 {
			all.Go(func() {
				for range 4 { // these fail once the node is killed
					r := n.cli("sandbox", "create", "--template", "mini")
					begun <- struct{}{}
					if r.code != 0 {
						return
					}
					if id := strings.TrimSpace(r.stdout); round%2 == 0 {
						_ = n.cli("sandbox", "delete", id)
					} else {
						_ = n.cli("sandbox", "fork", id)
					}
				}
			})
		}
		for range 3 + round {
			<-begun
		}
		n.kill()
		go func() {
			for range begun { // drain, so that the creating goroutines end
			}
		}()
		all.Wait()
		close(begun)
		n = start(t, dir)
		var list []sandbox
		eventually(
			t,
			fmt.Sprintf("round %d: interrupted operations are cleaned up", round),
			func() error { // the node does this in the background
				n.json(&list, "sandbox", "list")
				for _, s := range list {
					if s.Status != "running" {
						return fmt.Errorf("%s is %s", s.ID, s.Status)
					}
				}
				if got := monitors(dir); got != len(list) {
					return fmt.Errorf("%d machines run for %d sandboxes", got, len(list))
				}
				return nil
			},
		)
		for _, s := range list {
			if got := n.sh(s.ID, "echo here"); got != "here" {
				t.Errorf("round %d: output in %s = %q, want here", round, s.ID, got)
			}
		}
		if len(list) > 0 {
			n.json(nil, "sandbox", "delete", "--all")
		}
	}
	n.stop()
	nothingLeft(t, dir)
}

// TestCleanRestart stops the node cleanly: persistent sandboxes must come back with their memory, others must end.
func TestCleanRestart(t *testing.T) {
	dir := dataDir(t)
	n := start(t, dir)
	n.bake("mini")
	kept, lost := n.create("--persistent").ID, n.create().ID
	n.sh(kept, "echo memory >/dev/shm/x; echo disk >/tmp/x")
	n.stop()
	awaitMonitors(t, dir, 0, "after a clean stop")
	n = start(t, dir)
	if got := n.sh(kept, "cat /dev/shm/x /tmp/x"); got != "memory\ndisk" {
		t.Errorf("files in the persistent sandbox = %q, want memory and disk", got)
	}
	if r := n.cli("sandbox", "get", lost); r.code != 5 {
		t.Errorf("get of the other sandbox: exit %d, %s; want 5", r.code, r.stdout)
	}
	n.json(nil, "sandbox", "delete", kept)
	n.stop()
	nothingLeft(t, dir)
}

// TestHibernateCycles hibernates a sandbox ten times, and compares the checksum of growing files each time.
func TestHibernateCycles(t *testing.T) {
	dir := dataDir(t)
	n := start(t, dir)
	n.bake("mini")
	id := n.create("--persistent").ID
	sum := func() string {
		return n.sh(id, "cat /tmp/grows /dev/shm/grows | sha256sum")
	}
	for i := range 10 {
		n.sh(
			id,
			fmt.Sprintf("head -c 100000 /dev/urandom | tee -a /tmp/grows >>/dev/shm/grows; echo %d >>/tmp/grows", i),
		)
		before := sum()
		n.json(nil, "sandbox", "hibernate", id)
		n.json(nil, "sandbox", "wake", id)
		if after := sum(); after != before {
			t.Fatalf("checksum after cycle %d = %s, want %s", i+1, after, before)
		}
	}
	n.json(nil, "sandbox", "delete", id)
	n.stop()
	nothingLeft(t, dir)
}

// TestChurn creates and deletes 300 sandboxes, and checks that no resources accumulate.
func TestChurn(t *testing.T) {
	dir := dataDir(t)
	n := start(t, dir)
	n.bake("mini")
	descriptors := func() int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.cmd.Process.Pid))
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
					status, body := n.send("POST", "/v1/sandboxes", `{"template":"mini"}`)
					if status != 201 {
						t.Errorf("create = %d %s, want 201", status, body)
						return
					}
					_, rest, _ := strings.Cut(body, `"id":"`)
					id, _, _ := strings.Cut(rest, `"`)
					if status, body := n.send("DELETE", "/v1/sandboxes/"+id, ""); status != 204 {
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
	awaitMonitors(t, dir, 0, "after all were deleted")
	eventually(t, "the files of 270 sandboxes are closed", func() error {
		if after := descriptors(); after > before+20 {
			return fmt.Errorf("the node has %d open files, want at most 20 more than %d", after, before)
		}
		return nil
	})
	n.stop()
	nothingLeft(t, dir)
}
