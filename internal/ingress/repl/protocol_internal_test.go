package repl

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

func feedAll(t *testing.T, k protocol, pieces ...guestapi.Event) (events []Event, code int, ended bool) {
	t.Helper()
	for _, p := range pieces {
		var err error
		code, ended, err = k.handle(p, func(e Event) error { events = append(events, e); return nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	return events, code, ended
}

// Output of bash that is split anywhere gives the same text, with whole characters and without the mark.
func TestBashProtocolSplitAnywhere(t *testing.T) {
	const mark = "abc"
	whole := "gr\u00fc\u00df \U0001F43C \x01 not the mark \x01abd:\n\x01abc:7\x02"
	for cut := 0; cut <= len(whole); cut++ {
		k := &bashProtocol{mark: mark}
		events, code, ended := feedAll(t, k,
			guestapi.Event{Stream: guestapi.StreamStdout, Data: []byte(whole[:cut])},
			guestapi.Event{Stream: guestapi.StreamStdout, Data: []byte(whole[cut:])},
			guestapi.Event{Stream: guestapi.StreamStderr, Data: []byte("\x01abc:7\x02")})
		if !ended || code != 7 {
			t.Fatalf("cut at %d: ended %v with %d, want 7", cut, ended, code)
		}
		var text strings.Builder
		for _, e := range events {
			if strings.ContainsRune(e.Text, '\uFFFD') {
				t.Fatalf("cut at %d: text %q has an incomplete character", cut, e.Text)
			}
			text.WriteString(e.Text)
		}
		if want := whole[:strings.Index(whole, "\x01abc:")]; text.String() != want {
			t.Fatalf("cut at %d: text is %q, want %q", cut, text.String(), want)
		}
	}
}

// Output with content of display that is split anywhere gives the same results between the same texts.
func TestDisplaySplitAnywhere(t *testing.T) {
	const mark = "abc"
	whole := "one\x01abc=image/png:iVBORw==\x02two\x01abc=application/json:eyJhIjoxfQ==\x02" +
		"\x01abc=text/html:PGI+Z3LDvMOfPC9iPg==\x02\x01abc=text/csv:YSxiCjEseAoyLHkK\x02\x01abcx" +
		"\x01abc=image/png:!\x02\x01abc=json:e30=\x02\x01abc=image/png:iVB\x01abc:0\x02"
	for cut := 0; cut <= len(whole); cut++ {
		events, _, ended := feedAll(t, &bashProtocol{mark: mark},
			guestapi.Event{Stream: guestapi.StreamStderr, Data: []byte("\x01abc:0\x02")},
			guestapi.Event{Stream: guestapi.StreamStdout, Data: []byte(whole[:cut])},
			guestapi.Event{Stream: guestapi.StreamStdout, Data: []byte(whole[cut:])})
		var got []string
		for _, e := range events {
			switch {
			case e.Kind == Result:
				data, err := json.Marshal(e.Data)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, string(data))
			case len(got) > 0 && !strings.HasPrefix(got[len(got)-1], "{") && e.Kind == Stdout:
				got[len(got)-1] += e.Text
			default:
				got = append(got, e.Text)
			}
		}
		want := []string{
			"one", `{"image/png":"iVBORw==","text/plain":"\u003cimage/png, 4 bytes\u003e"}`, "two",
			`{"application/json":{"a":1},"text/plain":"\u003capplication/json, 7 bytes\u003e"}`,
			`{"text/html":"\u003cb\u003egrüß\u003c/b\u003e","text/plain":"\u003ctext/html, 13 bytes\u003e"}`,
			`{"application/vnd.pandastack.data+json":{"a":[1,2],"b":["x","y"]},"text/html":"\u003ctable\u003e` +
				`\u003ctr\u003e\u003cth\u003ea\u003c/th\u003e\u003cth\u003eb\u003c/th\u003e\u003c/tr\u003e` +
				`\u003ctr\u003e\u003ctd\u003e1\u003c/td\u003e\u003ctd\u003ex\u003c/td\u003e\u003c/tr\u003e` +
				`\u003ctr\u003e\u003ctd\u003e2\u003c/td\u003e\u003ctd\u003ey\u003c/td\u003e\u003c/tr\u003e` +
				`\u003c/table\u003e","text/plain":"a,b\n1,x\n2,y\n"}`,
			"\x01abcx", "display: the content was cut off\n", "display: give a media type, such as image/png\n",
			"display: the content was cut off\n",
		}
		if !ended || !slices.Equal(got, want) {
			t.Fatalf("cut at %d: ended %v, %q\nwant %q", cut, ended, got, want)
		}
	}
}

func TestJSONProtocolSplitAnywhere(t *testing.T) {
	whole := `{"id":"other","type":"stdout","text":"no"}` + "\nnoise\n" +
		`{"id":"me","type":"stdout","text":"grüß"}` + "\n" +
		`{"id":"me","type":"result","data":{"text/plain":"42"},"main":true}` + "\n" +
		`{"id":"me","type":"end","code":3}` + "\n"
	for cut := range len(whole) {
		events, code, ended := feedAll(t, &jsonProtocol{id: "me"},
			guestapi.Event{Stream: guestapi.StreamStdout, Data: []byte(whole[:cut])},
			guestapi.Event{Stream: guestapi.StreamStdout, Data: []byte(whole[cut:])})
		if !ended || code != 3 || len(events) != 2 || events[0].Text != "grüß" ||
			events[1].Data["text/plain"] != "42" ||
			!events[1].Main {
			t.Fatalf("cut at %d: events %+v with code %d, want all with code 3", cut, events, code)
		}
	}
}

func TestBashEnvironmentIsQuoted(t *testing.T) {
	req := string(
		(&bashProtocol{mark: "m"}).request(Cell{Env: map[string]string{"A": "it's; $(x)", "bad name": "x", "": "y"}}),
	)
	if !strings.HasPrefix(req, "m ") || strings.Count(req, " ") != 2 || !strings.HasSuffix(req, "\n") {
		t.Fatalf("request is %q, want a quoted value", req)
	}
}

func FuzzTalk(f *testing.F) {
	f.Add([]byte("x\x01m:0\x02"), []byte(`{"id":"m","type":"end"}`+"\n"), 3)
	f.Add([]byte("x\x01m=text/csv:YSxi\x02y\x01m"), []byte("=a/b:\x02"), 3)
	f.Fuzz(func(t *testing.T, a, b []byte, cut int) {
		for _, k := range []protocol{&bashProtocol{mark: "m"}, &jsonProtocol{id: "m"}} {
			all := append(append([]byte(nil), a...), b...)
			cut := min(max(cut, 0), len(all))
			for _, part := range [][]byte{all[:cut], all[cut:]} {
				for _, s := range []guestapi.Stream{guestapi.StreamStdout, guestapi.StreamStderr} {
					_, _, err := k.handle(guestapi.Event{Stream: s, Data: part}, func(e Event) error {
						if strings.ToValidUTF8(e.Text, "") != e.Text {
							t.Errorf("text %q is not valid UTF-8", e.Text)
						}
						return nil
					})
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			_ = k.lastOutput()
		}
	})
}
