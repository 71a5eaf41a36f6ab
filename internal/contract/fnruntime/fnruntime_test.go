package fnruntime_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pandastack/pandastack/internal/contract/fnruntime"
	"github.com/pandastack/pandastack/internal/contract/fnruntime/bundletest"
)

func TestDecodeEventRefusesWhatIsNone(t *testing.T) {
	for _, line := range []string{
		``, `{}`, `[]`, `{"kind":"other"}`, `{"kind":"result"}`, `{"kind":"error"}`,
		`{"kind":"error","error":"\u0000"}`,
		`{"kind":"result","result":{"key":"short"}}`, `{"kind":"result","result":{"manager":"<script>"}}`,
		`{"kind":"log","line":"` + strings.Repeat("x", fnruntime.MaxLine) + `"}`,
	} {
		if e, err := fnruntime.DecodeEvent([]byte(line)); !errors.Is(err, fnruntime.ErrFormat) {
			t.Errorf("DecodeEvent(%.80s) = %+v, %v, want %v", line, e, err, fnruntime.ErrFormat)
		}
	}
	e, err := fnruntime.DecodeEvent([]byte(`{"kind":"log","line":"a\u0000b\n","error":"x","result":{"key":"y"}}`))
	if err != nil || e != (fnruntime.Event{Kind: fnruntime.KindLog, Line: "ab"}) {
		t.Errorf("DecodeEvent() = %+v, %v, want the printable text of the line alone", e, err)
	}
}

