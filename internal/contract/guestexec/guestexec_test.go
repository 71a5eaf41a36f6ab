package guestexec_test

import (
	"context"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/guest/agent"
	"github.com/pandastack/pandastack/internal/guest/process"
)

func TestFollowDeliversOutputInOrder(t *testing.T) {
	p := newProcess(stdout(0, "one "), stderr(0, "warning"), stdout(4, "two"), exit(3))
	var got []string
	x, err := guestexec.Follow(t.Context(), p, guestexec.Sink{
		Started: func(pid uint32) error {
			if pid != 7 || len(got) > 0 {
				t.Errorf("Started(%d) after the output %q, want pid 7 before any output", pid, got)
			}
			return nil
		},
		Output: func(e guestapi.Event) error {
			got = append(got, string(e.Data))
			return nil
		},
	})
	want := []string{"one ", "warning", "two"}
	if err != nil || x.Code != 3 || !slices.Equal(got, want) {
		t.Errorf("Follow() = code %d, %v with the output %q, want code 3 with %q", x.Code, err, got, want)
	}
}

func TestFollowReportsHostileGuests(t *testing.T) {
	broken := errors.New("sink is broken")
	ok := func(guestapi.Event) error { return nil }
	for _, c := range []struct {
		name    string
		process *scriptedProcess
		output  func(guestapi.Event) error
		want    error
	}{
		{"offset goes backwards", newProcess(stdout(5, "abc"), stdout(7, "x"), exit(0)), ok, guestapi.ErrInternal},
		{"output is repeated", newProcess(stdout(0, "abc"), stdout(0, "abc"), exit(0)), ok, guestapi.ErrInternal},
		{"unknown stream", newProcess(guestapi.Event{Stream: 9, Data: []byte("x")}), ok, guestapi.ErrInternal},
		{"end without an exit", &scriptedProcess{err: io.EOF}, ok, guestapi.ErrLost},
		{"lost channel", &scriptedProcess{events: []guestapi.Event{stdout(0, "a")}, err: guestapi.ErrLost}, ok,
			guestapi.ErrLost},
		{"sink fails", newProcess(stdout(0, "a"), exit(0)), func(guestapi.Event) error { return broken }, broken},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, err := guestexec.Follow(t.Context(), c.process, guestexec.Sink{Output: c.output})
			if !errors.Is(err, c.want) || x != (guestapi.Exit{}) {
				t.Errorf("Follow() = %+v, %v, want no exit and the error %v", x, err, c.want)
			}
		})
	}
}

func TestFollowAcceptsSkippedOutput(t *testing.T) {
	p := newProcess(stdout(100, "a"), stdout(5000, "b"), exit(0))
	if _, err := guestexec.Follow(t.Context(), p, guestexec.Sink{}); err != nil {
		t.Errorf("Follow() = %v for output with a gap, want no error", err)
	}
}

func TestFollowReadsNothingBeforeOutputReturns(t *testing.T) {
	p := newProcess(stdout(0, "a"), stdout(1, "b"), exit(0))
	var read []int
	_, err := guestexec.Follow(t.Context(), p, guestexec.Sink{Output: func(guestapi.Event) error {
		read = append(read, p.read())
		return nil
	}})
	if want := []int{1, 2}; err != nil || !slices.Equal(read, want) {
		t.Errorf("events read when Output ran: %v, %v, want %v", read, err, want)
	}
}

func TestFollowEndsWithTheContextsCause(t *testing.T) {
	cause := errors.New("client is gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err := guestexec.Follow(ctx, newProcess(stdout(0, "a")), guestexec.Sink{Output: func(guestapi.Event) error {
		cancel(cause)
		return nil
	}})
	if !errors.Is(err, cause) {
		t.Errorf("Follow() = %v after its context ended, want %v", err, cause)
	}
}

func TestFollowCallsIdle(t *testing.T) {
	calls, enough := 0, errors.New("enough")
	_, err := guestexec.Follow(t.Context(), newProcess(), guestexec.Sink{
		IdleAfter: time.Millisecond,
		Idle: func() error {
			if calls++; calls == 3 {
				return enough
			}
			return nil
		},
	})
	if !errors.Is(err, enough) || calls != 3 {
		t.Errorf("Follow() = %v after %d calls of Idle, want %v after 3", err, calls, enough)
	}
}

