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
)

// streams and lines of TestManyStreams, and cuts of TestCutStream.
const (
	manyStreams = 50
	manyLines   = 2000
	cuts        = 100
)

// numbered prints so many numbered lines of text.
func numbered(lines int) string {
	return fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo line $i of grüße; done", lines)
}

func numberedOutput(lines int) string {
	var b strings.Builder
	for i := range lines {
		fmt.Fprintf(&b, "line %d of grüße\n", i+1)
	}
	return b.String()
}

// TestManyStreams: fifty commands of one sandbox print at once, and nothing is lost, mixed or out of order.
func TestManyStreams(t *testing.T) {
	n := start(t, dataDir(t))
	n.bake("mini")
	box := n.create()
	c, err := client.New(n.url, n.accessKey())
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
				t.Errorf("stream %d: exit %d, %d bytes of %d, %v", i, exit.ExitCode, out.Len(), len(want), err)
			}
		})
	}
	all.Wait()
}

// cutter is a proxy that cuts every connection after so many bytes of answer, a number of times.
type cutter struct {
	to    string
	after int64
	left  atomic.Int64
	done  sync.WaitGroup
}

func (c *cutter) serve(l net.Listener) {
	for {
		from, err := l.Accept()
		if err != nil {
			return
		}
		c.done.Go(func() { c.pass(from) })
	}
}

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
	_, _ = from.Close(), to.Close() // both were copied until they broke
	up.Wait()
}

// TestCutStream: a connection that is cut a hundred times in the middle of a stream loses no byte and tells
// none twice.
func TestCutStream(t *testing.T) {
	n := start(t, dataDir(t))
	n.bake("mini")
	box := n.create()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cut := &cutter{to: strings.TrimPrefix(n.url, "http://"), after: 6000}
	t.Cleanup(func() { _ = l.Close(); cut.done.Wait() })
	cut.done.Go(func() { cut.serve(l) })
	direct, err := client.New(n.url, n.accessKey())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(direct.Close)
	through, err := client.New("http://"+l.Addr().String(), n.accessKey())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(through.Close)
	ctx, cancel := context.WithTimeout(t.Context(), clientLimit)
	defer cancel()
	const lines = 22_000 // less than what a guest keeps of a stream, and enough for all cuts
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
		t.Errorf("exit %d, %v; %d bytes of %d, the same up to %d", exit.ExitCode, err, out.Len(), len(want), at)
	}
	if left := cut.left.Load(); left >= 0 {
		t.Errorf("%d cuts were not made: the output is too short for this test", left)
	}
}
