//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/test/nodelab"
)

// The numbers of streams and lines of TestManyStreams, and of cuts of TestCutStream.
const (
	manyStreams = 50
	manyLines   = 2000
	cuts        = 100
)

// numbered returns a shell command that prints numbered lines of text.
func numbered(lines int) string {
	return fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo line $i of grüße; done", lines)
}

// numberedOutput returns the output of numbered.
func numberedOutput(lines int) string {
	var b strings.Builder
	for i := range lines {
		fmt.Fprintf(&b, "line %d of grüße\n", i+1)
	}
	return b.String()
}

// TestManyStreams runs fifty commands that print concurrently in one sandbox, and checks the output of each.
func TestManyStreams(t *testing.T) {
	n := nodelab.Start(t, nodelab.DataDir(t))
	n.Bake("mini")
	box := n.Create()
	c, err := client.New(n.URL, n.AccessKey())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	ctx, cancel := context.WithTimeout(t.Context(), clientLimit)
	defer cancel()
	want := numberedOutput(manyLines)
	var all sync.WaitGroup
	for i := range manyStreams {
		all.Go(func() {
			var out strings.Builder
			exit, err := c.Sandboxes.ExecStream(
				ctx,
				api.SandboxID(box.ID),
				api.ExecRequest{Cmd: numbered(manyLines) + fmt.Sprintf("; exit %d", i)},
				client.Output{Stdout: func(s string) { out.WriteString(s) }},
			)
			if err != nil || exit.ExitCode != i || out.String() != want {
				t.Errorf("stream %d: exit %d, %d bytes, %v; want exit %d and %d bytes, in order",
					i, exit.ExitCode, out.Len(), err, i, len(want))
			}
		})
	}
	all.Wait()
}

// cutter is a TCP proxy that cuts the first connections after a number of response bytes, and not the later ones.
type cutter struct {
	to    string
	after int64
	left  atomic.Int64
	done  sync.WaitGroup
}

// serve accepts connections until l is closed.
func (c *cutter) serve(l net.Listener) {
	for {
		from, err := l.Accept()
		if err != nil {
			return
		}
		c.done.Go(func() { c.pass(from) })
	}
}

// pass forwards one connection, and cuts it while cuts are left.
func (c *cutter) pass(from net.Conn) {
	defer from.Close()
	to, err := net.Dial("tcp", c.to)
	if err != nil {
		return
	}
	defer to.Close()
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = io.Copy(to, from) // until either is closed
		_ = to.Close()
	})
	if c.left.Add(-1) >= 0 {
		_, _ = io.CopyN(from, to, c.after)
	} else {
		_, _ = io.Copy(from, to)
	}
	_, _ = from.Close(), to.Close() // both directions have ended
	up.Wait()
}

// TestCutStream cuts the connection of a stream a hundred times, and checks that no byte is lost or repeated.
func TestCutStream(t *testing.T) {
	n := nodelab.Start(t, nodelab.DataDir(t))
	n.Bake("mini")
	box := n.Create()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cut := &cutter{to: strings.TrimPrefix(n.URL, "http://"), after: 6000}
	t.Cleanup(func() { _ = l.Close(); cut.done.Wait() })
	cut.done.Go(func() { cut.serve(l) })
	direct, err := client.New(n.URL, n.AccessKey())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(direct.Close)
	through, err := client.New("http://"+l.Addr().String(), n.AccessKey())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(through.Close)
	ctx, cancel := context.WithTimeout(t.Context(), clientLimit)
	defer cancel()
	const lines = 22_000 // fits in the guest's output buffer, and is long enough for all cuts
	started, err := direct.Sandboxes.Exec(
		ctx,
		api.SandboxID(box.ID),
		api.ExecRequest{Cmd: numbered(lines) + "; exit 7", Background: true},
	)
	if err != nil {
		t.Fatal(err)
	}
	cut.left.Store(cuts)
	var out strings.Builder
	exit, err := through.Sandboxes.AttachStream(
		ctx,
		api.SandboxID(box.ID),
		started.PID,
		client.Output{Stdout: func(s string) { out.WriteString(s) }},
	)
	want := numberedOutput(lines)
	if err != nil || exit.ExitCode != 7 || out.String() != want {
		at := 0
		for at < min(out.Len(), len(want)) && out.String()[at] == want[at] {
			at++
		}
		t.Errorf("exit %d, %v, %d bytes; want exit 7 and %d bytes (equal up to byte %d)",
			exit.ExitCode, err, out.Len(), len(want), at)
	}
	if left := cut.left.Load(); left >= 0 {
		t.Errorf("%d cuts left, want none: the output is too short for this test", left)
	}
}
