package sshgate

import (
	"context"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// loginShell is the program of a session whose client names none.
const loginShell = "if [ -x /bin/bash ]; then exec /bin/bash -l; else exec /bin/sh -l; fi"

// Bounds of what a client says of a session before its program starts.
const (
	maxVariables = 128
	maxEnv       = 64 << 10 // bytes
	maxCommand   = 256 << 10
	maxCells     = 2000 // rows, and columns, of a terminal
)

// exitFailed is the exit code of programs that the gate could not run, as of ssh itself.
const exitFailed = 255

// signals are the names of signals in the protocol.
var signals = map[string]syscall.Signal{
	"ABRT": syscall.SIGABRT, "ALRM": syscall.SIGALRM, "FPE": syscall.SIGFPE, "HUP": syscall.SIGHUP,
	"ILL": syscall.SIGILL, "INT": syscall.SIGINT, "KILL": syscall.SIGKILL, "PIPE": syscall.SIGPIPE,
	"QUIT": syscall.SIGQUIT, "SEGV": syscall.SIGSEGV, "TERM": syscall.SIGTERM, "USR1": syscall.SIGUSR1,
	"USR2": syscall.SIGUSR2,
}

// session is one session channel.
type session struct {
	c       *connection
	ch      ssh.Channel
	account *budget.Account // pays for what is buffered
	env     map[string]string
	used    int            // bytes of env
	size    *guestapi.Size // of the terminal; nil: there is none

	mu      sync.Mutex
	guest   guestapi.Guest   // once the program runs; guarded by mu
	process guestapi.Process // as guest
}

// session serves a session channel: first the requests that prepare it, then its program.
func (c *connection) session(ctx context.Context, n ssh.NewChannel, account *budget.Account) {
	ch, requests, err := n.Accept()
	if err != nil {
		return
	}
	defer ch.Close()
	ctx, cancel := context.WithCancel(ctx)
	s := &session{c: c, ch: ch, account: account, env: map[string]string{}}
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel() // the client has closed the channel, or the connection has ended
	started := false
	for r := range requests {
		run, ok := s.request(ctx, r, started)
		if r.WantReply && r.Reply(ok, nil) != nil {
			continue // the connection has ended, and requests with it
		}
		if run != nil {
			started = true
			running.Go(func() {
				defer ch.Close() // ends requests when the client agrees
				run(ctx)
			})
		}
	}
}

// request handles a request. run, if it is not nil, is the program that the session begins with it.
func (s *session) request(ctx context.Context, r *ssh.Request, started bool) (run func(context.Context), ok bool) {
	switch r.Type {
	case "env":
		return nil, !started && s.setEnv(r.Payload)
	case "pty-req":
		return nil, !started && s.setTerminal(r.Payload)
	case "window-change":
		return nil, s.resize(ctx, r.Payload)
	case "signal":
		return nil, s.signal(ctx, r.Payload)
	case "shell":
		if started {
			return nil, false
		}
		return func(ctx context.Context) { s.program(ctx, "ssh shell", loginShell) }, true
	case "exec":
		var p struct{ Command string }
		if started || ssh.Unmarshal(r.Payload, &p) != nil || p.Command == "" || len(p.Command) > maxCommand ||
			strings.ContainsRune(p.Command, 0) {
			return nil, false
		}
		return func(ctx context.Context) { s.program(ctx, "ssh exec", p.Command) }, true
	case "subsystem":
		var p struct{ Name string }
		if started || ssh.Unmarshal(r.Payload, &p) != nil || p.Name != "sftp" {
			return nil, false
		}
		return s.sftp, true
	}
	return nil, false // agents, X11 and what is not known
}

// setEnv sets a variable of the program.
func (s *session) setEnv(payload []byte) bool {
	var p struct{ Name, Value string }
	if ssh.Unmarshal(payload, &p) != nil || p.Name == "" || strings.ContainsAny(p.Name, "=\x00") ||
		strings.ContainsRune(p.Value, 0) {
		return false
	}
	s.used += len(p.Name) + len(p.Value)
	if s.used > maxEnv || len(s.env) >= maxVariables {
		return false
	}
	s.env[p.Name] = p.Value
	return true
}

// setTerminal gives the program a terminal.
func (s *session) setTerminal(payload []byte) bool {
	var p struct {
		Term                      string
		Cols, Rows, Width, Height uint32
		Modes                     string
	}
	if ssh.Unmarshal(payload, &p) != nil || len(p.Term) > guestapi.MaxName || strings.ContainsRune(p.Term, 0) {
		return false
	}
	s.size = &guestapi.Size{Rows: cells(p.Rows, 24), Cols: cells(p.Cols, 80)}
	if p.Term != "" {
		s.env["TERM"] = p.Term
	}
	return true
}

// cells returns a size of a terminal in its bounds.
func cells(n uint32, none uint16) uint16 {
	if n == 0 {
		return none
	}
	return uint16(min(n, maxCells))
}

// running returns the program, if it runs.
func (s *session) running() (guestapi.Guest, guestapi.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.guest, s.process
}

func (s *session) resize(ctx context.Context, payload []byte) bool {
	var p struct{ Cols, Rows, Width, Height uint32 }
	if ssh.Unmarshal(payload, &p) != nil || s.size == nil {
		return false
	}
	_, process := s.running()
	return process != nil && process.Resize(ctx, guestapi.Size{Rows: cells(p.Rows, 24), Cols: cells(p.Cols, 80)}) == nil
}

func (s *session) signal(ctx context.Context, payload []byte) bool {
	var p struct{ Name string }
	if ssh.Unmarshal(payload, &p) != nil {
		return false
	}
	number, known := signals[p.Name]
	g, process := s.running()
	if !known || process == nil {
		return false
	}
	return g.Signal(ctx, guestapi.ProcessRef{PID: process.PID()}, int(number), true) == nil
}

// program runs a command line to its end.
func (s *session) program(ctx context.Context, action, command string) {
	began := time.Now()
	g, p, err := s.start(ctx, command)
	s.c.record(ctx, action, began, err)
	if err != nil {
		s.fail(err)
		return
	}
	s.mu.Lock()
	s.guest, s.process = g, p
	s.mu.Unlock()
	s.follow(ctx, g, p)
}

// start starts a command line, and wakes the sandbox if it sleeps.
func (s *session) start(ctx context.Context, command string) (guestapi.Guest, guestapi.Process, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.c.gate.limits.Start, errTooLong)
	defer cancel()
	g, box, err := s.c.enter(ctx, api.ScopeExec)
	if err != nil {
		return nil, nil, err
	}
	p, err := g.Start(ctx, guestapi.ProcessSpec{
		Shell: command, Env: maps.Clone(s.env), Dir: box.Workdir, User: box.User, Stdin: true, PTY: s.size,
	})
	if err != nil {
		return nil, nil, hosterror.OfGuest(err, "command")
	}
	return g, p, nil
}

