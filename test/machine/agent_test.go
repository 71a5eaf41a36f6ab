//go:build vm

package machine

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// TestKilledHostAgent kills a host agent, a process of its own, with machines that run, are hibernated and paused.
// The next agent takes over all of them.
func TestKilledHostAgent(t *testing.T) {
	l := host(t)
	var ids []hostapi.MachineID
	for i := range 4 {
		mc := l.create(t, hostapi.Create{ID: hostapi.MachineID(fmt.Sprintf("agent%d", i)), Persistent: i%2 == 0})
		l.run(
			t,
			mc.ID,
			"echo "+string(
				mc.ID,
			)+" > /root/name; mkdir -p /mem && mount -t tmpfs tmpfs /mem && echo "+string(
				mc.ID,
			)+" > /mem/name",
		)
		ids = append(ids, mc.ID)
	}
	if err := l.Hibernate(t.Context(), ids[0]); err != nil {
		t.Fatal(err)
	}
	if err := l.Pause(t.Context(), ids[1]); err != nil {
		t.Fatal(err)
	}
	dir := closeShared(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for round := range 3 { // the agent takes over, and is killed, several times
		child := exec.Command(self)
		child.Env = append(os.Environ(), agentEnv+"="+dir)
		child.Stderr = &logger{t}
		in, err := child.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(out)
		line, err := lines.ReadString('\n')
		for err == nil && strings.HasPrefix(line, "recover ") {
			line, err = lines.ReadString('\n')
		}
		kill(t, child.Process.Pid)
		_ = child.Wait() // it was killed
		_ = in.Close()
		if err != nil || line != "open\n" {
			t.Fatalf("round %d: host agent says %q, %v", round, line, err)
		}
	}
	l = host(t)
	if _, err := l.Wake(t.Context(), ids[0]); err != nil {
		t.Fatal(err)
	}
	if mc, err := l.Get(t.Context(), ids[1]); err != nil || mc.State != hostapi.Paused {
		t.Errorf("machine %s is %s, %v; want paused", ids[1], mc.State, err)
	}
	if err := l.Resume(t.Context(), ids[1]); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if got := l.run(t, id, "cat /root/name /mem/name"); got != string(id)+"\n"+string(id) {
			t.Errorf("file in machine %s = %q, want its own content", id, got)
		}
	}
	l.fork(t, ids[2], "agent9")
	if got := l.run(t, "agent9", "cat /root/name /mem/name"); got != string(ids[2])+"\n"+string(ids[2]) {
		t.Errorf("file in the child of an adopted machine = %q, want the parent's", got)
	}
	for _, id := range append(ids, "agent9") {
		destroy(t, id)
	}
	if list, err := l.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("machines = %v, %v; want none", list, err)
	}
	for _, sub := range []string{"machines", "snapshots", "drafts"} {
		if left, err := os.ReadDir(filepath.Join(dir, sub)); err != nil || len(left) != 0 {
			t.Errorf("%s: %v, %v; want nothing", sub, left, err)
		}
	}
}
