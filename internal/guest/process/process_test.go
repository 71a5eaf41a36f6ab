package process

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/guest/passwd"
)

func table(t *testing.T, cfg Config) *Table {
	t.Helper()
	cfg.Reaper = NewReaper(false)
	tb := New(cfg)
	t.Cleanup(tb.Close)
	return tb
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// run returns the standard output and the exit of a program.
func run(t *testing.T, tb *Table, spec guestapi.ProcessSpec) (string, guestapi.Exit) {
	t.Helper()
	ctx := within(t)
	p, err := tb.Start(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	var out strings.Builder
	for {
		e, err := p.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if e.Exit != nil {
			return out.String(), *e.Exit
		}
		if e.Stream == guestapi.StreamStdout {
			out.Write(e.Data)
		}
	}
}

// TestTagIsFreeAtTheExit checks that a caller that saw the exit of a process can use its tag at once.
func TestTagIsFreeAtTheExit(t *testing.T) {
	tb := table(t, Config{})
	for range 100 {
		if _, exit := run(t, tb, guestapi.ProcessSpec{Argv: []string{"true"}, Tag: "one"}); exit.Code != 0 {
			t.Fatalf("process exited with %+v", exit)
		}
	}
}

func TestUserAndEnvironment(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("probe root: only root can switch to another user")
	}
	d := passwd.Database{Root: t.TempDir()}
	if err := os.Mkdir(d.Root+"/etc", 0o755); err != nil {
		t.Fatal(err)
	}
	_ = os.WriteFile(d.Root+"/etc/passwd", []byte("panda:x:4711:4712::/nowhere:/bin/zsh\n"), 0o644)
	_ = os.WriteFile(d.Root+"/etc/group", []byte("a:x:51:panda\nb:x:52:panda\n"), 0o644)
	tb := table(t, Config{Users: d})
	tb.SetDefaults(map[string]string{"ONE": "default", "TWO": "default"}, "panda")
	out, _ := run(
		t,
		tb,
		guestapi.ProcessSpec{Shell: "id -u; id -g; id -G; pwd; echo $HOME $USER $LOGNAME $SHELL $ONE $TWO $TERM; umask",
			Env: map[string]string{"TWO": "own"}},
	)
	want := "4711\n4712\n4712 51 52\n/\n/nowhere panda panda /bin/zsh default own\n"
	if !strings.HasPrefix(out, want) {
		t.Errorf("got %q, want %q", out, want)
	}
}

func TestHoldRefusesNewProcesses(t *testing.T) {
	tb := table(t, Config{})
	tb.Hold()
	if _, err := tb.Start(within(t), guestapi.ProcessSpec{Shell: "true"}); !errors.Is(err, guestapi.ErrBusy) {
		t.Errorf("Start while held: got error %v, want ErrBusy", err)
	}
	tb.Release()
	if _, exit := run(t, tb, guestapi.ProcessSpec{Shell: "true"}); exit.Code != 0 {
		t.Errorf("after Release: got exit %+v", exit)
	}
}

func TestStartRefusesInvalidSpecs(t *testing.T) {
	tb := table(t, Config{})
	for name, spec := range map[string]guestapi.ProcessSpec{
		"both":      {Argv: []string{"true"}, Shell: "true"},
		"no name":   {Argv: []string{""}},
		"zero byte": {Argv: []string{"a\x00b"}},
		"variable":  {Shell: "true", Env: map[string]string{"A=B": "c"}},
		"value":     {Shell: "true", Env: map[string]string{"A": "b\x00"}},
		"timeout":   {Shell: "true", Timeout: -1},
		"long tag":  {Shell: "true", Tag: strings.Repeat("x", 1000)},
	} {
		if _, err := tb.Start(within(t), spec); !errors.Is(err, guestapi.ErrInvalid) {
			t.Errorf("%s: got error %v", name, err)
		}
	}
	if _, err := tb.Start(within(t), guestapi.ProcessSpec{Argv: []string{"/etc/passwd"}}); !errors.Is(
		err,
		guestapi.ErrPermission,
	) {
		t.Errorf("missing program: got error %v", err)
	}
	if err := tb.Signal(within(t), guestapi.ProcessRef{PID: 1}, 9, false); !errors.Is(err, guestapi.ErrNotFound) {
		t.Errorf("PID of a process outside the table: got error %v", err)
	}
}

// TestEndedProcessesAreBounded checks that the table keeps a limited number of ended processes.
func TestEndedProcessesAreBounded(t *testing.T) {
	tb := table(t, Config{})
	for range maxEnded + 5 {
		run(t, tb, guestapi.ProcessSpec{Shell: "echo x"})
	}
	for ctx := within(t); ; {
		all, err := tb.Processes(ctx)
		if err = errors.Join(err, ctx.Err()); err != nil {
			t.Fatal(err)
		}
		if len(all) == maxEnded {
			return
		}
		if len(all) > maxEnded+1 { // the last one may not be counted yet
			t.Fatalf("table keeps %d ended processes", len(all))
		}
	}
}

// TestTotalOutputIsBounded checks that the output kept of all processes stays within the budget.
func TestTotalOutputIsBounded(t *testing.T) {
	tb := table(t, Config{OutputBytes: 64 << 10})
	for range 8 {
		out, _ := run(t, tb, guestapi.ProcessSpec{Shell: "yes 0123456 | head -c 200000"})
		if len(out) != 200_000 {
			t.Errorf("an attached reader got %d bytes", len(out))
		}
	}
	if left := tb.budget.left.Load(); left < -16*ringMin {
		t.Errorf("budget is overdrawn by %d bytes", -left)
	}
}
