package appedge_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/pandastack/pandastack/internal/ingress/appedge"
)

// A WebSocket of a deployment that is replaced is closed once with 1001, after the message that was being sent, and the
// program sees it closed.
func TestWebSocketGoesAway(t *testing.T) {
	f := newFixture(t, nil).listen()
	const size = 1 << 20
	sending, seen := make(chan struct{}), make(chan websocket.StatusCode, 1)
	addr := program(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.CloseNow()
		if kind, data, err := c.Read(r.Context()); err != nil || c.Write(r.Context(), kind, data) != nil {
			t.Error("no echo", err)
		}
		close(sending)
		_ = c.Write(r.Context(), websocket.MessageBinary, make([]byte, size))
		_, _, err = c.Read(r.Context())
		seen <- websocket.CloseStatus(err)
	}))
	f.apps.change(func() { f.apps.start("sbx1", "dpl1", addr) })
	c, _, err := websocket.Dial(t.Context(), f.server.URL, &websocket.DialOptions{Host: host})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	c.SetReadLimit(2 * size)
	if err := c.Write(t.Context(), websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, data, err := c.Read(t.Context()); err != nil || string(data) != "hello" {
		t.Fatalf("echo %q %v", data, err)
	}
	<-sending
	if n := f.edge.InFlight(appID); n != 1 {
		t.Errorf("%d in flight, want the WebSocket", n)
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		f.edge.Drain(t.Context(), appID, "dpl1")
	}()
	// Either the message was not begun, or it comes whole.
	_, data, err := c.Read(t.Context())
	if err == nil {
		if len(data) != size {
			t.Errorf("message of %d bytes, want %d", len(data), size)
		}
		_, _, err = c.Read(t.Context())
	}
	if got := websocket.CloseStatus(err); got != websocket.StatusGoingAway {
		t.Errorf("closed with %v (%v), want 1001", got, err)
	}
	if got := <-seen; got != websocket.StatusGoingAway {
		t.Errorf("the program saw %v, want 1001", got)
	}
	<-drained
	f.until(0)
}

// Other protocols than WebSocket are not switched to.
func TestOtherUpgrades(t *testing.T) {
	f := newFixture(t, func(c *appedge.Config) { c.MaxBody = 1 }).listen()
	addr := program(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.EqualFold(r.Header.Get("Upgrade"), "h2c") {
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	f.apps.change(func() { f.apps.start("sbx1", "dpl1", addr) })
	f.want(f.get("/", "Connection", "Upgrade", "Upgrade", "h2c"), http.StatusOK, "")
}
