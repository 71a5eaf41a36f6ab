package appedge

import (
	"encoding/binary"
	"net"
	"sync"
	"time"
)

// socket is the connection to the client of a WebSocket. It follows the frames that the program sends, so that it can
// send a frame of its own between two of them: the one that closes the WebSocket.
type socket struct {
	net.Conn
	app *app

	mu      sync.Mutex
	frames  frames
	closing bool // the frame that closes the WebSocket is due
	closed  bool // it was sent, and nothing follows it
}

// closeFrame closes a WebSocket with the status 1001, "going away".
var closeFrame = []byte{0x88, 2, 1001 >> 8, 1001 & 0xff}

// closeTimeout bounds how long the client takes to accept what precedes the frame, and the frame, and to answer it.
const closeTimeout = 5 * time.Second

// Read implements net.Conn.
func (s *socket) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	s.app.touch()
	return n, err
}

// Write implements net.Conn. It sends what comes from the program.
func (s *socket) Write(p []byte) (int, error) {
	s.app.touch()
	s.mu.Lock()
	defer s.mu.Unlock()
	done := 0
	for len(p) > 0 {
		if s.closed { // the connection ends when the client has answered
			return done + len(p), nil
		}
		n := len(p)
		if s.closing { // up to the end of the frame that has begun
			n = s.frames.next(p)
		} else {
			s.frames.skip(p)
		}
		sent, err := s.Conn.Write(p[:n])
		done += sent
		if err != nil {
			return done, err
		}
		p = p[n:]
		if s.closing && s.frames.between() {
			s.sendClose()
		}
	}
	return done, nil
}

// goAway closes the WebSocket with the status 1001, as soon as the program has sent the rest of a frame. The client
// replies, and the program sees that reply as the client's own.
func (s *socket) goAway() {
	// A client that does not read, or does not close, loses the connection.
	_ = s.Conn.SetDeadline(time.Now().Add(closeTimeout)) // only closed connections have none
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return
	}
	s.closing = true
	if s.frames.between() {
		s.sendClose()
	}
}

// sendClose sends the frame. The caller holds mu.
func (s *socket) sendClose() {
	s.closed = true
	_, _ = s.Conn.Write(closeFrame) // the client may be gone
}

// frames follows the bytes of a response that begins a WebSocket, and of the frames after it.
type frames struct {
	started bool   // the header of the response has ended
	ending  int    // bytes of its last four that came
	head    []byte // of the frame that has begun
	rest    uint64 // bytes of its payload to come
}

// between reports whether a frame may begin.
func (f *frames) between() bool { return f.started && len(f.head) == 0 && f.rest == 0 }

// skip follows all of p.
func (f *frames) skip(p []byte) {
	for len(p) > 0 {
		p = p[f.next(p):]
	}
}

// headerEnd ends the header of a response.
const headerEnd = "\r\n\r\n"

// next follows p up to the end of a frame, or of the response's header, and returns how many bytes that took.
func (f *frames) next(p []byte) int {
	for i := 0; i < len(p); {
		if f.rest > 0 {
			n := min(f.rest, uint64(len(p)-i))
			f.rest -= n
			i += int(n) //nolint:gosec // at most len(p)
		} else {
			f.step(p[i])
			i++
		}
		if f.between() {
			return i
		}
	}
	return len(p)
}

// step follows one byte outside of payloads.
func (f *frames) step(c byte) {
	if !f.started {
		switch {
		case c == headerEnd[f.ending]:
			f.ending++
		case c == headerEnd[0]:
			f.ending = 1
		default:
			f.ending = 0
		}
		f.started = f.ending == len(headerEnd)
		return
	}
	f.head = append(f.head, c)
	if len(f.head) < 2 {
		return
	}
	size := 2
	length := uint64(f.head[1] & 0x7f)
	switch length {
	case 126:
		size += 2
	case 127:
		size += 8
	}
	extended := size
	if f.head[1]&0x80 != 0 {
		size += 4
	}
	if len(f.head) < size {
		return
	}
	switch length {
	case 126:
		length = uint64(binary.BigEndian.Uint16(f.head[2:extended]))
	case 127:
		length = binary.BigEndian.Uint64(f.head[2:extended])
	}
	f.head, f.rest = f.head[:0], length
}
