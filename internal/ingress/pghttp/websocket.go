package pghttp

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"

	"github.com/coder/websocket"
)

// maxFrame is the most bytes of a WebSocket message of a client.
const maxFrame = 16 << 20

// serveWebSocket carries the protocol of PostgreSQL over a WebSocket, whose messages are pieces of a stream.
func (s *Server) serveWebSocket(w http.ResponseWriter, r *http.Request) {
	// A page of any origin may connect: it needs a password, and browsers add none.
	socket, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return // the client has the error
	}
	socket.SetReadLimit(maxFrame)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	stream := websocket.NetConn(ctx, socket, websocket.MessageBinary)
	// Deadlines of the stream would break it, so the edge has a pipe, whose deadlines do not.
	near, far := net.Pipe()
	var copies sync.WaitGroup
	copies.Go(func() {
		_, _ = io.Copy(near, stream) // ends when the client goes away
		_ = near.Close()
	})
	copies.Go(func() {
		_, _ = io.Copy(stream, near) // ends when the edge closes the session
		_ = stream.Close()
	})
	s.cfg.Edge.ServeCleartext(ctx, far, peerOf(r), hostOnly(r.Host))
	cancel()
	copies.Wait()
}
