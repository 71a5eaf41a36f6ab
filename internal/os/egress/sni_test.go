package egress

import (
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"
	"time"
)

// clientHello returns the first message of Go's TLS client, for a server name.
func clientHello(t testing.TB, name string) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer server.Close()
	go func() {
		c := tls.Client(client, &tls.Config{ServerName: name, InsecureSkipVerify: true})
		c.SetDeadline(time.Now().Add(30 * time.Second))
		c.Handshake()
		client.Close()
	}()
	var all []byte
	buf := make([]byte, 4096)
	for {
		n, err := server.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, buf[:n]...)
		if _, err := serverName(all); !errors.Is(err, errShort) {
			return all
		}
	}
}

// records splits the handshake message of a hello into records of at most size bytes.
func records(hello []byte, size int) []byte {
	message := hello[recordHeader:]
	var out []byte
	for len(message) > 0 {
		n := min(size, len(message))
		out = append(out, recordHandshake, 3, 1, byte(n>>8), byte(n))
		out = append(out, message[:n]...)
		message = message[n:]
	}
	return out
}

func TestServerName(t *testing.T) {
	hello := clientHello(t, "Www.Example.com")
	for _, size := range []int{1, 3, 4, 5, 100, 16384} {
		cut := records(hello, size)
		if name, err := serverName(cut); name != "www.example.com" || err != nil {
			t.Errorf("records of %d bytes: got %q, %v", size, name, err)
		}
		for n := 0; n < len(cut); n += 1 + len(cut)/97 {
			if _, err := serverName(cut[:n]); !errors.Is(err, errShort) {
				t.Fatalf("records of %d bytes, first %d bytes: got error %v", size, n, err)
			}
		}
	}
	if name, err := serverName(clientHello(t, "192.0.2.1")); name != "" || err != nil { // addresses are not sent
		t.Errorf("hello without a name: got %q, %v", name, err)
	}
}

// nameExtension returns a server name extension with its header.
func nameExtension(hosts ...string) []byte {
	var list []byte
	for _, h := range hosts {
		list = append(append(list, nameTypeHost, byte(len(h)>>8), byte(len(h))), h...)
	}
	n := len(list)
	return append([]byte{0, 0, byte((n + 2) >> 8), byte(n + 2), byte(n >> 8), byte(n)}, list...)
}

// built returns a ClientHello with the given extensions.
func built(extensions ...[]byte) []byte {
	var ext []byte
	for _, e := range extensions {
		ext = append(ext, e...)
	}
	body := append([]byte{3, 3}, make([]byte, 32)...)
	body = append(body, 0, 0, 2, 0x13, 1, 1, 0)
	body = append(append(body, byte(len(ext)>>8), byte(len(ext))), ext...)
	n := len(body)
	message := append([]byte{handshakeHello, 0, byte(n >> 8), byte(n)}, body...)
	return records(append(make([]byte, recordHeader), message...), 16384)
}

func TestInvalidHellos(t *testing.T) {
	if name, err := serverName(built(nameExtension("a.com"))); name != "a.com" || err != nil {
		t.Fatalf("valid hello: got %q, %v", name, err)
	}
	for what, b := range map[string][]byte{
		"two extensions":   built(nameExtension("a.com"), nameExtension("b.com")),
		"two names":        built(nameExtension("a.com", "b.com")),
		"no name":          built(nameExtension("")),
		"an address":       built(nameExtension("1.2.3.4")),
		"a zero byte":      built(nameExtension("a.com\x00.b.com")),
		"a dot at the end": built(nameExtension("a.com.")),
		"cut extension":    built([]byte{0, 0, 0, 200}),
		"interrupted":      append(records(clientHello(t, "a.com"), 50)[:55], 23, 3, 3, 0, 1, 0),
		"another message":  records(append(make([]byte, recordHeader), 2, 0, 0, 1, 0), 100),
		"too long":         records(append(make([]byte, recordHeader), 1, 0xff, 0, 0), 100),
	} {
		name, err := serverName(b)
		if err == nil || errors.Is(err, errShort) {
			t.Errorf("%s: got %q, %v", what, name, err)
		}
	}
}

func TestSniff(t *testing.T) {
	for _, c := range []struct {
		bytes string
		end   bool
		kind  string // "": more is needed, "error"
	}{
		{"GET / HTTP/1.1\r\n", false, KindHTTP},
		{"\r\nWEIRD /x HTTP/1.0\n", false, KindHTTP},
		{"get / HTTP/1.1\n", false, KindHTTP},
		{"GET / HTTP/1.1", false, ""},
		{"GET", false, ""},
		{"GET", true, KindTCP},
		{"PRI * HTTP/2.0\r\n", false, "error"},
		{"GET /\r\n", false, KindTCP},
		{"SSH-2.0-OpenSSH_9.2 x\r\n", false, KindTCP},
		{"SSH-2.0-OpenSSH_9.2\r\n", false, KindTCP},
		{"\x00\x00\x00\x08", false, KindTCP},
		{"*1\r\n$4\r\nPING\r\n", false, KindTCP},
		{"GET " + strings.Repeat("a", maxRequestLine), false, "error"},
		{"\x16\x03\x01", false, ""},
		{"\x16\x03\x01", true, "error"},
		{"\x16\x09\x01\x00", false, KindTCP},
	} {
		f, ok := sniff([]byte(c.bytes), c.end)
		got := f.kind
		switch {
		case !ok:
			got = ""
		case f.err != nil:
			got = "error"
		}
		if got != c.kind {
			t.Errorf("sniff(%.30q, %v) = %q, want %q (%v)", c.bytes, c.end, got, c.kind, f.err)
		}
	}
}

func FuzzSniff(f *testing.F) {
	f.Add(clientHello(f, "example.com"))
	f.Add(records(clientHello(f, "example.com"), 7))
	f.Add(built(nameExtension("a.com"), nameExtension("b.com")))
	f.Add([]byte("GET / HTTP/1.1\r\nHost: x\r\n"))
	f.Add([]byte("\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, end := range []bool{false, true} {
			found, ok := sniff(b, end)
			if end && !ok && len(b) > 0 {
				t.Error("sniff was undecided at the end")
			}
			if found.name != "" && !validName(found.name) {
				t.Errorf("got name %q", found.name)
			}
		}
	})
}
