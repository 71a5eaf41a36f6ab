// Package byterange reads the part of a file that a Range header of HTTP asks for (RFC 9110, section 14).
//
// It owns headers with one range of bytes, and knows no file but by its size. Its values do not change and may be
// used by many.
package byterange

import (
	"strconv"
	"strings"
)

// Range is a part of a file whose size is not known yet. Make one with Parse.
type Range struct {
	first, last int64 // last < 0: to the end
	suffix      int64 // > 0: only so many bytes at the end
}

// Parse reads a Range header with one range of bytes. What it does not understand it ignores, as the
// standard has it: false, and the whole file is the answer then.
func Parse(header string) (Range, bool) {
	spec, ok := strings.CutPrefix(header, "bytes=")
	first, last, dash := strings.Cut(strings.TrimSpace(spec), "-")
	if !ok || !dash || strings.Contains(spec, ",") {
		return Range{}, false
	}
	number := func(s string) int64 {
		n, err := strconv.ParseUint(s, 10, 62)
		if err != nil {
			return -1
		}
		return int64(n)
	}
	switch {
	case first == "":
		n := number(last)
		return Range{suffix: n}, n > 0
	case last == "":
		n := number(first)
		return Range{first: n, last: -1}, n >= 0
	default:
		a, b := number(first), number(last)
		return Range{first: a, last: b}, a >= 0 && b >= a
	}
}

// Resolve gives where the range begins in a file of so many bytes, and how many it has there: 0 if it begins at the
// end or behind it.
func (r Range) Resolve(size int64) (offset, length int64) {
	if r.suffix > 0 {
		r.first, r.last = max(size-r.suffix, 0), -1
	}
	if r.last < 0 || r.last >= size {
		r.last = size - 1
	}
	if r.first >= size {
		return size, 0
	}
	return r.first, r.last - r.first + 1
}
