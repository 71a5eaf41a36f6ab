package buildplan

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/pandastack/pandastack/internal/contract/buildevent"
)

// tailLines is how many of the last lines of a command are kept to find out why it failed.
const tailLines = 40

// output writes events. Its methods may be called concurrently.
type output struct {
	mu    sync.Mutex
	w     *json.Encoder
	step  string
	limit int64 // of bytes of lines
	bytes int64
	tail  []string
}

func newOutput(w io.Writer, limit int64) *output {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return &output{w: enc, limit: limit}
}

// event writes an event. An error of the pipe is not reported: its reader is gone, and ends this program.
func (o *output) event(e buildevent.Event) { _ = o.w.Encode(e) }

// line writes a line of output. Lines above the limit are left out, with one that says so.
func (o *output) line(level, text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	text = strings.TrimRight(text, "\r\n")
	if i := strings.LastIndexByte(text, '\r'); i >= 0 { // a progress bar: what is left of it in the end
		text = text[i+1:]
	}
	if o.tail = append(o.tail, text); len(o.tail) > tailLines {
		o.tail = o.tail[1:]
	}
	full := o.bytes > o.limit
	if full && level == buildevent.LevelInfo {
		return
	}
	o.bytes += int64(len(text)) + 64
	if !full && o.bytes > o.limit {
		level = buildevent.LevelWarn
		text = fmt.Sprintf("the output has more than %d KiB: the rest is left out", o.limit>>10)
	}
	o.event(buildevent.Event{Kind: buildevent.KindLog, Level: level, Step: o.step, Line: text})
}

func (o *output) info(format string, args ...any) {
	o.line(buildevent.LevelInfo, fmt.Sprintf(format, args...))
}

func (o *output) warn(format string, args ...any) {
	o.line(buildevent.LevelWarn, fmt.Sprintf(format, args...))
}

func (o *output) fail(f *buildevent.Failure) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(f.Message) > buildevent.MaxText {
		f.Message = f.Message[:buildevent.MaxText]
	}
	o.event(buildevent.Event{Kind: buildevent.KindError, Step: o.step, Error: f})
}

// begin starts a step, or another command of it.
func (o *output) begin(step string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.step, o.tail = step, nil
}

func (o *output) lastLines() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string(nil), o.tail...)
}

// lineWriter makes lines of what a command prints. It belongs to one goroutine.
type lineWriter struct {
	o    *output
	rest []byte
}

func (l *lineWriter) Write(p []byte) (int, error) {
	for i := 0; i < len(p); {
		end := i
		for end < len(p) && p[end] != '\n' {
			end++
		}
		room := buildevent.MaxText - len(l.rest)
		piece := p[i:end]
		if len(piece) > room {
			piece = piece[:room]
		}
		l.rest = append(l.rest, piece...)
		i += len(piece)
		switch {
		case i < len(p) && p[i] == '\n':
			i++
			l.flush()
		case len(l.rest) == buildevent.MaxText:
			l.flush()
		}
	}
	return len(p), nil
}

func (l *lineWriter) flush() {
	l.o.line(buildevent.LevelInfo, strings.ToValidUTF8(string(l.rest), "?"))
	l.rest = l.rest[:0]
}

// end writes a last line without an end.
func (l *lineWriter) end() {
	if len(l.rest) > 0 {
		l.flush()
	}
}
