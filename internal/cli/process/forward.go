package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

// PortForward returns the command that serves ports of a sandbox on this machine.
func PortForward(f *cmdutil.Factory) *cobra.Command {
	address := "127.0.0.1"
	c := &cobra.Command{
		Use:   "port-forward ID [LOCAL:]REMOTE...",
		Short: "Serve ports of a sandbox on this machine until it is interrupted",
		Long: "Serve TCP ports of a sandbox on this machine until it is interrupted. LOCAL is the port of this\n" +
			"machine, the same one if it is left out; 0 is a free one.",
		Example: "  pandastack sandbox port-forward sbx... 8080:80 5432",
		Args:    cobra.MinimumNArgs(2),
	}
	c.Flags().StringVar(&address, "address", address, "address of this machine to listen on")
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		var all []forwarding
		for _, arg := range args[1:] {
			one, err := parseForwarding(arg)
			if err != nil {
				return err
			}
			all = append(all, one)
		}
		cl, err := f.Dial()
		if err != nil {
			return err
		}
		id, err := cmdutil.FindSandbox(c.Context(), cl.Sandboxes, args[0])
		if err != nil {
			return err
		}
		for i := range all {
			var config net.ListenConfig
			listener, err := config.Listen(c.Context(), "tcp", net.JoinHostPort(address, strconv.Itoa(all[i].local)))
			if err != nil {
				return fmt.Errorf("local port %d: %w", all[i].local, err)
			}
			defer listener.Close()
			all[i].listener = listener
		}
		for _, one := range all {
			f.Statusf("%s is port %d of %s", one.listener.Addr(), one.remote, id)
		}
		return serveAll(c.Context(), f, cl.Sandboxes, id, all)
	}
	return c
}

// forwarding is a port of this machine that leads to one of a sandbox.
type forwarding struct {
	local, remote int
	listener      net.Listener
}

func parseForwarding(text string) (forwarding, error) {
	from, to, ok := strings.Cut(text, ":")
	if !ok {
		to = from
	}
	local, err := strconv.ParseUint(from, 10, 16)
	remote, invalid := strconv.ParseUint(to, 10, 16)
	if err != nil || invalid != nil || remote == 0 {
		return forwarding{}, fmt.Errorf("%q is not LOCAL:REMOTE or a port, such as 8080:80", text)
	}
	return forwarding{local: int(local), remote: int(remote)}, nil
}

// maxForwarded bounds the connections that are carried at a time; others wait.
const maxForwarded = 256

// serveAll carries the connections to all ports until ctx ends or a listener fails.
func serveAll(ctx context.Context, f *cmdutil.Factory, s *client.Sandboxes, id api.SandboxID, all []forwarding) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	slots := make(chan struct{}, maxForwarded)
	var serving sync.WaitGroup
	for _, one := range all {
		serving.Go(func() {
			for {
				slots <- struct{}{}
				conn, err := one.listener.Accept()
				if err != nil {
					<-slots
					cancel(err)
					return
				}
				serving.Go(func() {
					defer func() { <-slots }()
					if err := s.Forward(ctx, id, one.remote, conn); err != nil && ctx.Err() == nil {
						f.Statusf("pandastack: port %d: %v", one.remote, err)
					}
				})
			}
		})
	}
	<-ctx.Done()
	for _, one := range all {
		_ = one.listener.Close() // ends its Accept
	}
	serving.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}
