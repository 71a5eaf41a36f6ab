package repl

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
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
