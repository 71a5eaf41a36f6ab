package pghttp

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pandastack/pandastack/internal/ingress/pgedge"
	"github.com/pandastack/pandastack/internal/lib/scram"
)

func TestParamText(t *testing.T) {
	for _, test := range []struct{ json, want string }{
		{`"text"`, `text`},
		{`"it's \"q\" \u00e9"`, `it's "q" é`},
		{`1.50`, `1.50`},
		{`true`, `true`},
		{`{"a": [1]}`, `{"a": [1]}`},
		{`[]`, `{}`},
		{`[1, null, "a", true]`, `{1,NULL,"a",true}`},
		{`[[1,2],[3,4]]`, `{{1,2},{3,4}}`},
		{`["q\"b\\c\n", "NULL", ""]`, "{\"q\\\"b\\\\c\n\",\"NULL\",\"\"}"},
		{`[{"a":"b"}]`, `{"{\"a\":\"b\"}"}`},
	} {
		if got, err := paramText(json.RawMessage(test.json)); err != nil || string(got) != test.want {
			t.Errorf("paramText(%s) = %s, %v, want %s", test.json, got, err, test.want)
		}
	}
	if got, err := paramText(json.RawMessage(` null `)); got != nil || err != nil {
		t.Errorf("paramText(null) = %q, %v", got, err)
	}
	for _, bad := range []string{`"a\u0000b"`, strings.Repeat("[", 100) + strings.Repeat("]", 100)} {
		if got, err := paramText(json.RawMessage(bad)); err == nil {
			t.Errorf("paramText(%.20s) = %s, want an error", bad, got)
		}
	}
}

func TestAppendValue(t *testing.T) {
	for _, test := range []struct {
		value string
		oid   uint32
		wide  bool
		want  string
	}{
		{"t", pgtype.BoolOID, false, `true`},
		{"f", pgtype.BoolOID, false, `false`},
		{"7", pgtype.Int4OID, false, `7`},
		{"7", pgtype.Int8OID, false, `"7"`},
		{"7", pgtype.Int8OID, true, `7`},
		{"NaN", pgtype.Float8OID, false, `"NaN"`},
		{"1e+20", pgtype.Float8OID, false, `1e+20`},
		{"1.50", pgtype.NumericOID, true, `"1.50"`},
		{`{"a": 1}`, pgtype.JSONBOID, false, `{"a": 1}`},
		{`x"y`, pgtype.TextOID, false, `"x\"y"`},
		{`{1,NULL,3}`, pgtype.Int4ArrayOID, false, `[1,null,3]`},
		{`{{1,2},{3,4}}`, pgtype.Int4ArrayOID, false, `[[1,2],[3,4]]`},
		{`[0:1]={1,2}`, pgtype.Int4ArrayOID, false, `[1,2]`},
		{`{}`, pgtype.TextArrayOID, false, `[]`},
		{`{a,"b c","q\"\\",NULL,"NULL",""}`, pgtype.TextArrayOID, false, `["a","b c","q\"\\",null,"NULL",""]`},
		{`{1,`, pgtype.Int4ArrayOID, false, `"{1,"`},
		{`{1}x`, pgtype.Int4ArrayOID, false, `"{1}x"`},
	} {
		var out bytes.Buffer
		appendValue(&out, []byte(test.value), test.oid, test.wide)
		if out.String() != test.want {
			t.Errorf("appendValue(%s, %d) = %s, want %s", test.value, test.oid, out.String(), test.want)
		}
	}
}

func TestParseConnection(t *testing.T) {
	const text = "postgresql://us%40er:p%3Aw%2F@db1-pooler.db.test:5432/my%20db?sslmode=require"
	got, err := parseConnection(text, "db.test")
	want := connection{
		address: pgedge.Address{Endpoint: "db1", Target: pgedge.Pooler},
		role:    "us@er", password: "p:w/", database: "my db",
	}
	if err != nil || got != want {
		t.Errorf("parseConnection() = %+v, %v, want %+v", got, err, want)
	}
	if got, err := parseConnection("postgres://a:b@db1.db.test", "db.test"); err != nil || got.database != "a" {
		t.Errorf("parseConnection() = %+v, %v, want the database of the role's name", got, err)
	}
	for _, bad := range []string{
		"", "x", "mysql://a:secret@db1.db.test/x", "postgres://db1.db.test/x", "postgres://a@db1.db.test/x",
		"postgres://:secret@db1.db.test/x", "postgres://a:secret@other.test/x", "postgres://a:secret%00@db1.db.test/x",
		"postgres://a:secret@db1.db.test/%zz", "postgres://a:secret@db1.db.test/" + strings.Repeat("x", maxURLLength),
	} {
		if got, err := parseConnection(bad, "db.test"); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("parseConnection(%.40q) = %+v, %v, want an error without the password", bad, got, err)
		}
	}
}