func TestAttachResumesByOffset(t *testing.T) {
	g := &scriptedGuest{process: newProcess(stdout(0, "abc"), stderr(0, "x"))}
	g.process.err = guestapi.ErrLost
	var read guestapi.Offsets
	take := guestexec.Sink{Output: func(e guestapi.Event) error {
		*read.Of(e.Stream) = e.Offset + int64(len(e.Data))
		return nil
	}}
	ref := guestapi.ProcessRef{PID: 7}
	if _, err := guestexec.Attach(t.Context(), g, ref, read, take); !errors.Is(err, guestapi.ErrLost) {
		t.Fatalf("Attach() = %v over a lost channel, want %v", err, guestapi.ErrLost)
	}
	g.process = newProcess(stdout(3, "def"), exit(0))
	x, err := guestexec.Attach(t.Context(), g, ref, read, take)
	if want := (guestapi.Offsets{Stdout: 3, Stderr: 1}); err != nil || x.Code != 0 || g.from != want {
		t.Errorf("Attach() = code %d, %v from %+v, want code 0 from %+v", x.Code, err, g.from, want)
	}
	if want := (guestapi.Offsets{Stdout: 6, Stderr: 1}); read != want {
		t.Errorf("offsets after the exit are %+v, want %+v", read, want)
	}
	if len(g.sent()) > 0 {
		t.Errorf("Attach sent the signals %v, want none", g.sent())
	}
	_, err = guestexec.Attach(t.Context(), g, guestapi.ProcessRef{PID: 8}, read, take)
	if !errors.Is(err, guestapi.ErrNotFound) {
		t.Errorf("Attach(unknown pid) = %v, want %v", err, guestapi.ErrNotFound)
	}
}

func TestRunKeepsOutputWithinLimits(t *testing.T) {
	text := "0123456789"
	for _, c := range []struct {
		name  string
		limit guestexec.Limit
		want  guestexec.Output
	}{
		{"all of it", guestexec.Limit{Bytes: 100}, guestexec.Output{Data: []byte(text)}},
		{"exactly all of it", guestexec.Limit{Bytes: 10}, guestexec.Output{Data: []byte(text)}},
		{"the head", guestexec.Limit{Bytes: 4}, guestexec.Output{Data: []byte("0123"), Truncated: true}},
		{"the tail", guestexec.Limit{Bytes: 4, Keep: guestexec.Tail},
			guestexec.Output{Data: []byte("6789"), Truncated: true}},
		{"exactly all as the tail", guestexec.Limit{Bytes: 10, Keep: guestexec.Tail},
			guestexec.Output{Data: []byte(text)}},
	} {
		for _, piece := range []int{1, 3, 10} {
			t.Run(c.name, func(t *testing.T) {
				var events []guestapi.Event
				for at := 0; at < len(text); at += piece {
					events = append(events, stdout(int64(at), text[at:min(at+piece, len(text))]))
				}
				events = append(events, stderr(0, "e"), exit(4))
				g := &scriptedGuest{process: newProcess(events...)}
				got, err := guestexec.Run(t.Context(), g, guestexec.Command{},
					guestexec.Limits{Stdout: c.limit, Stderr: guestexec.Limit{Bytes: 1}})
				if err != nil || !reflect.DeepEqual(got.Stdout, c.want) || string(got.Stderr.Data) != "e" ||
					got.Exit.Code != 4 || got.PID != 7 {
					t.Errorf("Run() in pieces of %d = %+v, %v, want the standard output %+v", piece, got, err, c.want)
				}
			})
		}
	}
}

func TestRunKillsTheGroup(t *testing.T) {
	endless := func(i int) guestapi.Event { return stdout(int64(i), "x") }
	for _, c := range []struct {
		name    string
		process *scriptedProcess
		command guestexec.Command
		want    error
	}{
		{"endless output", &scriptedProcess{endless: endless}, guestexec.Command{}, context.DeadlineExceeded},
		{"no exit", &scriptedProcess{}, guestexec.Command{}, context.DeadlineExceeded},
		{"no exit after the timeout", &scriptedProcess{},
			guestexec.Command{Spec: guestapi.ProcessSpec{Timeout: 1}, Overtime: time.Millisecond},
			guestapi.ErrInternal},
		{"lost channel", &scriptedProcess{err: guestapi.ErrLost, signalErr: guestapi.ErrLost}, guestexec.Command{},
			guestapi.ErrLost},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.process.closed = make(chan struct{})
			g := &scriptedGuest{process: c.process}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			got, err := guestexec.Run(ctx, g, c.command, guestexec.Limits{Stdout: guestexec.Limit{Bytes: 10}})
			if !errors.Is(err, c.want) {
				t.Errorf("Run() = %v, want %v", err, c.want)
			}
			if want := []int{int(syscall.SIGKILL)}; !slices.Equal(g.sent(), want) {
				t.Errorf("signals sent to the group: %v, want %v", g.sent(), want)
			}
			if len(got.Stdout.Data) > 10 {
				t.Errorf("%d bytes were kept, want at most 10", len(got.Stdout.Data))
			}
		})
	}
}

func TestRunWritesInput(t *testing.T) {
	g := &scriptedGuest{process: newProcess()}
	typed := make(chan struct{})
	g.process.endless = func(int) guestapi.Event { <-typed; return exit(0) }
	cmd := guestexec.Command{Input: func(_ context.Context, w io.Writer) error {
		defer close(typed)
		_, err := io.WriteString(w, "hello")
		return err
	}}
	got, err := guestexec.Run(t.Context(), g, cmd, guestexec.Limits{})
	if err != nil || got.InputErr != nil || !g.spec.Stdin || string(g.process.input) != "hello" || !g.process.eof {
		t.Errorf("Run() = %+v, %v; the program read %q (end %v), want hello and the end",
			got, err, g.process.input, g.process.eof)
	}
}

