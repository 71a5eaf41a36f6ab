package guestlink

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/lib/mux"
)

// Start implements guestapi.Guest.
func (l *Link) Start(ctx context.Context, spec guestapi.ProcessSpec) (guestapi.Process, error) {
	return l.process(ctx, guestapi.OpStart, guestapi.AppendProcessSpec(nil, &spec))
}

// Attach implements guestapi.Guest.
func (l *Link) Attach(ctx context.Context, ref guestapi.ProcessRef, from guestapi.Offsets) (guestapi.Process, error) {
	return l.process(
		ctx,
		guestapi.OpAttach,
		guestapi.AppendProcessRequest(nil, &guestapi.ProcessRequest{Ref: ref, From: from}),
	)
}

// Processes implements guestapi.Guest.
func (l *Link) Processes(ctx context.Context) ([]guestapi.ProcessInfo, error) {
	return list(ctx, l, guestapi.OpProcesses, nil,
		func(b []byte, pay func(int64) error) ([]guestapi.ProcessInfo, error) {
			return guestapi.ParseProcessInfos(b, maxListed, pay)
		})
}

// Signal implements guestapi.Guest.
func (l *Link) Signal(ctx context.Context, ref guestapi.ProcessRef, signal int, group bool) error {
	if signal < 0 || signal > 64 {
		return fmt.Errorf("%w: signal %d", guestapi.ErrInvalid, signal)
	}
	r := guestapi.ProcessRequest{Ref: ref, Signal: signal, Group: group}
	_, err := l.call(ctx, guestapi.OpSignal, guestapi.AppendProcessRequest(nil, &r))
	return err
}

func (l *Link) process(ctx context.Context, op guestapi.Op, body []byte) (guestapi.Process, error) {
	st, response, err := l.open(ctx, op, body)
	if err != nil {
		return nil, err
	}
	pid, err := guestapi.ParsePID(response)
	if err != nil {
		return nil, cancelStream(st, linkError(err))
	}
	return &process{l: l, st: st, pid: pid}, nil
}

// process is a guestapi.Process over a stream.
type process struct {
	l     *Link
	st    *mux.Stream
	pid   uint32
	ended atomic.Bool // the exit was received: the guest has released the stream
	in    sync.Mutex  // held while something is sent
}

func (p *process) PID() uint32 { return p.pid }

func (p *process) Next(ctx context.Context) (guestapi.Event, error) {
	if p.ended.Load() {
		return guestapi.Event{}, io.EOF
	}
	message, err := p.st.Recv(ctx)
	if err == io.EOF {
		err = fmt.Errorf("%w: end of a process without its exit", guestapi.ErrFormat)
	}
	var e guestapi.Event
	if err == nil {
		e, err = guestapi.ParseEvent(message)
	}
	if err != nil {
		return guestapi.Event{}, linkError(err)
	}
	if e.Exit != nil {
		p.ended.Store(true)
	}
	return e, nil
}

func (p *process) Write(b []byte) (int, error) {
	p.in.Lock()
	defer p.in.Unlock()
	for n := 0; n < len(b); {
		part := b[n:min(len(b), n+messageSize-1)]
		message := append(make([]byte, 0, 1+len(part)), byte(guestapi.InputData))
		if err := p.st.Send(p.l.ctx, append(message, part...)); err != nil {
			return n, linkError(err)
		}
		n += len(part)
	}
	return len(b), nil
}

func (p *process) CloseInput() error {
	p.in.Lock()
	defer p.in.Unlock()
	if err := p.st.Send(p.l.ctx, []byte{byte(guestapi.InputEnd)}); err != nil {
		return linkError(err)
	}
	return nil
}

func (p *process) Resize(ctx context.Context, size guestapi.Size) error {
	r := guestapi.ProcessRequest{Ref: guestapi.ProcessRef{PID: p.pid}, Size: size}
	_, err := p.l.call(ctx, guestapi.OpResize, guestapi.AppendProcessRequest(nil, &r))
	return err
}

// Close notifies the guest, unless the process has ended: the guest has then released the stream already, and a
// notification would only delay the next request.
func (p *process) Close() error {
	if p.ended.Load() {
		p.st.Drop()
		return nil
	}
	return cancelStream(p.st, nil)
}
