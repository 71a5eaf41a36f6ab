package fnruntime

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/pandastack/pandastack/internal/lib/jsonlines"
)

// Bounds of texts of a build and of failures.
const (
	maxText = 8 << 10 // bytes of one line of output, or of a message
	maxType = 128     // bytes of the type of a failure
)

// ErrFormat is the error of what is not a message of the program.
var ErrFormat = errors.New("malformed message of a function's machine")

// NewDecoder returns a decoder of the output of a build.
func NewDecoder() *jsonlines.Decoder[Event] {
	return &jsonlines.Decoder[Event]{Limit: MaxLine, Decode: DecodeEvent}
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
