// Package wstunnel carries a TCP connection in a WebSocket.
//
// A binary message has bytes of the connection. A text message, whatever it says, is the end of its direction, after
// which the other one continues.
package wstunnel

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	"github.com/coder/websocket"
)

// chunk is how many bytes a message has at most, and how many are buffered for each direction.
const chunk = 32 << 10

// maxMessage bounds the messages of the other side, which are not buffered.
const maxMessage = 16 << 20

// Relay copies bytes between a WebSocket and a connection, and closes both.
//
// It returns when both directions have ended, one of the two has failed, or ctx ends.
func Relay(ctx context.Context, ws *websocket.Conn, conn net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	ws.SetReadLimit(maxMessage)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends a read that waits
	var copying sync.WaitGroup
	copying.Go(func() {
		if receive(ctx, ws, conn) != nil {
			cancel()
		}
	})
	if send(ctx, ws, conn) != nil {
		cancel()
	}
	copying.Wait()
	stop()
	_ = conn.Close()
	_ = ws.Close(websocket.StatusNormalClosure, "") // the other side may have closed it
	cancel()
}

// send sends what conn receives.
func send(ctx context.Context, ws *websocket.Conn, conn net.Conn) error {
	buf := make([]byte, chunk)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			if err := ws.Write(ctx, websocket.MessageBinary, buf[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return ws.Write(ctx, websocket.MessageText, []byte("end"))
		}
		if err != nil {
			return err
		}
	}
}

// receive writes what the WebSocket receives to conn, until the other side says that this is all.
func receive(ctx context.Context, ws *websocket.Conn, conn net.Conn) error {
	buf := make([]byte, chunk)
	for {
		kind, r, err := ws.Reader(ctx)
		if err != nil {
			return err
		}
		if kind == websocket.MessageText {
			half, ok := conn.(interface{ CloseWrite() error })
			if !ok {
				return nil // the connection ends with the other direction
			}
			return half.CloseWrite()
		}
		if _, err := io.CopyBuffer(writer{conn}, r, buf); err != nil {
			return err
		}
	}
}

// writer hides other methods of a writer, so that io.CopyBuffer uses its buffer.
type writer struct{ io.Writer }
