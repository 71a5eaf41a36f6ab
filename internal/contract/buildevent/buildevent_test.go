package buildevent_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pandastack/pandastack/internal/contract/buildevent"
)

func TestDecodeRefusesWhatLeavesTheApp(t *testing.T) {
	key := strings.Repeat("a", 64)
	for _, line := range []string{
		``, `{}`, `[]`, `{"kind":"other"}`, `{"kind":"plan"}`, `{"kind":"result"}`, `{"kind":"source"}`,
		`{"kind":"error"}`,
		`{"kind":"source","source":{"commit":"main"}}`,
		`{"kind":"plan","plan":{"steps":[{"name":"a","key":"short"}]}}`,
		`{"kind":"plan","plan":{"steps":[{"name":"a\nb","key":"` + key + `"}]}}`,
		`{"kind":"plan","plan":{"steps":[{"name":"","key":"` + key + `"}]}}`,
		`{"kind":"result","result":{"workdir":"/etc"}}`,
		`{"kind":"result","result":{"workdir":"/app/../etc"}}`,
		`{"kind":"result","result":{"port":70000}}`,
		`{"kind":"result","result":{"start":"a\u0000b"}}`,
		`{"kind":"result","result":{"env":{"A=B":"c"}}}`,
		`{"kind":"result","result":{"static":{"dir":"/"}}}`,
		`{"kind":"result","result":{"static":{"dir":""}}}`,
		`{"kind":"result","result":{"static":{"dir":"/app","not_found":"../../etc/passwd"}}}`,
		`{"kind":"result","result":{"framework":"<script>"}}`,
		`{"kind":"error","error":{"code":"internal","message":"x"}}`,
		`{"kind":"error","error":{"code":"invalid","message":""}}`,
		`{"kind":"log","line":"` + strings.Repeat("x", buildevent.MaxLine) + `"}`,
	} {
		if e, err := buildevent.Decode([]byte(line)); !errors.Is(err, buildevent.ErrFormat) {
			t.Errorf("Decode(%.80s) = %+v, %v, want %v", line, e, err, buildevent.ErrFormat)
		}
	}
}

func TestDecodeKeepsOnlyTheFieldOfTheKind(t *testing.T) {
	e, err := buildevent.Decode([]byte(`{"kind":"log","level":"fatal","step":"a\u0000b","line":"x\r\u001b[1my",
		"error":{"code":"invalid","message":"m"},"result":{"workdir":"/etc"}}`))
	want := buildevent.Event{Kind: buildevent.KindLog, Level: "info", Step: "ab", Line: "x\x1b[1my"}
	if err != nil || e != want {
		t.Errorf("Decode() = %+v, %v, want %+v", e, err, want)
	}
}

func TestDecoderSurvivesPiecesAndLongLines(t *testing.T) {
	d := buildevent.NewDecoder()
	var got []string
	each := func(e buildevent.Event) error {
		got = append(got, e.Line)
		return nil
	}
	bad := 0
	for _, piece := range []string{`{"kind":"lo`, `g","line":"one"}` + "\n\nnoise\n", strings.Repeat("x",
		buildevent.MaxLine),
		"yyy", "\n" + `{"kind":"log","line":"two"}` + "\n", `{"kind":"log","line":"unfinished"}`} {
		n, err := d.Write([]byte(piece), each)
		if err != nil {
			t.Fatal(err)
		}
		bad += n
	}
	if !slices.Equal(got, []string{"one", "two"}) || bad != 2 {
		t.Errorf("lines %q with %d bad, want one and two with 2 bad", got, bad)
	}
	stop := errors.New("stop")
	if _, err := d.Write([]byte("\n"), func(buildevent.Event) error { return stop }); err != stop {
		t.Errorf("Write() = %v, want the error of its callback", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, e := range []buildevent.Event{
		{Kind: buildevent.KindLog, Line: "hello"},
		{Kind: buildevent.KindSource, Source: &buildevent.Source{Message: "m"}},
		{Kind: buildevent.KindPlan, Plan: &buildevent.Plan{Steps: []buildevent.Step{{Name: "a",
			Key: strings.Repeat("0", 64)}}}},
		{Kind: buildevent.KindResult, Result: &buildevent.Result{Workdir: "/app",
			Static: &buildevent.Static{Dir: "/app"}}},
		{Kind: buildevent.KindError, Error: &buildevent.Failure{Code: "invalid", Message: "m"}},
	} {
		data, err := json.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := buildevent.Decode(line)
		if err != nil {
			return
		}
		if len(e.Line) > buildevent.MaxText || !utf8.ValidString(e.Line) || strings.ContainsAny(e.Line+e.Step,
			"\n\x00") {
			t.Errorf("Decode(%q) has the line %q", line, e.Line)
		}
		if r := e.Result; r != nil && r.Workdir != "" && r.Workdir != "/app" && !strings.HasPrefix(r.Workdir, "/app/") {
			t.Errorf("Decode(%q) has the directory %q", line, r.Workdir)
		}
		again, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := buildevent.Decode(again); err != nil && len(again) <= buildevent.MaxLine {
			t.Errorf("Decode(%q), which was decoded from %q: %v", again, line, err)
		}
	})
}
