package appapi

import (
	"encoding/json"
	"strings"
	"testing"
)

// FuzzTextData checks that a line of a log is the data of one event, and that it ends no stream.
func FuzzTextData(f *testing.F) {
	for _, s := range []string{
		"", "npm ci", "end", " end", "{}", `{"line":1}`, "event: done", "a\nb", "\r", "\x85\u2028", "\xff",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		want := strings.ToValidUTF8(line, "\ufffd")
		data := textData(line)
		if strings.ContainsFunc(data, breaksLines) || strings.TrimSpace(data) == "end" ||
			strings.Contains(data, "event: done") {
			t.Fatalf("%q: data %q ends a line or a stream", line, data)
		}
		if data == want {
			return
		}
		var object struct{ Line string }
		if err := json.Unmarshal([]byte(data), &object); err != nil || object.Line != want {
			t.Fatalf("%q: data %q stands for %q (%v)", line, data, object.Line, err)
		}
	})
}
