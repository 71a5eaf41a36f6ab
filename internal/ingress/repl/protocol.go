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

// protocol is one cell's exchange with a driver.
type protocol interface {
	request(cell Cell) []byte
	// handle reads output of the driver. ended is set with the cell's exit code when the cell is over.
	handle(e guestapi.Event, yield func(Event) error) (code int, ended bool, err error)
	lastOutput() string // the last output of a driver that exited, as the end of a sentence
}

func newProtocol(l Language) protocol {
	var raw [12]byte
	rand.Read(raw[:]) // never fails, by its documentation
	id := hex.EncodeToString(raw[:])
	if l == Bash {
		return &bashProtocol{mark: id}
	}
	return &jsonProtocol{id: id}
}

// maxLine bounds one message of a driver, and so an image or a table in it, in bytes.
const maxLine = 64 << 20

// maxLastOutput bounds how much of a driver's last output is kept, in bytes.
const maxLastOutput = 2000

// jsonProtocol is lines of JSON, the protocol of the drivers of Python and JavaScript.
type jsonProtocol struct {
	id         string
	line       []byte
	stderrTail []byte
}

func (t *jsonProtocol) request(cell Cell) []byte {
	// Strings and a map of strings always encode.
	data, _ := json.Marshal(map[string]any{"id": t.id, "code": cell.Code, "env": cell.Env})
	return append(data, '\n')
}

type driverMessage struct {
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

func (t *jsonProtocol) handle(e guestapi.Event, yield func(Event) error) (int, bool, error) {
	if e.Stream == guestapi.StreamStderr {
		t.stderrTail = tail(append(t.stderrTail, e.Data...), maxLastOutput)
		return 0, false, nil
	}
	data := e.Data
	for {
		head, rest, whole := bytes.Cut(data, []byte{'\n'})
		if len(t.line)+len(head) > maxLine {
			return 0, false, errors.New("the message of the driver is too large")
		}
		t.line = append(t.line, head...)
		if !whole {
			return 0, false, nil
		}
		line := t.line
		t.line, data = nil, rest
		if code, ended, err := t.handleLine(line, yield); ended || err != nil {
			return code, ended, err
		}
	}
}

func (t *jsonProtocol) handleLine(line []byte, yield func(Event) error) (int, bool, error) {
	var a driverMessage
	// A line that is not a message of the driver, or belongs to an earlier cell whose background thread still
	// prints, is dropped.
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

func (t *jsonProtocol) lastOutput() string { return formatLastOutput(t.stderrTail) }

func formatLastOutput(b []byte) string {
	text := strings.TrimSpace(strings.ToValidUTF8(string(b), "\uFFFD"))
	if text == "" {
		return ""
	}
	return ": " + text
}

func tail(b []byte, n int) []byte {
	if len(b) <= n {
		return b
	}
	return append([]byte(nil), b[len(b)-n:]...)
}
