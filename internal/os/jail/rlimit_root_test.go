//go:build root

package jail

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLimitsOfAnotherUser sets limits on a process of another user, for which root may lack the
// capability.
func TestLimitsOfAnotherUser(t *testing.T) {
	cmd := exec.Command("/bin/sh", "-c", "read end")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1900000777, Gid: 1900000777}}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		_ = cmd.Wait()
	}()
	if err := setLimits(cmd.Process.Pid, []rlimit{{"core", unix.RLIMIT_CORE, 0},
		{"open files", unix.RLIMIT_NOFILE, 77}}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/limits")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Max core file size 0 0", "Max open files 77 77"} {
		if !strings.Contains(strings.Join(strings.Fields(string(data)), " "), want) {
			t.Errorf("got limits:\n%s\nwant %q", data, want)
		}
	}
	if os.Geteuid() != 0 {
		t.Error("the test process has lost its root user ID")
	}
}
