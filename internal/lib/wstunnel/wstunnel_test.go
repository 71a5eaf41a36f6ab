package wstunnel_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/pandastack/pandastack/internal/lib/wstunnel"
)

// pair returns the two ends of a TCP connection.
func pair(t *testing.T) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	one, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	two, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = one.Close()
		_ = two.Close()
	})
	return one.(*net.TCPConn), two.(*net.TCPConn)
}

// tunnel returns the ends of a connection that is carried through a WebSocket; done is closed when the server's side
// has ended.
func tunnel(t *testing.T) (near, far *net.TCPConn, done chan struct{}) {
	t.Helper()
	near, nearInner := pair(t)
	far, farInner := pair(t)
	done = make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(done)
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		wstunnel.Relay(r.Context(), ws, farInner)
	}))
	t.Cleanup(srv.Close)
	ws, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(srv.URL, "http"), nil)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		wstunnel.Relay(context.WithoutCancel(t.Context()), ws, nearInner)
	}()
	t.Cleanup(func() {
		_ = near.Close()
		_ = far.Close()
		<-ended
	})
	return near, far, done
}

// TestHalfClose sends much, ends its direction, and gets an answer that is sent only then.
func TestHalfClose(t *testing.T) {
	near, far, done := tunnel(t)
	text := strings.Repeat("0123456789", 1<<16)
	go func() {
		_, _ = io.WriteString(near, text) // a failure shows below
		_ = near.CloseWrite()
	}()
	got, err := io.ReadAll(far)
	if err != nil || string(got) != text {
		t.Fatalf("%d bytes arrive, %v; want %d", len(got), err, len(text))
	}
	if _, err := io.WriteString(far, "answer"); err != nil {
		t.Fatal(err)
	}
	_ = far.Close()
	got, err = io.ReadAll(near)
	if err != nil || string(got) != "answer" {
		t.Errorf("the answer is %q, %v", got, err)
	}
	<-done
}

// TestAbort ends the tunnel with either of its connections.
func TestAbort(t *testing.T) {
	near, far, done := tunnel(t)
	if _, err := io.WriteString(near, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(far, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	_ = near.SetLinger(0) // its peer sees a reset
	_ = near.Close()
	if _, err := io.ReadAll(far); err != nil {
		t.Logf("the far side ends with %v", err)
	}
	<-done
}
