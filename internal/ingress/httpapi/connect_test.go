package httpapi_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/pandastack/pandastack/api"
)

// TestConnectPort sends a request through a connection to a port, and reads the answer to its end.
func TestConnectPort(t *testing.T) {
	w := newFixture(t)
	w.program(func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "from inside") })
	_, path := w.create()
	if e := w.do("GET", path+"/ports/3000/connect", "").failed(t); e.Code != api.Invalid ||
		!strings.Contains(e.Message, "upgrade") {
		t.Errorf("without an upgrade: %+v", e)
	}
	header := http.Header{"Authorization": {"Bearer " + keyMember}}
	c := w.dial(path+"/ports/3000/connect", &websocket.DialOptions{HTTPHeader: header})
	defer c.CloseNow()
	request := "GET / HTTP/1.1\r\nHost: inside\r\nConnection: close\r\n\r\n"
	if err := c.Write(t.Context(), websocket.MessageBinary, []byte(request)); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	for {
		kind, data, err := c.Read(t.Context())
		if err != nil {
			t.Fatalf("%v after %q", err, got.String())
		}
		if kind == websocket.MessageText {
			break
		}
		got.Write(data)
	}
	if !strings.HasSuffix(got.String(), "from inside") {
		t.Errorf("the port returns %q", got.String())
	}
	if err := c.Write(t.Context(), websocket.MessageText, []byte("end")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("after both ends the socket ends with %v", err)
	}
	if last := w.entries("", 2)[0]; last.Action != "port 3000" || last.Outcome != "ok" {
		t.Errorf("the last entry of the audit log is %+v", last)
	}
}