// endOfText is what a terminal takes for the end of its input.
const endOfText = 4

// follow copies input and output until the program exits, and sends its exit status. A program whose client goes away
// is hung up.
func (s *session) follow(ctx context.Context, g guestapi.Guest, p guestapi.Process) {
	var typing sync.WaitGroup
	defer typing.Wait()
	typing.Go(func() {
		_, err := io.CopyBuffer(plainWriter{p}, s.ch, make([]byte, copyBytes))
		if err == nil && s.size != nil {
			_, _ = p.Write([]byte{endOfText}) // the program may have exited
			return
		}
		_ = p.CloseInput() // as above
	})
	exit, err := guestexec.Follow(ctx, p, guestexec.Sink{Output: func(e guestapi.Event) error {
		out := io.Writer(s.ch)
		if e.Stream == guestapi.StreamStderr {
			out = s.ch.Stderr()
		}
		_, err := out.Write(e.Data)
		return err
	}})
	if err != nil { // the client has gone away, or the sandbox has
		_ = guestexec.Signal(ctx, g, guestapi.ProcessRef{PID: p.PID()}, int(syscall.SIGHUP))
	}
	_ = p.Close() // ends a write of input that the program does not read
	switch {
	case err != nil:
		s.fail(hosterror.OfGuest(err, "command"))
	case exit.Error != "":
		s.fail(api.Errorf(api.Invalid, "command could not be started: %s", exit.Error))
	default:
		s.exit(exit.Code)
	}
	_ = s.ch.Close() // ends the read of input
}

// fail reports why there is no program, or no exit.
func (s *session) fail(err error) {
	_, _ = fmt.Fprintf(s.ch.Stderr(), "pandastack: %s\r\n", guestapi.Printable(api.AsError(err).Message))
	s.exit(exitFailed)
}

// exit sends the exit status of the program.
func (s *session) exit(code int) {
	status := struct{ Status uint32 }{uint32(code)}
	_, _ = s.ch.SendRequest("exit-status", false, ssh.Marshal(&status)) // the client may be gone
}