func TestDecoderSurvivesPiecesAndLongLines(t *testing.T) {
	d := fnruntime.NewDecoder()
	var got []string
	each := func(e fnruntime.Event) error {
		got = append(got, e.Line)
		return nil
	}
	bad := 0
	for _, piece := range []string{
		`{"kind":"lo`, `g","line":"one"}` + "\n\nnoise\n", strings.Repeat("x", fnruntime.MaxLine), "yyy",
		"\n" + `{"kind":"log","line":"two"}` + "\n", `{"kind":"log","line":"unfinished"}`,
	} {
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
	if _, err := d.Write([]byte("\n"), func(fnruntime.Event) error { return stop }); err != stop {
		t.Errorf("Write() = %v, want the error of its callback", err)
	}
}

func TestSummaryIsBounded(t *testing.T) {
	big := strings.Repeat("x", fnruntime.MaxOutput+1)
	data, err := json.Marshal(fnruntime.Summary{
		Stdout: big, Stderr: "a\x00\x1b[1m\n", Failure: &fnruntime.Failure{Message: "m\x01", Stack: big},
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := fnruntime.ParseSummary(base64.StdEncoding.EncodeToString(data))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Stdout) != fnruntime.MaxOutput || !s.Truncated || s.Stderr != "a\x1b[1m\n" || s.Failure.Type != "Error" ||
		s.Failure.Message != "m" || len(s.Failure.Stack) != fnruntime.MaxStack {
		t.Errorf("summary with %d bytes, truncated %t, %q, %.100v", len(s.Stdout), s.Truncated, s.Stderr, s.Failure)
	}
	for _, bad := range []string{"", "e30", "!", base64.StdEncoding.EncodeToString([]byte(`{"micros":-1}`)),
		base64.StdEncoding.EncodeToString([]byte(`{"style":"<b>"}`)), strings.Repeat("A", fnruntime.MaxSummary+4)} {
		if s, err := fnruntime.ParseSummary(bad); !errors.Is(err, fnruntime.ErrFormat) {
			t.Errorf("ParseSummary(%.40q) = %+v, %v, want %v", bad, s, err, fnruntime.ErrFormat)
		}
	}
}

func names(t testing.TB, data []byte) []string {
	t.Helper()
	var all []string
	err := fnruntime.EachFile(bytes.NewReader(data), func(name string, _ *tar.Header, _ io.Reader) error {
		all = append(all, name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestManifests(t *testing.T) {
	for name, c := range map[string]struct {
		bundle []byte
		want   []string // nil: nothing to install
		whole  bool
	}{
		"text":    {bundle: []byte("print(1)")},
		"nothing": {bundle: bundletest.Tar(t, "handler.py", "x")},
		"empty":   {bundle: bundletest.Tar(t)},
		"pip": {
			bundletest.Tar(t, "./requirements.txt", "flask", "handler.py", "x"), []string{"requirements.txt"}, false,
		},
		"more pip": {bundletest.Tar(t, "requirements.txt", "-r requirements-a.txt", "requirements-a.txt", "x"),
			[]string{"requirements-a.txt", "requirements.txt"}, false},
		"editable": {bundletest.Tar(t, "requirements.txt", "flask\n-e .\n"), nil, true},
		"uv": {
			bundletest.Tar(t, "uv.lock", "x", "pyproject.toml", "y"), []string{"pyproject.toml", "uv.lock"}, false,
		},
		"poetry": {
			bundletest.Tar(t, "poetry.lock", "x", "pyproject.toml", "y", "poetry.toml", "z"),
			[]string{"poetry.lock", "poetry.toml", "pyproject.toml"}, false,
		},
		"poetry of a directory": {bundletest.Tar(t, "poetry.lock", "[package.source]\ntype = \"directory\"\n",
			"pyproject.toml", "y"), nil, true},
		"poetry of a repository": {bundletest.Tar(t, "poetry.lock", "[package.source]\ntype = \"git\"\n",
			"pyproject.toml", "y"), []string{"poetry.lock", "pyproject.toml"}, false},
		"uv of a directory": {bundletest.Tar(t, "uv.lock", "source = { directory = \"./a\" }\n", "pyproject.toml", "y"),
			nil, true},
		"uv of the project": {bundletest.Tar(t, "uv.lock", "source = { editable = \".\" }\n", "pyproject.toml", "y"),
			[]string{"pyproject.toml", "uv.lock"}, false},
		"lock only": {bundle: bundletest.Tar(t, "uv.lock", "x")},
		"npm": {bundletest.Tar(t, "package.json", `{"dependencies":{"a":"1"}}`, "package-lock.json", "{}",
			"index.js", ""),
			[]string{"package-lock.json", "package.json"}, false},
		"no packages": {bundle: bundletest.Tar(t, "package.json", `{"type":"module"}`, "package-lock.json", "{}")},
		"vendored": {bundle: bundletest.Tar(t, "package.json", `{"dependencies":{"a":"1"}}`,
			"node_modules/a/index.js", "")},
		"local": {bundletest.Tar(t, "package.json", `{"dependencies":{"a":"file:../a"}}`), nil, true},
		"below": {bundle: bundletest.Tar(t, "a/package.json", `{"dependencies":{"a":"1"}}`)},
	} {
		t.Run(name, func(t *testing.T) {
			var keys []string
			for _, bundle := range [][]byte{c.bundle, bundletest.Gzip(t, c.bundle)} {
				got, key, err := fnruntime.Manifests(bytes.NewReader(bundle))
				if err != nil {
					t.Fatal(err)
				}
				if (key != "") != (c.whole || c.want != nil) || (got != nil) != (c.want != nil) {
					t.Fatalf("key %q with %d bytes, want files %q, whole %t", key, len(got), c.want, c.whole)
				}
				if got != nil && !slices.Equal(names(t, got), c.want) {
					t.Errorf("files %q, want %q", names(t, got), c.want)
				}
				keys = append(keys, key)
			}
			if !c.whole && keys[0] != keys[1] {
				t.Errorf("keys %q of the same files", keys)
			}
		})
	}
	bundle := bundletest.Tar(t, "requirements.txt", "flask", "handler.py", "x")
	a, keyA, errA := fnruntime.Manifests(bytes.NewReader(bundle))
	b, keyB, errB := fnruntime.Manifests(bytes.NewReader(bundletest.Tar(t, "z", "y", "requirements.txt", "flask")))
	if errors.Join(errA, errB) != nil || keyA != keyB || !bytes.Equal(a, b) {
		t.Errorf("keys %s and %s, %v, %v, want that of the requirements alone", keyA, keyB, errA, errB)
	}
}

func TestBundlesAreBounded(t *testing.T) {
	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	head := bundletest.Tar(t, "a", "")[:512]
	if _, err := w.Write(head); err != nil {
		t.Fatal(err)
	}
	files := bytes.Repeat(head, 1000)
	for range fnruntime.MaxFiles/1000 + 1 {
		if _, err := w.Write(files); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := fnruntime.Manifests(&bomb); !errors.Is(err, fnruntime.ErrBundle) {
		t.Errorf("Manifests() of a bundle with many files: %v, want %v", err, fnruntime.ErrBundle)
	}
	zeros := bytes.NewReader(bundletest.Gzip(t, make([]byte, 8<<20)))
	content, isTar, err := fnruntime.OpenBundle(zeros)
	if n, _ := io.Copy(io.Discard, content); err != nil || !isTar || n != 8<<20 {
		t.Errorf("OpenBundle() = %t, %v with %d bytes", isTar, err, n)
	}
}

func FuzzDecodeEvent(f *testing.F) {
	f.Add([]byte(`{"kind":"log","line":"x"}`))
	f.Add([]byte(`{"kind":"error","error":"x"}`))
	f.Add([]byte(`{"kind":"result","result":{"manager":"pip","key":"` + strings.Repeat("0", 64) + `"}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := fnruntime.DecodeEvent(line)
		if err != nil {
			return
		}
		if !utf8.ValidString(e.Line+e.Error) || strings.ContainsAny(e.Line+e.Error, "\x00\n") {
			t.Errorf("DecodeEvent(%q) = %+v", line, e)
		}
		again, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fnruntime.DecodeEvent(again); err != nil && len(again) <= fnruntime.MaxLine {
			t.Errorf("DecodeEvent(%q), which was decoded from %q: %v", again, line, err)
		}
	})
}

func FuzzDecodeSummary(f *testing.F) {
	f.Add([]byte(`{"style":"event","stdout":"x","exit_code":3,"failure":{"type":"A","message":"b","stack":"c"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := fnruntime.DecodeSummary(data)
		if err == nil && (len(s.Stdout) > fnruntime.MaxOutput || !utf8.ValidString(s.Stdout+s.Stderr) ||
			s.Micros < 0 || s.Memory < 0 || s.Failure != nil && s.Failure.Type == "") {
			t.Errorf("DecodeSummary(%q) = %+v", data, s)
		}
		if g, err := fnruntime.DecodeFailure(data); err == nil && (g.Type == "" || len(g.Stack) > fnruntime.MaxStack) {
			t.Errorf("DecodeFailure(%q) = %+v", data, g)
		}
	})
}

func FuzzManifests(f *testing.F) {
	f.Add(bundletest.Tar(f, "package.json", `{"dependencies":{"a":"1"}}`, "requirements.txt", "x", "l@", "/etc/passwd"))
	f.Add(bundletest.Gzip(f, bundletest.Tar(f, "requirements.txt", "-e .")))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, key, err := fnruntime.Manifests(bytes.NewReader(data))
		if err == nil && (got != nil && key == "" || key != "" && len(key) != 64) {
			t.Errorf("Manifests(%q) = %d bytes, %q", data, len(got), key)
		}
	})
}
