//go:build e2e

package chaos

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
)

// maxNodeMiB bounds the memory of the node during the attacks, far below the sum of what they ask for.
const maxNodeMiB = 2048

// TestHostileNeighbour lets one workspace ask for more output than any memory holds, in every way it has, while
// another workspace runs commands. These must all succeed, and the node must not grow. Soaks also compare how long they
// take.
func TestHostileNeighbour(t *testing.T) {
	l := open(t)
	quiet := l.create(false)
	alone := l.latencies(quiet, 40)
	hostile := l.workspace("hostile")
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	box, err := hostile.Sandboxes.Create(ctx, api.CreateRequest{Template: "mini"})
	if err != nil {
		t.Fatal(err)
	}
	attacks := map[string]func(context.Context) error{
		"exec": func(ctx context.Context) error {
			_, err := hostile.Sandboxes.Exec(ctx, box.ID, api.ExecRequest{Cmd: "head -c 200000000 /dev/zero"})
			return err
		},
		"stream": func(ctx context.Context) error {
			_, err := hostile.Sandboxes.ExecStream(ctx, box.ID, api.ExecRequest{Cmd: "head -c 50000000 /dev/zero"},
				client.Output{Stdout: func(string) {}})
			return err
		},
		"file": func(ctx context.Context) error {
			_, err := hostile.Files.Write(ctx, box.ID, "/tmp/f", strings.NewReader(strings.Repeat("x", 8<<20)), 8<<20,
				client.WriteOptions{})
			return err
		},
	}
	attack, end := context.WithCancel(ctx)
	var all sync.WaitGroup
	codes := struct {
		sync.Mutex
		m map[string]int
	}{m: map[string]int{}}
	for name, do := range attacks {
		for range 12 {
			all.Go(func() {
				for attack.Err() == nil {
					err := do(attack)
					codes.Lock()
					codes.m[name+" "+string(code(err))]++
					codes.Unlock()
				}
			})
		}
	}
	beside := l.latencies(quiet, 40**scale)
	end()
	all.Wait()
	t.Logf("attacks: %v", codes.m)
	t.Logf("neighbour: p50 %v and p99 %v alone, %v and %v beside the attacks",
		at(alone, 50), at(alone, 99), at(beside, 50), at(beside, 99))
	if *scale > 1 && at(beside, 99) > 3*at(alone, 99) {
		t.Errorf("p99 of the neighbour = %v, want at most three times %v", at(beside, 99), at(alone, 99))
	}
	if peak := l.peakMiB(); peak > maxNodeMiB {
		t.Errorf("the node used %d MiB of memory, want at most %d", peak, maxNodeMiB)
	}
	if err := hostile.Sandboxes.Delete(ctx, box.ID); err != nil {
		t.Error(err)
	}
}

// workspace makes a workspace and returns a client of it.
func (l *lab) workspace(name string) *client.Client {
	l.t.Helper()
	var made api.WorkspaceCreated
	l.node.JSON(&made, "workspace", "create", name+strconv.FormatInt(time.Now().UnixNano(), 36))
	c, err := client.New(l.node.URL, made.Token, client.WithTries(1))
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(c.Close)
	return c
}

// latencies runs a command several times, which must succeed, and returns how long each took, sorted.
func (l *lab) latencies(id api.SandboxID, n int) []time.Duration {
	l.t.Helper()
	took := make([]time.Duration, n)
	for i := range took {
		began := time.Now()
		if got := l.must(id, fmt.Sprintf("echo %d", i)); got != strconv.Itoa(i) {
			l.t.Errorf("output = %q, want %d", got, i)
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took
}

// at returns a percentile of sorted durations.
func at(sorted []time.Duration, percent int) time.Duration {
	return sorted[min(len(sorted)*percent/100, len(sorted)-1)]
}

// peakMiB returns the most memory that the process of the node has had.
func (l *lab) peakMiB() int {
	l.t.Helper()
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(l.node.Cmd.Process.Pid), "status"))
	if err != nil {
		l.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	var kib int
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		l.t.Fatalf("peak of the memory: %v", err)
	}
	return kib >> 10
}
