//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/test/nodelab"
)

// fsyncs is a program that appends numbers to a file and makes new files, and prints each number once it is on disk.
const fsyncs = `cd /data; i=$(wc -l < log 2>/dev/null || echo 0)
while true; do
	i=$((i + 1))
	echo $i >> log && sync log && echo $i > new && sync new && mv new f$((i % 50)) && sync . && echo $i
done`

// acknowledged runs fsyncs in a sandbox, calls kill after some numbers, and returns all that were printed.
func acknowledged(t *testing.T, n *nodelab.Node, box string, kill func()) []int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), nodelab.Limit)
	defer cancel()
	c := exec.CommandContext(ctx, nodelab.Program(t), "--api", n.URL, "sandbox", "exec", box, fsyncs)
	c.Env = nodelab.Environment(n.Dir)
	c.Stderr = io.Discard
	out, err := c.StdoutPipe()
	if err := errors.Join(err, c.Start()); err != nil {
		t.Fatal(err)
	}
	var all []int
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		number, err := strconv.Atoi(lines.Text())
		if err != nil {
			t.Errorf("the program printed %q", lines.Text())
			break
		}
		if all = append(all, number); len(all) == 25 {
			kill()
		}
	}
	_ = c.Wait() // what it talks to was killed
	if len(all) < 25 {
		t.Fatalf("the program printed %d numbers", len(all))
	}
	return all
}

// checkDisk checks a copy of the disk of a volume, which has the journal of a mounted file system.
func checkDisk(t *testing.T, path string) {
	t.Helper()
	copied := path + ".checked"
	if err := disk.Clone(path, copied); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := disk.Remove(copied); err != nil {
			t.Error(err)
		}
	}()
	// The first run replays the journal.
	for _, args := range [][]string{{"-fp"}, {"-fn"}} {
		text, err := exec.CommandContext(t.Context(), "e2fsck", append(args, copied)...).CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 1 || err != nil && !ok {
			t.Errorf("e2fsck %s of the volume: %v\n%s", args[0], err, text)
		}
	}
}

// TestFsyncsSurviveKills kills a monitor, a node, and both, while a guest writes to a volume. What the guest has synced
// is there.
func TestFsyncsSurviveKills(t *testing.T) {
	dir := nodelab.DataDir(t)
	n := nodelab.Start(t, dir)
	n.Bake("mini")
	n.CLI("volume", "delete", "data") // of a run that failed
	n.OK("volume", "create", "data", "--size", "64")
	last := 0
	for _, victim := range []string{"monitor", "node", "both"} {
		box := n.Create("--persistent", "--volume", "data:/data").ID
		var usage struct {
			PID int `json:"pid"`
		}
		status, text := n.Send("GET", "/v1/sandboxes/"+box+"/metrics", "")
		if err := json.Unmarshal([]byte(text), &usage); err != nil || usage.PID == 0 {
			t.Fatalf("usage of the sandbox: %d, %s, %v", status, text, err)
		}
		acked := acknowledged(t, n, box, func() {
			if victim != "monitor" {
				n.Kill()
			}
			if victim != "node" {
				if err := syscall.Kill(usage.PID, syscall.SIGKILL); err != nil {
					t.Error(err)
				}
			}
		})
		if victim != "monitor" {
			n = nodelab.Start(t, dir)
		}
		var v api.Volume
		if victim != "node" {
			disks, err := filepath.Glob(filepath.Join(dir, "volumes", "*", "disk.img"))
			if err != nil || len(disks) != 1 {
				t.Fatalf("disks of volumes: %v, %v", disks, err)
			}
			checkDisk(t, disks[0])
			n.JSON(nil, "sandbox", "delete", box)
			box = n.Create("--volume", "data:/data").ID // checks the file system
			if n.JSON(&v, "volume", "get", "data"); v.Check == nil || v.Check.Result == "damaged" {
				t.Errorf("after a kill of %s the check of the volume is %+v", victim, v.Check)
			}
		}
		got := strings.Fields(n.Sh(box, "cat /data/log"))
		most := slices.Max(acked)
		if acked[0] != last+1 || len(got) < most {
			t.Errorf("after a kill of %s there are %d numbers, and %d to %d were acknowledged",
				victim, len(got), acked[0], most)
		}
		for i, text := range got {
			if text != strconv.Itoa(i+1) {
				t.Fatalf("after a kill of %s number %d is %q", victim, i+1, text)
			}
		}
		first := max(acked[0], most-40) // an earlier number may have been added to the log and not been acknowledged
		files := strings.Fields(n.Sh(box, fmt.Sprintf("cd /data; for i in $(seq %d %d); do cat f$((i %% 50)); done",
			first, most)))
		if len(files) != most-first+1 {
			t.Fatalf("after a kill of %s the files have %q, want a number for each of %d to %d", victim, files, first,
				most)
		}
		for i, text := range files {
			if number, err := strconv.Atoi(text); err != nil || number < first+i {
				t.Errorf("after a kill of %s file f%d has %q, want at least %d", victim, (first+i)%50, text, first+i)
			}
		}
		n.JSON(nil, "sandbox", "delete", box)
		again := n.Create("--volume", "data:/data").ID
		last, _ = strconv.Atoi(n.Sh(again, "wc -l < /data/log"))
		n.JSON(nil, "sandbox", "delete", again)
	}
	n.OK("volume", "delete", "data")
	n.Stop()
	nodelab.NothingLeft(t, dir)
}
