//go:build e2e

package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
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

// attackEnv makes the test binary the client of a hostile tenant: it is an attack in JSON.
const attackEnv = "PANDASTACK_TEST_ATTACK"

func TestMain(m *testing.M) {
	if text := os.Getenv(attackEnv); text != "" {
		if err := runAttack(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// attack is what a hostile tenant attacks with.
type attack struct {
	URL, Token string
	Sandbox    api.SandboxID
}

// runAttack asks a node for more output than any memory holds, in every way there is, until standard input ends. Then
// it prints how often each way ended how, in JSON.
func runAttack(text string) error {
	var a attack
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return err
	}
	c, err := client.New(a.URL, a.Token, client.WithTries(1))
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, end := context.WithCancel(context.Background())
	var all sync.WaitGroup
	codes := struct {
		sync.Mutex
		m map[string]int
	}{m: map[string]int{}}
	for name, do := range a.ways(c) {
		for range 12 {
			all.Go(func() {
				for ctx.Err() == nil {
					err := do(ctx)
					codes.Lock()
					codes.m[name+" "+string(code(err))]++
					codes.Unlock()
				}
			})
		}
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	end()
	all.Wait()
	return errors.Join(err, json.NewEncoder(os.Stdout).Encode(codes.m))
}

func (a attack) ways(c *client.Client) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"exec": func(ctx context.Context) error {
			_, err := c.Sandboxes.Exec(ctx, a.Sandbox, api.ExecRequest{Cmd: "head -c 200000000 /dev/zero"})
			return err
		},
		"stream": func(ctx context.Context) error {
			_, err := c.Sandboxes.ExecStream(ctx, a.Sandbox, api.ExecRequest{Cmd: "head -c 50000000 /dev/zero"},
				client.Output{Stdout: func(string) {}})
			return err
		},
		"file": func(ctx context.Context) error {
			_, err := c.Files.Write(ctx, a.Sandbox, "/tmp/f", strings.NewReader(strings.Repeat("x", 8<<20)), 8<<20,
				client.WriteOptions{})
			return err
		},
	}
}

// start starts an attack. It comes from a process of its own, which has what processor time the node and the neighbour
// leave, as if it came from another computer. end ends it and returns how often each way of it ended how.
func (a attack) start(t *testing.T) (end func() map[string]int) {
	t.Helper()
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("nice", "-n", "19", self)
	cmd.Env = append(os.Environ(), attackEnv+"="+string(text))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := sync.OnceValue(func() error { return errors.Join(stdin.Close(), cmd.Wait()) })
	t.Cleanup(func() { _ = ended() })
	return func() (codes map[string]int) {
		t.Helper()
		if err := ended(); err != nil {
			t.Fatalf("the attack: %v", err)
		}
		if err := json.Unmarshal(out.Bytes(), &codes); err != nil {
			t.Fatalf("result of the attack: %v", err)
		}
		return codes
	}
}

// TestHostileNeighbour lets one workspace ask for more output than any memory holds, in every way it has, while
// another workspace runs commands. These must all succeed, and the node must not grow. Soaks also compare how long they
// take.
func TestHostileNeighbour(t *testing.T) {
	l := open(t)
	quiet := l.create(false)
	alone := l.latencies(quiet, 40**scale)
	hostile, token := l.workspace("hostile")
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	box, err := hostile.Sandboxes.Create(ctx, api.CreateRequest{Template: "mini"})
	if err != nil {
		t.Fatal(err)
	}
	end := attack{URL: l.node.URL, Token: token, Sandbox: box.ID}.start(t)
	beside := l.latencies(quiet, 40**scale)
	codes := end()
	t.Logf("attacks: %v", codes)
	if len(codes) == 0 {
		t.Error("the attack asked for nothing")
	}
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

// workspace makes a workspace and returns a client of it, and its key.
func (l *lab) workspace(name string) (c *client.Client, token string) {
	l.t.Helper()
	var made api.WorkspaceCreated
	l.node.JSON(&made, "workspace", "create", name+strconv.FormatInt(time.Now().UnixNano(), 36))
	c, err := client.New(l.node.URL, made.Token, client.WithTries(1))
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(c.Close)
	return c, made.Token
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
