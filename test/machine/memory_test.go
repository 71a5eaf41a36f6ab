//go:build vm

package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/os/jail"
)

// TestGuestOutOfMemory runs a program in a guest that uses more memory than the guest has: the guest's kernel kills
// it, its exit says so, and the machine continues.
func TestGuestOutOfMemory(t *testing.T) {
	l := host(t)
	mc := l.create(t, hostapi.Create{ID: "oom1"})
	exit := l.exit(t, mc.ID, []string{"python3", "-c", `open("/proc/self/oom_score_adj", "w").write("1000")
x = []
while True: x.append(bytearray(b"x" * (1 << 20)))`})
	if exit.Signal != 9 || exit.Code != 137 || !exit.OutOfMemory || exit.TimedOut {
		t.Errorf("exit of a program without memory = %+v, want out of memory", exit)
	}
	if exit := l.exit(t, mc.ID, []string{"sh", "-c", "kill -9 $$"}); exit.Signal != 9 || exit.OutOfMemory {
		t.Errorf("exit of a program that killed itself = %+v, want no out of memory", exit)
	}
	if got := l.run(t, mc.ID, "echo alive"); got != "alive" {
		t.Errorf("output of the guest = %q", got)
	}
}

// exit runs a program in a machine's guest as root and returns its exit.
func (l *lab) exit(t *testing.T, id hostapi.MachineID, argv []string) guestapi.Exit {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), timeout, fmt.Errorf("%q in %s takes too long", argv, id))
	defer cancel()
	guest, err := l.Guest(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	p, err := guest.Start(ctx, guestapi.ProcessSpec{Argv: argv, User: "root"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for {
		ev, err := p.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if ev.Exit != nil {
			return *ev.Exit
		}
	}
}

// TestMonitorOutOfMemory lowers the memory limit of a machine's cgroup while its guest uses more: the host's kernel
// kills the monitor, and the machine says why it ended.
func TestMonitorOutOfMemory(t *testing.T) {
	l := host(t)
	mc := l.create(t, hostapi.Create{ID: "oom2", Persistent: true})
	squeeze(t, l.dir, mc.PID, 24<<20)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	guest, err := l.Guest(ctx, mc.ID)
	if err != nil {
		t.Fatal(err)
	}
	p, err := guest.Start(
		ctx,
		guestapi.ProcessSpec{
			Argv: []string{"python3", "-c", `import time; x = bytearray(b"x" * 60000000); time.sleep(600)`},
			User: "root",
		},
	)
	if err == nil {
		defer p.Close()
	} else {
		t.Logf("the machine ended before it answered: %v", err)
	}
	wait(t, "the machine is out of memory", func() bool {
		got, err := l.Get(t.Context(), mc.ID)
		if err != nil {
			t.Fatal(err)
		}
		return got.State == hostapi.Failed && strings.HasPrefix(got.Reason, "out of memory: ")
	})
}

// squeeze lowers the memory limit of the cgroup of a process, of a host agent over dir, to more bytes above its
// usage.
func squeeze(t *testing.T, dir string, pid int, more int64) {
	t.Helper()
	layout, err := jail.Probe()
	if err != nil {
		t.Fatal(err)
	}
	used, limits := "memory.current", []string{"memory.max"}
	if layout.Version == 1 {
		used, limits = "memory.usage_in_bytes", []string{"memory.limit_in_bytes", "memory.memsw.limit_in_bytes"}
	}
	groups, err := filepath.Glob(filepath.Join(layout.Memory, prefix(dir), "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range groups {
		procs, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
		if err != nil || !strings.Contains("\n"+string(procs), "\n"+strconv.Itoa(pid)+"\n") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(group, used))
		if err != nil {
			t.Fatal(err)
		}
		now, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		for i, file := range limits {
			err := os.WriteFile(filepath.Join(group, file), []byte(strconv.FormatInt(now+more, 10)), 0)
			if err != nil &&
				!(i > 0 && errors.Is(err, os.ErrNotExist)) { // a kernel that counts no swap has no second one
				t.Fatal(err)
			}
		}
		return
	}
	t.Fatalf("no cgroup of process %d", pid)
}
