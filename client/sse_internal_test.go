package client

import (
	"strings"
	"testing"
)

// FuzzEvents feeds the parser of event streams: no input may make it panic or yield an event without data.
func FuzzEvents(f *testing.F) {
	f.Add("event: a\ndata: b\n\n")
	f.Add(":c\r\n\r\ndata\n\ndata:\ndata: x\n\n")
	f.Fuzz(func(t *testing.T, s string) {
		n := 0
		_ = readEvents(strings.NewReader(s), func(event) error { n++; return nil }) // a line may be too long
		if n > strings.Count(s, "data") {
			t.Errorf("readEvents(%q) yields %d events, want at most one per data field", s, n)
		}
	})
}
