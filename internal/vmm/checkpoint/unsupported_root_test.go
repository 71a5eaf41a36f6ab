//go:build root

package checkpoint_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/lib/proc"
	"github.com/pandastack/pandastack/internal/vmm/checkpoint"
)

// TestDumpRefusesUnsupported checks that Dump refuses a process with unsupported state and lets it
// continue unchanged.
func TestDumpRefusesUnsupported(t *testing.T) {
	const epilogue = `
s = socket.socket(fileno=3)
f = s.makefile("rw")
for line in f:
    print("still here", file=f, flush=True)
`
	for name, prologue := range map[string]string{
		"shared_memory": "import socket, mmap\nm = mmap.mmap(-1, 4096)\n",
		"epoll":         "import socket, select, os\nr, w = os.pipe()\ne = select.epoll()\ne.register(r)\n",
		"timer":         "import socket, ctypes\nctypes.CDLL(None).timerfd_create(1, 0)\n",
	} {
		t.Run(name, func(t *testing.T) {
			c, theirs := pair(t)
			p := start(
				t,
				proc.Command{
					Path:  "/usr/bin/python3",
					Args:  []string{"-c", prologue + epilogue},
					Files: []*os.File{theirs},
				},
			)
			_ = theirs.Close()
			if got := c.request(t, "x"); got != "still here" {
				t.Fatalf("got response %q, want \"still here\"", got)
			}
			_, err := checkpoint.Dump(p.PID(), checkpoint.Options{Role: func(f *os.File, link string) (string, error) {
				if strings.HasPrefix(link, "anon_inode:") {
					return "", checkpoint.ErrUnsupported
				}
				return role(f, link)
			}})
			if !errors.Is(err, checkpoint.ErrUnsupported) {
				t.Errorf("got error %v, want ErrUnsupported or the kernel's mappings", err)
			}
			if got := c.request(t, "x"); got != "still here" {
				t.Fatalf("got response %q, want \"still here\"", got)
			}
		})
	}
}

func TestDumpMissingProcess(t *testing.T) {
	p := start(t, proc.Command{Path: "/bin/true"})
	<-p.Done()
	if _, err := checkpoint.Dump(p.PID(), checkpoint.Options{Role: role}); err == nil {
		t.Error("Dump of an exited process succeeded, want an error")
	}
}

// TestRestoreFails checks that a failed restore kills the process and returns the reason.
func TestRestoreFails(t *testing.T) {
	c, theirs := pair(t)
	first := start(
		t,
		proc.Command{Path: "/usr/bin/python3", Args: []string{"-c", counterProgram}, Files: []*os.File{theirs}},
	)
	_ = theirs.Close()
	c.request(t, "5")
	cp, _ := dumpProcess(t, first)
	path := filepath.Join(t.TempDir(), "stub")
	if err := os.WriteFile(path, checkpoint.StubProgram(), 0o755); err != nil {
		t.Fatal(err)
	}
	stubCommand := proc.Command{Path: path}
	for name, c := range map[string]struct {
		command proc.Command
		plan    checkpoint.Plan
	}{
		"no_stub":  {proc.Command{Path: "/bin/sleep", Args: []string{"1000"}}, checkpoint.Plan{Checkpoint: &cp}},
		"no_files": {stubCommand, checkpoint.Plan{Checkpoint: &cp, InheritedFDs: 3}},
		"no_content": {stubCommand, checkpoint.Plan{Checkpoint: &cp, InheritedFDs: 3,
			Files: make([]int, len(cp.Files)), Content: 77}},
		"long_names": {stubCommand, checkpoint.Plan{Checkpoint: &cp, InheritedFDs: 3,
			Files: make([]int, len(cp.Files)), Env: []string{strings.Repeat("x", 5000)}}},
		"before_failed": {stubCommand, checkpoint.Plan{Checkpoint: &cp, InheritedFDs: 3,
			BeforeRun: func() error { return errors.New("no") }}},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, c.command)
			stub := checkpoint.Attach(p.PID())
			defer stub.Close()
			if err := stub.Restore(t.Context(), c.plan); err == nil {
				t.Fatal("Restore succeeded, want an error")
			}
			<-p.Done()
		})
	}
	t.Run("other_kernel_mappings", func(t *testing.T) {
		other := cp
		other.KernelMappings = nil
		p := start(t, stubCommand)
		stub := checkpoint.Attach(p.PID())
		defer stub.Close()
		if err := stub.Restore(t.Context(), checkpoint.Plan{Checkpoint: &other, InheritedFDs: 3}); err == nil ||
			!strings.Contains(err.Error(), "kernel's mappings") {
			t.Errorf("got error %v, want ErrUnsupported or the kernel's mappings", err)
		}
		<-p.Done()
	})
	t.Run("damaged", func(t *testing.T) {
		other := cp
		other.Threads = nil
		p := start(t, stubCommand)
		stub := checkpoint.Attach(p.PID())
		defer stub.Close()
		if err := stub.Restore(t.Context(), checkpoint.Plan{Checkpoint: &other}); err == nil {
			t.Error("Restore of a damaged checkpoint succeeded, want an error")
		}
		if isStub, err := checkpoint.IsStub(p.PID()); err != nil || !isStub {
			t.Errorf("IsStub() = %v, %v; want true, nil", isStub, err)
		}
	})
	if got := c.request(t, "1"); got != "6" {
		t.Errorf("the dumped process continued with sum %s, want 6", got)
	}
}
