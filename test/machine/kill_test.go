//go:build vm

package machine

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// TestKilledHibernationsAndWakes kills a host agent, a process of its own, at random moments while it hibernates and
// wakes a machine whose guest writes to memory and disk all the time. Neither may be lost, and they must be of the same
// moment.
func TestKilledHibernationsAndWakes(t *testing.T) {
	const id, kills = hostapi.MachineID("cycle0"), 10
	l := host(t)
	l.create(t, hostapi.Create{ID: id})
	l.run(t, id, "mkdir -p /mem && mount -t tmpfs tmpfs /mem && echo 0 > /mem/n && echo 0 > /root/n || exit; "+
		"(n=0; while :; do n=$((n+1)); echo $n >> /mem/n; echo $n >> /root/n; sleep 0.05; done) > /dev/null 2>&1 & "+
		"echo $! > /mem/pid")
	rng := rand.New(rand.NewPCG(3, 4))
	last := 0
	for round := range kills {
		where := killCycle(t, closeShared(t), id, 1+rng.IntN(45))
		l = host(t)
		mc, err := l.Get(t.Context(), id)
		if err != nil || mc.State != hostapi.Running && mc.State != hostapi.Hibernated {
			t.Fatalf("round %d, killed after %s: machine %s (%s), %v", round, where, mc.State, mc.Reason, err)
		}
		t.Logf("round %d, killed after %s: machine %s", round, where, mc.State)
		if _, err := l.Wake(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		// The loop is stopped to read both at once.
		out := strings.Fields(l.run(t, id,
			"p=$(cat /mem/pid); kill -STOP $p; tail -n 1 /mem/n; tail -n 1 /root/n; kill -CONT $p"))
		if len(out) != 2 {
			t.Fatalf("round %d, killed after %s: the guest says %q", round, where, out)
		}
		memory, err1 := strconv.Atoi(out[0])
		disk, err2 := strconv.Atoi(out[1])
		if err1 != nil || err2 != nil || memory < last || memory-disk > 1 || disk > memory {
			t.Fatalf("round %d, killed after %s: memory counts %s and disk %s; want the same, at least %d",
				round, where, out[0], out[1], last)
		}
		last = memory
	}
}

// killCycle starts a host agent that hibernates and wakes a machine, kills it after so many steps, and returns the last
// one.
func killCycle(t *testing.T, dir string, id hostapi.MachineID, steps int) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(self)
	child.Env = append(os.Environ(), agentEnv+"="+dir, fmt.Sprintf("%s=%s", cycleEnv, id))
	child.Stderr = &logger{t}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines, open, line := bufio.NewScanner(out), false, ""
	for steps > 0 && lines.Scan() {
		line = lines.Text()
		if open = open || line == "open"; open {
			steps--
		}
	}
	kill(t, child.Process.Pid)
	_ = child.Wait() // it was killed
	if steps > 0 {
		t.Fatalf("the host agent ended after %q", line)
	}
	return line
}
