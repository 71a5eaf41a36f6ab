package repl

import (
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/guestapi"
)

func feedAll(t *testing.T, k talk, pieces ...guestapi.Event) (events []Event, code int, ended bool) {
	t.Helper()
	for _, p := range pieces {
		var err error
		code, ended, err = k.take(p, func(e Event) error { events = append(events, e); return nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	return events, code, ended
}

// Every cut of what bash prints must give the same text, with characters whole and the mark unseen.
func TestBashTalkAtEveryCut(t *testing.T) {
	const mark = "abc"
	whole := "gr\u00fc\u00df \U0001F43C \x01 not the mark \x01abd:\n\x01abc:7\x02"
	for cut := 0; cut <= len(whole); cut++ {
		k := &bashTalk{mark: mark}
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
				t.Fatalf("cut at %d: a character was cut: %q", cut, e.Text)
			}
			text.WriteString(e.Text)
		}
		if want := whole[:strings.Index(whole, "\x01abc:")]; text.String() != want {
			t.Fatalf("cut at %d: told %q, want %q", cut, text.String(), want)
		}
	}
}

func TestLineTalkAtEveryCut(t *testing.T) {
	whole := `{"id":"other","type":"stdout","text":"no"}` + "\nnoise\n" +
		`{"id":"me","type":"stdout","text":"grüß"}` + "\n" + `{"id":"me","type":"result","data":{"text/plain":"42"},"main":true}` + "\n" +
		`{"id":"me","type":"end","code":3}` + "\n"
	for cut := range len(whole) {
		events, code, ended := feedAll(t, &lineTalk{id: "me"},
			guestapi.Event{Stream: guestapi.StreamStdout, Data: []byte(whole[:cut])},
			guestapi.Event{Stream: guestapi.StreamStdout, Data: []byte(whole[cut:])})
		if !ended || code != 3 || len(events) != 2 || events[0].Text != "grüß" || events[1].Data["text/plain"] != "42" || !events[1].Main {
			t.Fatalf("cut at %d: %+v with %d", cut, events, code)
		}
	}
}

func TestEnvOfBashIsQuoted(t *testing.T) {
	req := string((&bashTalk{mark: "m"}).request(Cell{Env: map[string]string{"A": "it's; $(x)", "bad name": "x", "": "y"}}))
	if !strings.HasPrefix(req, "m ") || strings.Count(req, " ") != 2 || !strings.HasSuffix(req, "\n") {
		t.Fatalf("request %q", req)
	}
}

func FuzzTalk(f *testing.F) {
	f.Add([]byte("x\x01m:0\x02"), []byte(`{"id":"m","type":"end"}`+"\n"), 3)
	f.Fuzz(func(t *testing.T, a, b []byte, cut int) {
		for _, k := range []talk{&bashTalk{mark: "m"}, &lineTalk{id: "m"}} {
			all := append(append([]byte(nil), a...), b...)
			cut := min(max(cut, 0), len(all))
			for _, part := range [][]byte{all[:cut], all[cut:]} {
				for _, s := range []guestapi.Stream{guestapi.StreamStdout, guestapi.StreamStderr} {
					_, _, err := k.take(guestapi.Event{Stream: s, Data: part}, func(e Event) error {
						if strings.ToValidUTF8(e.Text, "") != e.Text {
							t.Errorf("text %q is not UTF-8", e.Text)
						}
						return nil
					})
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			_ = k.lastWords()
		}
	})
}
