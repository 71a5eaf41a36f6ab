//go:build e2e

package sdk_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
)

// TestGo drives the server with the Go SDK.
func TestGo(t *testing.T) {
	address, key := serve(t)
	c, err := client.New(address, key)
	must(t, err)
	t.Cleanup(c.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	box, err := c.Sandboxes.Create(ctx, api.CreateRequest{Workdir: "/tmp", Env: map[string]string{"A": "b"}})
	must(t, err)

	t.Run("exec", func(t *testing.T) {
		in := "typed"
		res, err := c.Sandboxes.Exec(ctx, box.ID, api.ExecRequest{Cmd: "pwd; cat; exit 3", Stdin: &in})
		if err != nil || res.Stdout != "/tmp\ntyped" || res.ExitCode != 3 {
			t.Errorf("Exec = %+v, %v; want output /tmp and typed, exit code 3", res, err)
		}
		_, err = c.Sandboxes.Exec(ctx, box.ID, api.ExecRequest{Cmd: "echo part; sleep 600", TimeoutSeconds: 3})
		e, ok := errors.AsType[*api.Error](err)
		if !ok || e.Code != api.Timeout || e.Details["stdout"] != "part\n" {
			t.Errorf("Exec returned %v, want timeout with output", err)
		}
	})
	t.Run("exec-canceled-is-killed", func(t *testing.T) {
		short, stop := context.WithCancel(ctx)
		_, err := c.Sandboxes.ExecStream(short, box.ID, api.ExecRequest{Cmd: "echo up; exec sleep 600", Tag: "long"},
			client.Output{Stdout: func(string) { stop() }})
		if api.CodeOf(err) != api.Canceled {
			t.Errorf("ExecStream returned %v, want canceled", err)
		}
		until(t, "the command to be killed", func() bool {
			list, err := c.Sandboxes.Processes(ctx, box.ID)
			must(t, err)
			for _, p := range list {
				if p.Tag == "long" && p.Running {
					return false
				}
			}
			return true
		})
	})
	t.Run("background-and-attach", func(t *testing.T) {
		res, err := c.Sandboxes.Exec(
			ctx,
			box.ID,
			api.ExecRequest{Cmd: "for i in 1 2 3; do echo $i; done; exit 7", Background: true},
		)
		must(t, err)
		var out strings.Builder
		exit, err := c.Sandboxes.AttachStream(
			ctx,
			box.ID,
			res.PID,
			client.Output{Stdout: func(s string) { out.WriteString(s) }},
		)
		if err != nil || exit.ExitCode != 7 || out.String() != "1\n2\n3\n" {
			t.Errorf("AttachStream = %+v, %v with output %q; want exit code 7 after 1, 2, 3", exit, err, out.String())
		}
	})
	t.Run("files", func(t *testing.T) { files(ctx, t, c, box.ID) })
	t.Run("terminal", func(t *testing.T) {
		term, err := c.Sandboxes.Terminal(
			ctx,
			box.ID,
			client.TerminalRequest{Rows: 33, Cols: 77, Cmd: "stty size; read x; echo got-$x; exit 6"},
		)
		must(t, err)
		defer term.Close()
		must(t, term.Send(ctx, []byte("line\n")))
		var all []byte
		for {
			b, err := term.Receive(ctx)
			if e, ok := errors.AsType[*client.Exited](err); ok {
				if e.Code != 6 || !bytes.Contains(all, []byte("33 77")) || !bytes.Contains(all, []byte("got-line")) {
					t.Errorf("exit code %d, output %q; want 6, the size and the input", e.Code, all)
				}
				return
			}
			must(t, err)
			all = append(all, b...)
		}
	})
	t.Run("events-to-the-end", func(t *testing.T) {
		other, err := c.Sandboxes.Create(ctx, api.CreateRequest{})
		must(t, err)
		seen := []string{}
		must(t, c.Sandboxes.FollowEvents(ctx, other.ID, func(e api.Event) error {
			if len(seen) == 0 {
				must(t, c.Sandboxes.Delete(ctx, other.ID))
			}
			seen = append(seen, e.Type)
			return nil
		}))
		if len(seen) < 2 || seen[len(seen)-1] != api.EventDeleted {
			t.Errorf("events %v, want the last to be %s", seen, api.EventDeleted)
		}
		_, err = c.Sandboxes.Get(ctx, other.ID)
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.NotFound || e.Details == nil {
			t.Errorf("Get returned %v, want not_found that says why", err)
		}
	})
	t.Run("fork-and-lists", func(t *testing.T) {
		tree, err := c.Sandboxes.ForkTree(
			ctx,
			box.ID,
			api.ForkTreeRequest{Count: 3, Metadata: map[string]string{"f": "1"}},
		)
		must(t, err)
		list, err := c.Sandboxes.List(ctx, api.SandboxFilter{Metadata: map[string]string{"f": "1"}})
		if err != nil || len(list) != 3 || len(tree.Children) != 3 {
			t.Errorf("List = %d sandboxes of %d children, %v; want 3 of 3", len(list), len(tree.Children), err)
		}
		page, next, err := c.Sandboxes.Page(ctx, api.SandboxFilter{Limit: 2})
		if err != nil || len(page) != 2 || next == "" {
			t.Errorf("Page = %d sandboxes, cursor %q, %v; want 2 and a cursor", len(page), next, err)
		}
	})
	t.Run("metrics", func(t *testing.T) {
		text, err := c.Metrics(ctx)
		if err != nil || !strings.Contains(text, "pandastack_sandbox_creates_total") {
			t.Errorf("Metrics = %.200s, %v; want the series of creates", text, err)
		}
	})
}

func files(ctx context.Context, t *testing.T, c *client.Client, id api.SandboxID) {
	name := filepath.Join(t.TempDir(), "sub", "é x.bin")
	data := bytes.Repeat([]byte("0123456789\x00\xff"), 1<<20)
	put, err := c.Files.Write(ctx, id, name, bytes.NewReader(data), -1, client.WriteOptions{Mode: 0o640})
	if err != nil || put.Bytes != int64(len(data)) {
		t.Fatalf("Write = %+v, %v; want %d bytes", put, err, len(data))
	}
	f, err := c.Files.Read(ctx, id, name)
	must(t, err)
	got, err := io.ReadAll(f)
	must(t, err)
	must(t, f.Close())
	if !bytes.Equal(got, data) || f.Size != int64(len(data)) {
		t.Errorf("read %d bytes, size %d, want %d", len(got), f.Size, len(data))
	}
	part, err := c.Files.ReadRange(ctx, id, name, 5, 4)
	must(t, err)
	defer part.Close()
	if got, err := io.ReadAll(part); err != nil || string(got) != "5678" {
		t.Errorf("ReadRange = %q, %v; want 5678", got, err)
	}
	st, err := c.Files.Stat(ctx, id, name)
	if err != nil || st.Permissions != "0640" {
		t.Errorf("Stat = %+v, %v; want permissions 0640", st, err)
	}
	for path, want := range map[string]bool{name: true, name + ".none": false} {
		if ok, err := c.Files.Exists(ctx, id, path); err != nil || ok != want {
			t.Errorf("Exists(%s) = %v, %v; want %v", path, ok, err, want)
		}
	}
	if err := c.Files.Remove(ctx, id, filepath.Dir(name), false); err == nil {
		t.Error("Remove of a full directory without recursive succeeded, want an error")
	}
	must(t, c.Files.Remove(ctx, id, filepath.Dir(name), true))
	proc, err := c.Files.Read(ctx, id, "/proc/self/status")
	must(t, err)
	defer proc.Close()
	if got, err := io.ReadAll(proc); err != nil || !bytes.Contains(got, []byte("Pid:")) {
		t.Errorf("ReadAll of a file without a size = %q, %v; want Pid:", got, err)
	}
}

// until waits until a condition holds, for at most a minute.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited for a minute for %s", what)
		}
		<-tick.C
	}
}
