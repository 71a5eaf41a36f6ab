package command_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/lib/command"
)

func TestRunLogsAndExplains(t *testing.T) {
	var lines []string
	opt := command.Options{Log: func(l string) { lines = append(lines, l) }}
	err := command.Run(
		t.Context(),
		opt,
		"sh",
		"-c",
		"for i in 1 2 3 4 5 6 7 8; do echo line $i; done; printf 'why' >&2; exit 3",
	)
	var e *command.Error
	if !errors.As(err, &e) {
		t.Fatalf("Run: got error %v, want *command.Error", err)
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("Run: got error %v, want exit code 3", err)
	}
	if len(lines) != 9 || !slices.Contains(lines, "line 1") {
		t.Errorf("got log %q", lines)
	}
	if text := err.Error(); !strings.Contains(text, "why") || strings.Contains(text, "line 1;") {
		t.Errorf("got error %q, want the last lines alone", text)
	}
}

func TestRunWithoutProgram(t *testing.T) {
	err := command.Run(t.Context(), command.Options{}, "no-such-program-here")
	if !errors.Is(err, exec.ErrNotFound) || !strings.Contains(err.Error(), "pandastack setup") {
		t.Errorf("Run: got error %v, want exec.ErrNotFound and the remedy", err)
	}
}

func TestRunEndsWholeGroup(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	// The child of the shell holds its output open: Run would wait for it.
	opt := command.Options{Log: func(string) { cancel(cause) }}
	if err := command.Run(ctx, opt, "sh", "-c", "sleep 600 & echo started; wait"); !errors.Is(err, cause) {
		t.Errorf("Run: got error %v, want the context's cause", err)
	}
}

func TestOutput(t *testing.T) {
	out, err := command.Output(
		t.Context(),
		command.Options{Stdin: "in", Env: []string{"X=y"}},
		"sh",
		"-c",
		"cat; echo $X; echo noise >&2",
	)
	if err != nil || out != "iny\n" {
		t.Errorf("Output: got %q, %v", out, err)
	}
}

// TestKillEndsWithParent checks that a process that starts a program with Kill and is then killed itself takes the
// program with it. The test binary plays that process.
func TestKillEndsWithParent(t *testing.T) {
	if fifo := os.Getenv("COMMAND_TEST_FIFO"); fifo != "" {
		_ = command.Run(
			t.Context(),
			command.Options{Kill: true},
			"sh",
			"-c",
			"exec 3>"+fifo+"; echo up >&3; exec sleep 600",
		)
		return
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	parent := exec.Command(os.Args[0], "-test.run=^TestKillEndsWithParent$")
	parent.Env = append(os.Environ(), "COMMAND_TEST_FIFO="+fifo)
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(fifo)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewReader(f)
	if line, err := lines.ReadString('\n'); line != "up\n" {
		t.Fatalf("got output %q, %v", line, err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // it was killed
	ended := make(chan error, 1)
	go func() {
		_, err := lines.ReadString('\n') // the pipe ends when no process holds it
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the program outlived its parent")
	}
}

// A program that is protected from the kernel's choice of what to kill does not protect what it runs.
func TestChildrenAreNotProtected(t *testing.T) {
	const file = "/proc/self/oom_score_adj"
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("-10"), 0); err != nil {
		t.Skipf("probe root: the score of the test cannot be lowered: %v", err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(file, before, 0); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	wait := `until [ "$(cat /proc/$$/oom_score_adj)" = 0 ]; do :; done`
	if err := command.Run(ctx, command.Options{Kill: true}, "sh", "-c", wait); err != nil {
		t.Errorf("the score of a child did not become 0: %v", err)
	}
}
