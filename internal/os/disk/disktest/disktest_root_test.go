//go:build root

package disktest_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/os/disk/disktest"
)

// killedEnv makes this test wait, in a directory of its own, until it is killed.
const killedEnv = "DISKTEST_KILLED"

// A killed test leaves a mount, which the next test removes. The mount of a running test stays.
func TestKilledTestLeavesNothingForLong(t *testing.T) {
	if os.Getenv(killedEnv) != "" {
		fmt.Println("\nat", disktest.Dir(t, 512<<20))
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	own := disktest.Dir(t, 512<<20)
	killed := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$")
	killed.Env = append(os.Environ(), killedEnv+"=1")
	in, err := killed.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := killed.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	var said, left string
	for buf := make([]byte, 4096); left == ""; {
		n, err := out.Read(buf)
		if err != nil {
			t.Fatalf("the killed test printed %q, %v", said, err)
		}
		said += string(buf[:n])
		if _, after, ok := strings.Cut(said, "at "); ok && strings.Contains(after, "\n") {
			left, _, _ = strings.Cut(after, "\n")
		}
	}
	sweep := func() {
		t.Helper()
		if err := disktest.Sweep(os.TempDir()); err != nil {
			t.Error(err)
		}
	}
	sweep()
	if !mounted(t, left) || !mounted(t, own) {
		t.Errorf("%s or %s is not mounted, want both while their tests run", left, own)
	}
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait() // the process was killed
	sweep()
	if _, err := os.Stat(filepath.Dir(left)); mounted(t, left) || !os.IsNotExist(err) {
		t.Errorf("directory of a killed test: stat = %v, want it removed", err)
	}
	if !mounted(t, own) {
		t.Error("the mount of a running test was removed")
	}
}

func mounted(t *testing.T, dir string) bool {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(mounts), " "+dir+" ")
}
