package mux

import (
	"bytes"
	"io"
)

// reader reads frames from a byte channel. Its buffer starts small, since most channels are idle.
type reader struct {
	r          io.Reader
	buf        []byte
	start, end int
	last       int // bytes of the last read
}

const (
	bufferMin = 4 << 10
	bufferMax = headerSize + MaxMessage
)

func newReader(r io.Reader) *reader { return &reader{r: r, buf: make([]byte, bufferMin)} }

// peek returns the next n bytes, n at most bufferMax, without consuming them. They are valid until the next call of
// any method.
func (r *reader) peek(n int) ([]byte, error) {
	for r.end-r.start < n {
		r.shrink(n)
		if r.start > 0 && r.start+n > len(r.buf) {
			r.end = copy(r.buf, r.buf[r.start:r.end])
			r.start = 0
		}
		if n > len(r.buf) {
			r.grow(n)
		}
		got, err := r.r.Read(r.buf[r.end:])
		r.last = got
		r.end += got
		if got == 0 && err != nil {
			return nil, err
		}
		if r.end == len(r.buf) && len(r.buf) < bufferMax {
			r.grow(2 * len(r.buf))
		}
	}
	return r.buf[r.start : r.start+n], nil
}

// shrink replaces the large buffer of a channel on which little arrives, if n bytes fit in a small one.
func (r *reader) shrink(n int) {
	if r.start == r.end && len(r.buf) > bufferMin && r.last < bufferMin && n <= bufferMin {
		r.start, r.end, r.buf = 0, 0, make([]byte, bufferMin)
	}
}

func (r *reader) grow(n int) {
	size := len(r.buf)
	for size < n {
		size *= 2
	}
	buf := make([]byte, min(size, bufferMax))
	r.end = copy(buf, r.buf[r.start:r.end])
	r.start, r.buf = 0, buf
}

func (r *reader) discard(n int) {
	r.start += n
	if r.start == r.end {
		r.start, r.end = 0, 0
	}
}

// frame reads the next frame. The payload is valid until the next call of any method.
func (r *reader) frame() (header, []byte, error) {
	b, err := r.peek(headerSize)
	if err != nil {
		return header{}, nil, err
	}
	h := parseHeader(b)
	if b, err = r.peek(headerSize + h.length); err != nil {
		return header{}, nil, err
	}
	payload := b[headerSize:]
	r.discard(len(b))
	return h, payload, nil
}

// seek ignores bytes until a greeting with the given header, and consumes it.
func (r *reader) seek(magic [headerSize]byte) (Hello, error) {
	for {
		b, err := r.peek(headerSize + greetingSize)
		if err != nil {
			return Hello{}, err
		}
		if h, ok := parseGreeting(b, magic); ok {
			r.discard(headerSize + greetingSize)
			return h, nil
		}
		r.discard(1)
		rest := r.buf[r.start:r.end]
		if i := bytes.IndexByte(rest, magic[0]); i >= 0 {
			r.discard(i)
		} else {
			r.discard(len(rest))
		}
	}
}
