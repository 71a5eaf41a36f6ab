package client

import (
	"context"
	"net"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/lib/wstunnel"
)

// Forward carries a connection to a TCP port of a sandbox until it ends, and closes it.
//
// The error says why the port could not be reached; a connection that breaks off later is no error.
func (s *Sandboxes) Forward(ctx context.Context, id api.SandboxID, port int, conn net.Conn) error {
	defer conn.Close()
	ws, err := s.c.socket(ctx, sandboxPath(id, "ports", itoa(port), "connect"))
	if err != nil {
		return err
	}
	wstunnel.Relay(ctx, ws, conn)
	return nil
}
