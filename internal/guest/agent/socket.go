package agent

import (
	"context"
	"io"

	"github.com/pandastack/pandastack/internal/guest/server"
)

// serveSockets answers the newest connection that accept gives, and ends the one before it. How a
// connection ends is no error: after a restore all are gone, and the host makes another.
func serveSockets(ctx context.Context, accept func() (io.ReadWriteCloser, error), s *server.Server) error {
	end, served := func() {}, make(chan struct{})
	close(served)
	for {
		conn, err := accept()
		end()
		<-served
		if err != nil {
			return err
		}
		end, served = func() { _ = conn.Close() }, make(chan struct{})
		go func() {
			defer close(served)
			_ = s.Serve(ctx, conn)
			_ = conn.Close() // nobody is at its other end any more
		}()
	}
}
