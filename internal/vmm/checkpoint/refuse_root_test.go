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

// A process with something that no image can hold is refused, and goes on as if nobody had looked.
func TestUnsupported(t *testing.T) {
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
			if got := c.ask(t, "x"); got != "still here" {
				t.Fatal(got)
			}
			_, err := checkpoint.Take(p.PID(), checkpoint.Options{Role: func(f *os.File, link string) (string, error) {
				if strings.HasPrefix(link, "anon_inode:") {
					return "", checkpoint.ErrUnsupported
				}
				return role(f, link)
			}})
			if !errors.Is(err, checkpoint.ErrUnsupported) {
				t.Errorf("got %v", err)
			}
			if got := c.ask(t, "x"); got != "still here" {
				t.Fatal(got)
			}
		})
	}
}

func TestTakeOfNobody(t *testing.T) {
	p := start(t, proc.Command{Path: "/bin/true"})
	<-p.Done()
	if _, err := checkpoint.Take(p.PID(), checkpoint.Options{Role: role}); err == nil {
		t.Error("an image of a process that has ended")
	}
}

// What cannot become a process ends, and says why.
func TestBecomeFails(t *testing.T) {
	c, theirs := pair(t)
	first := start(t, proc.Command{Path: "/usr/bin/python3", Args: []string{"-c", counter}, Files: []*os.File{theirs}})
	_ = theirs.Close()
	c.ask(t, "5")
	im, _ := image(t, first)
	path := filepath.Join(t.TempDir(), "vehicle")
	if err := os.WriteFile(path, checkpoint.Program(), 0o755); err != nil {
		t.Fatal(err)
	}
	waiting := proc.Command{Path: path}
	for name, c := range map[string]struct {
		command proc.Command
		plan    checkpoint.Plan
	}{
		"no_vehicle":    {proc.Command{Path: "/bin/sleep", Args: []string{"1000"}}, checkpoint.Plan{Image: &im}},
		"no_files":      {waiting, checkpoint.Plan{Image: &im, Given: 3}},
		"no_content":    {waiting, checkpoint.Plan{Image: &im, Given: 3, Files: make([]int, len(im.Files)), Content: 77}},
		"long_names":    {waiting, checkpoint.Plan{Image: &im, Given: 3, Files: make([]int, len(im.Files)), Env: []string{strings.Repeat("x", 5000)}}},
		"before_failed": {waiting, checkpoint.Plan{Image: &im, Given: 3, Before: func() error { return errors.New("no") }}},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, c.command)
			v := checkpoint.Attach(p.PID())
			defer v.Close()
			if err := v.Become(t.Context(), c.plan); err == nil {
				t.Fatal("it became something")
			}
			<-p.Done()
		})
	}
	t.Run("kernel_areas", func(t *testing.T) {
		other := im
		other.Kernel = nil
		p := start(t, waiting)
		v := checkpoint.Attach(p.PID())
		defer v.Close()
		if err := v.Become(t.Context(), checkpoint.Plan{Image: &other, Given: 3}); err == nil ||
			!strings.Contains(err.Error(), "kernel's own") {
			t.Errorf("got %v", err)
		}
		<-p.Done()
	})
	t.Run("damaged", func(t *testing.T) {
		other := im
		other.Threads = nil
		p := start(t, waiting)
		v := checkpoint.Attach(p.PID())
		defer v.Close()
		if err := v.Become(t.Context(), checkpoint.Plan{Image: &other}); err == nil {
			t.Error("it became something")
		}
		if waits, err := checkpoint.Waiting(p.PID()); err != nil || !waits {
			t.Errorf("it was touched: %v, %v", waits, err)
		}
	})
	if got := c.ask(t, "1"); got != "6" {
		t.Errorf("the first went on with %s", got)
	}
}
