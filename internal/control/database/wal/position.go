// Package wal knows the format of PostgreSQL's write-ahead log: positions, segments, timelines and records.
//
// It is pure: it reads no file and no network. Its input comes from servers of users and from the object store, and is
// not trusted: every parser is bounded and returns an error or the end of the log for what it does not understand.
//
// The values are immutable and may be used concurrently, except for a Scanner, which has one user at a time.
package wal

import (
	"fmt"
	"strconv"
	"strings"
)

// SegmentBytes is the size of a segment. A cluster that was initialised with another size is refused.
const SegmentBytes = 16 << 20

// segmentsPerID is the number of segments for each value of the middle part of a segment's name.
const segmentsPerID = 1 << 32 / SegmentBytes

// LSN is a position in the log, in bytes. Its text is "16/B374D848".
type LSN uint64

// String implements fmt.Stringer.
func (l LSN) String() string { return fmt.Sprintf("%X/%X", uint32(l>>32), uint32(l)) }

// MarshalText implements encoding.TextMarshaler.
func (l LSN) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *LSN) UnmarshalText(text []byte) (err error) {
	*l, err = ParseLSN(string(text))
	return err
}

// ParseLSN parses the text of a position.
func ParseLSN(text string) (LSN, error) {
	high, low, ok := strings.Cut(text, "/")
	h, err1 := strconv.ParseUint(high, 16, 32)
	l, err2 := strconv.ParseUint(low, 16, 32)
	if !ok || err1 != nil || err2 != nil {
		return 0, fmt.Errorf("invalid position %.40q in the log: want one like 16/B374D848", text)
	}
	return LSN(h<<32 | l), nil
}

// Timeline numbers a history of the log. A server that ends a recovery begins a new one.
type Timeline uint32

// String returns the number as in the names of files: eight hexadecimal digits.
func (t Timeline) String() string { return fmt.Sprintf("%08X", uint32(t)) }

// ParseTimeline parses eight hexadecimal digits of either case.
func ParseTimeline(text string) (Timeline, error) {
	n, err := strconv.ParseUint(text, 16, 32)
	if err != nil || len(text) != 8 || n == 0 {
		return 0, fmt.Errorf("invalid timeline %.40q: want eight hexadecimal digits", text)
	}
	return Timeline(n), nil
}

// Segment is a file of the log: the bytes from Number*SegmentBytes on, as of a timeline.
type Segment struct {
	Timeline Timeline
	Number   uint64
}

// SegmentAt returns the segment with the byte at a position.
func SegmentAt(t Timeline, at LSN) Segment { return Segment{t, uint64(at) / SegmentBytes} }

// Start returns the position of the first byte.
func (s Segment) Start() LSN { return LSN(s.Number * SegmentBytes) }

// End returns the position after the last byte.
func (s Segment) End() LSN { return s.Start() + SegmentBytes }

// Next returns the following segment of the same timeline.
func (s Segment) Next() Segment { return Segment{s.Timeline, s.Number + 1} }

// String returns the name of the file, such as 000000010000000000000002.
func (s Segment) String() string {
	return fmt.Sprintf("%08X%08X%08X", uint32(s.Timeline), s.Number/segmentsPerID, s.Number%segmentsPerID)
}

// ParseSegment parses the name of a segment, of either case.
func ParseSegment(name string) (Segment, error) {
	bad := fmt.Errorf("invalid name of a segment %.40q: want 24 hexadecimal digits", name)
	if len(name) != 24 {
		return Segment{}, bad
	}
	t, err1 := strconv.ParseUint(name[:8], 16, 32)
	id, err2 := strconv.ParseUint(name[8:16], 16, 32)
	part, err3 := strconv.ParseUint(name[16:], 16, 32)
	if err1 != nil || err2 != nil || err3 != nil || t == 0 || part >= segmentsPerID {
		return Segment{}, bad
	}
	return Segment{Timeline(t), id*segmentsPerID + part}, nil
}
