package standby

import (
	"context"
	_ "embed"
	"errors"
	"io"
	"net"
	"syscall"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
)

// Where a standby looks for its primary.
const (
	socketDir  = "/run/postgresql/primary"
	socketName = ".s.PGSQL.5432"
)

// bridgeTag is the name of the process in the guest that a standby connects to.
const bridgeTag = "pandastack-replication"

// bridge is a program that takes one connection of the standby.
//
//go:embed bridge.pl
var bridge string

// Carry waits for a connection of the standby and carries it to the primary until it or ctx ends.
//
// The standby connects again and again: so does the caller call Carry.
func (Replication) Carry(ctx context.Context, p Pair) error {
	err := p.carry(ctx)
	if errors.Is(err, guestapi.ErrExists) {
		// It is of an earlier process of this program, or from before the machine slept: its other end is gone.
		return guestexec.Signal(ctx, p.Standby, guestapi.ProcessRef{Tag: bridgeTag}, int(syscall.SIGKILL))
	}
	return err
}

func (p Pair) carry(ctx context.Context) error {
	var primary net.Conn
	opened := make(chan net.Conn, 1)
	_, err := guestexec.Stream(ctx, p.Standby, guestexec.Command{
		Spec: guestapi.ProcessSpec{
			Argv: []string{"perl", "-e", bridge, socketDir, socketName}, User: "postgres", Dir: "/", Tag: bridgeTag,
		},
		Input: func(ctx context.Context, w io.Writer) error {
			select {
			case conn := <-opened:
				defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // the standby has gone
				_, err := io.Copy(w, conn)
				return err
			case <-ctx.Done():
				return nil
			}
		},
	}, guestexec.Sink{Output: func(e guestapi.Event) (err error) {
		if e.Stream != guestapi.StreamStdout {
			return nil
		}
		if primary == nil {
			if primary, err = p.Primary(ctx); err != nil {
				return err
			}
			opened <- primary
		}
		_, err = primary.Write(e.Data)
		return err
	}})
	if primary != nil {
		_ = primary.Close() // the stream has ended
	}
	return err
}
