package guestexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// Command is a program to run in a guest.
type Command struct {
	// Spec is the program. The guest kills the program's group when Spec.Timeout has passed.
	Spec guestapi.ProcessSpec
	// Input writes the program's standard input, which ends when Input returns. Its context ends when the
	// program has exited. nil: there is no input unless Spec.Stdin says so.
	Input func(ctx context.Context, w io.Writer) error
	// Overtime bounds the wait for the exit after Spec.Timeout, for guests that do not keep to it; a guest that
	// is paused meanwhile is cut off, too. The error is then ErrOvertime. 0: the wait has no bound but the context.
	Overtime time.Duration
	// StartTimeout bounds the wait for the start of the program. The error is then ErrNotStarted. 0: the wait has no
	// bound but the context and Overtime.
	StartTimeout time.Duration
}

// Status is how a program ended.
type Status struct {
	PID      uint32 // 0: it was not started
	Exit     guestapi.Exit
	Took     time.Duration // as seen from here
	InputErr error         // the error of Command.Input, or of writing what it wrote; the program decides if it matters
}

// Errors of guests that do not reply, to be compared with errors.Is.
var (
	// ErrOvertime: the guest did not report the exit of a program whose time was over.
	ErrOvertime = fmt.Errorf("%w: no exit after the program's timeout", guestapi.ErrInternal)
	// ErrNotStarted: the guest did not confirm the start of a program. It may have started it.
	ErrNotStarted = fmt.Errorf("%w: the program was not started in time", guestapi.ErrInternal)
)

// errExited is the cause of the end of Command.Input's context.
var errExited = errors.New("the program has exited")

// Stream runs a program, hands its output to sink, and returns how the program ended.
//
// When ctx ends, sink fails or the guest exceeds Command.Overtime, the program and everything in its group are
// killed and the error says why. A program that could not be executed is no error of Stream: Exit.Error says
// so. Stream returns when nothing it started is running any more in this process.
func Stream(ctx context.Context, g Guest, cmd Command, sink Sink) (Status, error) {
	began := time.Now()
	if cmd.Overtime > 0 && cmd.Spec.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, cmd.Spec.Timeout+cmd.Overtime,
			fmt.Errorf("%w of %s and another %s", ErrOvertime, cmd.Spec.Timeout, cmd.Overtime))
		defer cancel()
	}
	cmd.Spec.Stdin = cmd.Spec.Stdin || cmd.Input != nil
	p, err := cmd.start(ctx, g)
	if err != nil {
		return Status{}, err
	}
	st := Status{PID: p.PID()}
	in := startInput(ctx, p, cmd.Input)
	st.Exit, err = Follow(ctx, p, sink)
	if err != nil {
		// The caller's error says why the program is killed; a guest that cannot be reached has ended with it.
		limit := signalTimeout
		if errors.Is(err, ErrOvertime) {
			limit = min(limit, cmd.Overtime) // the guest has not replied for that long already
		}
		_ = signal(ctx, g, guestapi.ProcessRef{PID: st.PID}, int(syscall.SIGKILL), limit)
	}
	in.cancel(errExited)
	_ = p.Close() // the process has ended; closing frees a writer whose input is no longer read
	st.InputErr = <-in.done
	st.Took = time.Since(began)
	return st, err
}

// start starts the program.
func (cmd Command) start(ctx context.Context, g Guest) (guestapi.Process, error) {
	if cmd.StartTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, cmd.StartTimeout, ErrNotStarted)
		defer cancel()
	}
	return g.Start(ctx, cmd.Spec)
}

// input is the writing of a program's standard input.
type input struct {
	cancel context.CancelCauseFunc
	done   chan error // holds its error when it has ended
}

func startInput(ctx context.Context, p guestapi.Process, write func(context.Context, io.Writer) error) input {
	ctx, cancel := context.WithCancelCause(ctx)
	in := input{cancel: cancel, done: make(chan error, 1)}
	if write == nil {
		in.done <- nil
		return in
	}
	go func() {
		err := write(ctx, p)
		in.done <- errors.Join(err, p.CloseInput())
	}()
	return in
}

// Limits bound what Run keeps of the output. Output of a terminal counts as standard output.
type Limits struct{ Stdout, Stderr Limit }

// Result is how a program ended, and what it printed.
type Result struct {
	Status
	Stdout, Stderr Output
}

// Run runs a program as Stream does and keeps its output within limits.
//
// All output is read, whatever is kept of it, so that a program that prints without end is not blocked: it
// ends with its timeout or the context.
func Run(ctx context.Context, g Guest, cmd Command, limits Limits) (Result, error) {
	stdout, stderr := NewBuffer(limits.Stdout), NewBuffer(limits.Stderr)
	st, err := Stream(ctx, g, cmd, Sink{Output: func(e guestapi.Event) error {
		if e.Stream == guestapi.StreamStderr {
			stderr.Add(e.Data)
		} else {
			stdout.Add(e.Data)
		}
		return nil
	}})
	return Result{Status: st, Stdout: stdout.Output(), Stderr: stderr.Output()}, err
}
