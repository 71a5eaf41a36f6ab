package hosttest_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
)

// run runs a shell command and returns its output and exit.
func run(t *testing.T, g guestapi.Guest, spec guestapi.ProcessSpec) (stdout, stderr string, exit guestapi.Exit) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	p, err := g.Start(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for {
		e, err := p.Next(ctx)
		switch {
		case err == io.EOF:
			return stdout, stderr, exit
		case err != nil:
			t.Fatal(err)
		case e.Exit != nil:
			exit = *e.Exit
		case e.Stream == guestapi.StreamStderr:
			stderr += string(e.Data)
		default:
			stdout += string(e.Data)
		}
	}
}

func TestShell(t *testing.T) {
	h := hosttest.New()
	defer h.Close()
	if _, err := h.Create(t.Context(), hostapi.Create{ID: "a", Template: "base", Env: map[string]string{"A": "1"},
		Hostname: "a"}); err != nil {
		t.Fatal(err)
	}
	g, err := h.Guest(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	rows := []struct {
		cmd, stdout, stderr string
		code                int
	}{
		{"echo hi", "hi\n", "", 0},
		{"false || echo 'a  b'; exit 3; echo no", "a  b\n", "", 3},
		{`echo "x$A-${A}y" >&2`, "", "x1-1y\n", 0},
		{"printf 'a\\nb' > f && cat f; echo more >> f; cat f", "a\nba\nbmore\n", "", 0},
		{"nosuch", "", "sh: 1: nosuch: not found\n", 127},
		{"sh -c 'exit 4' || echo $A; pwd; whoami; hostname", "1\n/home/user\nuser\na\n", "", 0},
		{"touch t; test -e t && rm t; test -e t", "", "", 1},
	}
	for _, r := range rows {
		stdout, stderr, exit := run(t, g, guestapi.ProcessSpec{Shell: r.cmd})
		if stdout != r.stdout || stderr != r.stderr || exit.Code != r.code {
			t.Errorf(
				"%s: got %q, %q, %d; want %q, %q, %d",
				r.cmd,
				stdout,
				stderr,
				exit.Code,
				r.stdout,
				r.stderr,
				r.code,
			)
		}
	}
	if _, _, exit := run(t, g, guestapi.ProcessSpec{Shell: "sleep 100", Timeout: time.Millisecond}); !exit.TimedOut {
		t.Errorf("exit %+v, want timed out", exit)
	}
}

func TestMachineLifecycle(t *testing.T) {
	h := hosttest.New()
	defer h.Close()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := h.Create(ctx, hostapi.Create{ID: "a", Template: "base"})
	must(err)
	g, err := h.Guest(ctx, "a")
	must(err)
	_, err = g.Write(ctx, "/f", guestapi.WriteOptions{Size: -1}, strings.NewReader("one"))
	must(err)
	children, err := h.Fork(ctx, hostapi.Fork{Parent: "a", Children: []hostapi.Child{{ID: "b"}}})
	must(err)
	if err := children[0].Err(); err != nil {
		t.Fatal(err)
	}
	must(h.Hibernate(ctx, "a"))
	if _, err := g.Stat(ctx, "/f", ""); !errors.Is(err, guestapi.ErrLost) {
		t.Errorf("Stat of a hibernated guest returned %v, want ErrLost", err)
	}
	if _, err := h.Guest(ctx, "a"); !errors.Is(err, hostapi.ErrWrongState) {
		t.Errorf("guest of a hibernated machine: %v, want ErrWrongState", err)
	}
	_, err = h.Wake(ctx, "a")
	must(err)
	for _, id := range []hostapi.MachineID{"a", "b"} {
		g, err := h.Guest(ctx, id)
		must(err)
		if out, _, _ := run(t, g, guestapi.ProcessSpec{Shell: "cat /f"}); out != "one" {
			t.Errorf("%s: file holds %q, want one", id, out)
		}
	}
	boom := errors.New("boom")
	h.FailAfter("pause", boom)
	if err := h.Pause(ctx, "a"); !errors.Is(err, boom) {
		t.Errorf("pause: %v, want boom", err)
	}
	if m, err := h.Get(ctx, "a"); err != nil || m.State != hostapi.Paused {
		t.Errorf("after a spoiled pause: %v, %v", m.State, err)
	}
	must(h.Destroy(ctx, "a", "test"))
	must(h.Destroy(ctx, "a", "test"))
	if _, err := h.Get(ctx, "a"); !errors.Is(err, hostapi.ErrNotFound) {
		t.Errorf("destroyed machine: %v, want ErrNotFound", err)
	}
}
