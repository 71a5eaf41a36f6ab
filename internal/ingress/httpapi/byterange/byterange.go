// Package byterange parses Range headers of HTTP (RFC 9110, section 14) with one range of bytes.
//
// It knows nothing of a file but its size. Its values do not change and may be used by many goroutines.
package byterange

import (
	"strconv"
	"strings"
)

// Range is a part of a file whose size is not known yet. Make one with Parse.
type Range struct {
	first, last int64 // last < 0: to the end
	suffix      int64 // > 0: only that many bytes at the end
}

// Parse parses a Range header with one range of bytes.
//
// It returns false for any other header: the standard wants such a header ignored and the whole file sent.
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

// Resolve returns the offset and length of the range in a file of the given size.
//
// The length is 0 if the range begins at or after the end of the file.
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
