package appapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/execstream"
)

// errGone ends a log whose reader has gone.
var errGone = errors.New("client has gone")

// lines sends the lines of a log as events.
type lines struct {
	out    *execstream.SSE
	asJSON bool // the data of events are objects
}

func (l *lines) send(id, text string, object any) error {
	var err error
	switch {
	case l.asJSON && id == "":
		err = l.out.Event("line", object)
	case l.asJSON:
		err = l.out.ID(id, "line", object)
	default:
		err = l.out.Text(id, textData(text))
	}
	if err != nil {
		return errGone
	}
	return nil
}

// end sends what a log ended with.
func (l *lines) end(c *Call, err error) {
	switch {
	case err == nil:
		_ = l.out.Raw("done", "end") // the client may have disconnected
	case !errors.Is(err, errGone) && c.Context().Err() == nil:
		_ = l.out.Event("error", api.AsError(err)) // the client may have disconnected
	}
}

// textData returns the data of the event of a line. Clients find the end of a stream by its text, and take objects for
// messages: lines that look like either, or that cannot be sent as they are, are sent as {"line": ...}.
func textData(line string) string {
	line = strings.ToValidUTF8(line, "\ufffd")
	text := strings.TrimSpace(line)
	plain := !strings.HasPrefix(text, "{") && text != "end" && !strings.Contains(line, "event: done") &&
		!strings.ContainsFunc(line, breaksLines)
	if plain {
		return line
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(map[string]string{"line": line}); err != nil {
		return fmt.Sprintf("%+q", line)
	}
	data := strings.TrimSpace(b.String())
	data = strings.ReplaceAll(data, "event: done", `event\u003a done`)
	return strings.ReplaceAll(data, "\u0085", `\u0085`)
}

// breaksLines reports whether some reader of event streams takes r for the end of a line.
func breaksLines(r rune) bool {
	return strings.ContainsRune("\x00\n\v\f\r\x1c\x1d\x1e\u0085\u2028\u2029", r)
}

// wantsJSON returns what the query says of the format of events.
func wantsJSON(q url.Values) (bool, error) {
	switch format := q.Get("format"); format {
	case "", "text":
		return false, nil
	case "json":
		return true, nil
	default:
		return false, api.Errorf(api.Invalid, "format: %.60q is neither text nor json", format).With("field", "format")
	}
}

// after returns the number of the last line that the client has.
func after(c *Call) (int64, error) {
	name, text := "after", c.R.URL.Query().Get("after")
	if last := c.R.Header.Get("Last-Event-ID"); last != "" {
		name, text = "Last-Event-ID", last
	}
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		const message = "%s: %.60q is not an id of this stream: leave it out to start over"
		return 0, api.Errorf(api.Invalid, message, name, text).With("field", name)
	}
	return n, nil
}

func (a API) deployLogs(c *Call) error {
	s, app, id, err := a.selected(c)
	if err != nil {
		return err
	}
	after, err := after(c)
	if err != nil {
		return err
	}
	q := c.R.URL.Query()
	asJSON, err := wantsJSON(q)
	if err != nil {
		return err
	}
	// Access to the deployment is checked before the stream begins, so that a refusal is an HTTP error.
	if _, err := s.Deployment(c.Context(), c.Principal, app, id); err != nil {
		return err
	}
	l := &lines{out: execstream.NewSSE(c.W), asJSON: asJSON}
	defer l.out.Close()
	follow := q.Get("follow") != "0"
	l.end(c, s.BuildLog(c.Context(), c.Principal, app, id, after, follow, func(one api.AppLogLine) error {
		return l.send(strconv.FormatInt(one.Seq, 10), one.Line, one)
	}))
	return nil
}

func (a API) runtimeLogs(c *Call) error {
	s, app, err := a.service(c)
	if err != nil {
		return err
	}
	q := c.R.URL.Query()
	asJSON, err := wantsJSON(q)
	if err != nil {
		return err
	}
	follow := q.Get("follow") == "1" || q.Get("follow") == "true"
	if _, err := s.Get(c.Context(), c.Principal, app); err != nil {
		return err
	}
	if !follow && !asJSON && !strings.Contains(c.R.Header.Get("Accept"), sse) {
		c.W.Header().Set("Content-Type", "text/plain; charset=utf-8")
		c.W.Header().Set("Cache-Control", "no-store")
		return s.RuntimeLog(c.Context(), c.Principal, app, false, func(one api.AppOutput) error {
			_, err := c.W.Write([]byte(one.Line + "\n"))
			return err
		})
	}
	l := &lines{out: execstream.NewSSE(c.W), asJSON: asJSON}
	defer l.out.Close()
	l.end(c, s.RuntimeLog(c.Context(), c.Principal, app, follow, func(one api.AppOutput) error {
		return l.send("", one.Line, one)
	}))
	return nil
}
