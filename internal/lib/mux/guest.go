package mux

import (
	"errors"
	"io"
)

// Guest is the guest end of a channel. It serves one session after the other.
type Guest struct {
	m *mux
	r *reader
}

// Handler handles the events of a guest end. The goroutine in Serve calls both methods, which must not block.
type Handler interface {
	// Hello is called when a new session begins; the streams of the one before have ended.
	Hello(Hello)
	// Stream is called with a stream that the host opened, and its first message, which is valid during the call. The
	// handler ends the stream with SendFin and Drop, or Reset.
	Stream(st *Stream, first []byte)
}

// NewGuest returns the guest end of channel rw. It waits for a hello first.
func NewGuest(rw io.ReadWriter) *Guest {
	return &Guest{m: newMux(rw), r: newReader(rw)}
}

// Serve reads the channel until it ends, and calls h. It returns the last error of the channel's Read; io.EOF becomes
// nil. All streams have ended when it returns.
func (g *Guest) Serve(h Handler) error {
	err := g.serve(h)
	g.m.end(ErrLost, true)
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (g *Guest) serve(h Handler) error {
	for {
		hello, err := g.r.seek(helloMagic)
		for ok := err == nil; ok; {
			g.begin(hello, h)
			hello, ok, err = g.session(h)
		}
		if err != nil {
			return err
		}
	}
}

// begin starts a new session.
func (g *Guest) begin(hello Hello, h Handler) {
	g.m.end(ErrLost, false)
	hello.Version = min(hello.Version, Version)
	g.m.mu.Lock()
	g.m.queue = appendGreeting(
		g.m.queue,
		ackMagic,
		Hello{Version: Version, Generation: hello.Generation, Nonce: hello.Nonce},
	)
	g.m.mu.Unlock()
	h.Hello(hello)
	g.m.put()
}

// session reads frames of a session. It returns at the first frame that belongs to none: with ok that is the hello of
// the next session, otherwise noise, after which a hello must be found.
func (g *Guest) session(h Handler) (hello Hello, ok bool, err error) {
	for {
		hd, payload, err := g.r.frame()
		if err != nil {
			return Hello{}, false, err
		}
		switch {
		case hd.kind == typeHello:
			whole := appendHeader(make([]byte, 0, headerSize+greetingSize), hd.kind, hd.flags, hd.length, hd.stream)
			if hello, ok := parseGreeting(append(whole, payload...), helloMagic); ok {
				return hello, true, nil
			}
		case hd.kind == typeOpen:
			if g.acceptStream(hd, payload, h) {
				continue
			}
		case hd.kind != typeNoop && g.m.receive(hd, payload) == nil:
			continue
		}
		g.m.end(ErrLost, false)
		return Hello{}, false, nil
	}
}

// acceptStream accepts a stream. It returns false if the frame is invalid.
func (g *Guest) acceptStream(hd header, payload []byte, h Handler) bool {
	st := newStream(g.m, hd.stream)
	g.m.mu.Lock()
	if hd.stream <= g.m.last {
		g.m.mu.Unlock()
		return false
	}
	g.m.last = hd.stream
	full := len(g.m.streams) >= MaxStreams
	g.m.streams[st.id] = st
	st.queued, st.owed = cost(payload), cost(payload)
	st.finIn = hd.flags&flagFin != 0
	g.m.mu.Unlock()
	if full {
		st.Reset(0, "too many streams")
		return true
	}
	h.Stream(st, payload)
	return true
}

// Release ends the quiet of this end: messages sent meanwhile are written now.
func (g *Guest) Release() { g.m.release() }
