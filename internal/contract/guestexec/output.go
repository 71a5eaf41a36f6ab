package guestexec

import (
	"strings"
	"unicode/utf8"
)

// Keep is which end of too long an output is kept.
type Keep uint8

// The ends of an output.
const (
	Head Keep = iota
	Tail
)

// Limit is how many bytes are kept of an output, and which.
type Limit struct {
	Bytes int
	Keep  Keep
	// Pay, if not nil, pays for the memory of what is kept, in bytes. After an error no more is kept than before.
	Pay func(bytes int64) error
}

// cost returns how much memory output takes: while it is kept, and once more as valid UTF-8, in which an invalid byte
// has three.
func cost(p []byte) int64 {
	n := int64(3 * len(p))
	for len(p) > 0 {
		r, size := utf8.DecodeRune(p)
		if r == utf8.RuneError && size == 1 {
			n += 2
		}
		p = p[size:]
	}
	return n
}

// Output is what was kept of an output.
type Output struct {
	Data      []byte
	Truncated bool // the program printed more than Data
}

// Buffer keeps one end of an output.
type Buffer struct {
	limit  Limit
	data   []byte
	over   bool
	unpaid bool // Pay has failed
}

// NewBuffer returns an empty buffer with the given limit.
func NewBuffer(limit Limit) *Buffer { return &Buffer{limit: limit} }

// Add appends p and drops what exceeds the limit. It copies p.
func (b *Buffer) Add(p []byte) {
	if b.limit.Keep == Head {
		if room := b.limit.Bytes - len(b.data); len(p) > room {
			p, b.over = p[:room], true
		}
		if b.pay(p) {
			b.data = append(b.data, p...)
		}
		return
	}
	if grows := min(2*b.limit.Bytes-len(b.data), len(p)); grows > 0 && !b.pay(p[:grows]) {
		return
	}
	if len(p) >= b.limit.Bytes {
		b.over = b.over || len(b.data) > 0 || len(p) > b.limit.Bytes
		b.data = append(b.data[:0], p[len(p)-b.limit.Bytes:]...)
		return
	}
	b.data = append(b.data, p...)
	if len(b.data) > 2*b.limit.Bytes { // copying at twice the limit makes the cost of a byte constant
		b.data, b.over = append(b.data[:0], b.data[len(b.data)-b.limit.Bytes:]...), true
	}
}

// pay pays for p. It returns false, and p counts as dropped, if that fails or has failed before.
func (b *Buffer) pay(p []byte) bool {
	if len(p) == 0 || b.limit.Pay == nil && !b.unpaid {
		return true
	}
	if b.unpaid = b.unpaid || b.limit.Pay(cost(p)) != nil; b.unpaid {
		b.over = true
	}
	return !b.unpaid
}

// Output returns what is kept so far. It is valid until the next Add.
func (b *Buffer) Output() Output {
	if n := len(b.data) - b.limit.Bytes; n > 0 {
		return Output{Data: b.data[n:], Truncated: true}
	}
	return Output{Data: b.data, Truncated: b.over}
}

// Lines cuts output into printable lines of valid UTF-8.
//
// A line ends at a line feed, at a carriage return (progress bars write over themselves) and after Max bytes.
// Empty lines and control characters other than the tab are dropped.
type Lines struct {
	Max  int          // bytes of a line; the rest of a longer one is the next line
	Keep int          // how many of the last lines Last returns
	Emit func(string) // is called with each line; nil: lines are only kept

	part []byte
	last []string
}

// Add appends output that may be cut anywhere.
func (l *Lines) Add(data []byte) {
	for _, c := range data {
		if c == '\n' || c == '\r' || len(l.part) >= l.Max {
			l.Flush()
		}
		if c >= ' ' && c != 0x7f || c == '\t' {
			l.part = append(l.part, c)
		}
	}
}

// Flush ends the line that is not complete yet, if there is any of it.
func (l *Lines) Flush() {
	if len(l.part) == 0 {
		return
	}
	text := strings.ToValidUTF8(string(l.part), "?")
	l.part = l.part[:0]
	if l.last = append(l.last, text); len(l.last) > l.Keep {
		l.last = l.last[1:]
	}
	if l.Emit != nil {
		l.Emit(text)
	}
}

// Last returns the last complete lines, the newest at the end.
func (l *Lines) Last() []string { return l.last }
