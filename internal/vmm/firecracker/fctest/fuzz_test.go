package fctest

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
)

// receivedConn is a connection with received data.
type receivedConn struct {
	net.Conn
	io.Reader
}

func (s receivedConn) Read(p []byte) (int, error) { return s.Reader.Read(p) }

// FuzzParsers parses arbitrary bodies with every schema, and arbitrary lines with the other
// parsers.
func FuzzParsers(f *testing.F) {
	f.Add([]byte("CONNECT 5252\n"))
	f.Add(
		[]byte(
			`{"drive_id":"disk0","path_on_host":"x","is_root_device":false,"rate_limiter":{"ops":{"size":1,` +
				`"refill_time":1}}}`,
		),
	)
	f.Add([]byte("--id a --api-sock b"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, minor := range []int{12, 15, 17} {
			v := fcapi.Version{Major: 1, Minor: minor}
			for op, fields := range schemas {
				if check(v, fields, data) == nil && !bytes.Contains(data, []byte("{")) {
					t.Errorf("%s accepted %q", op, data)
				}
			}
			if s, err := parse(v, append([]string{"firecracker"}, strings.Fields(string(data))...)); err == nil &&
				len(s.id) > 64 {
				t.Errorf("parse accepted the ID %q", s.id)
			}
		}
		if port, err := request(receivedConn{Reader: bytes.NewReader(data)}); err == nil &&
			!bytes.HasPrefix(data, []byte("CONNECT ")) {
			t.Errorf("request accepted %q as a connection to port %d", data, port)
		}
		if s, err := parseJailer(strings.Fields(string(data))); err == nil && s.id == "" {
			t.Errorf("parseJailer accepted %q", data)
		}
	})
}
