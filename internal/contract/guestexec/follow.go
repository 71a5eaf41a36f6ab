package guestexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// Guest is the part of guestapi.Guest that this package needs.
type Guest interface {
	Start(ctx context.Context, spec guestapi.ProcessSpec) (guestapi.Process, error)
	Attach(ctx context.Context, ref guestapi.ProcessRef, from guestapi.Offsets) (guestapi.Process, error)
	Signal(ctx context.Context, ref guestapi.ProcessRef, signal int, group bool) error
}

// FromNow are the offsets behind all output so far, to attach to what is printed from now on.
var FromNow = guestapi.Offsets{Stdout: math.MaxInt64, Stderr: math.MaxInt64, PTY: math.MaxInt64}

// Sink receives what a process does. Every function is optional; an error of any of them ends the reading.
type Sink struct {
	// Started is called once, before any output.
	Started func(pid uint32) error
	// Output is called with each piece of output, in order. Event.Data is valid until Output returns, and
	// Event.Offset plus its length is where another Attach continues. The guest is read no further before
	// Output returns, so a slow receiver slows the program down.
	Output func(guestapi.Event) error
	// Idle is called whenever IdleAfter has passed without an event.
	Idle      func() error
	IdleAfter time.Duration
}

// Follow hands the output of a process to sink until the process exits, and returns how it exited.
//
// It returns the first error of sink unchanged, the context's cause if ctx ended, an error of guestapi.ErrLost
// if the process ended without an exit, and one of guestapi.ErrInternal if the guest broke the protocol. The
// process is neither killed nor closed.
func Follow(ctx context.Context, p guestapi.Process, sink Sink) (guestapi.Exit, error) {
	if sink.Started != nil {
		if err := sink.Started(p.PID()); err != nil {
			return guestapi.Exit{}, err
		}
	}
	var read guestapi.Offsets
	for {
		e, err := sink.next(ctx, p)
		if err != nil {
			return guestapi.Exit{}, err
		}
		if e.Exit != nil {
			return *e.Exit, nil
		}
		at := read.Of(e.Stream)
		if at == nil || e.Offset < *at {
			return guestapi.Exit{}, fmt.Errorf("%w: output of stream %d at offset %d: %w",
				guestapi.ErrInternal, e.Stream, e.Offset, guestapi.ErrFormat)
		}
		*at = e.Offset + int64(len(e.Data))
		if sink.Output == nil {
			continue
		}
		if err := sink.Output(e); err != nil {
			return guestapi.Exit{}, err
		}
	}
}

// errIdle is the cause of a wait that ended because nothing happened.
var errIdle = errors.New("no event for a while")

// next returns the next event and calls Idle while there is none.
func (s Sink) next(ctx context.Context, p guestapi.Process) (guestapi.Event, error) {
	for {
		wait, cancel := ctx, context.CancelFunc(func() {})
		if s.Idle != nil && s.IdleAfter > 0 {
			wait, cancel = context.WithTimeoutCause(ctx, s.IdleAfter, errIdle)
		}
		e, err := p.Next(wait)
		idle := err != nil && ctx.Err() == nil && context.Cause(wait) == errIdle
		cancel()
		switch {
		case err == nil:
			return e, nil
		case idle:
			if err := s.Idle(); err != nil {
				return guestapi.Event{}, err
			}
		case ctx.Err() != nil:
			return guestapi.Event{}, context.Cause(ctx)
		case errors.Is(err, io.EOF):
			return guestapi.Event{}, fmt.Errorf("process ended without an exit: %w", guestapi.ErrLost)
		default:
			return guestapi.Event{}, err
		}
	}
}

// Attach follows a process of the guest from the given offsets of its output, as Follow does.
//
// The process continues when Attach returns. Output that the guest no longer keeps is skipped. A failure to
// attach is returned before any function of sink was called.
func Attach(
	ctx context.Context,
	g Guest,
	ref guestapi.ProcessRef,
	from guestapi.Offsets,
	sink Sink,
) (guestapi.Exit, error) {
	p, err := g.Attach(ctx, ref, from)
	if err != nil {
		return guestapi.Exit{}, err
	}
	defer p.Close() //nolint:errcheck // nothing is lost with the stream of a process that continues
	return Follow(ctx, p, sink)
}

// signalTimeout bounds how long a guest may take to deliver a signal.
const signalTimeout = 10 * time.Second

// Signal sends a signal to a process and everything in its group, even if ctx has ended.
//
// It is meant for the end of a process whose client is gone: it waits for at most 10 seconds, and a process
// that has exited already is no error.
func Signal(ctx context.Context, g Guest, ref guestapi.ProcessRef, sig int) error {
	return signal(ctx, g, ref, sig, signalTimeout)
}

func signal(ctx context.Context, g Guest, ref guestapi.ProcessRef, sig int, limit time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), limit,
		fmt.Errorf("the guest did not deliver the signal within %s", limit))
	defer cancel()
	if err := g.Signal(ctx, ref, sig, true); !errors.Is(err, guestapi.ErrNotFound) {
		return err
	}
	return nil
}
