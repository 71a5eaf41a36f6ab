//go:build e2e

package chaos

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/test/nodelab"
)

var (
	scale = flag.Int("chaos.scale", 1, "factor for the number of rounds of every test")
	seed  = flag.Uint64("chaos.seed", 0, "seed of the random choices; 0 chooses one and prints it")
)

// patience is the time limit of every single request. It is long because the host may be busy.
const patience = 2 * time.Minute

// lab is a node that a test treats badly, and a client of it that retries nothing.
type lab struct {
	t      *testing.T
	node   *nodelab.Node
	client *client.Client
	random *rand.Rand // not for concurrent use
}

// open starts a node on the prepared data directory with template mini baked and nothing in it.
func open(t *testing.T, args ...string) *lab {
	t.Helper()
	dir := nodelab.DataDir(t)
	from := *seed
	if from == 0 {
		from = rand.Uint64()
	}
	t.Logf("random choices: -chaos.seed %d", from)
	l := &lab{t: t, random: rand.New(rand.NewPCG(from, 0))}
	l.attach(nodelab.Start(t, dir, args...))
	l.node.Bake("mini")
	return l
}

// attach makes the lab use a node. If that is the last one, it is emptied, stopped and checked when the test ends.
func (l *lab) attach(n *nodelab.Node) {
	l.t.Helper()
	if l.client != nil {
		l.client.Close()
	}
	c, err := client.New(n.URL, n.AccessKey(), client.WithTries(1))
	if err != nil {
		l.t.Fatal(err)
	}
	l.node, l.client = n, c
	l.t.Cleanup(func() {
		if l.node == n {
			n.Clean()
			n.Stop()
			nodelab.NothingLeft(l.t, n.Dir)
		}
	})
}

// restart starts a node after the last one was killed.
func (l *lab) restart(args ...string) {
	l.t.Helper()
	l.attach(nodelab.Start(l.t, l.node.Dir, args...))
}

// within returns a context that limits one request. It also works while the test is being cleaned up.
func within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience)
}

// create creates a sandbox of template mini.
func (l *lab) create(persistent bool) api.SandboxID {
	l.t.Helper()
	ctx, cancel := within()
	defer cancel()
	s, err := l.client.Sandboxes.Create(ctx, api.CreateRequest{Template: "mini", Persistent: persistent})
	if err != nil {
		l.t.Fatal(err)
	}
	return s.ID
}

// exec runs a shell command that must exit with code 0, and returns its trimmed output.
func (l *lab) exec(id api.SandboxID, line string) (string, error) {
	ctx, cancel := within()
	defer cancel()
	res, err := l.client.Sandboxes.Exec(ctx, id, api.ExecRequest{Cmd: line, User: "root"})
	if err == nil && res.ExitCode != 0 {
		err = fmt.Errorf("%q exited with code %d: %s%s", line, res.ExitCode, res.Stdout, res.Stderr)
	}
	return strings.TrimSpace(res.Stdout), err
}

// must runs a shell command that must succeed.
func (l *lab) must(id api.SandboxID, line string) string {
	l.t.Helper()
	out, err := l.exec(id, line)
	if err != nil {
		l.t.Fatalf("%q in %s: %v", line, id, err)
	}
	return out
}

// background starts a shell command in a sandbox that goes on running.
func (l *lab) background(id api.SandboxID, line string) {
	l.t.Helper()
	ctx, cancel := within()
	defer cancel()
	req := api.ExecRequest{Cmd: line, User: "root", Background: true}
	if _, err := l.client.Sandboxes.Exec(ctx, id, req); err != nil {
		l.t.Fatalf("%q in %s: %v", line, id, err)
	}
}

// code returns the code of an error: "" for none.
func code(err error) api.Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e.Code
	}
	return api.Internal
}

// counter is the shell command of a writer that numbers the lines of a file. It appends a line, brings it to the disk,
// and only then publishes the number in memory.
const counter = `i=0; while :; do i=$((i+1)); echo $i >>/counted; sync; echo $i >/dev/shm/acknowledged; done`

// count returns how many lines the counter of a sandbox has acknowledged. It is an error if one of them is not in the
// file, or if the writer has gone.
func (l *lab) count(id api.SandboxID) (int, error) {
	const check = `a=$(cat /dev/shm/acknowledged); n=$(wc -l </counted); ` +
		`[ "$n" -ge "$a" ] || { echo "$a lines were acknowledged, the file has $n"; exit 1; }; ` +
		`seq 1 $n >/tmp/want; head -n $n /counted | cmp - /tmp/want || exit 1; echo $a`
	out, err := l.exec(id, check)
	if err != nil {
		return 0, err
	}
	var n int
	if _, err := fmt.Sscan(out, &n); err != nil {
		return 0, fmt.Errorf("count of %s is %q: %w", id, out, err)
	}
	return n, nil
}
