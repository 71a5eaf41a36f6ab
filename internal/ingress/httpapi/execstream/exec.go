package execstream

import (
	"context"
	"errors"
	"io"
	"strconv"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// Spec returns the process of a client's command.
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

// minOutput is memory that a command takes before it is started, so that it is refused then, in bytes.
const minOutput = 64 << 10

// Exec runs a command until it exits and returns up to api.MaxOutput bytes of each of its outputs.
//
// The account of ctx pays for the outputs; what it does not pay for is cut off, too.
//
// A command that ran out of time is the error timeout, which carries the output so far; one that could not be
// started is the error invalid. When ctx ends, the command and everything it started are killed.
func Exec(ctx context.Context, g guestapi.Guest, req api.ExecRequest) (api.ExecResult, error) {
	memory := budget.FromContext(ctx)
	if err := memory.Take(minOutput); err != nil {
		return api.ExecResult{}, hosterror.OfGuest(err, "command")
	}
	memory.Give(minOutput)
	limit := guestexec.Limit{Bytes: api.MaxOutput, Pay: memory.Take}
	run, err := guestexec.Run(ctx, g, execCommand(req), guestexec.Limits{Stdout: limit, Stderr: limit})
	if errors.Is(err, guestexec.ErrOvertime) {
		run.Exit.TimedOut, err = true, nil
	}
	if err := commandError(run.Status, err); err != nil {
		return api.ExecResult{}, err
	}
	res := api.ExecResult{
		Stdout: toValidUTF8(run.Stdout.Data), StdoutTruncated: run.Stdout.Truncated,
		Stderr: toValidUTF8(run.Stderr.Data), StderrTruncated: run.Stderr.Truncated,
		ExitCode: run.Exit.Code, DurationMS: run.Took.Milliseconds(), PID: run.PID, OutOfMemory: run.Exit.OutOfMemory,
	}
	if !run.Exit.TimedOut {
		return res, nil
	}
	return res, timeout(req).With("stdout", res.Stdout).With("stderr", res.Stderr).
		With("exit_code", res.ExitCode).With("duration_ms", res.DurationMS)
}

// Bounds of the wait for a guest that does not reply, because its monitor is stopped or it hangs.
const (
	// overtime is how long a guest may take to report the end of a command whose timeout has passed.
	overtime = 3 * time.Second
	// startTimeout is how long it may take to start a command.
	startTimeout = 30 * time.Second
)

// Background starts a command and does not wait until it exits.
func Background(ctx context.Context, g guestapi.Guest, req api.ExecRequest) (api.ExecResult, error) {
	starting, cancel := context.WithTimeoutCause(ctx, startTimeout, guestexec.ErrNotStarted)
	defer cancel()
	p, err := g.Start(starting, Spec(req))
	if err != nil {
		return api.ExecResult{}, hosterror.OfGuest(err, "command")
	}
	res := api.ExecResult{PID: p.PID()}
	if req.Stdin != nil {
		if _, err := io.WriteString(p, *req.Stdin); err != nil {
			_ = p.Close() // the error of the write is the cause
			return res, hosterror.OfGuest(err, "stdin")
		}
		if err := p.CloseInput(); err != nil {
			_ = p.Close() // as above
			return res, hosterror.OfGuest(err, "stdin")
		}
	}
	if err := p.Close(); err != nil {
		return res, hosterror.OfGuest(err, "command")
	}
	return res, nil
}

// ToSSE runs a command and sends its output as server-sent events.
//
// The events are start, then stdout and stderr with chunks of whole characters, then exit or error. A failure
// to start the command is returned before anything was sent; begin makes the event stream.
func ToSSE(ctx context.Context, g guestapi.Guest, req api.ExecRequest, begin func() *SSE) error {
	var sse *SSE
	defer func() {
		if sse != nil {
			sse.Close()
		}
	}()
	out := textSink{send: func(s guestapi.Stream, text string) error {
		return sse.Event(streamName(s), api.ExecChunk{Chunk: text})
	}}
	run, err := guestexec.Stream(ctx, g, execCommand(req), guestexec.Sink{
		Started: func(pid uint32) error { sse = begin(); return sse.Event("start", api.ExecStarted{PID: pid}) },
		Output:  out.output,
	})
	if errors.Is(err, guestexec.ErrOvertime) {
		run.Exit.TimedOut, err = true, nil
	}
	if err = commandError(run, err); err == nil && run.Exit.TimedOut {
		err = timeout(req)
	}
	if sse == nil {
		return err
	}
	_ = out.flush() // from here on a client that cannot be written to is gone, and needs nothing
	if err != nil {
		_ = sse.Event("error", api.AsError(err))
		return nil
	}
	_ = sse.Event("exit", api.ExecExit{
		ExitCode: run.Exit.Code, DurationMS: run.Took.Milliseconds(), OutOfMemory: run.Exit.OutOfMemory,
	})
	return nil
}

// execCommand is the program of a client's command, with its input.
func execCommand(req api.ExecRequest) guestexec.Command {
	cmd := guestexec.Command{Spec: Spec(req), Overtime: overtime, StartTimeout: startTimeout}
	if req.Stdin != nil {
		cmd.Input = func(_ context.Context, w io.Writer) error {
			_, err := io.WriteString(w, *req.Stdin)
			return err
		}
	}
	return cmd
}

// commandError translates what guestexec returned about a client's command; nil if the command was executed.
// A command that does not read its input to the end is no error.
func commandError(st guestexec.Status, err error) error {
	if err != nil {
		return hosterror.OfGuest(err, "command")
	}
	if st.Exit.Error != "" {
		return api.Errorf(api.Invalid, "command could not be started: %s", st.Exit.Error)
	}
	return nil
}

// textSink sends the output of a command as text of whole characters.
type textSink struct {
	out, err TextDecoder
	send     func(s guestapi.Stream, text string) error // is never called with ""
}

func (t *textSink) output(e guestapi.Event) error {
	d := &t.out
	if e.Stream == guestapi.StreamStderr {
		d = &t.err
	}
	if text := d.Decode(e.Data); text != "" {
		return t.send(e.Stream, text)
	}
	return nil
}

// flush sends the incomplete characters that were held back.
func (t *textSink) flush() error {
	var err error
	if text := t.out.Flush(); text != "" {
		err = t.send(guestapi.StreamStdout, text)
	}
	if text := t.err.Flush(); text != "" {
		err = errors.Join(err, t.send(guestapi.StreamStderr, text))
	}
	return err
}

// timeout returns the error of a command that ran longer than its client wanted. The published SDKs depend on the
// text.
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