func TestBegin(t *testing.T) {
	h := http.Header{}
	if got, err := begin(h); err != nil || got != "BEGIN" {
		t.Errorf("begin() = %q, %v", got, err)
	}
	h.Set(headerIsolation, "RepeatableRead")
	h.Set(headerReadOnly, "true")
	h.Set(headerDeferrable, "true")
	if got, err := begin(h); err != nil || got != "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY DEFERRABLE" {
		t.Errorf("begin() = %q, %v", got, err)
	}
	h.Set(headerIsolation, "READ COMMITTED; DROP TABLE x")
	if got, err := begin(h); err == nil {
		t.Errorf("begin() = %q, want an error", got)
	}
}

// A password that was right is remembered for its verifier, and for no other.
func TestLogins(t *testing.T) {
	l, err := newLogins()
	if err != nil {
		t.Fatal(err)
	}
	v, keys, err := scram.NewVerifier("right", []byte("salt"), 10)
	if err != nil {
		t.Fatal(err)
	}
	changed, _, err := scram.NewVerifier("changed", []byte("salt"), 10)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got, ok, err := l.check(v, "right"); err != nil || !ok || !bytes.Equal(got.Client, keys.Client) {
			t.Errorf("check of the right password = %v, %v", ok, err)
		}
		if _, ok, err := l.check(v, "wrong"); err != nil || ok {
			t.Errorf("check of a wrong password = %v, %v", ok, err)
		}
		if _, ok, err := l.check(changed, "right"); err != nil || ok {
			t.Errorf("check of a password that was changed = %v, %v", ok, err)
		}
	}
	if n := l.order.Len(); n != 1 {
		t.Errorf("%d passwords are remembered, want the right one", n)
	}
}

func FuzzParamText(f *testing.F) {
	f.Add(`[1, null, "a\"\\", [true], {"x": []}]`)
	f.Fuzz(func(t *testing.T, text string) {
		if !json.Valid([]byte(text)) {
			return
		}
		got, err := paramText(json.RawMessage(text))
		if err != nil || strings.TrimSpace(text)[0] != '[' {
			return
		}
		// PostgreSQL prints what it read in the same form, which is read back here.
		var out bytes.Buffer
		if !appendJSONArray(&out, got, pgtype.TextOID, false) || !json.Valid(out.Bytes()) {
			t.Fatalf("%s became %s, which became %s", text, got, out.Bytes())
		}
	})
}

func FuzzParseBatch(f *testing.F) {
	f.Add([]byte(`{"query":"select $1","params":[1,[2,"x"]],"arrayMode":true}`))
	f.Add([]byte(`{"queries":[{"query":"a"},{"query":"b","params":[null]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := parseBatch(data, false)
		if err == nil && (b.single && len(b.queries) != 1 || len(b.queries) > maxQueries) {
			t.Fatalf("accepted %+v", b)
		}
	})
}

func FuzzParseConnection(f *testing.F) {
	f.Add("postgresql://a:b@db1.db.test/c?d=e")
	f.Add("postgres://%00:x@db1-ro.db.test:1/")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseConnection(text, "db.test")
		if err == nil && (c.role == "" || c.password == "" || c.database == "" || c.address.Endpoint == "" ||
			strings.ContainsRune(c.role+c.password+c.database, 0)) {
			t.Fatalf("accepted %+v", c)
		}
	})
}

func FuzzAppendValue(f *testing.F) {
	f.Add([]byte(`{a,"b\"",{NULL}}`), uint32(pgtype.TextArrayOID))
	f.Add([]byte(`[0:1]={1,2}`), uint32(pgtype.Int4ArrayOID))
	f.Add([]byte(`{"a":1}`), uint32(pgtype.JSONOID))
	f.Add([]byte{0xff}, uint32(pgtype.TextOID))
	f.Fuzz(func(t *testing.T, value []byte, oid uint32) {
		for _, wide := range []bool{false, true} {
			var out bytes.Buffer
			appendValue(&out, value, oid, wide)
			if !json.Valid(out.Bytes()) {
				t.Fatalf("%q of type %d became %q", value, oid, out.Bytes())
			}
		}
	})
}
