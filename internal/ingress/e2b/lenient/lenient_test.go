package lenient

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/lib/strictjson"
)

type rules struct {
	Out []string `json:"out"`
}

type gate struct {
	rules
	Hosts map[string][]struct {
		Header string `json:"header"`
	} `json:"hosts"`
}

func (gate) DecidesAccess() {}

type body struct {
	Name  string          `json:"name"`
	Gate  *gate           `json:"gate"`
	Raw   json.RawMessage `json:"raw"`
	Steps []struct {
		Args []string `json:"args"`
	} `json:"steps"`
}

func TestDecode(t *testing.T) {
	for _, tt := range []struct{ text, refused, logged string }{
		{text: `{"name":"a","gate":{"out":["x"],"hosts":{"h":[{"header":"v"}]}},"raw":{"any":1}}`},
		{text: `{"NAME":"a","Gate":null,"steps":null}`},
		{text: `{"colour":"red"}`, logged: "colour"},
		{text: `{"steps":[{"args":[],"cache":{"x":1}}]}`, logged: "steps.cache"},
		{text: `{"gate":{"colour":1}}`, refused: "gate.colour"},
		{text: `{"gate":{"hosts":{"h":[{"colour":1}]}}}`, refused: "gate.hosts.colour"},
		{text: `{"denyAll":true}`, refused: "denyAll"},
		{text: `{"steps":[{"authToken":"x"}]}`, refused: "steps.authToken"},
		{text: `{"allowInternetAccess":false}`, refused: "allowInternetAccess"},
	} {
		var log bytes.Buffer
		d := &Decoder{Log: slog.New(slog.NewTextHandler(&log, nil))}
		for range 2 {
			var v body
			err := d.Decode("POST /x", []byte(tt.text), &v)
			refused := ""
			if e, ok := errors.AsType[*UnknownError](err); ok {
				refused, err = e.Field, nil
			}
			if err != nil || refused != tt.refused {
				t.Errorf("Decode(%s) refuses %q, %v; want %q", tt.text, refused, err, tt.refused)
			}
		}
		if n := strings.Count(log.String(), "\n"); tt.logged == "" && n > 0 ||
			tt.logged != "" && (n != 1 || !strings.Contains(log.String(), "field="+tt.logged+"\n")) {
			t.Errorf("Decode(%s) twice logged %q, want %q once", tt.text, log.String(), tt.logged)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, text := range []string{``, `{`, `[]`, `{"name":1}`, `{} {}`, `{"steps":{}}`,
		`{"gate":{"colour":1},"gate":{}}`} {
		if err := new(Decoder).Decode("x", []byte(text), &body{}); err == nil {
			t.Errorf("Decode(%q) succeeded, want an error", text)
		}
	}
}

func TestLoggedFieldsAreBounded(t *testing.T) {
	d := &Decoder{Log: slog.New(slog.DiscardHandler)}
	for n := range maxLogged + 10 {
		var v body
		if err := d.Decode("x", []byte(`{"f`+strings.Repeat("x", n)+`":1}`), &v); err != nil {
			t.Fatal(err)
		}
	}
	if len(d.logged) != maxLogged {
		t.Errorf("%d fields are remembered, want %d", len(d.logged), maxLogged)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(`{"name":"a","gate":{"out":["x"]},"steps":[{"args":[]}]}`)
	f.Add(`{"steps":[{"x":1}],"gate":{"y":{}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		var v body
		strict := json.NewDecoder(strings.NewReader(text))
		strict.DisallowUnknownFields()
		_, twice := strictjson.DuplicateKey([]byte(text))
		whole := strict.Decode(&body{}) == nil && !twice
		if err := new(Decoder).Decode("x", []byte(text), &v); err != nil && whole && json.Valid([]byte(text)) {
			t.Errorf("Decode(%q) = %v, which a strict decoder accepts", text, err)
		}
	})
}
