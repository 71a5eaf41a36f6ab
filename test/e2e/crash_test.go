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

// TestKillNode kills the node with ten sandboxes running; the next one must find them all.
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
	await(t, dir, len(ids), "after the death of the node")
	n = start(t, dir)
	for i, id := range ids {
		if got := n.sh(id, "cat /dev/shm/number"); got != strconv.Itoa(i) {
			t.Errorf("sandbox %d says %q", i, got)
		}
		if s := n.get(id); s.Status != "running" {
			t.Errorf("sandbox %d is %s", i, s.Status)
		}
	}
	n.json(nil, "sandbox", "delete", "--all")
	n.stop()
	nothingLeft(t, dir)
}

// TestKillNodeAtWork kills the node in the middle of creates and deletes; the next one must leave only
// sandboxes that answer, and nothing that belongs to none.
func TestKillNodeAtWork(t *testing.T) {
	dir := dataDir(t)
	n := start(t, dir)
	n.bake("mini")
	for round := range 3 {
		var all sync.WaitGroup
		begun := make(chan struct{}, 8)
		for range 4 {
			all.Go(func() {
				for range 4 { // until the node is gone: these may fail
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
			for range begun { // lets the creators end
			}
		}()
		all.Wait()
		close(begun)
		n = start(t, dir)
		var list []sandbox
		eventually(
			t,
			fmt.Sprintf("round %d: what was cut off is gone", round),
			func() error { // which the node sees to while it serves
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
				t.Errorf("round %d: %s says %q", round, s.ID, got)
			}
		}
		if len(list) > 0 {
			n.json(nil, "sandbox", "delete", "--all")
		}
	}
	n.stop()
	nothingLeft(t, dir)
}

// TestCleanRestart stops the node: persistent sandboxes must come back with their memory, others end.
func TestCleanRestart(t *testing.T) {
	dir := dataDir(t)
	n := start(t, dir)
	n.bake("mini")
	kept, lost := n.create("--persistent").ID, n.create().ID
	n.sh(kept, "echo memory >/dev/shm/x; echo disk >/tmp/x")
	n.stop()
	await(t, dir, 0, "after a clean stop")
	n = start(t, dir)
	if got := n.sh(kept, "cat /dev/shm/x /tmp/x"); got != "memory\ndisk" {
		t.Errorf("the persistent sandbox has %q", got)
	}
	if r := n.cli("sandbox", "get", lost); r.code != 5 {
		t.Errorf("the other sandbox: exit %d, %s; want 5", r.code, r.stdout)
	}
	n.json(nil, "sandbox", "delete", kept)
	n.stop()
	nothingLeft(t, dir)
}

// TestHibernateCycles puts a sandbox to rest ten times, with a file that grows and is summed each time.
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
			t.Fatalf("after cycle %d the files have another sum", i+1)
		}
	}
	n.json(nil, "sandbox", "delete", id)
	n.stop()
	nothingLeft(t, dir)
}

// TestChurn creates and deletes again and again; nothing may add up.
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
						t.Errorf("create: %d %s", status, body)
						return
					}
					_, rest, _ := strings.Cut(body, `"id":"`)
					id, _, _ := strings.Cut(rest, `"`)
					if status, body := n.send("DELETE", "/v1/sandboxes/"+id, ""); status != 204 {
						t.Errorf("delete: %d %s", status, body)
					}
				}
			})
		}
		all.Wait()
	}
	round(30)
	before := descriptors()
	round(270)
	await(t, dir, 0, "after all were deleted")
	eventually(t, "the files of 270 sandboxes are closed", func() error {
		if after := descriptors(); after > before+20 {
			return fmt.Errorf("the node has %d open files, %d before", after, before)
		}
		return nil
	})
	n.stop()
	nothingLeft(t, dir)
}
