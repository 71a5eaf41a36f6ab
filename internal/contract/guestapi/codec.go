package guestapi

import (
	"encoding/binary"
	"errors"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of what is read from the wire, in bytes unless stated otherwise.
const (
	MaxRequest   = 4 << 20 // one encoded request or response
	MaxPath      = 4096
	MaxName      = 256     // user, tag, host name, address, program
	MaxString    = 1 << 20 // argument or environment variable
	MaxEntries   = 8192    // arguments, variables
	MaxContent   = 1 << 20 // one of Identity.Files
	MaxText      = 512     // error text
	MaxMetadata  = 4096    // metadata of one file, names and values together
	maxListItems = 64      // name servers, Identity.Files, metadata of one file
)

// ErrFormat is the error of bytes from the other end that do not follow the protocol.
var ErrFormat = errors.New("malformed message")

// buffer appends primitives. Integers have variable length; strings and bytes follow their length.
type buffer []byte

func (b *buffer) u8(v uint8)    { *b = append(*b, v) }
func (b *buffer) uint(v uint64) { *b = binary.AppendUvarint(*b, v) }
func (b *buffer) int(v int64)   { *b = binary.AppendVarint(*b, v) }

func (b *buffer) bool(v bool) {
	if v {
		b.u8(1)
	} else {
		b.u8(0)
	}
}

func (b *buffer) str(v string) {
	b.uint(uint64(len(v)))
	*b = append(*b, v...)
}

func (b *buffer) bytes(v []byte) {
	b.uint(uint64(len(v)))
	*b = append(*b, v...)
}

func (b *buffer) strs(v []string) {
	b.uint(uint64(len(v)))
	for _, s := range v {
		b.str(s)
	}
}

func (b *buffer) env(v map[string]string) {
	b.uint(uint64(len(v)))
	for k, s := range v {
		b.str(k)
		b.str(s)
	}
}

// time keeps nanoseconds since 1970; the zero time stays the zero time.
func (b *buffer) time(t time.Time) {
	b.bool(!t.IsZero())
	if !t.IsZero() {
		b.int(t.UnixNano())
	}
}

// parser reads primitives from a message. After the first fault it returns only zero values.
type parser struct {
	b   []byte
	bad bool
}

func (p *parser) fail() { p.bad, p.b = true, nil }

// end returns ErrFormat unless the message was read without a fault and to its end.
func (p *parser) end() error {
	if p.bad || len(p.b) > 0 {
		return ErrFormat
	}
	return nil
}

func (p *parser) u8() uint8 {
	if len(p.b) == 0 {
		p.fail()
		return 0
	}
	v := p.b[0]
	p.b = p.b[1:]
	return v
}

func (p *parser) uint() uint64 {
	v, n := binary.Uvarint(p.b)
	if n <= 0 {
		p.fail()
		return 0
	}
	p.b = p.b[n:]
	return v
}

func (p *parser) uintMax(limit uint64) uint64 {
	v := p.uint()
	if v > limit {
		p.fail()
		return 0
	}
	return v
}

func (p *parser) int() int64 {
	v, n := binary.Varint(p.b)
	if n <= 0 {
		p.fail()
		return 0
	}
	p.b = p.b[n:]
	return v
}

// count reads an int64 that must not be negative.
func (p *parser) count() int64 {
	v := p.int()
	if v < 0 {
		p.fail()
		return 0
	}
	return v
}

func (p *parser) bool() bool {
	v := p.u8()
	if v > 1 {
		p.fail()
	}
	return v == 1
}

// raw reads bytes, which are valid as long as the message is.
func (p *parser) raw(limit int) []byte {
	n := p.uintMax(uint64(limit))
	if n > uint64(len(p.b)) {
		p.fail()
		return nil
	}
	v := p.b[:n]
	p.b = p.b[n:]
	return v
}

func (p *parser) str(limit int) string { return string(p.raw(limit)) }

// utf8 reads a string of a guest that people will see: invalid UTF-8 is replaced.
func (p *parser) utf8(limit int) string { return strings.ToValidUTF8(p.str(limit), "\uFFFD") }

// text reads a string of a guest as one printable line.
func (p *parser) text(limit int) string { return Printable(p.str(limit)) }

func (p *parser) strs(entries, limit int) []string {
	n := p.uintMax(uint64(entries))
	var v []string
	for ; n > 0 && !p.bad; n-- {
		v = append(v, p.str(limit))
	}
	return v
}

func (p *parser) env() map[string]string {
	n := p.uintMax(MaxEntries)
	if n == 0 {
		return nil
	}
	v := make(map[string]string)
	for ; n > 0 && !p.bad; n-- {
		k := p.str(MaxString)
		v[k] = p.str(MaxString)
	}
	return v
}

// metadata reads the metadata of a file, from a guest or for one.
func (p *parser) metadata() map[string]string {
	n := p.uintMax(maxListItems)
	if n == 0 {
		return nil
	}
	v, total := make(map[string]string), 0
	for ; n > 0 && !p.bad; n-- {
		k, s := p.utf8(MaxMetadata), p.utf8(MaxMetadata)
		if total += len(k) + len(s); total > 2*MaxMetadata { // replacing invalid UTF-8 made it longer
			p.fail()
			return nil
		}
		v[k] = s
	}
	return v
}

func (p *parser) time() time.Time {
	if !p.bool() {
		return time.Time{}
	}
	return time.Unix(0, p.int())
}

func (p *parser) duration() time.Duration { return time.Duration(p.int()) }

// Printable makes s one line of printable UTF-8, of at most MaxText bytes.
func Printable(s string) string {
	clean := true
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] > '~' {
			clean = false
			break
		}
	}
	if !clean {
		s = strings.Map(func(r rune) rune {
			if r == utf8.RuneError || !unicode.IsPrint(r) {
				return '\uFFFD'
			}
			return r
		}, s)
	}
	if len(s) > MaxText {
		s = strings.ToValidUTF8(s[:MaxText], "")
	}
	return s
}