func TestRunEndsWhileInputIsNotRead(t *testing.T) {
	g := &scriptedGuest{process: newProcess(exit(0))}
	g.process.unread = true
	cmd := guestexec.Command{Input: func(_ context.Context, w io.Writer) error {
		_, err := io.WriteString(w, "hello")
		return err
	}}
	got, err := guestexec.Run(t.Context(), g, cmd, guestexec.Limits{})
	if err != nil || !errors.Is(got.InputErr, io.ErrClosedPipe) {
		t.Errorf("Run() = %+v, %v, want no error but InputErr %v", got.Status, err, io.ErrClosedPipe)
	}
}

func TestRunReturnsFailureToStart(t *testing.T) {
	g := &scriptedGuest{process: newProcess(), startErr: guestapi.ErrNotFound}
	got, err := guestexec.Run(t.Context(), g, guestexec.Command{}, guestexec.Limits{})
	if !errors.Is(err, guestapi.ErrNotFound) || got.PID != 0 || len(g.sent()) > 0 {
		t.Errorf("Run() = %+v, %v, signals %v, want only the error %v", got, err, g.sent(), guestapi.ErrNotFound)
	}
}

func TestLines(t *testing.T) {
	var got []string
	l := guestexec.Lines{Max: 5, Keep: 2, Emit: func(line string) { got = append(got, line) }}
	for _, piece := range []string{"on", "e\n\ntwo\r", "\x1b[1mthr", "ee\xff four\n", "five"} {
		l.Add([]byte(piece))
	}
	l.Flush()
	l.Flush()
	want := []string{"one", "two", "[1mth", "ree? ", "four", "five"}
	if !slices.Equal(got, want) {
		t.Errorf("lines are %q, want %q", got, want)
	}
	if last := strings.Join(l.Last(), "|"); last != "four|five" {
		t.Errorf("Last() = %q, want the last two lines", last)
	}
}

// newAgent returns the guest agent itself, as a plain process of this machine.
func newAgent(t *testing.T) guestapi.Guest {
	t.Helper()
	b := agent.New(agent.Config{Reaper: process.NewReaper(false)})
	t.Cleanup(b.Close)
	return b
}

func TestRunInTheGuestAgent(t *testing.T) {
	g := newAgent(t)
	for _, c := range []struct {
		name, shell string
		timeout     time.Duration
		want        guestapi.Exit
		stdout      string
	}{
		{"exit status", "echo out; echo err >&2; exit 3", 0, guestapi.Exit{Code: 3}, "out\n"},
		{"signal", "kill -TERM $$", 0, guestapi.Exit{Code: 143, Signal: 15}, ""},
		{"timeout kills children, too", "sleep 1000 & sleep 1000", 50 * time.Millisecond,
			guestapi.Exit{Code: 137, Signal: 9, TimedOut: true}, ""},
		{"input", "cat", 0, guestapi.Exit{}, "typed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := guestexec.Command{Spec: guestapi.ProcessSpec{Shell: c.shell, Timeout: c.timeout}}
			if c.shell == "cat" {
				cmd.Input = func(_ context.Context, w io.Writer) error {
					_, err := io.WriteString(w, "typed")
					return err
				}
			}
			got, err := guestexec.Run(t.Context(), g, cmd,
				guestexec.Limits{Stdout: guestexec.Limit{Bytes: 100}, Stderr: guestexec.Limit{Bytes: 100}})
			got.Exit.CPU, got.Exit.Wall = 0, 0
			if err != nil || got.Exit != c.want || string(got.Stdout.Data) != c.stdout {
				t.Errorf("Run(%q) = %+v, %v with the output %q, want %+v with %q",
					c.shell, got.Exit, err, got.Stdout.Data, c.want, c.stdout)
			}
		})
	}
}

func TestCancelledRunLeavesNoProcess(t *testing.T) {
	g := newAgent(t)
	ctx, cancel := context.WithCancel(t.Context())
	var pid uint32
	cmd := guestexec.Command{Spec: guestapi.ProcessSpec{Shell: "echo ready; sleep 1000 & wait"}}
	_, err := guestexec.Stream(ctx, g, cmd, guestexec.Sink{
		Started: func(p uint32) error { pid = p; return nil },
		Output:  func(guestapi.Event) error { cancel(); return nil },
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("Stream() = %v, want %v", err, context.Canceled)
	}
	x, err := guestexec.Attach(t.Context(), g, guestapi.ProcessRef{PID: pid}, guestexec.FromNow, guestexec.Sink{})
	if err != nil || x.Signal != int(syscall.SIGKILL) {
		t.Errorf("Attach(killed program) = %+v, %v, want an exit by SIGKILL", x, err)
	}
	if err := guestexec.Signal(t.Context(), g, guestapi.ProcessRef{PID: pid}, int(syscall.SIGTERM)); err != nil {
		t.Errorf("Signal(exited program) = %v, want no error", err)
	}
}
