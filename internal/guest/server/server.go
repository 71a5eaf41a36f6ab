// Package server is the guest's end of the guest channel: it answers requests from a guestapi.Backend.
//
// It owns the sessions and which requests may be made when; it does not know how anything is done. A
// panic in one request fails that request alone.
//
// After a greeting with another generation than the last one confirmed, the machine is somebody else's
// copy: all requests but Restore are refused until a Restore went well, those behind a Restore wait for
// it. So it is after a Restore that failed, whatever the generation. The same holds for Thaw when the workload was frozen in an earlier session. Requests that arrive
// frozen in the session that froze them wait for its Thaw.
//
// Every request runs in a goroutine of its own, which Serve waits for.
package server

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/lib/mux"
)

// chunk is how many bytes of content a message carries: what a virtio-serial port writes at once.
const chunk = 32 << 10

// Server answers requests from one backend, over one channel after the other.
type Server struct {
	backend guestapi.Backend

	mu         sync.Mutex
	session    int    // number of the session that goes on
	generation uint64 // last confirmed
	greeted    uint64 // of the session that goes on
	foreign    bool   // greeted with another generation, and not yet restored
	unsure     bool   // a restore began, and none went well since
	frozen     bool
	here       bool  // frozen in this session
	gate       *gate // nil: open
}

// gate is what requests wait for while the machine is frozen or being restored.
type gate struct {
	open chan struct{} // closed when it is decided
	err  error         // read after open
}

// New returns a server of backend. The machine counts as confirmed with generation 0, and not frozen.
func New(backend guestapi.Backend) *Server { return &Server{backend: backend} }

// Serve is New(backend).Serve(ctx, rw).
func Serve(ctx context.Context, rw io.ReadWriter, backend guestapi.Backend) error {
	return New(backend).Serve(ctx, rw)
}

// Serve answers requests over rw until it ends; the end of what can be read is no error. When ctx ends,
// rw is closed if it is an io.Closer. It returns after all requests have ended. Only one call may run
// at a time; processes and what was confirmed live on to the next.
func (s *Server) Serve(ctx context.Context, rw io.ReadWriter) error {
	c, ok := rw.(io.Closer)
	if ok {
		stop := context.AfterFunc(ctx, func() { _ = c.Close() }) // reading ends by it, whatever it answers
		defer stop()
	}
	h := &handler{s: s, ctx: ctx, g: mux.NewGuest(rw), idle: make(chan *request), over: make(chan struct{})}
	err := h.g.Serve(h)
	s.leave()
	close(h.over)
	h.wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("read guest channel: %w", err)
	}
	return nil
}

// handler is one channel.
type handler struct {
	s   *Server
	g   *mux.Guest
	ctx context.Context // of Serve
	wg  sync.WaitGroup

	idle    chan *request // to goroutines that wait for one
	waiting atomic.Int32  // their number
	over    chan struct{} // closed when there will be no more requests
}

// Hello implements mux.Handler.
func (h *handler) Hello(hello mux.Hello) {
	s := h.s
	s.leave()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session++
	s.greeted = hello.Generation
	s.foreign = hello.Generation != s.generation || s.unsure
}

// leave ends what the last session was waiting for.
func (s *Server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.here = false
	s.settle(guestapi.ErrLost)
}

// settle decides the gate. The caller holds mu.
func (s *Server) settle(err error) {
	if s.gate != nil {
		s.gate.err = err
		close(s.gate.open)
		s.gate = nil
	}
}

// admit says whether a request may be made, and what it must wait for first.
func (s *Server) admit(op guestapi.Op) (wait *gate, session int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait, err = s.gateFor(op)
	return wait, s.session, err
}

func (s *Server) gateFor(op guestapi.Op) (*gate, error) {
	if op == guestapi.OpRestore {
		s.foreign, s.unsure = true, true
	}
	switch {
	case op == guestapi.OpRestore, op == guestapi.OpThaw && !s.foreign:
		if s.gate == nil {
			s.gate = &gate{open: make(chan struct{})}
		}
		return nil, nil
	case s.gate != nil:
		return s.gate, nil
	case s.foreign:
		return nil, fmt.Errorf("%w: the machine is not yet restored", guestapi.ErrBusy)
	case op == guestapi.OpFreeze, op == guestapi.OpStats, !s.frozen:
		return nil, nil
	case s.here:
		s.gate = &gate{open: make(chan struct{})}
		return s.gate, nil
	}
	return nil, fmt.Errorf("%w: the machine is frozen", guestapi.ErrBusy)
}

