package guestexec_test

import (
	"context"
	"io"
	"sync"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// scriptedGuest runs one program, which does what the test says, and records what it was asked for.
type scriptedGuest struct {
	process  *scriptedProcess
	startErr error

	mu      sync.Mutex
	spec    guestapi.ProcessSpec
	from    guestapi.Offsets
	signals []int
}

func (g *scriptedGuest) Start(_ context.Context, spec guestapi.ProcessSpec) (guestapi.Process, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.spec = spec
	return g.process, g.startErr
}

func (g *scriptedGuest) Attach(
	_ context.Context,
	ref guestapi.ProcessRef,
	from guestapi.Offsets,
) (guestapi.Process, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.from = from
	if ref.PID != g.process.PID() {
		return nil, guestapi.ErrNotFound
	}
	return g.process, nil
}

func (g *scriptedGuest) Signal(_ context.Context, ref guestapi.ProcessRef, signal int, group bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !group || ref.PID != g.process.PID() {
		return guestapi.ErrInvalid
	}
	g.signals = append(g.signals, signal)
	return g.process.signalErr
}

func (g *scriptedGuest) sent() []int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]int(nil), g.signals...)
}

// scriptedProcess gives its events, then what endless gives, then err; without either it says nothing more.
type scriptedProcess struct {
	guestapi.Process
	events    []guestapi.Event
	endless   func(i int) guestapi.Event
	err       error
	signalErr error
	unread    bool // it does not read its input: writing blocks until the stream is closed

	mu     sync.Mutex
	next   int
	input  []byte
	eof    bool
	once   sync.Once
	closed chan struct{}
}

func newProcess(events ...guestapi.Event) *scriptedProcess {
	return &scriptedProcess{events: events, closed: make(chan struct{})}
}

func (p *scriptedProcess) PID() uint32 { return 7 }

func (p *scriptedProcess) Next(ctx context.Context) (guestapi.Event, error) {
	p.mu.Lock()
	i := p.next
	p.next++
	p.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return guestapi.Event{}, context.Cause(ctx)
	case i < len(p.events):
		return p.events[i], nil
	case p.endless != nil:
		return p.endless(i), nil
	case p.err != nil:
		return guestapi.Event{}, p.err
	}
	<-ctx.Done()
	return guestapi.Event{}, context.Cause(ctx)
}

func (p *scriptedProcess) read() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.next
}

func (p *scriptedProcess) Write(b []byte) (int, error) {
	if p.unread {
		<-p.closed
		return 0, io.ErrClosedPipe
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.input = append(p.input, b...)
	return len(b), nil
}

func (p *scriptedProcess) CloseInput() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.eof = true
	return nil
}

func (p *scriptedProcess) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func stdout(offset int64, text string) guestapi.Event {
	return guestapi.Event{Stream: guestapi.StreamStdout, Offset: offset, Data: []byte(text)}
}

func stderr(offset int64, text string) guestapi.Event {
	return guestapi.Event{Stream: guestapi.StreamStderr, Offset: offset, Data: []byte(text)}
}

func exit(code int) guestapi.Event { return guestapi.Event{Exit: &guestapi.Exit{Code: code}} }
