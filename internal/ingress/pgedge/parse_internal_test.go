package pgedge

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

func TestParseHost(t *testing.T) {
	for _, test := range []struct {
		host string
		want Address
		ok   bool
	}{
		{host: "db-1a.db.test", want: Address{Endpoint: "db-1a"}, ok: true},
		{host: "DB1.Db.Test.", want: Address{Endpoint: "db1"}, ok: true},
		{host: "db1-pooler.db.test", want: Address{Endpoint: "db1", Target: Pooler}, ok: true},
		{host: "db1-ro.db.test", want: Address{Endpoint: "db1", Target: ReadOnly}, ok: true},
		{host: "db1-RO-pooler.db.test", want: Address{Endpoint: "db1", Target: ReadOnlyPooler}, ok: true},
		{host: "-ro-pooler.db.test"},
		{host: "db.test"},
		{host: ".db.test"},
		{host: "a.b.db.test"},
		{host: "-pooler.db.test"},
		{host: "-a.db.test"},
		{host: "a-.db.test"},
		{host: "a_b.db.test"},
		{host: strings.Repeat("a", 64) + ".db.test"},
		{host: "db1.evil.test"},
		{host: "db1xdb.test"},
	} {
		if got, ok := ParseHost(test.host, "db.test"); ok != test.ok || ok && got != test.want {
			t.Errorf("ParseHost(%q) = %+v, %v, want %+v, %v", test.host, got, ok, test.want, test.ok)
		}
	}
}

func TestCutEndpoint(t *testing.T) {
	for _, test := range []struct{ options, id, rest string }{
		{"", "", ""},
		{"-c work_mem=4MB", "", "-c work_mem=4MB"},
		{"endpoint=db1", "db1", ""},
		{"endpoint%3Ddb1", "db1", ""},
		{"-c endpoint=db1 -c a=b", "db1", "-c a=b"},
		{"-cendpoint=db1", "db1", ""},
		{"--endpoint=db1 --a=b", "db1", "--a=b"},
		{"endpoint=db1 endpoint=db1", "db1", ""},
		{`-c search_path=x\ endpoint=no -c endpoint=db1`, "db1", `-c search_path=x\ endpoint=no`},
		{`-c app=\\ endpoint=db1`, "db1", `-c app=\\`},
		{"-c my.endpoint=x", "", "-c my.endpoint=x"},
	} {
		id, rest, err := cutEndpoint(test.options)
		if err != nil || id != test.id || rest != test.rest {
			t.Errorf("cutEndpoint(%q) = %q, %q, %v, want %q, %q", test.options, id, rest, err, test.id, test.rest)
		}
	}
	for _, options := range []string{"endpoint=", "endpoint=a endpoint=b"} {
		if id, _, err := cutEndpoint(options); err == nil {
			t.Errorf("cutEndpoint(%q) = %q, want an error", options, id)
		}
	}
}

func FuzzFindEndpoint(f *testing.F) {
	f.Add("db1.db.test", "-c endpoint=db1 -c a=b")
	f.Add("", `endpoint%3Dx\ y --endpoint=`)
	f.Fuzz(func(t *testing.T, host, options string) {
		a, rest, err := findEndpoint(host, "db.test", options)
		if err != nil {
			return
		}
		if strings.Trim(a.Endpoint, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || a.Endpoint[0] == '-' {
			t.Fatalf("%q, %q are of endpoint %q", host, options, a.Endpoint)
		}
		if id, again, err := cutEndpoint(rest); err != nil || id != "" && again == rest {
			t.Fatalf("the rest of %q is %q, which names %q: %v", options, rest, id, err)
		}
	})
}

func FuzzParseStartup(f *testing.F) {
	f.Add([]byte("\x00\x03\x00\x00user\x00a\x00\x00"))
	f.Add([]byte("\x00\x03\x27\x0fuser\x00a\x00_pq_.x\x001\x00\x00"))
	f.Add([]byte("\x04\xd2\x16\x2f"))
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := parseStartup(body)
		if err != nil {
			return
		}
		if s.params["user"] == "" || s.params["database"] == "" || s.minor > minorVersion {
			t.Fatalf("accepted %+v", s)
		}
		// What the database is sent is what was understood.
		raw, err := (&pgproto3.StartupMessage{ProtocolVersion: 3 << 16, Parameters: s.params}).Encode(nil)
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseStartup(raw[4:])
		if err != nil || len(again.params) != len(s.params) {
			t.Fatalf("%v became %v: %v", s.params, again.params, err)
		}
		for name, value := range s.params {
			if again.params[name] != value {
				t.Fatalf("%v became %v", s.params, again.params)
			}
		}
	})
}

