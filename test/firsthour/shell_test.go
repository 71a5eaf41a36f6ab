//go:build e2e

package firsthour

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/pandastack/pandastack/test/nodelab"
)

// columns is the width of the terminal.
const columns = 80

// shell is a shell in a terminal, which runs one command after the other.
type shell struct {
	t        *testing.T
	terminal *os.File
	feed     *os.File // what the shell reads commands from: its standard input is the terminal
	commands int

	mu      sync.Mutex
	printed bytes.Buffer
	changed chan struct{} // has one element after printed has grown
}

// newShell starts a shell that ends with the test.
func newShell(t *testing.T, dir string, env []string) *shell {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("bash", "/dev/fd/3")
	c.Dir, c.Env, c.ExtraFiles = dir, env, []*os.File{read}
	terminal, err := pty.StartWithSize(c, &pty.Winsize{Rows: 24, Cols: columns})
	_ = read.Close()
	if err != nil {
		t.Fatal(errors.Join(err, write.Close()))
	}
	s := &shell{t: t, terminal: terminal, feed: write, changed: make(chan struct{}, 1)}
	var reading sync.WaitGroup
	reading.Go(s.read)
	t.Cleanup(func() {
		_ = write.Close() // the shell ends when it has no more commands
		_ = terminal.Close()
		_ = c.Process.Kill()
		_ = c.Wait() // it was killed, or has ended
		reading.Wait()
	})
	return s
}

// read keeps what is printed.
func (s *shell) read() {
	buf := make([]byte, 32<<10)
	for {
		n, err := s.terminal.Read(buf)
		s.mu.Lock()
		s.printed.Write(buf[:n])
		s.mu.Unlock()
		select {
		case s.changed <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// text returns what was printed since an offset.
func (s *shell) text(from int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.printed.Bytes()[from:])
}

// ended is printed after a command.
var ended = regexp.MustCompile(`\r?\n?@@([0-9]+) ([0-9]+)@@\r?\n`)

// run runs a command and returns what it prints and its exit code. If keys is not empty they are typed once the command
// has printed something.
func (s *shell) run(text, keys string) (out string, code int) {
	s.t.Helper()
	s.commands++
	from := len(s.text(0))
	if _, err := fmt.Fprintf(s.feed, "%s\nprintf '\\n@@%%d %%d@@\\n' %d $?\n", text, s.commands); err != nil {
		s.t.Fatal(err)
	}
	limit := time.NewTimer(nodelab.Limit)
	defer limit.Stop()
	for {
		out = s.text(from)
		if at := ended.FindStringSubmatchIndex(out); at != nil && out[at[2]:at[3]] == strconv.Itoa(s.commands) {
			code, _ = strconv.Atoi(out[at[4]:at[5]]) // of digits
			return out[:at[0]], code
		}
		if keys != "" && out != "" {
			if _, err := io.WriteString(s.terminal, keys); err != nil {
				s.t.Fatal(err)
			}
			keys = ""
		}
		select {
		case <-s.changed:
		case <-limit.C:
			s.t.Fatalf("%s: not ended in %v; it printed %q", text, nodelab.Limit, out)
		}
	}
}
