package agent

import (
	"context"
	"io"

	"github.com/pandastack/pandastack/internal/guest/server"
)

// serveSockets serves the newest connection that accept returns, and closes the one before it. The end of a
// connection is not an error: after a restore all connections are broken, and the host opens another.
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
		// The connection is replaced; its end is no error.
		end, served = func() { _ = conn.Close() }, make(chan struct{})
		go func() {
			defer close(served)
			_ = s.Serve(ctx, conn) // a broken connection is normal after a restore: the host connects again
			_ = conn.Close()       // the host has ended its side
		}()
	}
}