func FuzzReadStartup(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x08\x04\xd2\x16\x2fX"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		body, err := readStartup(r)
		if err == nil && (len(body) > maxStartup || r.Len() != len(data)-len(body)-4) {
			t.Fatalf("read %d bytes and left %d of %d", len(body), r.Len(), len(data))
		}
	})
}

// A framer finds the same messages however the bytes are cut.
func FuzzFramer(f *testing.F) {
	f.Add([]byte("Z\x00\x00\x00\x05IS\x00\x00\x00\x04D\x00\x00\x00\x07abc"), uint8(3))
	f.Fuzz(func(t *testing.T, data []byte, size uint8) {
		collect := func(step int) (string, bool) {
			var got strings.Builder
			fr := framer{message: func(kind, detail byte) { got.Write([]byte{kind, detail}) }}
			for rest := data; len(rest) > 0; {
				n := min(step, len(rest))
				fr.feed(rest[:n])
				rest = rest[n:]
			}
			return got.String(), fr.between()
		}
		whole, between := collect(len(data) + 1)
		cut, also := collect(int(size) + 1)
		if whole != cut || between != also {
			t.Fatalf("in one piece %q, %v; in pieces of %d %q, %v", whole, between, size+1, cut, also)
		}
		var want strings.Builder
		rest := data
		for len(rest) >= 5 {
			n := uint64(binary.BigEndian.Uint32(rest[1:]))
			if n < 4 {
				break
			}
			if n > 4 && len(rest) == 5 {
				break
			}
			detail := byte(0)
			if n > 4 {
				detail = rest[5]
			}
			want.Write([]byte{rest[0], detail})
			rest = rest[min(n+1, uint64(len(rest))):]
		}
		if whole != want.String() {
			t.Fatalf("found %q, want %q", whole, want.String())
		}
	})
}

// Which messages make a session busy, and which end that.
func TestBusy(t *testing.T) {
	for _, test := range []struct {
		name     string
		messages string // of the client in upper case after >, of the database after <
		busy     bool
	}{
		{"fresh", "", false},
		{"query", ">Q", true},
		{"answered", ">Q<ZI", false},
		{"transaction", ">Q<ZT", true},
		{"failed-transaction", ">Q<ZE", true},
		{"parsed", ">P", true},
		{"pipelined", ">S>S<ZI", true},
		{"pipelined-answered", ">S>S<ZI<ZI", false},
		{"copy-in", ">S<G>S<ZI", false}, // the second Sync is ignored by the database
		{"flushed", ">P>H<ZI", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &session{tx: 'I'}
			for m := test.messages; m != ""; {
				switch {
				case m[0] == '>':
					s.sent(m[1])
					m = m[2:]
				case m[1] == 'Z':
					s.received('Z', m[2])
					m = m[3:]
				default:
					s.received(m[1], 0)
					m = m[2:]
				}
			}
			if s.busy() != test.busy {
				t.Errorf("busy = %v, want %v", s.busy(), test.busy)
			}
		})
	}
}

// An error of the edge comes between messages of the database, and never into one.
func TestFarewellBetweenMessages(t *testing.T) {
	why := &Error{Code: codeConnectionLost, Message: "gone"}
	for _, test := range []struct {
		name, before string
		said         bool
	}{
		{"fresh", "", true},
		{"between", "D\x00\x00\x00\x05x", true},
		{"in-a-head", "D\x00\x00", false},
		{"in-a-body", "D\x00\x00\x00\x06x", false},
		{"broken", "D\x00\x00\x00\x00", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			near, far := net.Pipe()
			s := &session{client: far}
			s.out.message = func(byte, byte) {}
			s.out.feed([]byte(test.before))
			go func() {
				s.farewell(why)
				_ = far.Close()
			}()
			got, err := io.ReadAll(near)
			if err != nil || bytes.Equal(got, why.encode()) != test.said || !test.said && len(got) > 0 {
				t.Errorf("the client got %q, %v; an error: %v", got, err, test.said)
			}
		})
	}
}