// Stream implements mux.Handler.
func (h *handler) Stream(st *mux.Stream, first []byte) {
	op, body, missing, err := guestapi.ParseRequest(first)
	if err != nil {
		st.Reset(uint16(guestapi.ErrorCode(guestapi.ErrInvalid)), err.Error())
		return
	}
	wait, session, err := h.s.admit(op)
	if err != nil {
		st.Reset(uint16(guestapi.ErrorCode(err)), err.Error())
		return
	}
	r := &request{
		h:       h,
		st:      st,
		op:      op,
		body:    append([]byte(nil), body...),
		missing: missing,
		wait:    wait,
		session: session,
	}
	select {
	case h.idle <- r:
	default:
		h.wg.Go(func() { h.work(r) })
	}
}

// maxIdle is how many goroutines wait for another request. They have their stacks already, and growing
// a new one costs a machine that was just restored more than the request.
const maxIdle = 4

// work runs a request, then others as long as few wait for one.
func (h *handler) work(r *request) {
	for r != nil {
		r.run()
		r = nil
		if h.waiting.Add(1) <= maxIdle {
			select {
			case r = <-h.idle:
			case <-h.over:
			}
		}
		h.waiting.Add(-1)
	}
}

// request is one request and its answer.
type request struct {
	h       *handler
	st      *mux.Stream
	op      guestapi.Op
	body    []byte
	missing int
	wait    *gate
	session int
}

func (r *request) run() {
	ctx, cancel := context.WithCancelCause(r.h.ctx)
	defer cancel(nil)
	r.st.OnDead(func(err error) { cancel(err) })
	err := r.protect(ctx)
	if r.op == guestapi.OpRestore || r.op == guestapi.OpThaw {
		r.confirm(err)
	}
	if err != nil {
		r.st.Reset(uint16(guestapi.ErrorCode(err)), err.Error())
		return
	}
	r.st.Drop()
}

// protect turns a panic into an error.
func (r *request) protect(ctx context.Context) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: %v", guestapi.ErrInternal, v)
		}
	}()
	if err := r.ready(ctx); err != nil {
		return err
	}
	return r.serve(ctx)
}

// ready waits for the gate and for the rest of the request.
func (r *request) ready(ctx context.Context) error {
	if r.wait != nil {
		select {
		case <-r.wait.open:
			if r.wait.err != nil {
				return fmt.Errorf("%w: %w", guestapi.ErrBusy, r.wait.err)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for r.missing > 0 {
		more, err := r.st.Recv(ctx)
		if err != nil {
			return fmt.Errorf("%w: request ends early: %w", guestapi.ErrInvalid, err)
		}
		if len(more) > r.missing {
			return guestapi.ErrInvalid
		}
		r.body = append(r.body, more...)
		r.missing -= len(more)
	}
	return nil
}

// serve dispatches.
func (r *request) serve(ctx context.Context) error {
	switch r.op {
	case guestapi.OpStart, guestapi.OpAttach:
		return r.process(ctx)
	case guestapi.OpProcesses:
		return r.processes(ctx)
	case guestapi.OpSignal, guestapi.OpResize:
		return r.toProcess(ctx)
	case guestapi.OpStat, guestapi.OpList, guestapi.OpRead, guestapi.OpWriteFile, guestapi.OpMove,
		guestapi.OpRemoveAll, guestapi.OpMakeDir, guestapi.OpWatch:
		return r.files(ctx)
	case guestapi.OpPorts:
		return r.ports(ctx)
	case guestapi.OpDial:
		return r.dial(ctx)
	case guestapi.OpFreeze:
		return r.freeze(ctx)
	case guestapi.OpThaw:
		return r.thaw(ctx)
	case guestapi.OpStats:
		return r.stats(ctx)
	case guestapi.OpRestore:
		return r.restore(ctx)
	}
	return fmt.Errorf("%w: operation %d", guestapi.ErrInvalid, r.op)
}

// answer sends a whole answer: success and body, in as many messages as it takes.
func (r *request) answer(ctx context.Context, body []byte) error {
	b := append(guestapi.AppendStatus(make([]byte, 0, 1+len(body)), nil), body...)
	for len(b) > chunk {
		if err := r.st.Send(ctx, b[:chunk]); err != nil {
			return err
		}
		b = b[chunk:]
	}
	return r.st.SendFin(ctx, b)
}

// begin sends the first message of an answer that goes on.
func (r *request) begin(ctx context.Context, body []byte) error {
	return r.st.Send(ctx, append(guestapi.AppendStatus(nil, nil), body...))
}
