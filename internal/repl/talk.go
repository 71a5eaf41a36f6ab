package repl

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pandastack/pandastack/internal/guestapi"
)

// talk is one cell's conversation with a driver.
type talk interface {
	request(cell Cell) []byte
	// take reads what the driver's process printed; ended with its code when the cell is over.
	take(e guestapi.Event, yield func(Event) error) (code int, ended bool, err error)
	lastWords() string // what a driver that died said last, as the end of a sentence
}

func newTalk(l Language) talk {
	var raw [12]byte
	rand.Read(raw[:]) // never fails, by its documentation
	id := hex.EncodeToString(raw[:])
	if l == Bash {
		return &bashTalk{mark: id}
	}
	return &lineTalk{id: id}
}

// maxLine bounds one answer of a driver, in bytes: an image or a table in it is not larger.
const maxLine = 64 << 20

// maxWords bounds what is kept of a driver's last words, in bytes.
const maxWords = 2000

// lineTalk speaks lines of JSON, as the drivers of Python and JavaScript do.
type lineTalk struct {
	id    string
	line  []byte
	words []byte
}

func (t *lineTalk) request(cell Cell) []byte {
	// Strings and a map of strings always encode.
	data, _ := json.Marshal(map[string]any{"id": t.id, "code": cell.Code, "env": cell.Env})
	return append(data, '\n')
}

type answer struct {
	ID        string         `json:"id"`
	Type      string         `json:"type"`
	Text      string         `json:"text"`
	Data      map[string]any `json:"data"`
	Main      bool           `json:"main"`
	Name      string         `json:"name"`
	Value     string         `json:"value"`
	Traceback string         `json:"traceback"`
	Count     int            `json:"count"`
	Code      int            `json:"code"`
}

func (t *lineTalk) take(e guestapi.Event, yield func(Event) error) (int, bool, error) {
	if e.Stream == guestapi.StreamStderr {
		t.words = keepLast(append(t.words, e.Data...), maxWords)
		return 0, false, nil
	}
	data := e.Data
	for {
		head, rest, whole := bytes.Cut(data, []byte{'\n'})
		if len(t.line)+len(head) > maxLine {
			return 0, false, errors.New("the driver's answer is too large")
		}
		t.line = append(t.line, head...)
		if !whole {
			return 0, false, nil
		}
		line := t.line
		t.line, data = nil, rest
		if code, ended, err := t.answer(line, yield); ended || err != nil {
			return code, ended, err
		}
	}
}

func (t *lineTalk) answer(line []byte, yield func(Event) error) (int, bool, error) {
	var a answer
	// A line that is none of the driver's, or of an earlier cell whose background thread still prints, is
	// dropped: the cell that it belongs to has ended.
	if json.Unmarshal(line, &a) != nil || a.ID != t.id {
		return 0, false, nil
	}
	switch Kind(a.Type) {
	case Stdout, Stderr, Result, Failed, Count:
		return 0, false, yield(Event{
			Kind: Kind(a.Type), Text: a.Text, Data: a.Data, Main: a.Main,
			Name: a.Name, Value: a.Value, Traceback: a.Traceback, Count: a.Count,
		})
	case "end":
		return a.Code, true, nil
	}
	return 0, false, nil
}

func (t *lineTalk) lastWords() string { return wordsOf(t.words) }

func wordsOf(b []byte) string {
	text := strings.TrimSpace(strings.ToValidUTF8(string(b), "\uFFFD"))
	if text == "" {
		return ""
	}
	return ": " + text
}

func keepLast(b []byte, n int) []byte {
	if len(b) <= n {
		return b
	}
	return append([]byte(nil), b[len(b)-n:]...)
}

// bashTalk finds the end mark on both outputs; everything before it is the cell's.
type bashTalk struct {
	mark     string
	out, err half
}

// half is one output of the shell.
type half struct {
	rest []byte // not told yet: may begin the mark, or a character
	done bool
	code int
}

var validName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (t *bashTalk) request(cell Cell) []byte {
	names := make([]string, 0, len(cell.Env))
	for name := range cell.Env {
		if validName.MatchString(name) {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	var env strings.Builder
	env.WriteString(":\n")
	for _, name := range names {
		fmt.Fprintf(&env, "export %s='%s'\n", name, strings.ReplaceAll(cell.Env[name], "'", `'\''`))
	}
	encode := base64.StdEncoding.EncodeToString
	return []byte(t.mark + " " + encode([]byte(env.String())) + " " + encode([]byte(cell.Code+"\n")) + "\n")
}

func (t *bashTalk) take(e guestapi.Event, yield func(Event) error) (int, bool, error) {
	h, kind := &t.out, Stdout
	if e.Stream == guestapi.StreamStderr {
		h, kind = &t.err, Stderr
	}
	if text := h.feed(e.Data, t.mark); text != "" {
		if err := yield(Event{Kind: kind, Text: text}); err != nil {
			return 0, false, err
		}
	}
	if !t.out.done || !t.err.done {
		return 0, false, nil
	}
	return t.out.code, true, nil
}

// feed adds what was printed and gives what can be told of it: valid UTF-8, without the mark.
func (h *half) feed(data []byte, mark string) string {
	if h.done {
		return "" // a background job of the cell that prints on
	}
	h.rest = append(h.rest, data...)
	open := []byte("\x01" + mark + ":")
	if i := bytes.Index(h.rest, open); i >= 0 {
		number, _, whole := bytes.Cut(h.rest[i+len(open):], []byte{2})
		if !whole && len(number) < 8 {
			return ""
		}
		code, err := strconv.Atoi(string(number))
		if err != nil {
			code = 1
		}
		text := strings.ToValidUTF8(string(h.rest[:i]), "\uFFFD")
		h.done, h.code, h.rest = true, code, nil
		return text
	}
	cut := len(h.rest)
	if i := bytes.LastIndexByte(h.rest, 1); i >= 0 && len(h.rest)-i < len(open) && bytes.HasPrefix(open, h.rest[i:]) {
		cut = i
	}
	cut = wholeRunes(h.rest[:cut])
	text := strings.ToValidUTF8(string(h.rest[:cut]), "\uFFFD")
	h.rest = append([]byte(nil), h.rest[cut:]...)
	return text
}

// wholeRunes gives how much of b does not end within a character.
func wholeRunes(b []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		c := b[len(b)-i]
		if utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-i:]) {
				return len(b) - i
			}
			break
		}
	}
	return len(b)
}

func (t *bashTalk) lastWords() string { return wordsOf(keepLast(t.err.rest, maxWords)) }
