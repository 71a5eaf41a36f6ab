//go:build vm

package agent_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/guest/guesttest"
	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/qemu"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
	"github.com/pandastack/pandastack/test/vmlab"
)

// User 65534 runs the monitors of these tests.
const nobody = 65534

// bake makes the image of a machine that runs this tree's guest agent.
func bake(t *testing.T) *vmmtest.Host {
	t.Helper()
	l := vmlab.Open(t)
	return vmmtest.Bake(t, vmmtest.Lab{
		Dir: l.Dir,
		Open: func(t vmmtest.TB) vmm.Driver {
			d, err := qemu.New(t.Context(), qemu.Config{})
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Spec: vmm.Spec{
			VCPUs: 1, MemoryMiB: 256, Kernel: l.Boot.Kernel, Initramfs: l.Boot.Initramfs, Cmdline: l.Boot.Cmdline,
			Confine: vmm.Confine{UID: nobody, GID: nobody},
		},
		Disk: func(t vmmtest.TB, path string) {
			if err := disk.Clone(l.Root, path); err != nil {
				t.Fatal(err)
			}
		},
		Clone: func(t vmmtest.TB, from *os.File, to string) {
			f, err := os.OpenFile(to, os.O_RDWR, 0)
			if err == nil {
				err = errors.Join(disk.CloneInto(from.Name(), f), f.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
		},
	})
}

// TestRealGuest runs the whole suite in a restored machine, then the tests that need a machine.
func TestRealGuest(t *testing.T) {
	h := bake(t)
	m := h.Restore(t)
	serial := 0
	t.Run("suite", func(t *testing.T) {
		guesttest.Full(t, func(t *testing.T) guesttest.Env {
			serial++
			dir := fmt.Sprintf("/root/suite%d", serial)
			if _, err := m.Link.MakeDir(guesttest.Context(t), dir, "root"); err != nil {
				t.Fatal(err)
			}
			return guesttest.Env{Guest: m.Link, Dir: dir, User: "root"}
		})
	})
	t.Run("root cannot end the first process", func(t *testing.T) {
		script := "for i in 1 2 3 4 5 6 7 8 9 10; do s=1; while [ $s -le 64 ]; do kill -$s 1; " +
			"s=$((s+1)); done; done; echo alive"
		if o := guesttest.Exec(t, m.Link, guestapi.ProcessSpec{Shell: script}); o.Stdout != "alive\n" {
			t.Errorf("got %+v", o)
		}
		if o := guesttest.Exec(t, m.Link, guestapi.ProcessSpec{Shell: "echo still"}); o.Stdout != "still\n" {
			t.Errorf("got %+v", o)
		}
	})
	t.Run("devices that check their users themselves are open", func(t *testing.T) {
		o := guesttest.Exec(t, m.Link, guestapi.ProcessSpec{Shell: "stat -c %a /dev/fuse /dev/net/tun"})
		if o.Stdout != "666\n666\n" {
			t.Errorf("got %+v, want mode 666 of both", o)
		}
	})
	t.Run("orphans are collected", func(t *testing.T) {
		o := guesttest.Exec(t, m.Link, guestapi.ProcessSpec{Shell: "for i in 1 2 3 4 5; do (true & ); done; " +
			"until [ $(cat /proc/[0-9]*/stat 2>/dev/null | grep -c ' Z 1 ') = 0 ]; do " +
			"sleep 0.1; done", Timeout: time.Minute})
		if o.Exit.Code != 0 {
			t.Errorf("got %+v", o)
		}
	})
	t.Run("a process that wakes up preempts no other", func(t *testing.T) {
		const batch = "3\n" // SCHED_BATCH; field 41 of proc_pid_stat(5)
		o := guesttest.Exec(t, m.Link, guestapi.ProcessSpec{
			Shell: "for s in /proc/1/task/*/stat /proc/self/stat; do sed 's/.*) //' $s | cut -d' ' -f39; done " +
				"| sort -u",
		})
		if o.Stdout != batch {
			t.Errorf("got policies %+v", o)
		}
	})
	t.Run("two copies share nothing", func(t *testing.T) { hazards(t, h, m) })
	t.Run("nothing wakes an idle machine", func(t *testing.T) { idle(t, h.Restore(t)) })
}

// idle checks, while a program sleeps, that no thread of the kernel works periodically, and that the monitor sleeps.
// The timer that the firmware leaves running wakes a monitor more than 70 times a second, whatever the guest does.
func idle(t *testing.T, m *vmmtest.Machine) {
	const count = `for d in /proc/[0-9]*; do read -r name < $d/comm; case $name in ` +
		`kcompactd0|migration/0) echo $name $(grep ^voluntary $d/status);; esac; done; echo; `
	const most = 50
	ctx := guesttest.Context(t)
	p, err := m.Link.Start(ctx, guestapi.ProcessSpec{
		Shell: "sleep 1; " + count + "for i in 1 2 3; do sleep 4; echo; done; " + count,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close() //nolint:errcheck // it has exited, or the test has failed
	// The quietest period counts: starting a program wakes the monitor, too.
	var text string
	var at time.Time
	before, quiet := 0, math.Inf(1)
	if _, err := guestexec.Follow(ctx, p, guestexec.Sink{Output: func(e guestapi.Event) error {
		text += string(e.Data)
		now, took := switches(t, m.PID()), time.Since(at)
		if took > 3*time.Second && !at.IsZero() {
			quiet = min(quiet, float64(now-before)/took.Seconds())
		}
		before, at = now, time.Now()
		return nil
	}}); err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(strings.TrimSpace(text), "\n\n")
	if first, last := blocks[0], strings.TrimSpace(blocks[len(blocks)-1]); len(blocks) < 2 || first != last ||
		!strings.Contains(first, "kcompactd0") {
		t.Errorf("threads of the kernel switched while the machine was idle: %q, want the same counts twice", text)
	}
	if t.Logf("the monitor was woken %.1f times a second", quiet); quiet > most {
		t.Errorf("the monitor was woken %.1f times a second, want at most %d", quiet, most)
	}
	if o := guesttest.Exec(t, m.Link, guestapi.ProcessSpec{Shell: "cat /proc/pressure/cpu"}); o.Exit.Code == 0 {
		t.Errorf("the kernel computes pressure averages: %+v", o)
	}
}

// switches returns how often the threads of a process gave up a processor to wait.
func switches(t *testing.T, pid int) int {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("process %d has no threads, %v", pid, err)
	}
	sum := 0
	for _, name := range files {
		text, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the thread has ended
		}
		_, after, ok := strings.Cut(string(text), "\nvoluntary_ctxt_switches:")
		line, _, _ := strings.Cut(after, "\n")
		n, parse := strconv.Atoi(strings.TrimSpace(line))
		if err = errors.Join(err, parse); err != nil || !ok {
			t.Fatalf("%s: %v", name, err)
		}
		sum += n
	}
	return sum
}

// hazards checks the values that two machines from one image must not share, and that must hold in each.
func hazards(t *testing.T, h *vmmtest.Host, one *vmmtest.Machine) {
	two := h.Restore(t)
	for hazard, script := range map[string]string{
		"entropy":    "head -c 16 /dev/urandom | od -An -tx1",
		"hostname":   "cat /proc/sys/kernel/hostname",
		"etc":        "cat /etc/hostname",
		"machine id": "cat /etc/machine-id",
		"boot id":    "cat /proc/sys/kernel/random/boot_id",
	} {
		var got [2]string
		for i, m := range []*vmmtest.Machine{one, two} {
			got[i] = guesttest.Exec(t, m.Link, guestapi.ProcessSpec{Shell: script}).Stdout
		}
		if got[0] == got[1] || strings.TrimSpace(got[0]) == "" || strings.TrimSpace(got[1]) == "" {
			t.Errorf("%s: %q and %q", hazard, got[0], got[1])
		}
	}
	for _, m := range []*vmmtest.Machine{one, two} {
		before := time.Now().Unix()
		o := guesttest.Exec(t, m.Link, guestapi.ProcessSpec{Shell: "date +%s"})
		at, err := strconv.ParseInt(strings.TrimSpace(o.Stdout), 10, 64)
		if err != nil || at < before-30 || at > time.Now().Unix()+30 {
			t.Errorf("clock: got %d, %v, want at least %d", at, err, before)
		}
	}
}
