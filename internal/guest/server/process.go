package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// process starts a program or attaches to one, then sends events and takes input until the exit, or until the host
// detaches.
func (r *request) process(ctx context.Context) error {
	p, err := r.open(ctx)
	if err != nil {
		return err
	}
	var input sync.WaitGroup
	ctx, cancel := context.WithCancelCause(ctx)
	defer func() {
		cancel(nil)
		late := time.AfterFunc(drain, func() { _ = p.Close() }) // ends a Write that no process reads
		// Deliver the input that the host sent before it detached.
		input.Wait()
		late.Stop()
		_ = p.Close() // detaches; the stream has ended, so an error has no receiver
	}()
	if err := r.beginReply(ctx, guestapi.AppendPID(nil, p.PID())); err != nil {
		return err
	}
	input.Go(func() { r.input(ctx, p) })
	for {
		e, err := p.Next(ctx)
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("%w: process ended without an exit", guestapi.ErrInternal)
			}
			return err
		}
		if e.Exit != nil {
			return r.st.SendFin(ctx, guestapi.AppendEvent(nil, &e))
		}
		if err := r.output(ctx, e); err != nil {
			return err
		}
	}
}

func (r *request) open(ctx context.Context) (guestapi.Process, error) {
	if r.op == guestapi.OpStart {
		spec, err := guestapi.ParseProcessSpec(r.body)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", guestapi.ErrInvalid, err)
		}
		return r.h.s.backend.Start(ctx, spec)
	}
	q, err := guestapi.ParseProcessRequest(r.body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", guestapi.ErrInvalid, err)
	}
	return r.h.s.backend.Attach(ctx, q.Ref, q.From)
}

// output sends an event in messages of limited size.
func (r *request) output(ctx context.Context, e guestapi.Event) error {
	for len(e.Data) > 0 {
		part := e
		part.Data = e.Data[:min(len(e.Data), chunk)]
		if err := r.st.Send(ctx, guestapi.AppendEvent(make([]byte, 0, len(part.Data)+12), &part)); err != nil {
			return err
		}
		e.Data = e.Data[len(part.Data):]
		e.Offset += int64(len(part.Data))
	}
	return nil
}

// input passes the host's input to the process, until the stream or the process ends. Input that the process cannot
// take any more is dropped.
func (r *request) input(ctx context.Context, p guestapi.Process) {
	for {
		message, err := r.st.Recv(ctx)
		if err != nil {
			return
		}
		switch {
		case len(message) == 0:
		case guestapi.InputKind(message[0]) == guestapi.InputData:
			_, _ = p.Write(message[1:]) // the error is the program's choice: it closed its input
		case guestapi.InputKind(message[0]) == guestapi.InputEnd:
			_ = p.CloseInput() // closed already
		}
	}
}

func (r *request) processes(ctx context.Context) error {
	all, err := r.h.s.backend.Processes(ctx)
	if err != nil {
		return err
	}
	var b []byte
	for i := range all {
		b = guestapi.AppendProcessInfo(b, &all[i])
	}
	return r.reply(ctx, b)
}

// toProcess sends a signal or a new terminal size.
func (r *request) toProcess(ctx context.Context) error {
	q, err := guestapi.ParseProcessRequest(r.body)
	if err != nil {
		return fmt.Errorf("%w: %w", guestapi.ErrInvalid, err)
	}
	if r.op == guestapi.OpSignal {
		err = r.h.s.backend.Signal(ctx, q.Ref, q.Signal, q.Group)
	} else {
		err = r.resize(ctx, q)
	}
	if err != nil {
		return err
	}
	return r.reply(ctx, nil)
}

func (r *request) resize(ctx context.Context, q guestapi.ProcessRequest) error {
	end := guestapi.Offsets{Stdout: math.MaxInt64, Stderr: math.MaxInt64, PTY: math.MaxInt64}
	p, err := r.h.s.backend.Attach(ctx, q.Ref, end)
	if err != nil {
		return err
	}
	return errors.Join(p.Resize(ctx, q.Size), p.Close())
}
