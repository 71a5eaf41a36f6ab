//go:build root

package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/lib/proc"
	"github.com/pandastack/pandastack/internal/vmm/checkpoint"
)

// Names that, as the first argument of the test program, make it do something to a process and exit. Its other
// arguments are the ID of the process, and the path of the base or the plan in JSON.
const (
	dumpName    = "dump-and-exit" // with the path of the pages file as another argument
	restoreName = "restore-and-exit"
)

func TestMain(m *testing.M) {
	for name, do := range map[string]func(pid int, args []string) error{dumpName: dumpFor, restoreName: restoreFor} {
		if len(os.Args) < 4 || os.Args[1] != name {
			continue
		}
		pid, err := strconv.Atoi(os.Args[2])
		if err == nil {
			err = do(pid, os.Args[3:])
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func dumpFor(pid int, args []string) error {
	var base checkpoint.Checkpoint
	if err := durable.ReadJSON(args[0], &base); err != nil {
		return err
	}
	content, err := os.Open(args[1])
	if err != nil {
		return err
	}
	_, err = checkpoint.Dump(pid, checkpoint.Options{Role: role, Content: content, Base: &base})
	return err
}

// planJSON is a plan without the function, which cannot be written as JSON.
type planJSON struct {
	checkpoint.Plan
	BeforeRun bool
}

func restoreFor(pid int, args []string) error {
	var p planJSON
	if err := durable.ReadJSON(args[0], &p); err != nil {
		return err
	}
	return checkpoint.Attach(pid).Restore(context.Background(), p.Plan)
}

// writeJSON writes v to a new file and returns its path.
func writeJSON(t *testing.T, v any) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "v.json")
	if err := durable.WriteJSON(path, v); err != nil {
		t.Fatal(err)
	}
	return path
}

// startCounter returns a process of counterProgram and its checkpoint.
func startCounter(t *testing.T) (*conn, checkpoint.Checkpoint, *os.File) {
	t.Helper()
	c, theirs := pair(t)
	p := start(t, proc.Command{
		Path: "/usr/bin/python3", Args: []string{"-c", counterProgram}, Files: []*os.File{theirs},
	})
	_ = theirs.Close()
	c.request(t, "0")
	cp, content := dumpProcess(t, p)
	return c, cp, content
}

// TestDumperDies kills a process that dumps another one at every step: at the entry and at the exit of each request to
// ptrace(2). The dumped process must continue each time as if nothing had happened.
func TestDumperDies(t *testing.T) {
	_, cp, content := startCounter(t)
	base := writeJSON(t, cp)
	p, d := newStub(t, &cp, nil, content)
	d.request(t, "spawn") // a thread that the base does not have
	for step := 1; ; step++ {
		killed, output, err := killAt(step, dumpName, strconv.Itoa(p.PID()), base, content.Name())
		if err != nil {
			t.Fatalf("step %d: %v; the dumper printed %q", step, err, output)
		}
		select {
		case <-p.Done():
			t.Fatalf("the dumped process ended when the dumper died at step %d", step)
		default:
		}
		if got := d.request(t, "1"); got != strconv.Itoa(step) {
			t.Fatalf("after step %d the dumped process continued with sum %s", step, got)
		}
		if got := d.request(t, "time"); got != "True 127" {
			t.Fatalf("after step %d the dumped process responded %s, want True 127", step, got)
		}
		if !killed {
			t.Logf("the dump has %d steps", step-1)
			if least := 2 * 6 * (len(cp.Threads) + 1); step-1 < least { // six requests for each thread
				t.Errorf("the dumper was killed at %d steps, want at least %d", step-1, least)
			}
			return
		}
	}
}

// TestRestorerDies kills a process that restores another one at every step. The stub must be as it was, the process
// must be complete, or nothing must be left.
func TestRestorerDies(t *testing.T) {
	_, cp, content := startCounter(t)
	restore := func(step int) (*proc.Process, *conn, bool) {
		t.Helper()
		p, d, plan := startStub(t, &cp, content, nil)
		killed, output, err := killAt(step, restoreName, strconv.Itoa(p.PID()), writeJSON(t, planJSON{Plan: plan}))
		if err != nil {
			t.Fatalf("step %d: %v; the restorer printed %q", step, err, output)
		}
		return p, d, killed
	}
	steps := 0
	for _, _, killed := restore(1); killed; steps++ {
		_, _, killed = restore(steps + 2)
	}
	t.Logf("the restore has %d steps", steps)
	for step := 1; step <= steps; step++ {
		p, d, killed := restore(step)
		switch {
		case !killed:
			t.Fatalf("the restorer ended before step %d of %d", step, steps)
		case step == 1: // the entry of the first request
			if isStub, err := checkpoint.IsStub(p.PID()); err != nil || !isStub {
				t.Errorf("IsStub() = %v, %v; want true, nil", isStub, err)
			}
		case step == steps: // the exit of the last request
			if got := d.request(t, "1"); got != "1" {
				t.Errorf("the restored process continued with sum %s, want 1", got)
			}
		default:
			<-p.Done()
		}
	}
}

// killAt runs this program with args and kills it at the given step: the entry or exit of a request to ptrace(2). It
// returns false if the program exits successfully before.
func killAt(step int, args ...string) (killed bool, output string, err error) {
	runtime.LockOSThread() // ptrace(2) works per thread
	defer runtime.UnlockOSThread()
	self, err := os.Executable()
	if err != nil {
		return false, "", err
	}
	printed, err := os.CreateTemp("", "dumper-*")
	if err != nil {
		return false, "", err
	}
	defer func() {
		text, failed := os.ReadFile(printed.Name())
		output, err = string(text), errors.Join(err, failed, printed.Close(), os.Remove(printed.Name()))
	}()
	cmd := exec.Command(self, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	cmd.Stdout, cmd.Stderr = printed, printed
	if err := cmd.Start(); err != nil {
		return false, "", err
	}
	defer func() { err = errors.Join(err, cmd.Process.Release()) }()
	status, killed, err := trace(cmd.Process.Pid, step)
	if err == nil && !killed && (!status.Exited() || status.ExitStatus() != 0) {
		err = fmt.Errorf("the dumper ended with status %#x", uint32(status))
	}
	return killed, "", err
}

// trace lets a process, which stopped at its first instruction, run until it ends, or until the given step.
//
// The end of a process kills its threads wherever they are, also in a stop that was just reported: ESRCH means that
// the end of the thread is what is to be waited for.
func trace(pid, step int) (status unix.WaitStatus, killed bool, err error) {
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil {
		return 0, false, err
	}
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL
	if err := unix.PtraceSetOptions(pid, options); err != nil {
		return 0, false, err
	}
	tid, signal, steps := pid, 0, 0
	for {
		if !killed {
			if err := unix.PtraceSyscall(tid, signal); err != nil && err != unix.ESRCH {
				return 0, false, err
			}
		}
		if tid, err = unix.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil); err != nil {
			return 0, false, err
		}
		if !status.Stopped() {
			if tid == pid {
				return status, killed, nil
			}
			continue
		}
		switch signal = int(status.StopSignal()); signal {
		case int(unix.SIGTRAP) | 0x80:
			signal = 0
			var regs unix.PtraceRegs
			if err := unix.PtraceGetRegs(tid, &regs); err != nil && err != unix.ESRCH {
				return 0, false, err
			}
			if regs.Orig_rax == unix.SYS_PTRACE {
				steps++
			}
		case int(unix.SIGTRAP), int(unix.SIGSTOP): // a new thread
			signal = 0
		}
		if steps == step && !killed {
			killed = true
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				return 0, false, err
			}
		}
	}
}

