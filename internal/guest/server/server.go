// Package server is the guest's end of the guest channel: it serves requests with a guestapi.Backend.
//
// It owns the sessions and decides which requests are allowed when; it does not know how a request is carried out. A
// panic in one request fails that request alone.
//
// If a host connects with a generation other than the last confirmed one, the machine is a copy of another: the
// server refuses all requests except Restore until a Restore succeeds. Requests that arrive behind a Restore wait for
// it. The same holds after a Restore that failed, whatever the generation, and for Thaw if the workload was frozen in
// an earlier session. Requests that arrive while the workload is frozen by the same session wait for its Thaw.
//
// Every request runs in a goroutine of its own. Serve waits for all of them.
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

// chunk is how many bytes of content a message carries: the amount a virtio-serial port writes at once.
const chunk = 32 << 10

// Server serves requests with one backend, over one channel after the other.
type Server struct {
	backend guestapi.Backend

	mu            sync.Mutex
	session       int    // number of the current session
	generation    uint64 // last confirmed
	greeted       uint64 // generation of the current session
	unrestored    bool   // the host's generation differs, and no restore has succeeded yet
	restoreFailed bool   // a restore began, and none has succeeded since
	frozen        bool
	frozenHere    bool  // frozen in this session
	gate          *gate // nil: open
}

// gate blocks requests while the machine is frozen or being restored.
type gate struct {
	open chan struct{} // closed when the outcome is known
	err  error         // valid once open is closed
}

// New returns a server of backend. The machine starts as confirmed with generation 0, and not frozen.
func New(backend guestapi.Backend) *Server { return &Server{backend: backend} }

// Serve is New(backend).Serve(ctx, rw).
func Serve(ctx context.Context, rw io.ReadWriter, backend guestapi.Backend) error {
	return New(backend).Serve(ctx, rw)
}

// Serve serves requests over rw until rw ends, which is not an error.
//
// When ctx ends, Serve closes rw if it is an io.Closer. It returns after all requests have ended. Only one call may
// run at a time. Processes and the confirmed generation last beyond the call.
func (s *Server) Serve(ctx context.Context, rw io.ReadWriter) error {
	c, ok := rw.(io.Closer)
	if ok {
		stop := context.AfterFunc(ctx, func() { _ = c.Close() }) // ends the read below, even if it fails
		defer stop()
	}
	h := &handler{s: s, ctx: ctx, g: mux.NewGuest(rw), idle: make(chan *request), done: make(chan struct{})}
	err := h.g.Serve(h)
	s.endSession()
	close(h.done)
	h.wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("read guest channel: %w", err)
	}
	return nil
}

// handler handles one channel.
type handler struct {
	s   *Server
	g   *mux.Guest
	ctx context.Context // context of Serve
	wg  sync.WaitGroup

	idle    chan *request // passes requests to goroutines that wait for one
	waiting atomic.Int32  // number of those goroutines
	done    chan struct{} // closed when no more requests will come
}

// Hello implements mux.Handler.
func (h *handler) Hello(hello mux.Hello) {
	s := h.s
	s.endSession()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session++
	s.greeted = hello.Generation
	s.unrestored = hello.Generation != s.generation || s.restoreFailed
}

// endSession ends the wait of requests of the last session.
func (s *Server) endSession() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozenHere = false
	s.openGate(guestapi.ErrLost)
}

// openGate opens the gate with the outcome err. The caller holds mu.
func (s *Server) openGate(err error) {
	if s.gate != nil {
		s.gate.err = err
		close(s.gate.open)
		s.gate = nil
	}
}

// admit reports whether a request is allowed, and the gate it must wait for first.
func (s *Server) admit(op guestapi.Op) (wait *gate, session int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait, err = s.gateFor(op)
	return wait, s.session, err
}

func (s *Server) gateFor(op guestapi.Op) (*gate, error) {
	if op == guestapi.OpRestore {
		s.unrestored, s.restoreFailed = true, true
	}
	switch {
	case op == guestapi.OpRestore, op == guestapi.OpThaw && !s.unrestored:
		if s.gate == nil {
			s.gate = &gate{open: make(chan struct{})}
		}
		return nil, nil
	case s.gate != nil:
		return s.gate, nil
	case s.unrestored:
		return nil, fmt.Errorf("%w: the machine is not yet restored", guestapi.ErrBusy)
	case op == guestapi.OpFreeze, op == guestapi.OpStats, !s.frozen:
		return nil, nil
	case s.frozenHere:
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

// maxIdle is how many goroutines wait for another request. Their stacks have grown already; in a machine that was
// just restored, growing a new stack costs more than the request.
const maxIdle = 4

// work runs a request, then others as long as few goroutines wait for one.
func (h *handler) work(r *request) {
	for r != nil {
		r.run()
		r = nil
		if h.waiting.Add(1) <= maxIdle {
			select {
			case r = <-h.idle:
			case <-h.done:
			}
		}
		h.waiting.Add(-1)
	}
}

// request is one request and its reply.
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
	err := r.recoverPanic(ctx)
	if r.op == guestapi.OpRestore || r.op == guestapi.OpThaw {
		r.confirm(err)
	}
	if err != nil {
		r.st.Reset(uint16(guestapi.ErrorCode(err)), err.Error())
		return
	}
	r.st.Drop()
}

// recoverPanic turns a panic into an error.
func (r *request) recoverPanic(ctx context.Context) (err error) {
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

// serve dispatches the request to its handler.
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
		return r.dialPort(ctx)
	case guestapi.OpDialSocket:
		return r.dialSocket(ctx)
	case guestapi.OpFreeze:
		return r.freeze(ctx)
	case guestapi.OpThaw:
		return r.thaw(ctx)
	case guestapi.OpStats:
		return r.stats(ctx)
	case guestapi.OpRestore:
		return r.restore(ctx)
	case guestapi.OpVolume:
		return r.volume(ctx)
	}
	return fmt.Errorf("%w: operation %d", guestapi.ErrInvalid, r.op)
}

// reply sends a whole reply: success and body, in as many messages as it takes.
func (r *request) reply(ctx context.Context, body []byte) error {
	b := append(guestapi.AppendStatus(make([]byte, 0, 1+len(body)), nil), body...)
	for len(b) > chunk {
		if err := r.st.Send(ctx, b[:chunk]); err != nil {
			return err
		}
		b = b[chunk:]
	}
	return r.st.SendFin(ctx, b)
}

// beginReply sends the first message of a reply that consists of several.
func (r *request) beginReply(ctx context.Context, body []byte) error {
	return r.st.Send(ctx, append(guestapi.AppendStatus(nil, nil), body...))
}
