package repl

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// protocol is one cell's exchange with a driver.
type protocol interface {
	request(cell Cell) []byte
	// handle reads output of the driver. ended is set with the cell's exit code when the cell is over.
	handle(e guestapi.Event, yield func(Event) error) (code int, ended bool, err error)
	lastOutput() string // the last output of a driver that exited, as the end of a sentence
}

// newProtocol returns the protocol of a language. memory pays for what it buffers.
func newProtocol(l Language, memory *budget.Account) protocol {
	if l == Bash {
		return &bashProtocol{mark: newCellID(), memory: memory}
	}
	return &jsonProtocol{id: newCellID(), memory: memory}
}

// newCellID returns a random id for the exchange of one cell.
func newCellID() string {
	var raw [12]byte
	rand.Read(raw[:]) // never fails, by its documentation
	return hex.EncodeToString(raw[:])
}

// maxLine bounds one message of a driver, and so an image or a table in it, in bytes.
const maxLine = 16 << 20

// lineCost is how much memory a byte of a message takes until its event was handled.
const lineCost = 5

// maxForms bounds the forms of one result.
const maxForms = 64

// maxLastOutput bounds how much of a driver's last output is kept, in bytes.
const maxLastOutput = 2000

// jsonProtocol is lines of JSON, the protocol of the drivers of Python and JavaScript.
type jsonProtocol struct {
	id         string
	line       []byte
	stderrTail []byte
	memory     *budget.Account // pays for line
	paid       int64
	skips      bool // the rest of the line is dropped
}

func (t *jsonProtocol) request(cell Cell) []byte {
	// Strings and a map of strings always encode.
	request := map[string]any{"id": t.id, "code": cell.Code, "env": cell.Env}
	if cell.Owner != "" {
		request["owner"], request["defaults"] = cell.Owner, cell.Defaults
	}
	data, _ := json.Marshal(request)
	return append(data, '\n')
}

type driverMessage struct {
	ID        string `json:"id"`
	Type      string `json:"type"`
	Text      string `json:"text"`
	Data      forms  `json:"data"`
	Main      bool   `json:"main"`
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
	Count     int    `json:"count"`
	Code      int    `json:"code"`
}

func (t *jsonProtocol) handle(e guestapi.Event, yield func(Event) error) (int, bool, error) {
	if e.Stream == guestapi.StreamStderr {
		t.stderrTail = tail(append(t.stderrTail, e.Data...), maxLastOutput)
		return 0, false, nil
	}
	data := e.Data
	for {
		head, rest, whole := bytes.Cut(data, []byte{'\n'})
		if refused := t.add(head); refused != nil {
			if err := yield(Event{Kind: Stderr, Text: "output was dropped: " + refused.Error() + "\n"}); err != nil {
				return 0, false, err
			}
		}
		if !whole {
			return 0, false, nil
		}
		code, ended, err := t.handleLine(t.line, yield)
		t.reset()
		t.skips, data = false, rest
		if ended || err != nil {
			return code, ended, err
		}
	}
}

// add adds a part to the line. The line is dropped, and the first time the error says why, if that is too much.
func (t *jsonProtocol) add(part []byte) error {
	if t.skips {
		return nil
	}
	err := t.memory.Take(lineCost * int64(len(part)))
	if err == nil {
		t.paid += lineCost * int64(len(part))
		if len(t.line)+len(part) > maxLine {
			err = fmt.Errorf("the message of the driver has more than %d bytes", maxLine)
		}
	}
	if err != nil {
		t.reset()
		t.skips = true
		return err
	}
	t.line = append(t.line, part...)
	return nil
}

// reset forgets the line.
func (t *jsonProtocol) reset() {
	t.memory.Give(t.paid)
	t.line, t.paid = nil, 0
}

// forms are the forms of a result by media type: text is a string, and everything else stays as it is in JSON, since
// decoding it would take many times as much memory. Further ones than maxForms are dropped.
type forms map[string]any

// UnmarshalJSON implements json.Unmarshaler. The JSON is valid; what is no object has no forms.
func (f *forms) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	if first, err := d.Token(); err != nil || first != json.Delim('{') {
		return err
	}
	*f = forms{}
	for d.More() && len(*f) < maxForms {
		name, err := d.Token()
		if err != nil {
			return err
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return err
		}
		key, _ := name.(string) // the name of a member is a string
		var text string
		if raw[0] == '"' && json.Unmarshal(raw, &text) == nil {
			(*f)[key] = text
		} else {
			(*f)[key] = raw
		}
	}
	return nil
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
