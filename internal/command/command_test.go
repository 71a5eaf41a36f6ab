package command_test

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/command"
)

func TestRunLogsAndExplains(t *testing.T) {
	var lines []string
	opt := command.Options{Log: func(l string) { lines = append(lines, l) }}
	err := command.Run(t.Context(), opt, "sh", "-c", "for i in 1 2 3 4 5 6 7 8; do echo line $i; done; printf 'why' >&2; exit 3")
	var e *command.Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v, want *command.Error", err)
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("error %v does not tell the exit code 3", err)
	}
	if len(lines) != 9 || !slices.Contains(lines, "line 1") {
		t.Errorf("logged %q", lines)
	}
	if text := err.Error(); !strings.Contains(text, "why") || strings.Contains(text, "line 1;") {
		t.Errorf("error %q, want the last lines alone", text)
	}
}

func TestRunWithoutProgram(t *testing.T) {
	err := command.Run(t.Context(), command.Options{}, "no-such-program-here")
	if !errors.Is(err, exec.ErrNotFound) || !strings.Contains(err.Error(), "pandastack setup") {
		t.Errorf("error %v, want exec.ErrNotFound and the remedy", err)
	}
}

func TestRunEndsWholeGroup(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	// The child of the shell holds its output open: Run would wait for it.
	opt := command.Options{Log: func(string) { cancel(cause) }}
	if err := command.Run(ctx, opt, "sh", "-c", "sleep 600 & echo started; wait"); !errors.Is(err, cause) {
		t.Errorf("error %v, want the cause", err)
	}
}

func TestOutput(t *testing.T) {
	out, err := command.Output(t.Context(), command.Options{Stdin: "in", Env: []string{"X=y"}}, "sh", "-c", "cat; echo $X; echo noise >&2")
	if err != nil || out != "iny\n" {
		t.Errorf("output %q, %v", out, err)
	}
}
