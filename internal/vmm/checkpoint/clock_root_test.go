//go:build root

package checkpoint_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/lib/proc"
)

// clockProgram has a thread that waits with a timeout in a loop. On request it prints the time
// since boot and the number of timeouts.
const clockProgram = `
import socket, threading, time
turns, wake = 0, threading.Condition()
def work():
    global turns
    while True:
        with wake:
            wake.wait(0.05)
        turns += 1
threading.Thread(target=work, daemon=True).start()
s = socket.socket(fileno=3)
f = s.makefile("rw")
for line in f:
    time.sleep(0.2)
    print(int(time.monotonic()), turns, file=f, flush=True)
`

// TestRestoreWithTimeNamespace checks that timeouts work in a process restored where the clock
// since boot is a month ahead: they expire, and not all at once. With a clock that is behind, the
// process would wait until the clock has caught up.
func TestRestoreWithTimeNamespace(t *testing.T) {
	if _, err := os.Stat("/proc/self/ns/time"); err != nil {
		t.Skip("probe time namespaces: this kernel has none")
	}
	c, theirs := pair(t)
	p := start(
		t,
		proc.Command{
			Path:  "/usr/bin/python3",
			Args:  []string{"-c", clockProgram},
			Files: []*os.File{theirs},
			Env:   []string{"PATH=/usr/bin"},
		},
	)
	_ = theirs.Close()
	here, before := clockReport(t, c)
	cp, content := dumpProcess(t, p)
	for name, shift := range map[string]int{"as_long": 0, "longer": 3_000_000} {
		t.Run(name, func(t *testing.T) {
			_, d := newStub(t, &cp, nil, content, proc.ForkAhead(time.Duration(shift)*time.Second))
			now, turns := clockReport(t, d)
			if wrong := now - here - shift; wrong < -5 || wrong > 300 {
				t.Fatalf(
					"the process's clock is at %d s and the host's at %d s, want them %d s apart",
					now,
					here,
					shift,
				)
			}
			if turns > before+1000 {
				t.Errorf("got %d timeouts at once, want at most 1000", turns-before)
			}
			for limit := time.Now().Add(30 * time.Second); ; {
				_, later := clockReport(t, d)
				if later > turns+2 {
					break
				}
				if time.Now().After(limit) {
					t.Fatalf("got %d timeouts and later %d, want the thread to continue", turns, later)
				}
			}
		})
	}
}

func clockReport(t *testing.T, c *conn) (clock, turns int) {
	t.Helper()
	report := strings.Fields(c.request(t, ""))
	if len(report) != 2 {
		t.Fatalf("got report %q, want two numbers", report)
	}
	clock, err := strconv.Atoi(report[0])
	if err != nil {
		t.Fatal(err)
	}
	turns, err = strconv.Atoi(report[1])
	if err != nil {
		t.Fatal(err)
	}
	return clock, turns
}
