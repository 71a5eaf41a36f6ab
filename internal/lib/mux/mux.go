package mux

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// mux is common to both ends: the streams of one session and the queue of bytes to write.
type mux struct {
	w io.Writer
	// wake wakes the writing goroutine; nil: senders write themselves.
	wake func()

	mu      sync.Mutex
	streams map[uint32]*Stream // guarded by mu, as are all fields below
	last    uint32             // highest stream number of this session
	err     error              // why writing has ended
	queue   []byte             // frames to write
	spare   []byte             // an empty buffer for the next queue
	holdAt  int                // length of the queue up to the message after which quiet begins; -1: none
	quiet   bool
	writing bool             // a goroutine is in flush
	room    chan struct{}    // closed when the queue gets shorter; nil: no goroutine waits
	owing   map[*Stream]bool // streams whose credit waits until the queue is shorter
}

func newMux(w io.Writer) *mux {
	return &mux{w: w, streams: make(map[uint32]*Stream), holdAt: -1, owing: make(map[*Stream]bool)}
}

// flush writes the queue until it is empty or quiet begins. One caller writes at a time; the others return at once,
// and the first writes their frames.
func (m *mux) flush() error {
	m.mu.Lock()
	if m.writing {
		m.mu.Unlock()
		return nil
	}
	m.writing = true
	for m.err == nil && !m.quiet && len(m.queue) > 0 {
		batch, rest := m.queue, m.queue[len(m.queue):]
		if m.holdAt >= 0 {
			batch, rest = m.queue[:m.holdAt], m.queue[m.holdAt:]
			m.quiet, m.holdAt = true, -1
		}
		m.queue = append(m.spare[:0], rest...)
		m.spare = nil
		m.mu.Unlock()
		_, err := m.w.Write(batch)
		m.mu.Lock()
		if cap(batch) <= maxKept {
			m.spare = batch[:0]
		}
		if err != nil && m.err == nil {
			m.err = fmt.Errorf("%w: write: %w", ErrLost, err)
		}
		m.notifyRoom()
	}
	m.writing = false
	m.shrink()
	err := m.err
	m.mu.Unlock()
	return err
}

// notifyRoom wakes senders that wait, and sends the credit that was held back, once the queue is short enough. The
// caller holds mu.
func (m *mux) notifyRoom() {
	if len(m.queue) > MaxQueue {
		return
	}
	if m.room != nil {
		close(m.room)
		m.room = nil
	}
	for st := range m.owing {
		delete(m.owing, st)
		st.giveCredit()
	}
}

// Buffers of bytes to write. A channel that is idle keeps small ones only: there are many of them.
const (
	maxIdleBuffer = 16 << 10 // bytes that an idle channel keeps of each buffer
	maxKept       = MaxQueue + 2*bufferMax
)

// large has buffers for channels that write much.
var large = sync.Pool{New: func() any { return new([]byte) }}

// shrink gives away the large buffers of an empty queue. The caller holds mu.
func (m *mux) shrink() {
	if len(m.queue) > 0 {
		return
	}
	for _, b := range []*[]byte{&m.queue, &m.spare} {
		if cap(*b) <= maxIdleBuffer {
			continue
		}
		if cap(*b) <= maxKept {
			given := (*b)[:0]
			large.Put(&given)
		}
		*b = nil
	}
}

// grow makes room for n more bytes in the queue. The caller holds mu.
func (m *mux) grow(n int) {
	if need := len(m.queue) + n; need > cap(m.queue) && need > maxIdleBuffer && cap(m.queue) <= maxIdleBuffer {
		if b, ok := large.Get().(*[]byte); ok && cap(*b) >= need {
			m.queue = append((*b)[:0], m.queue...)
		}
	}
}

// put has the queue written: by the writer's goroutine, or by the caller.
func (m *mux) put() {
	if m.wake != nil {
		m.wake()
		return
	}
	_ = m.flush() // the reading side sees a broken channel too, and ends the session
}

// waitRoom returns with mu held once the queue is short enough, or without mu and an error.
func (m *mux) waitRoom(ctx context.Context, st *Stream) error {
	for {
		m.mu.Lock()
		switch {
		case st.dead != nil:
			defer m.mu.Unlock()
			return st.dead
		case m.err != nil:
			defer m.mu.Unlock()
			return m.err
		case len(m.queue) <= MaxQueue:
			return nil
		}
		if m.room == nil {
			m.room = make(chan struct{})
		}
		room := m.room
		m.mu.Unlock()
		select {
		case <-room:
		case <-st.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// queueFrame appends a frame. The caller holds mu and calls put afterwards.
func (m *mux) queueFrame(kind, flags byte, stream uint32, payload []byte) {
	m.grow(headerSize + len(payload))
	m.queue = appendHeader(m.queue, kind, flags, len(payload), stream)
	m.queue = append(m.queue, payload...)
}

// release ends the quiet, if any.
func (m *mux) release() {
	m.mu.Lock()
	m.quiet, m.holdAt = false, -1
	m.mu.Unlock()
	m.put()
}

// end fails all streams. If fatal is set, nothing can be sent afterwards; otherwise a new session begins, and frames
// of the old one that were not written are dropped.
func (m *mux) end(why error, fatal bool) {
	m.mu.Lock()
	old := m.streams
	m.streams, m.last = make(map[uint32]*Stream), 0
	clear(m.owing)
	m.queue, m.holdAt, m.quiet = m.queue[:0], -1, false
	if !fatal {
		m.err = nil
	} else if m.err == nil {
		m.err = why
	}
	for _, st := range old {
		st.kill(why)
	}
	m.notifyRoom()
	m.mu.Unlock()
	for _, st := range old {
		st.notify(why)
	}
}

// receive handles a frame of a session. A returned error breaks the session.
func (m *mux) receive(h header, payload []byte) error {
	m.mu.Lock()
	st := m.streams[h.stream]
	if st == nil {
		last := m.last
		m.mu.Unlock()
		if h.stream == 0 || h.stream > last {
			return fmt.Errorf("%w: frame of type %d for stream %d, which was never opened", ErrLost, h.kind, h.stream)
		}
		return nil // sent before the peer knew that this end dropped the stream
	}
	var reset error
	var err error
	switch h.kind {
	case typeData:
		err = st.enqueue(payload, h.flags&flagFin != 0)
		if refused, ok := errors.AsType[*refusedError](err); ok {
			reset, err = refused.error, nil
			m.refuse(st, reset)
		}
	case typeCredit:
		err = st.credited(payload)
	case typeReset:
		reset = parseReset(payload)
		st.kill(reset)
		delete(m.streams, st.id)
	default:
		err = fmt.Errorf("%w: frame of unknown type %d", ErrLost, h.kind)
	}
	m.mu.Unlock()
	if reset != nil {
		st.notify(reset)
		m.put()
	}
	return err
}

// refuse ends a stream whose messages this end has no memory for. The caller holds mu.
func (m *mux) refuse(st *Stream, why error) {
	st.kill(why)
	delete(m.streams, st.id)
	delete(m.owing, st)
	text := why.Error()
	b := append(binary.BigEndian.AppendUint16(nil, 0), text[:min(len(text), MaxText)]...)
	m.queueFrame(typeReset, 0, st.id, b)
}

func parseReset(b []byte) error {
	if len(b) < 2 {
		return &ResetError{}
	}
	return &ResetError{Code: binary.BigEndian.Uint16(b), Text: string(b[2:min(len(b), 2+MaxText)])}
}
