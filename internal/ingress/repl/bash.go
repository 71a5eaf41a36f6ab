package repl

import (
	"bytes"
	"encoding/base64"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"mime"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// bashProtocol finds marks in both outputs: one ends the cell, others carry the content of display; the rest is output
// of the cell.
type bashProtocol struct {
	mark     string
	out, err markScanner
}

// markScanner separates the marks from one output of the shell.
type markScanner struct {
	pending []byte // not emitted yet: may be the beginning of a mark or a character
	done    bool
	code    int
}

// bashReadyMark is the output of the driver before it reads a cell.
const bashReadyMark = "\x01\x02"

var validName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (t *bashProtocol) request(cell Cell) []byte {
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

func (t *bashProtocol) handle(e guestapi.Event, yield func(Event) error) (int, bool, error) {
	h, kind := &t.out, Stdout
	if e.Stream == guestapi.StreamStderr {
		h, kind = &t.err, Stderr
	} else if e.Offset == 0 {
		e.Data = bytes.TrimPrefix(e.Data, []byte(bashReadyMark))
	}
	err := h.feed(e.Data, t.mark, func(text string) error {
		if text == "" {
			return nil
		}
		return yield(Event{Kind: kind, Text: text})
	}, func(shown []byte) error {
		return yield(displayEvent(shown))
	})
	if err != nil {
		return 0, false, err
	}
	if !t.out.done || !t.err.done {
		return 0, false, nil
	}
	return t.out.code, true, nil
}

// feed adds output, and emits what is complete: text as valid UTF-8, and the content of display, without the marks.
func (h *markScanner) feed(data []byte, mark string, text func(string) error, shown func([]byte) error) error {
	if h.done {
		return nil // output of a background job of the cell
	}
	h.pending = append(h.pending, data...)
	open := []byte("\x01" + mark)
	for from := 0; ; {
		i := bytes.Index(h.pending[from:], open)
		if i < 0 {
			break
		}
		i += from
		after := h.pending[i+len(open):]
		if len(after) == 0 {
			break
		}
		inner, behind, whole := bytes.Cut(after[1:], []byte{2})
		next := bytes.Index(inner, open)
		switch {
		case after[0] == '=' && next >= 0: // display was interrupted
			if err := errors.Join(text(validUTF8(h.pending[:i])), shown(nil)); err != nil {
				return err
			}
			h.pending, from = append([]byte(nil), after[1+next:]...), 0
		case after[0] == ':' && (whole || len(inner) >= 8):
			code, err := strconv.Atoi(string(inner))
			if err != nil {
				code = 1
			}
			last := h.pending[:i]
			h.done, h.code, h.pending = true, code, nil
			return text(validUTF8(last))
		case after[0] == '=' && whole:
			if err := errors.Join(text(validUTF8(h.pending[:i])), shown(inner)); err != nil {
				return err
			}
			h.pending, from = append([]byte(nil), behind...), 0
		case after[0] == '=' && len(inner) > maxLine:
			return errors.New("the content of display is too large")
		case after[0] == ':' || after[0] == '=':
			return h.emit(i, text)
		default:
			from = i + 1
		}
	}
	cut := len(h.pending)
	if i := bytes.LastIndexByte(h.pending, 1); i >= 0 && len(h.pending)-i <= len(open) &&
		bytes.HasPrefix(open, h.pending[i:]) {
		cut = i
	}
	return h.emit(completeRunes(h.pending[:cut]), text)
}

// emit emits the first n bytes and keeps the others.
func (h *markScanner) emit(n int, text func(string) error) error {
	out := validUTF8(h.pending[:n])
	h.pending = append([]byte(nil), h.pending[n:]...)
	return text(out)
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
		var v any
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

// tableData turns CSV, whose first line names the columns, into a table. Content that is not CSV stays text.
func tableData(content []byte) map[string]any {
	out := map[string]any{"text/plain": validUTF8(content)}
	r := csv.NewReader(strings.NewReader(validUTF8(content)))
	rows, err := r.ReadAll()
	if err != nil || len(rows) == 0 {
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
