//go:build root

package checkpoint_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/lib/proc"
	"github.com/pandastack/pandastack/internal/vmm/checkpoint"
)

// counterProgram has three threads. It adds the numbers that it receives and prints the sum.
const counterProgram = `
import ctypes, socket, threading, queue, time
syscall = ctypes.CDLL(None).syscall
syscall.restype = ctypes.c_long
q, out = queue.Queue(), queue.Queue()
total = 0
secret = bytes(range(256)) * 4096
def work():
    global total
    while True:
        n = q.get()
        total += n
        out.put(total)
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
s = socket.socket(fileno=3)
f = s.makefile("rw")
for line in f:
    if line.startswith("grow"):
        secret += bytes(range(256)) * 4096
        print(len(secret), file=f, flush=True)
        continue
    if line.startswith("time"):
        time.sleep(0.01)
        print(time.monotonic() > 0, sum(secret) // len(secret), file=f, flush=True)
        continue
    if line.startswith("spawn"):
        threading.Thread(target=work, daemon=True).start()
        print("ok", file=f, flush=True)
        continue
    if line.startswith("brk"):
        end = syscall(12, ctypes.c_long(0)) + int(line.split()[1])
        print(syscall(12, ctypes.c_long(end)), file=f, flush=True)
        continue
    q.put(int(line))
    print(out.get(), file=f, flush=True)
`

// conn is this process's end of a connection to a test program.
type conn struct {
	net.Conn
	r *bufio.Reader
}

func pair(t *testing.T) (*conn, *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours := os.NewFile(uintptr(fds[0]), "ours")
	c, err := net.FileConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	_ = ours.Close()
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return &conn{c, bufio.NewReader(c)}, os.NewFile(uintptr(fds[1]), "theirs")
}

func (c *conn) request(t *testing.T, line string) string {
	t.Helper()
	if _, err := fmt.Fprintln(c, line); err != nil {
		t.Fatal(err)
	}
	response, err := c.r.ReadString('\n')
	if err != nil {
		t.Fatalf("response to %q: %v", line, err)
	}
	return strings.TrimSpace(response)
}

func start(t *testing.T, cmd proc.Command) *proc.Process {
	t.Helper()
	p, err := proc.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(t.Context()); err != nil {
			_ = syscall.Kill(p.PID(), syscall.SIGKILL)
		}
		_ = p.Release()
	})
	return p
}

func role(f *os.File, link string) (string, error) {
	if strings.HasPrefix(link, "socket:") {
		return "socket", nil
	}
	return "other", nil // inherited by the test and not used by the program
}

// dumpProcess returns the checkpoint of a process started by start, and its pages file.
func dumpProcess(t *testing.T, p *proc.Process) (checkpoint.Checkpoint, *os.File) {
	t.Helper()
	capture, err := checkpoint.Dump(p.PID(), checkpoint.Options{Role: role})
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.Create(filepath.Join(t.TempDir(), "content"))
	if err != nil {
		t.Fatal(err)
	}
	cp, err := capture.Save(content)
	if err != nil {
		t.Fatal(err)
	}
	return cp, content
}

// newStub starts a stub and restores a checkpoint into it. how, if given, starts the process
// instead of fork and exec.
func newStub(
	t *testing.T,
	cp *checkpoint.Checkpoint,
	delta *checkpoint.Capture,
	content *os.File,
	how ...fork,
) (*proc.Process, *conn) {
	t.Helper()
	p, c, plan := startStub(t, cp, content, nil, how...)
	plan.Delta = delta
	stub := checkpoint.Attach(p.PID())
	defer stub.Close()
	if err := stub.Restore(t.Context(), plan); err != nil {
		t.Fatalf("Restore: %v; output %s", err, p.Tail(5))
	}
	return p, c
}

// startStub starts a stub, and plans the restore of a checkpoint into it. The stub inherits more after all others.
func startStub(
	t *testing.T,
	cp *checkpoint.Checkpoint,
	content *os.File,
	more []*os.File,
	how ...fork,
) (*proc.Process, *conn, checkpoint.Plan) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "stub")
	if err := os.WriteFile(path, checkpoint.StubProgram(), 0o755); err != nil {
		t.Fatal(err)
	}
	c, theirs := pair(t)
	files, err := cp.OpenFiles()
	if err != nil {
		t.Fatal(err)
	}
	plan := checkpoint.Plan{
		Checkpoint: cp,
		Name:       "copy",
		Args:       []string{"a copy"},
		Env:        []string{"WHO=me"},
	}
	inherited := []*os.File{theirs, content}
	plan.Roles, plan.Content = map[string]int{"socket": 3, "other": 0}, 4
	for _, f := range files {
		inherited = append(inherited, f)
		plan.Files = append(plan.Files, 2+len(inherited))
	}
	inherited = append(inherited, more...)
	plan.InheritedFDs = 3 + len(inherited)
	cmd := proc.Command{Path: path, Files: inherited}
	for _, f := range how {
		cmd.Fork = f
	}
	p := start(t, cmd)
	for _, f := range append(files, theirs) {
		_ = f.Close()
	}
	return p, c, plan
}

