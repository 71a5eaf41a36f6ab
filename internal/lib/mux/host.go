package mux

import (
	"context"
	"fmt"
	"io"
	"sync"
)

// Host is the host end of a channel, for one session: it sends the hello, and opens streams.
type Host struct {
	m          *mux
	conn       io.ReadWriteCloser
	hello      Hello
	wakeWriter chan struct{} // wakes the writer
	greeted    chan struct{} // closed when the ack has arrived
	done       chan struct{} // closed when the session has ended
	once       sync.Once
	wg         sync.WaitGroup
}

// NewHost begins a session on conn, which it owns. It queues the hello and does not wait.
//
// With resync the channel is in an unknown state, and is first brought to one in which the guest end waits for a
// hello.
func NewHost(conn io.ReadWriteCloser, hello Hello, resync bool) *Host {
	hello.Version = Version
	h := &Host{m: newMux(conn), conn: conn, hello: hello,
		wakeWriter: make(chan struct{}, 1), greeted: make(chan struct{}), done: make(chan struct{})}
	h.m.wake = func() { signal(h.wakeWriter) }
	if resync {
		h.m.queue = make([]byte, resyncZeros)
	}
	h.m.queue = appendGreeting(h.m.queue, helloMagic, hello)
	h.m.put()
	h.wg.Go(h.write)
	h.wg.Go(h.read)
	return h
}

func (h *Host) write() {
	for {
		select {
		case <-h.wakeWriter:
		case <-h.done:
			return
		}
		if err := h.m.flush(); err != nil {
			h.fail(err)
			return
		}
	}
}

func (h *Host) read() {
	r := newReader(h.conn)
	err := h.seekAck(r)
	for err == nil {
		var hd header
		var payload []byte
		if hd, payload, err = r.frame(); err != nil {
			break
		}
		if hd.kind == typeNoop && hd.length == 0 {
			continue
		}
		err = h.m.receive(hd, payload)
	}
	h.fail(fmt.Errorf("%w: %w", ErrLost, err))
}

func (h *Host) seekAck(r *reader) error {
	for {
		ack, err := r.seek(ackMagic)
		if err != nil {
			return err
		}
		if ack.Nonce != h.hello.Nonce {
			continue // the reply to an earlier host
		}
		if ack.Version != Version {
			return fmt.Errorf("guest uses protocol version %d, this host version %d", ack.Version, Version)
		}
		close(h.greeted)
		return nil
	}
}

func (h *Host) fail(why error) {
	h.once.Do(func() {
		h.m.end(why, true)
		close(h.done)
		_ = h.conn.Close() // the session has ended, whether or not closing fails
	})
}

// Greeted waits until the guest end has acknowledged the hello.
func (h *Host) Greeted(ctx context.Context) error {
	select {
	case <-h.greeted:
		return nil
	case <-h.done:
		return h.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Open opens a stream with its first message. With fin that is the only message. Open may be called before the guest
// end has acknowledged the hello. The caller ends the stream with Reset or Drop.
//
// The meter, if not nil, counts messages that wait to be received. When it refuses one, the stream is reset, and Recv
// returns the meter's error.
func (h *Host) Open(ctx context.Context, first []byte, fin bool, meter Meter) (*Stream, error) {
	return h.open(ctx, first, fin, false, meter)
}

// OpenLast opens a stream with its only message, after which the host end is quiet until Release.
func (h *Host) OpenLast(ctx context.Context, only []byte) (*Stream, error) {
	return h.open(ctx, only, true, true, nil)
}

func (h *Host) open(ctx context.Context, first []byte, fin, last bool, meter Meter) (*Stream, error) {
	if len(first) > MaxMessage {
		return nil, errTooLong
	}
	st := newStream(h.m, 0)
	st.meter = meter
	if err := h.m.waitRoom(ctx, st); err != nil {
		return nil, err
	}
	defer h.m.put()
	defer h.m.mu.Unlock()
	if len(h.m.streams) >= MaxStreams || h.m.last == 1<<32-1 {
		return nil, ErrTooMany
	}
	h.m.last++
	st.id = h.m.last
	st.credit -= cost(first)
	h.m.streams[st.id] = st
	var flags byte
	if fin {
		flags = flagFin
	}
	h.m.queueFrame(typeOpen, flags, st.id, first)
	st.recordSent(flags, last)
	return st, nil
}

// Release ends the quiet of this end: messages sent meanwhile are written now.
func (h *Host) Release() { h.m.release() }

// Done returns a channel that is closed when the session has ended; Err then returns the reason.
func (h *Host) Done() <-chan struct{} { return h.done }

// Err returns the reason why the session ended; nil while it has not.
func (h *Host) Err() error {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	return h.m.err
}

// Close ends the session and closes the channel. It returns when all its goroutines have ended.
func (h *Host) Close() error {
	h.fail(fmt.Errorf("%w: closed by the host", ErrLost))
	h.wg.Wait()
	return nil
}
