//go:build root

package jail_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/host/probe/probetest"
	"github.com/pandastack/pandastack/internal/lib/proc"
	"github.com/pandastack/pandastack/internal/os/jail"
)

// TestMain runs the test binary as the program inside a jail if its first argument is "jailed".
// The second argument names an escape attempt.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "jailed" {
		os.Exit(jailedMain(os.Args[2], os.Args[3:]))
	}
	os.Exit(m.Run())
}

// jailedMain returns 0 if the attempt succeeded, 1 if it failed, and 2 if there is no such attempt.
func jailedMain(name string, args []string) int {
	try, ok := escapeAttempts[name]
	if !ok {
		return 2
	}
	if err := try(args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

const testTimeout = 60 * time.Second

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// fixture is a Manager with the cgroups of one test.
type fixture struct {
	t           testing.TB
	jail        *jail.Manager
	programsDir string
}

func newFixture(t testing.TB, prefix string) *fixture {
	t.Helper()
	return newFixtureOf(t, jail.Config{Prefix: prefix})
}

// newFixtureOf returns a fixture with a configuration that it completes.
func newFixtureOf(t testing.TB, c jail.Config) *fixture {
	t.Helper()
	probetest.Need(t, probe.Config{}, probe.Jail)
	layout, err := jail.Probe()
	if err != nil {
		t.Fatal(err)
	}
	programsDir := t.TempDir()
	c.Hierarchy, c.ProgramsDir = layout, programsDir
	j, err := jail.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return &fixture{t, j, programsDir}
}

func (b *fixture) group(name string, limits jail.Limits) *jail.Cgroup {
	b.t.Helper()
	g, err := b.jail.Create(context.Background(), name, limits)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		if err := g.Destroy(ctx); err != nil {
			b.t.Error(err)
		}
	})
	return g
}

const jailedUID = 1900000333

// command returns the command that runs an attempt outside a jail.
func command(t testing.TB, name string, args ...string) proc.Command {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// Few threads, so that limits on processes can be small.
	return proc.Command{Path: self, Args: append([]string{"jailed", name}, args...), Env: []string{"GOMAXPROCS=1"}}
}

// jailed returns a command that runs in a jail of g.
func jailed(c proc.Command, g *jail.Cgroup, spec jail.Spec) proc.Command {
	c.UID, c.GID = jailedUID, jailedUID
	spec.Program = c.Path
	c.Fork = func(_ string, argv []string, attr *syscall.ProcAttr) (int, error) { return g.Start(spec, argv, attr) }
	return c
}

// run returns how a command exited and what it printed.
func run(t testing.TB, c proc.Command) (proc.Exit, string) {
	t.Helper()
	p, err := proc.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	select {
	case <-p.Done():
	case <-time.After(testTimeout):
		_ = p.Kill(context.Background())
		t.Fatalf("%v has not exited; output %q", c.Args, p.Log())
	}
	return p.Exit(), strings.TrimSpace(p.Log())
}

// background starts a command that prints "ready" and waits. The command is killed at the end of
// the test.
func background(t testing.TB, c proc.Command) *proc.Process {
	t.Helper()
	p, err := proc.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(context.Background()); err != nil {
			t.Error(err)
		}
		_ = p.Release()
	})
	await(t, "ready", func() (bool, error) {
		select {
		case <-p.Done():
			return false, fmt.Errorf("the program has exited: %v: %s", p.Exit(), p.Log())
		default:
			return strings.Contains(p.Log(), "ready"), nil
		}
	})
	return p
}

// await polls until cond is true.
func await(t testing.TB, what string, cond func() (bool, error)) {
	t.Helper()
	end := time.Now().Add(testTimeout)
	for tick := time.NewTicker(5 * time.Millisecond); ; <-tick.C {
		ok, err := cond()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if ok {
			tick.Stop()
			return
		}
		if time.Now().After(end) {
			t.Fatalf("timeout after %[2]v: %[1]s", what, testTimeout)
		}
	}
}

func number(args []string, i int) (int, error) {
	if i >= len(args) {
		return 0, errors.New("argument missing")
	}
	return strconv.Atoi(args[i])
}
