package repl

import (
	"bytes"
	"encoding/base64"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"mime"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// bashProtocol finds marks in both outputs: one ends the cell, others carry the content of display; the rest is output
// of the cell.
type bashProtocol struct {
	mark     string
	out, err markScanner
	memory   *budget.Account // pays for the content of display
}

// markScanner separates the marks from one output of the shell. Every byte is looked at a bounded number of times.
type markScanner struct {
	pending []byte // not emitted yet: may be the beginning of a mark or a character, or the content of display so far
	scanned int    // bytes of pending in which the content of display does not end
	paid    int64  // for pending
	skips   bool   // the content of display is dropped up to its end
	done    bool
	code    int
}

// maxDisplay bounds the content of one display, in base64, in bytes.
const maxDisplay = 8 << 20

// displayCost is how much memory a byte of the content of display takes until its event was handled.
const displayCost = 6

// bashReadyMark is the output of the driver before it reads a cell.
const bashReadyMark = "\x01\x02"

var validName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// bashKeep notes how to bring a variable back to what it was before a cell.
const bashKeep = `if [[ -v %[1]s ]]; then __pds_undo+="%[1]s=${%[1]s@Q};"
[[ ${%[1]s@a} == *x* ]] || __pds_undo+="export -n %[1]s;"; else __pds_undo+="unset %[1]s;"; fi
`

func (t *bashProtocol) request(cell Cell) []byte {
	names := make([]string, 0, len(cell.Env))
	for name := range cell.Env {
		if validName.MatchString(name) {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	var env strings.Builder
	env.WriteString("eval \"${__pds_undo-}\"; __pds_undo=\n") // the variables of the cell before this one
	for _, name := range names {
		fmt.Fprintf(&env, bashKeep+"export %[1]s='%[2]s'\n",
			name, strings.ReplaceAll(cell.Env[name], "'", `'\''`))
	}
	encode := base64.StdEncoding.EncodeToString
	return []byte(t.mark + " " + encode([]byte(env.String())) + " " + encode([]byte(cell.Code+"\n")) + "\n")
}

func (t *bashProtocol) handle(e guestapi.Event, yield func(Event) error) (int, bool, error) {
	h, kind := &t.out, Stdout
	if e.Stream == guestapi.StreamStderr {
		h, kind = &t.err, Stderr
	} else if e.Offset == 0 {
		e.Data = bytes.TrimPrefix(e.Data, []byte(bashReadyMark))
	}
	if !h.done { // otherwise it is output of a background job of the cell
		f := &feed{h: h, open: []byte("\x01" + t.mark), kind: kind, yield: yield, memory: t.memory}
		if err := f.run(e.Data); err != nil {
			return 0, false, err
		}
	}
	if !t.out.done || !t.err.done {
		return 0, false, nil
	}
	return t.out.code, true, nil
}

// feed adds output to a markScanner, and emits what is complete: text as valid UTF-8, and the content of display,
// without the marks.
type feed struct {
	h      *markScanner
	open   []byte // what every mark begins with
	kind   Kind   // of text
	yield  func(Event) error
	memory *budget.Account
	at     int // bytes of pending that were emitted
}

// run adds data. What is kept of pending afterwards begins with what was not emitted.
func (f *feed) run(data []byte) error {
	h := f.h
	h.pending = append(h.pending, data...)
	if h.skips && !f.skip() {
		f.keep(max(0, len(h.pending)-len(f.open)+1))
		return nil
	}
	for from := f.at; ; {
		i := bytes.Index(h.pending[from:], f.open)
		if i < 0 || from+i+len(f.open) == len(h.pending) {
			break
		}
		i += from
		var ended bool
		var err error
		switch h.pending[i+len(f.open)] {
		case ':':
			ended, err = f.end(i)
		case '=':
			ended, err = f.display(i)
		default:
			from = i + 1
			continue
		}
		if ended || err != nil {
			return err
		}
		from = f.at
	}
	cut := len(h.pending)
	if i := bytes.LastIndexByte(h.pending, 1); i >= f.at && len(h.pending)-i <= len(f.open) &&
		bytes.HasPrefix(f.open, h.pending[i:]) {
		cut = i
	}
	cut = f.at + completeRunes(h.pending[f.at:cut])
	err := f.text(cut)
	f.keep(cut)
	return err
}

// keep drops the first n bytes of pending.
func (f *feed) keep(n int) {
	h := f.h
	rest := h.pending[n:]
	if len(rest) == 0 {
		rest = nil
	} else if n > 0 {
		rest = append([]byte(nil), rest...)
	}
	h.pending, f.at = rest, 0
}

// text emits pending up to n as text.
func (f *feed) text(n int) error {
	if n == f.at {
		return nil
	}
	text := validUTF8(f.h.pending[f.at:n])
	f.at = n
	return f.yield(Event{Kind: f.kind, Text: text})
}

// codeBytes is more than an exit code has.
const codeBytes = 8

// end handles the mark at i that ends the cell. It returns false if the cell has not ended.
func (f *feed) end(i int) (bool, error) {
	h := f.h
	inner, _, whole := bytes.Cut(h.pending[i+len(f.open)+1:], []byte{2})
	if !whole && len(inner) < codeBytes {
		err := f.text(i)
		f.keep(i)
		return true, err
	}
	code, err := strconv.Atoi(string(inner[:min(len(inner), 2*codeBytes)]))
	if err != nil {
		code = 1
	}
	err = f.text(i)
	h.done, h.code, h.pending = true, code, nil
	return true, err
}

// display handles the mark at i, behind which the content of display begins. wait is set if that is not complete.
func (f *feed) display(i int) (wait bool, err error) {
	h := f.h
	if err := f.text(i); err != nil {
		return false, err
	}
	start := i + len(f.open) + 1
	from := start
	if i == 0 {
		from = max(start, h.scanned)
	}
	end := bytes.IndexByte(h.pending[from:], 2)
	behind := len(h.pending)
	if end >= 0 {
		end += from
		behind = end
	}
	// The end of the part that was looked at may have been the beginning of a mark.
	back := max(start, from-len(f.open))
	if next := bytes.Index(h.pending[back:behind], f.open); next >= 0 { // display was interrupted
		f.finish(back + next)
		return false, f.yield(displayEvent(nil))
	}
	if end >= 0 {
		content := h.pending[start:end]
		refused := f.pay(len(content))
		event := displayRefused(refused)
		if refused == nil {
			event = displayEvent(content)
		}
		err := f.yield(event)
		f.finish(end + 1)
		return false, err
	}
	refused := f.pay(len(h.pending) - start)
	if len(h.pending)-start > maxDisplay {
		refused = fmt.Errorf("it has more than %d bytes in base64", maxDisplay)
	}
	if refused != nil {
		f.finish(len(h.pending) - len(f.open) + 1)
		h.skips = true
		f.keep(f.at)
		return true, f.yield(displayRefused(refused))
	}
	h.scanned = len(h.pending) - i
	if i > 0 {
		f.keep(i)
	}
	return true, nil
}

// pay pays for n bytes of content.
func (f *feed) pay(n int) error {
	want := displayCost*int64(n) - f.h.paid
	if want <= 0 {
		return nil
	}
	if err := f.memory.Take(want); err != nil {
		return err
	}
	f.h.paid += want
	return nil
}

// finish ends the content of display: pending continues at n.
func (f *feed) finish(n int) {
	f.memory.Give(f.h.paid)
	f.h.paid, f.h.scanned, f.at = 0, 0, n
}

// skip drops content of display up to its end, which is a byte 2 or the next mark. It returns false if that has not
// arrived.
func (f *feed) skip() bool {
	end, next := bytes.IndexByte(f.h.pending, 2), bytes.Index(f.h.pending, f.open)
	switch {
	case next >= 0 && (end < 0 || next < end):
		f.at = next
	case end >= 0:
		f.at = end + 1
	default:
		return false
	}
	f.h.skips = false
	return true
}

// displayRefused is the event for content of display that was dropped.
func displayRefused(why error) Event {
	if why == nil {
		return Event{}
	}
	return Event{Kind: Stderr, Text: "display: the content was dropped: " + why.Error() + "\n"}
}

func validUTF8(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }

// displayEvent decodes the argument of display: a media type, a colon, and the content in base64.
func displayEvent(b []byte) Event {
	kind, encoded, whole := bytes.Cut(b, []byte{':'})
	content, err := base64.StdEncoding.DecodeString(string(encoded))
	if err != nil || !whole {
		return Event{Kind: Stderr, Text: "display: the content was cut off\n"}
	}
	media, _, err := mime.ParseMediaType(validUTF8(kind))
	if err != nil || !strings.Contains(media, "/") {
		return Event{Kind: Stderr, Text: "display: give a media type, such as image/png\n"}
	}
	data := map[string]any{}
	switch {
	case media == "text/csv":
		data = tableData(content)
	case strings.HasSuffix(media, "json"):
		var v json.RawMessage // not decoded: that would take many times as much memory
		if err := json.Unmarshal(content, &v); err != nil {
			return Event{Kind: Stderr, Text: "display: the content is not JSON: " + err.Error() + "\n"}
		}
		data[media] = v
	case strings.HasPrefix(media, "text/") || strings.HasSuffix(media, "+xml"):
		data[media] = validUTF8(content)
	default:
		data[media] = base64.StdEncoding.EncodeToString(content)
	}
	if _, ok := data["text/plain"]; !ok {
		data["text/plain"] = fmt.Sprintf("<%s, %d bytes>", media, len(content))
	}
	return Event{Kind: Result, Data: data}
}

// Bounds of a table. Larger ones stay text, since a table takes many times as much memory.
const (
	maxTable = 1 << 20 // bytes of CSV
	maxCells = 1 << 16
)

// tableData turns CSV, whose first line names the columns, into a table. Content that is not CSV stays text.
func tableData(content []byte) map[string]any {
	out := map[string]any{"text/plain": validUTF8(content)}
	rows := readTable(content)
	if len(rows) == 0 {
		return out
	}
	columns := make(map[string]any, len(rows[0]))
	var page strings.Builder
	page.WriteString("<table>")
	for n, row := range rows {
		cell := "td"
		if n == 0 {
			cell = "th"
		}
		page.WriteString("<tr>")
		for i, value := range row {
			fmt.Fprintf(&page, "<%s>%s</%s>", cell, html.EscapeString(value), cell)
			name := rows[0][i]
			list, _ := columns[name].([]any)
			if n > 0 {
				list = append(list, parseNumber(value))
			}
			columns[name] = list
		}
		page.WriteString("</tr>")
	}
	page.WriteString("</table>")
	out["text/html"], out["application/vnd.pandastack.data+json"] = page.String(), columns
	return out
}

// readTable parses CSV. It returns nil if that is not possible within the bounds.
func readTable(content []byte) [][]string {
	if len(content) > maxTable {
		return nil
	}
	r := csv.NewReader(strings.NewReader(validUTF8(content)))
	var rows [][]string
	for cells := 0; ; {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			return rows
		}
		if cells += len(row); err != nil || cells > maxCells {
			return nil
		}
		rows = append(rows, row)
	}
}

// parseNumber returns the number that text is in JSON, or text itself.
func parseNumber(text string) any {
	var n float64
	if json.Unmarshal([]byte(text), &n) == nil {
		return n
	}
	return text
}

// completeRunes returns the length of b without an incomplete character at its end.
func completeRunes(b []byte) int {
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

func (t *bashProtocol) lastOutput() string {
	return formatLastOutput(tail(t.err.pending, maxLastOutput))
}
