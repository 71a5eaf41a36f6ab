//go:build root

package kernel

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/lib/command"
)

// TestKilledBuildLeavesNoProcess kills a building process by SIGKILL: the processes that the build had started end
// too.
func TestKilledBuildLeavesNoProcess(t *testing.T) {
	const dir = "KERNEL_TEST_BUILD"
	if at := os.Getenv(dir); at != "" { // the process that is killed
		line := "(sleep 3600 & echo begun > begun; wait) & wait"
		if err := command.Run(t.Context(), dieWithParent(command.Options{Dir: at}), "sh", "-c", line); err != nil {
			t.Fatal(err)
		}
		return
	}
	at := t.TempDir()
	builder := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestKilledBuildLeavesNoProcess$")
	builder.Env = append(os.Environ(), dir+"="+at)
	var said bytes.Buffer
	builder.Stdout, builder.Stderr = &said, &said
	if err := builder.Start(); err != nil {
		t.Fatal(err)
	}
	poll(t, "the build has begun", func() bool { _, err := os.Stat(filepath.Join(at, "begun")); return err == nil })
	if n := inside(t, at); n < 3 {
		t.Errorf("got %d building processes, want some", n)
	}
	if err := builder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := builder.Wait(); !errors.As(err, &exit) {
		t.Errorf("got error %v, output %s", err, said.String())
	}
	poll(t, "all of them ended", func() bool { return inside(t, at) == 0 })
}

// inside counts the processes that work in a directory.
func inside(t *testing.T, dir string) int {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, l := range links {
		// A process that has ended is not counted.
		if at, err := os.Readlink(l); err == nil && strings.HasPrefix(at, dir) {
			count++
		}
	}
	return count
}

// poll waits for a condition.
func poll(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(time.Minute)
	for !holds() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("timeout: want %s", what)
		}
	}
}