// TestDumpTakesOver checks what is taken over from the base: after a restore, a new thread and the heap are known as
// if the process had been asked.
func TestDumpTakesOver(t *testing.T) {
	c, cp, content := startCounter(t)
	wantHeap(t, c, cp.Layout)
	p, d := newStub(t, &cp, nil, content)
	d.request(t, "spawn")
	d.request(t, "brk 1000000")
	over, err := checkpoint.Dump(p.PID(), checkpoint.Options{Role: role, Content: content, Base: &cp})
	if err != nil {
		t.Fatal(err)
	}
	wantHeap(t, d, over.Checkpoint.Layout)
	asked, err := checkpoint.Dump(p.PID(), checkpoint.Options{Role: role, Content: content})
	if err != nil {
		t.Fatal(err)
	}
	if len(over.Checkpoint.Threads) != len(cp.Threads)+1 {
		t.Fatalf("got %d threads, want one more than %d", len(over.Checkpoint.Threads), len(cp.Threads))
	}
	for i, th := range asked.Checkpoint.Threads[1:] { // the kernel does not know the address of the main thread
		if got := over.Checkpoint.Threads[i+1].ClearTID; got != th.ClearTID {
			t.Errorf("thread %d has its ID at %#x, want %#x", i+1, got, th.ClearTID)
		}
	}
	if got, want := over.Checkpoint.Threads[0].ClearTID, cp.Threads[0].ClearTID; got != want {
		t.Errorf("the main thread has its ID at %#x, want %#x", got, want)
	}
	if got, want := fmt.Sprint(over.Checkpoint.SigActions), fmt.Sprint(asked.Checkpoint.SigActions); got != want {
		t.Errorf("got signal actions %s, want %s", got, want)
	}
	none := cp
	none.Threads = []checkpoint.Thread{{Regs: cp.Threads[0].Regs}}
	_, err = checkpoint.Dump(p.PID(), checkpoint.Options{Role: role, Content: content, Base: &none})
	if !errors.Is(err, checkpoint.ErrUnsupported) {
		t.Errorf("Dump with a base without thread IDs: got %v, want ErrUnsupported", err)
	}
	none.Threads[0].ClearTID = cp.Threads[0].ClearTID + 8
	_, err = checkpoint.Dump(p.PID(), checkpoint.Options{Role: role, Content: content, Base: &none})
	if !errors.Is(err, checkpoint.ErrUnsupported) || !strings.Contains(err.Error(), "does not have its ID") {
		t.Errorf("Dump with a base with other thread IDs: got %v, want ErrUnsupported", err)
	}
	if got := d.request(t, "1"); got != "1" {
		t.Errorf("the dumped process continued with sum %s, want 1", got)
	}
}

// wantHeap compares the end of the heap in a layout with what the kernel tells the process.
func wantHeap(t *testing.T, c *conn, layout [7]uint64) {
	t.Helper()
	end, err := strconv.ParseUint(c.request(t, "brk 0"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if want := (end + 4095) &^ 4095; layout[5] != want || layout[4] > want {
		t.Errorf("the heap is at %#x-%#x, want its end at %#x", layout[4], layout[5], want)
	}
}
