package repl_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/ingress/repl"
)

// once runs a cell in a context of its own.
func once(t *testing.T, r *repl.Runner, g guestapi.Guest, l repl.Language, cell repl.Cell) (got cellResult) {
	t.Helper()
	if cell.Timeout == 0 {
		cell.Timeout = testTimeout
	}
	out, err := r.Once(t.Context(), "sbx", g, l, "", "", cell, func(e repl.Event) error {
		switch e.Kind {
		case repl.Stdout:
			got.out += e.Text
		case repl.Failed:
			got.errText = e.Name + ": " + e.Value
		case repl.Result:
			got.main = fmt.Sprint(e.Data["text/plain"])
		case repl.Stderr, repl.Count:
		}
		return nil
	})
	if err != nil {
		t.Fatalf("Once(%q): %v", cell.Code, err)
	}
	got.Outcome = out
	return got
}

// TestOnce runs cells in contexts of their own, which have nothing of each other.
func TestOnce(t *testing.T) {
	for _, l := range []repl.Language{repl.Python, repl.JavaScript, repl.Bash} {
		t.Run(string(l), func(t *testing.T) {
			g, r := newGuest(t, l), &repl.Runner{}
			set := map[repl.Language]string{repl.Python: "x = 1; print(x)", repl.JavaScript: "x = 1; console.log(x)",
				repl.Bash: "x=1; echo $x"}[l]
			get := map[repl.Language]string{repl.Python: "print('x' in globals())",
				repl.JavaScript: "console.log(typeof x !== 'undefined' ? 'True' : 'False')",
				repl.Bash:       "[ -n \"$x\" ] && echo True || echo False"}[l]
			if got := once(t, r, g, l, repl.Cell{Code: set}); got.out != "1\n" || got.Code != 0 {
				t.Errorf("%+v", got)
			}
			if got := once(t, r, g, l, repl.Cell{Code: get}); got.out != "False\n" {
				t.Errorf("a cell sees variables of another: %+v", got)
			}
			if all, err := repl.List(t.Context(), g); err != nil || len(all) != 0 {
				t.Errorf("contexts: %v, %v", all, err)
			}
		})
	}
}

// TestForkServer looks at what cells of the fork server of Python have and leave.
func TestForkServer(t *testing.T) {
	g, r := newGuest(t, repl.Python), &repl.Runner{}
	python := func(code string) cellResult { return once(t, r, g, repl.Python, repl.Cell{Code: code}) }
	if got := python("1+1"); got.main != "2" || got.Code != 0 {
		t.Errorf("%+v", got)
	}
	if got := python("1/0"); got.errText != "ZeroDivisionError: division by zero" || got.Code != 1 {
		t.Errorf("%+v", got)
	}
	if got := python("import sys; print('bye'); sys.exit(3)"); got.out != "bye\n" || got.Code != 3 {
		t.Errorf("%+v", got)
	}
	if got := python("import os; os._exit(4)"); got.Code != 4 {
		t.Errorf("a copy that ends itself: %+v", got)
	}
	if got := python("import os; os.kill(os.getpid(), 9)"); got.Code != 137 {
		t.Errorf("a copy that is killed: %+v", got)
	}
	if got := python("import asyncio\nawait asyncio.sleep(0)\n5"); got.main != "5" {
		t.Errorf("%+v", got)
	}
	if a, b := python("import random; random.random()"), python("import random; random.random()"); a.main == b.main {
		t.Errorf("two cells draw the same number: %v", a.main)
	}
	with := once(t, r, g, repl.Python, repl.Cell{Code: "import os; os.environ['A']", Env: map[string]string{"A": "b"}})
	if with.main != "'b'" {
		t.Errorf("%+v", with)
	}
	large := python("print('x' * 3_000_000)")
	if len(large.out) != 3_000_001 {
		t.Errorf("%d bytes of output", len(large.out))
	}
	text := strings.Repeat("y", 2<<20)
	if got := python("len('" + text + "')"); got.main != strconv.Itoa(len(text)) {
		t.Errorf("%+v", got)
	}
	got := python("import subprocess; subprocess.Popen(['sleep', '1000']).pid")
	pid, err := strconv.Atoi(got.main)
	if err != nil {
		t.Fatal(err)
	}
	awaitExit(t, pid)
}

// awaitExit waits until a process has exited.
func awaitExit(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(testTimeout.Milliseconds()))
	if n != 1 {
		t.Fatalf("what a cell has started runs on: %v", err)
	}
}

// TestOnceTimeout ends cells that take too long, whose caller gives up, and whose output is not wanted; other cells
// run on.
func TestOnceTimeout(t *testing.T) {
	g, r := newGuest(t, repl.Python), &repl.Runner{}
	var all sync.WaitGroup
	defer all.Wait()
	began := make(chan struct{})
	all.Go(func() {
		_, err := r.Once(t.Context(), "sbx", g, repl.Python, "", "", repl.Cell{
			Code:    "import time\nwhile not __import__('os').path.exists('" + t.TempDir() + "/go'): time.sleep(.01)",
			OnStart: func() { close(began) }, Timeout: 2 * time.Second,
		}, func(repl.Event) error { return nil })
		if err != nil {
			t.Error(err)
		}
	})
	<-began
	if got := once(t, r, g, repl.Python, repl.Cell{Code: "1"}); got.main != "1" {
		t.Errorf("beside another: %+v", got)
	}
	stubborn := "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('on', flush=True)\nwhile True: pass"
	out := once(t, r, g, repl.Python, repl.Cell{Code: stubborn, Timeout: 2 * time.Second})
	if !out.Interrupted || out.out != "on\n" {
		t.Errorf("%+v", out)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the caller is gone")
	_, err := r.Once(ctx, "sbx", g, repl.Python, "", "", repl.Cell{Code: stubborn}, func(e repl.Event) error {
		if e.Kind == repl.Stdout {
			cancel(gone)
		}
		return nil
	})
	if !errors.Is(err, gone) {
		t.Errorf("canceled: %v", err)
	}
	_, err = r.Once(t.Context(), "sbx", g, repl.Python, "", "", repl.Cell{Code: stubborn}, func(e repl.Event) error {
		if e.Kind == repl.Stdout {
			return gone
		}
		return nil
	})
	if !errors.Is(err, gone) {
		t.Errorf("unwanted: %v", err)
	}
	if got := once(t, r, g, repl.Python, repl.Cell{Code: "2"}); got.main != "2" {
		t.Errorf("afterwards: %+v", got)
	}
}

// TestOnceMany runs more cells at the same time than the fork server does.
func TestOnceMany(t *testing.T) {
	g, r := newGuest(t, repl.Python), &repl.Runner{}
	var all sync.WaitGroup
	defer all.Wait()
	for n := range 80 {
		all.Go(func() {
			var main string
			out, err := r.Once(t.Context(), "sbx", g, repl.Python, "", "",
				repl.Cell{Code: fmt.Sprintf("print('p' * 10_000)\n%d * 2", n)}, func(e repl.Event) error {
					if e.Kind == repl.Result {
						main = fmt.Sprint(e.Data["text/plain"])
					}
					return nil
				})
			if err != nil || out.Code != 0 || main != strconv.Itoa(2*n) {
				t.Errorf("cell %d: %+v, %q, %v", n, out, main, err)
			}
		})
	}
}
