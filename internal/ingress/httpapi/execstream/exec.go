package execstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// killTimeout bounds how long a kill may take whose client has gone.
const killTimeout = 10 * time.Second

// Spec makes a process of a command of a client.
func Spec(req api.ExecRequest) guestapi.ProcessSpec {
	return guestapi.ProcessSpec{
		Shell:   req.Cmd,
		Env:     req.Env,
		Dir:     req.Cwd,
		User:    req.User,
		Tag:     req.Tag,
		Stdin:   req.Stdin != nil,
		Timeout: req.Timeout(),
	}
}

// Exec runs a command to its end and gives all of its output. A command that ran out of time is the
// error timeout, which carries what it had printed; one that could not be started is invalid. When ctx
// ends, the command and all it started are killed.
func Exec(ctx context.Context, g guestapi.Guest, req api.ExecRequest) (api.ExecResult, error) {
	began := time.Now()
	var out, err bounded
	exit, pid, fail := run(ctx, g, req, func(uint32) error { return nil }, func(s guestapi.Stream, p []byte) error {
		if s == guestapi.StreamStderr {
			err.add(p)
		} else {
			out.add(p)
		}
		return nil
	})
	if fail != nil {
		return api.ExecResult{}, fail
	}
	res := api.ExecResult{
		Stdout: toValidUTF8(out.data), StdoutTruncated: out.over,
		Stderr: toValidUTF8(err.data), StderrTruncated: err.over,
		ExitCode: exit.Code, DurationMS: time.Since(began).Milliseconds(), PID: pid, OutOfMemory: exit.OutOfMemory,
	}
	if !exit.TimedOut {
		return res, nil
	}
	return res, timeout(req).With("stdout", res.Stdout).With("stderr", res.Stderr).
		With("exit_code", res.ExitCode).With("duration_ms", res.DurationMS)
}

// Background starts a command and does not wait for it.
func Background(ctx context.Context, g guestapi.Guest, req api.ExecRequest) (api.ExecResult, error) {
	p, err := g.Start(ctx, Spec(req))
	if err != nil {
		return api.ExecResult{}, GuestError(err, "command")
	}
	res := api.ExecResult{PID: p.PID()}
	if req.Stdin != nil {
		if _, err := io.WriteString(p, *req.Stdin); err != nil {
			_ = p.Close() // the write's error says more
			return res, GuestError(err, "stdin")
		}
		if err := p.CloseInput(); err != nil {
			_ = p.Close() // as above
			return res, GuestError(err, "stdin")
		}
	}
	if err := p.Close(); err != nil {
		return res, GuestError(err, "command")
	}
	return res, nil
}

// ToSSE runs a command and sends its output as events: start, then stdout and stderr with chunks of whole
// characters, then exit, or error. Failures to start are returned before anything was sent; begin makes
// the event stream.
func ToSSE(ctx context.Context, g guestapi.Guest, req api.ExecRequest, begin func() *SSE) error {
	began := time.Now()
	var sse *SSE
	var out, errs TextDecoder
	defer func() {
		if sse != nil {
			sse.Close()
		}
	}()
	send := func(s guestapi.Stream, text string) error {
		if text == "" {
			return nil
		}
		return sse.Event(streamName(s), api.ExecChunk{Chunk: text})
	}
	exit, _, err := run(ctx, g, req,
		func(pid uint32) error { sse = begin(); return sse.Event("start", api.ExecStarted{PID: pid}) },
		func(s guestapi.Stream, p []byte) error {
			if s == guestapi.StreamStderr {
				return send(s, errs.Decode(p))
			}
			return send(s, out.Decode(p))
		})
	if sse == nil {
		return err
	}
	if err == nil && exit.TimedOut {
		err = timeout(req)
	}
	// From here on the client has its answer: what cannot be sent to it is nobody's to know.
	_ = send(guestapi.StreamStdout, out.Flush())
	_ = send(guestapi.StreamStderr, errs.Flush())
	if err != nil {
		_ = sse.Event("error", api.AsError(err))
		return nil
	}
	_ = sse.Event(
		"exit",
		api.ExecExit{ExitCode: exit.Code, DurationMS: time.Since(began).Milliseconds(), OutOfMemory: exit.OutOfMemory},
	)
	return nil
}

// run starts a command, tells its pid, gives its output to sink and answers how it ended. When ctx ends
// or a function answers an error, the command is killed.
func run(ctx context.Context, g guestapi.Guest, req api.ExecRequest, started func(pid uint32) error,
	sink func(guestapi.Stream, []byte) error) (guestapi.Exit, uint32, error) {
	p, err := g.Start(ctx, Spec(req))
	if err != nil {
		return guestapi.Exit{}, 0, GuestError(err, "command")
	}
	var feeding sync.WaitGroup
	defer feeding.Wait()
	defer p.Close() //nolint:errcheck // the process has ended or is being killed
	err = started(p.PID())
	if err == nil && req.Stdin != nil {
		feeding.Go(func() {
			// A program that does not read its input to the end is no error.
			_, _ = io.WriteString(p, *req.Stdin)
			_ = p.CloseInput()
		})
	}
	var exit *guestapi.Exit
	if err == nil {
		exit, err = drain(ctx, p, sink)
	}
	switch {
	case err != nil:
		kill(ctx, g, p.PID(), int(syscall.SIGKILL))
		return guestapi.Exit{}, p.PID(), GuestError(err, "command")
	case exit.Error != "":
		return guestapi.Exit{}, p.PID(), api.Errorf(api.Invalid, "command could not be started: %s", exit.Error)
	}
	return *exit, p.PID(), nil
}

// drain follows a process until its exit.
func drain(ctx context.Context, p guestapi.Process, sink func(guestapi.Stream, []byte) error) (*guestapi.Exit, error) {
	for {
		ev, err := p.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil, fmt.Errorf("process ended without an exit: %w", guestapi.ErrLost)
		case err != nil:
			return nil, err
		case ev.Exit != nil:
			return ev.Exit, nil
		}
		if err := sink(ev.Stream, ev.Data); err != nil {
			return nil, err
		}
	}
}

// kill sends a signal to a process and all it started, although the client may have gone. An answer that
// it has ended already is what was wanted.
func kill(ctx context.Context, g guestapi.Guest, pid uint32, signal int) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), killTimeout, errors.New("kill took too long"))
	defer cancel()
	_ = g.Signal(ctx, guestapi.ProcessRef{PID: pid}, signal, true) // nobody is left to hear of it
}

// timeout is what a command is told that ran longer than its client wanted. The text is known to the
// published SDKs.
func timeout(req api.ExecRequest) *api.Error {
	seconds := strconv.FormatFloat(req.TimeoutSeconds, 'f', -1, 64)
	return api.Errorf(api.Timeout, "command timeout after %ss", seconds).With("timeout_seconds", req.TimeoutSeconds)
}

func streamName(s guestapi.Stream) string {
	switch s {
	case guestapi.StreamStderr:
		return "stderr"
	case guestapi.StreamStdout, guestapi.StreamPTY:
		return "stdout"
	}
	return "stdout"
}

// bounded keeps the first api.MaxOutput bytes.
type bounded struct {
	data []byte
	over bool
}

func (b *bounded) add(p []byte) {
	if room := api.MaxOutput - len(b.data); len(p) > room {
		p, b.over = p[:room], true
	}
	b.data = append(b.data, p...)
}
