package jsonstream_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/lib/jsonstream"
)

type inner struct {
	Name string         `json:"name"`
	More map[string]any `json:"more,omitempty"`
}

type embedded struct{ inner }

type sample struct {
	Text    string              `json:"text"`
	Empty   string              `json:"empty,omitempty"`
	Number  int64               `json:"number,omitempty"`
	Float   float64             `json:"float"`
	Flag    *bool               `json:"flag,omitempty"`
	List    []map[string]string `json:"list"`
	None    []string            `json:"none"`
	Bytes   []byte              `json:"bytes"`
	When    time.Time           `json:"when"`
	Raw     json.RawMessage     `json:"raw"`
	Inner   inner               `json:"inner,omitempty"`
	Pointer *inner              `json:"pointer"`
	Hidden  string              `json:"-"`
	Any     any                 `json:"any"`
	Big     json.Number         `json:"big"`
	private string
}

func check(t *testing.T, v any) {
	t.Helper()
	want, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := jsonstream.Write(&got, v); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("Write() = %.300s\nwant %.300s", got.Bytes(), want)
	}
}

func TestWriteIsMarshal(t *testing.T) {
	yes := true
	for _, v := range []any{
		nil, "", "x", 7, []string{"a", "<b>"}, map[string]int{"b": 1, "a": 2}, (*sample)(nil),
		embedded{inner{Name: "e"}},
		struct {
			Quoted int `json:"quoted,string"`
		}{3},
		[]byte("bytes"), [2]string{"a", "b"}, map[int]string{1: "x"},
		sample{}, &sample{
			Text: "a\u2028<&>\x00\xff", Number: 3, Float: 1e21, Flag: &yes,
			List:  []map[string]string{{"k": "v"}, nil, {}},
			Bytes: []byte{0, 1}, When: time.Unix(1, 2), Raw: json.RawMessage(` {"a": 1}`), Big: "12345678901234567890",
			Inner: inner{Name: "n", More: map[string]any{"z": []any{nil, 1.5, "x"}}}, Pointer: &inner{}, private: "p",
			Any: map[string]any{"deep": []inner{{Name: "d"}}},
		},
	} {
		check(t, v)
	}
}

// Strings that are longer than a piece are cut between characters.
func TestLongStrings(t *testing.T) {
	for _, unit := range []string{"x", "ü", "€", "\U0001F43C", "\xff", "\xe2\x82", "\x80", "\x00", "a\xf0\x9f\x90"} {
		for shift := range 5 {
			check(t, strings.Repeat("-", shift)+strings.Repeat(unit, 100_000/len(unit)))
		}
	}
}

func FuzzString(f *testing.F) {
	f.Add("x", 10)
	f.Fuzz(func(t *testing.T, s string, times int) {
		if len(s) > 0 {
			check(t, strings.Repeat(s, min(max(times, 1), 200_000/len(s)+1)))
		}
	})
}

// A long text is not copied.
func TestWriteHoldsNoCopy(t *testing.T) {
	v := sample{Text: strings.Repeat("\x00", 8<<20)}
	most := 0
	err := jsonstream.Write(writer(func(b []byte) { most = max(most, cap(b)) }), v)
	if err != nil {
		t.Fatal(err)
	}
	if most > 1<<20 {
		t.Errorf("%d bytes were written at once, want pieces", most)
	}
}

type writer func(b []byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }

type failing struct{ left int }

var errFull = errors.New("full")

func (f *failing) Write(b []byte) (int, error) {
	if f.left -= len(b); f.left < 0 {
		return 0, errFull
	}
	return len(b), nil
}

func TestErrorsEndTheWriting(t *testing.T) {
	v := sample{Text: strings.Repeat("x", 100_000), List: []map[string]string{{"a": "b"}}}
	for n := 0; n < 100_300; n += 97 {
		if err := jsonstream.Write(&failing{left: n}, v); !errors.Is(err, errFull) && n < 100_000 {
			t.Fatalf("Write() = %v with room for %d bytes, want %v", err, n, errFull)
		}
	}
	if err := jsonstream.Write(io.Discard, map[string]any{"a": func() {}}); err == nil {
		t.Error("a function was encoded")
	}
}
