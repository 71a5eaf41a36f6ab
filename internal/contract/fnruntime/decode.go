package fnruntime

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Bounds of texts of a build and of failures.
const (
	maxText = 8 << 10 // bytes of one line of output, or of a message
	maxType = 128     // bytes of the type of a failure
)

// ErrFormat is the error of what is not a message of the program.
var ErrFormat = errors.New("malformed message of a function's machine")

// Decoder takes the output of a build piece by piece, as it comes, and returns its events.
//
// It holds at most MaxLine bytes. A Decoder belongs to one goroutine.
type Decoder struct {
	rest []byte
	skip bool // until the end of a line that was too long
}

// Write adds output and calls each with the events that it completes. Lines that are no events are counted and skipped:
// they are of programs that found their way to the output. The first error of each ends the call.
func (d *Decoder) Write(p []byte, each func(Event) error) (bad int, err error) {
	for len(p) > 0 {
		part, after, complete := bytes.Cut(p, []byte("\n"))
		if len(d.rest)+len(part) > MaxLine {
			d.rest, d.skip = nil, true
		}
		if !d.skip {
			d.rest = append(d.rest, part...)
		}
		if !complete {
			return bad, nil
		}
		p = after
		line, skip := d.rest, d.skip
		d.rest, d.skip = d.rest[:0], false
		if !skip && len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		e, err := DecodeEvent(line)
		if skip || err != nil {
			bad++
			continue
		}
		if err := each(e); err != nil {
			return bad, err
		}
	}
	return bad, nil
}

// DecodeEvent reads one line. Everything in the event is within the bounds of this package, and valid UTF-8.
func DecodeEvent(line []byte) (Event, error) {
	var e Event
	if len(line) > MaxLine {
		return e, fmt.Errorf("%w: a line of %d bytes", ErrFormat, len(line))
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return Event{}, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	switch {
	case e.Kind == KindLog:
		return Event{Kind: e.Kind, Line: text(e.Line, maxText)}, nil
	case e.Kind == KindResult && e.Result != nil && word(e.Result.Manager) && key(e.Result.Key):
		return Event{Kind: e.Kind, Result: e.Result}, nil
	case e.Kind == KindError && text(e.Error, maxText) != "":
		return Event{Kind: e.Kind, Error: text(e.Error, maxText)}, nil
	}
	return Event{}, fmt.Errorf("%w: an event of kind %.20q", ErrFormat, e.Kind)
}

// ParseSummary reads the trailer TrailerSummary.
func ParseSummary(trailer string) (Summary, error) {
	if len(trailer) > MaxSummary {
		return Summary{}, fmt.Errorf("%w: a summary of %d bytes", ErrFormat, len(trailer))
	}
	data, err := base64.StdEncoding.DecodeString(trailer)
	if err != nil {
		return Summary{}, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return DecodeSummary(data)
}

// DecodeSummary reads the JSON of a summary. Its texts are valid UTF-8 within the bounds of this package.
func DecodeSummary(data []byte) (Summary, error) {
	var s Summary
	if len(data) > MaxSummary {
		return s, fmt.Errorf("%w: a summary of %d bytes", ErrFormat, len(data))
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return Summary{}, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if !word(s.Style) || s.Micros < 0 || s.Memory < 0 {
		return Summary{}, fmt.Errorf("%w: the figures of a summary", ErrFormat)
	}
	s.Truncated = s.Truncated || len(s.Stdout) > MaxOutput || len(s.Stderr) > MaxOutput
	s.Stdout, s.Stderr = lines(s.Stdout, MaxOutput), lines(s.Stderr, MaxOutput)
	s.Failure = s.Failure.bounded()
	return s, nil
}

// DecodeFailure reads the JSON of a failure within the same bounds.
func DecodeFailure(data []byte) (Failure, error) {
	var f *Failure
	if len(data) > MaxSummary {
		return Failure{}, fmt.Errorf("%w: a failure of %d bytes", ErrFormat, len(data))
	}
	if err := json.Unmarshal(data, &f); err != nil || f == nil {
		return Failure{}, fmt.Errorf("%w: %w", ErrFormat, errors.Join(err, errors.New("a failure")))
	}
	return *f.bounded(), nil
}

func (f *Failure) bounded() *Failure {
	if f == nil {
		return nil
	}
	kind := text(f.Type, maxType)
	if kind == "" {
		kind = "Error"
	}
	return &Failure{Type: kind, Message: lines(f.Message, maxText), Stack: lines(f.Stack, MaxStack)}
}

// text bounds a text and removes what is not printable, other than tabs and escape sequences of terminals.
func text(s string, limit int) string {
	return clean(s, limit, func(r rune) bool { return r == '\t' || r == '\x1b' })
}

// lines does the same to a text that may have lines.
func lines(s string, limit int) string {
	return clean(s, limit, func(r rune) bool { return r == '\t' || r == '\x1b' || r == '\n' || r == '\r' })
}

func clean(s string, limit int, keep func(rune) bool) string {
	if len(s) > limit {
		s = s[:limit]
	}
	return strings.Map(func(r rune) rune {
		if !keep(r) && (r < ' ' || r == 0x7f || r == utf8.RuneError) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
}

var (
	keyForm  = regexp.MustCompile(`^([0-9a-f]{64})?$`)
	wordForm = regexp.MustCompile(`^([a-z0-9]{1,32})?$`)
)

func word(s string) bool { return wordForm.MatchString(s) }

func key(s string) bool { return keyForm.MatchString(s) }
