package execstream

import (
	"strings"
	"unicode/utf8"
)

// TextDecoder decodes a stream of bytes that may be split anywhere into text.
//
// An incomplete character is held back until the rest of it arrives; invalid UTF-8 becomes U+FFFD. The zero value
// is ready to use, by one goroutine.
type TextDecoder struct{ held []byte }

// Decode adds bytes and returns the text that is complete now, which may be "".
func (t *TextDecoder) Decode(p []byte) string {
	if len(t.held) > 0 {
		p = append(t.held, p...)
		t.held = nil
	}
	cut := len(p)
	// An incomplete character has at most three bytes, so looking back three finds its start.
	for i := len(p) - 1; i >= 0 && i >= len(p)-utf8.UTFMax+1; i-- {
		if utf8.RuneStart(p[i]) {
			if !utf8.FullRune(p[i:]) {
				cut = i
			}
			break
		}
	}
	if cut < len(p) {
		t.held = append([]byte(nil), p[cut:]...)
	}
	return toValidUTF8(p[:cut])
}

// Flush returns what was held back, at the end of the stream.
func (t *TextDecoder) Flush() string {
	s := toValidUTF8(t.held)
	t.held = nil
	return s
}

// toValidUTF8 replaces every invalid byte by U+FFFD.
func toValidUTF8(p []byte) string {
	if utf8.Valid(p) {
		return string(p)
	}
	var b strings.Builder
	b.Grow(len(p) + 8)
	for len(p) > 0 {
		r, n := utf8.DecodeRune(p)
		b.WriteRune(r)
		p = p[n:]
	}
	return b.String()
}