// fork starts a process, like proc.Command.Fork.
type fork = func(path string, argv []string, attr *syscall.ProcAttr) (int, error)

// threadChurnProgram starts and ends threads all the time.
const threadChurnProgram = `
import threading, time
while True:
    all = [threading.Thread(target=int) for _ in range(8)]
    for t in all: t.start()
    for t in all: t.join()
`

// TestDumpWhileThreadsExit checks that a dump tolerates exiting threads and lets the process
// continue.
func TestDumpWhileThreadsExit(t *testing.T) {
	p := start(
		t,
		proc.Command{
			Path: "/usr/bin/python3",
			Args: []string{"-c", threadChurnProgram},
			Env:  []string{"PATH=/usr/bin"},
		},
	)
	limit := time.Now().Add(2 * time.Minute)
	for dumps := 0; dumps < 40; {
		_, err := checkpoint.Dump(p.PID(), checkpoint.Options{Role: role})
		if err == nil {
			dumps++
		} else if !errors.Is(err, checkpoint.ErrUnsupported) {
			// ErrUnsupported: at that moment no thread was in a system call
			t.Fatal(err)
		}
		if time.Now().After(limit) {
			t.Fatalf("got %d of 40 dumps; the last error: %v", dumps, err)
		}
	}
	select {
	case <-p.Done():
		t.Error("the process has exited, want it running")
	default:
	}
}

func TestDumpAndRestore(t *testing.T) {
	c, theirs := pair(t)
	p := start(
		t,
		proc.Command{
			Path:  "/usr/bin/python3",
			Args:  []string{"-c", counterProgram},
			Files: []*os.File{theirs},
			Env:   []string{"PATH=/usr/bin"},
		},
	)
	_ = theirs.Close()
	if got := c.request(t, "5"); got != "5" {
		t.Fatalf("got sum %s, want 5", got)
	}
	capture, err := checkpoint.Dump(p.PID(), checkpoint.Options{Role: role})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.request(t, "2"); got != "7" {
		t.Fatalf("the dumped process continued with sum %s, want 7", got)
	}
	path := filepath.Join(t.TempDir(), "content")
	content, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	cp, err := capture.Save(content)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d threads, %d areas, %d files, %d MiB", len(cp.Threads), len(cp.VMAs), len(cp.Files), capture.Bytes()>>20)
	for range 3 {
		q, d := newStub(t, &cp, nil, content)
		if got := d.request(t, "10"); got != "15" {
			t.Fatalf("the restored process continued with sum %s, want 15", got)
		}
		if got := d.request(t, "time"); got != "True 127" {
			t.Fatalf("the restored process responded %s, want True 127", got)
		}
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", q.PID()))
		if err != nil || string(env) != "WHO=me\x00" {
			t.Fatalf("got environment %q, %v; want WHO=me", env, err)
		}
		d.request(t, "grow")
		// A checkpoint of the restored process, with its changes.
		again, err := checkpoint.Dump(q.PID(), checkpoint.Options{Role: role, Content: content, Base: &cp})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("delta of %d KiB", again.Bytes()>>10)
		stored, err := os.CreateTemp(t.TempDir(), "over")
		if err != nil {
			t.Fatal(err)
		}
		spans, err := again.SaveDelta(stored)
		if err != nil {
			t.Fatal(err)
		}
		if again, err = checkpoint.MapDelta(stored, &again.Checkpoint, spans); err != nil {
			t.Fatal(err)
		}
		if err := stored.Close(); err != nil {
			t.Fatal(err)
		}
		_, e := newStub(t, &again.Checkpoint, again, content)
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
		if got := e.request(t, "100"); got != "115" {
			t.Fatalf("the second restored process continued with sum %s, want 115", got)
		}
		if got := d.request(t, "1"); got != "16" {
			t.Fatalf("the first restored process continued with sum %s, want 16", got)
		}
	}
	if got := c.request(t, "1"); got != "8" {
		t.Fatalf("the dumped process continued with sum %s, want 8", got)
	}
}
