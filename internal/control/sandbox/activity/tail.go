package activity

import (
	"bytes"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// LineTime says when a number of lines of a text arrived.
type LineTime struct {
	Lines int       `json:"lines"`
	At    time.Time `json:"at"` // zero: not known
}

// LineTimes says when the lines of a text arrived, the first line first.
type LineTimes []LineTime

// Line returns the time of the line with this number, from 0, or other if it is not known.
//
// A last line without an end has the time of the lines before it.
func (all LineTimes) Line(line int, other time.Time) time.Time {
	for _, m := range all {
		if !m.At.IsZero() {
			other = m.At
		}
		if line -= m.Lines; line < 0 {
			break
		}
	}
	return other
}

// Limits of the precision of arrival times.
const (
	maxPieces = 32
	sameTime  = 100 * time.Millisecond
)

// tail is the last output of a process on one stream, and when it arrived. The zero value is ready for use.
type tail struct {
	data       []byte
	nextOffset int64   // offset after the last output seen, so that a second follower adds nothing twice
	pieces     []piece // of data, in order and complete; the time of a piece may be unknown (zero)
}

type piece struct {
	bytes int
	at    time.Time
}

// add appends output that was not seen before.
func (t *tail) add(ev guestapi.Event, now time.Time) {
	data := ev.Data
	if seen := t.nextOffset - ev.Offset; seen > 0 {
		data = data[min(seen, int64(len(data))):]
	}
	t.nextOffset = max(t.nextOffset, ev.Offset+int64(len(ev.Data)))
	if len(data) == 0 {
		return
	}
	t.data = append(t.data, data...)
	if n := len(t.pieces); n > 0 && now.Sub(t.pieces[n-1].at) < sameTime {
		t.pieces[n-1].bytes += len(data)
	} else {
		t.pieces = append(t.pieces, piece{len(data), now.UTC()})
	}
	if len(t.pieces) > maxPieces {
		t.pieces[1].bytes += t.pieces[0].bytes
		t.pieces = t.pieces[1:]
	}
	if over := len(t.data) - maxTail; over > 0 {
		t.data = append(t.data[:0], t.data[over:]...)
		t.drop(over)
	}
}

// drop removes bytes from the front of the pieces.
func (t *tail) drop(n int) {
	for n > 0 && len(t.pieces) > 0 {
		cut := min(n, t.pieces[0].bytes)
		t.pieces[0].bytes -= cut
		n -= cut
		if t.pieces[0].bytes == 0 {
			t.pieces = t.pieces[1:]
		}
	}
}

// lineTimes returns when the lines arrived.
func (t *tail) lineTimes() LineTimes {
	var out LineTimes
	rest := t.data
	for _, p := range t.pieces {
		out = append(out, LineTime{bytes.Count(rest[:p.bytes], []byte{'\n'}), p.at})
		rest = rest[p.bytes:]
	}
	return out
}

// loadTail returns a tail with the given text and times.
func loadTail(text string, all LineTimes) tail {
	t := tail{data: []byte(text)}
	if len(all) == 0 && text != "" {
		t.pieces = []piece{{bytes: len(text)}}
		return t
	}
	for _, m := range all {
		end := 0
		for range m.Lines {
			end += strings.IndexByte(text[end:], '\n') + 1
		}
		t.pieces = append(t.pieces, piece{end, m.At})
		text = text[end:]
	}
	if n := len(t.pieces); n > 0 {
		t.pieces[n-1].bytes += len(text)
	}
	return t
}
