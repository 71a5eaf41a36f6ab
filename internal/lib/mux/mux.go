package mux

import (
	"context"
	"encoding/binary"
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
	writing bool          // a goroutine is in flush
	room    chan struct{} // closed when the queue gets shorter; nil: no goroutine waits
}

func newMux(w io.Writer) *mux {
	return &mux{w: w, streams: make(map[uint32]*Stream), holdAt: -1}
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
		if cap(batch) <= MaxQueue {
			m.spare = batch[:0]
		}
		if err != nil && m.err == nil {
			m.err = fmt.Errorf("%w: write: %w", ErrLost, err)
		}
		m.notifyRoom()
	}
	m.writing = false
	err := m.err
	m.mu.Unlock()
	return err
}

func (m *mux) notifyRoom() {
	if m.room != nil && len(m.queue) <= MaxQueue {
		close(m.room)
		m.room = nil
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
	}
	return err
}

func parseReset(b []byte) error {
	if len(b) < 2 {
		return &ResetError{}
	}
	return &ResetError{Code: binary.BigEndian.Uint16(b), Text: string(b[2:min(len(b), 2+MaxText)])}
}
