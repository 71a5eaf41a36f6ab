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
	// is paused meanwhile is cut off, too. 0: the wait has no bound but the context.
	Overtime time.Duration
}

// Status is how a program ended.
type Status struct {
	PID      uint32 // 0: it was not started
	Exit     guestapi.Exit
	Took     time.Duration // as seen from here
	InputErr error         // the error of Command.Input, or of writing what it wrote; the program decides if it matters
}

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
		ctx, cancel = context.WithTimeoutCause(ctx, cmd.Spec.Timeout+cmd.Overtime, fmt.Errorf(
			"%w: no exit within %s after the program's timeout of %s",
			guestapi.ErrInternal, cmd.Overtime, cmd.Spec.Timeout))
		defer cancel()
	}
	cmd.Spec.Stdin = cmd.Spec.Stdin || cmd.Input != nil
	p, err := g.Start(ctx, cmd.Spec)
	if err != nil {
		return Status{}, err
	}
	st := Status{PID: p.PID()}
	in := startInput(ctx, p, cmd.Input)
	st.Exit, err = Follow(ctx, p, sink)
	if err != nil {
		// The caller's error says why the program is killed; a guest that cannot be reached has ended with it.
		_ = Signal(ctx, g, guestapi.ProcessRef{PID: st.PID}, int(syscall.SIGKILL))
	}
	in.cancel(errExited)
	_ = p.Close() // the process has ended; closing frees a writer whose input is no longer read
	st.InputErr = <-in.done
	st.Took = time.Since(began)
	return st, err
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
