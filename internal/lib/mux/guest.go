package mux

import (
	"errors"
	"io"
)

// Guest is the guest end of a channel. It lives through many sessions.
type Guest struct {
	m *mux
	r *reader
}

// Handler is what the guest end tells. Both methods are called by the goroutine in Serve and must not
// wait.
type Handler interface {
	// Hello says that a new session begins; the streams of the one before have ended.
	Hello(Hello)
	// Stream hands over a stream that the host opened, with its first message, valid during the call.
	// The handler ends it with SendFin and Drop, or Reset.
	Stream(st *Stream, first []byte)
}

// NewGuest returns the guest end of channel rw. It listens for a hello first.
func NewGuest(rw io.ReadWriter) *Guest {
	return &Guest{m: newMux(rw), r: newReader(rw)}
}

// Serve reads the channel until it ends, and calls h for what comes. It returns what the channel's Read
// answered at last; io.EOF is nil. Streams have ended when it returns.
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

// session reads frames until there is one that is none of a session: with ok it was the hello of the
// next, else noise, after which a hello must be sought.
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
			if g.opened(hd, payload, h) {
				continue
			}
		case hd.kind != typeNoop && g.m.receive(hd, payload) == nil:
			continue
		}
		g.m.end(ErrLost, false)
		return Hello{}, false, nil
	}
}

// opened accepts a stream; false if the frame makes no sense.
func (g *Guest) opened(hd header, payload []byte, h Handler) bool {
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

// Release ends the quiet of this end: what was sent meanwhile is written now.
func (g *Guest) Release() { g.m.release() }
