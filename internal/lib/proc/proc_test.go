package proc_test

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/lib/proc"
)

func start(t *testing.T, script string, env ...string) *proc.Process {
	t.Helper()
	p, err := proc.Start(proc.Command{Path: "/bin/sh", Args: []string{"-c", script}, Env: env})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(context.Background()); err != nil {
			t.Error(err)
		}
		if err := p.Release(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func wait(t *testing.T, p *proc.Process) proc.Exit {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(time.Minute):
		t.Fatal("process did not end")
	}
	return p.Exit()
}

func TestExitStatusAndLog(t *testing.T) {
	p := start(t, `echo one; echo two >&2; exit 7`)
	if e := wait(t, p); !e.Known || e.Code != 7 || e.Signal != 0 || e.Killed {
		t.Errorf("exit: got %+v, want status 7", e)
	}
	if got, want := p.Tail(1), "two"; got != want {
		t.Errorf("tail: got %q, want %q", got, want)
	}
	if got, want := p.Log(), "one\ntwo\n"; got != want {
		t.Errorf("log: got %q, want %q", got, want)
	}
}

func TestLogIsBounded(t *testing.T) {
	p := start(t, `yes 2>/dev/null; echo ended >/dev/null`)
	wait(t, p)
	if n := len(p.Log()); n == 0 || n > proc.LogBytes {
		t.Errorf("log: got %d bytes, want 1 to %d", n, proc.LogBytes)
	}
}

func TestExtraFiles(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p, err := proc.Start(proc.Command{Path: "/bin/sh", Args: []string{"-c", "echo hello >&3"}, Files: []*os.File{w}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err != nil || string(got) != "hello\n" {
		t.Errorf("got %q, %v", got, err)
	}
	wait(t, p)
}

func TestKillTwiceAndFromOutside(t *testing.T) {
	p := start(t, "exec sleep 1000")
	for range 2 {
		if err := p.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if e := p.Exit(); !e.Killed || e.Signal != syscall.SIGKILL {
		t.Errorf("exit: got %+v, want killed by Kill", e)
	}
	q := start(t, "exec sleep 1000")
	if err := syscall.Kill(q.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e := wait(t, q); e.Killed || !strings.Contains(e.String(), "out of memory") {
		t.Errorf("exit: got %v, want killed by another process", e)
	}
}

func TestStartOfMissingProgram(t *testing.T) {
	if _, err := proc.Start(proc.Command{Path: "/nonexistent/program"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Start of a missing program: got error %v, want fs.ErrNotExist", err)
	}
}

func TestAdopt(t *testing.T) {
	p := start(t, "echo before; exec sleep 1000")
	id := p.Identity()
	if !id.Alive() {
		t.Fatal("Alive returned false for a running process")
	}
	q, err := proc.Adopt(id)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Release()
	if err := q.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait(t, p)
	if id.Alive() {
		t.Error("Alive returned true after the end")
	}
	if _, err := proc.Adopt(id); !errors.Is(err, proc.ErrGone) {
		t.Errorf("adopt after the end: got %v, want ErrGone", err)
	}
}

// TestAdoptGrandchild checks that a process that is not a child can be waited for.
func TestAdoptGrandchild(t *testing.T) {
	p := start(t, `sleep 1000 & echo $!; wait`, "MARK=proc-test-grandchild")
	var ids []proc.Identity
	deadline := time.After(time.Minute)
	for len(ids) < 2 {
		var err error
		if ids, err = proc.Find("MARK=proc-test-grandchild"); err != nil {
			t.Fatal(err)
		}
		select {
		case <-deadline:
			t.Fatalf("Find: got %d processes, want 2", len(ids))
		default:
		}
	}
	for _, id := range ids {
		if id.PID == p.PID() {
			continue
		}
		q, err := proc.Adopt(id)
		if err != nil {
			t.Fatal(err)
		}
		if err := q.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if e := q.Exit(); e.Known {
			t.Errorf("exit of an adopted process: got %+v, want unknown status", e)
		}
		if err := q.Release(); err != nil {
			t.Error(err)
		}
	}
	wait(t, p)
}

func TestReusedPIDIsAnotherProcess(t *testing.T) {
	id, err := proc.Identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	id.Start++
	if id.Alive() {
		t.Error("Alive returned true for another start time")
	}
	id.Start--
	id.Boot = "00000000-0000-0000-0000-000000000000"
	if _, err := proc.Adopt(id); !errors.Is(err, proc.ErrGone) {
		t.Errorf("Adopt with another boot ID: got error %v, want ErrGone", err)
	}
}

func TestUsage(t *testing.T) {
	p := start(t, "exec sleep 1000")
	u, err := p.Usage()
	if err != nil {
		t.Fatal(err)
	}
	if u.Threads != 1 || u.VSZBytes == 0 || time.Since(u.Started) > time.Hour || time.Since(u.Started) < -time.Minute {
		t.Errorf("Usage: got %+v", u)
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Usage(); !errors.Is(err, proc.ErrGone) {
		t.Errorf("Usage after the end: got error %v, want ErrGone", err)
	}
}
