package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pandastack/pandastack/api"
)

// reachFlags say what a sandbox may reach.
type reachFlags struct {
	allow, deny []string
	noInternet  bool
	private     bool
}

func (r *reachFlags) register(f *pflag.FlagSet) {
	f.StringSliceVar(
		&r.allow,
		"allow-out",
		nil,
		"may be reached whatever the other flags say: address, network, domain, *.domain",
	)
	f.StringSliceVar(&r.deny, "deny-out", nil, "may not be reached: address, network, domain, *.domain")
	f.BoolVar(&r.noInternet, "no-internet", false, "nothing may be reached but what --allow-out names")
	f.BoolVar(
		&r.private,
		"private-ports",
		false,
		"ports of the sandbox are reached only with a key, a signed preview address or its traffic token",
	)
}

// network gives what the flags say.
func (r *reachFlags) network() (api.Network, error) {
	if len(r.allow) > 0 && len(r.deny) == 0 && !r.noInternet {
		return api.Network{}, errors.New("--allow-out closes nothing by itself: add --no-internet to close the rest")
	}
	n := api.Network{AllowOut: r.allow, DenyOut: r.deny, DenyOthers: r.noInternet, PrivatePorts: r.private}
	return n, n.Validate()
}

// reachable says in words what a sandbox may reach.
func reachable(n *api.Network) string {
	switch {
	case n == nil || n.AllowsAll():
		return "everything"
	case n.BlocksAll():
		return "nothing"
	}
	var parts []string
	if len(n.AllowOut) > 0 {
		parts = append(parts, strings.Join(n.AllowOut, ", "))
	}
	if len(n.DenyOut) > 0 {
		parts = append(parts, "not "+strings.Join(n.DenyOut, ", "))
	}
	if n.DenyOthers {
		return strings.Join(append(parts, "nothing else"), "; ")
	}
	return strings.Join(append(parts, "everything else"), "; ")
}

func (a *app) sandboxNetwork() *cobra.Command {
	var reach reachFlags
	var open bool
	c := &cobra.Command{
		Use: "network ID", Short: "Show or replace what a sandbox may reach", Args: cobra.ExactArgs(1),
		Long: "Show what a sandbox may reach. With flags, replace it as a whole, at once: connections that are no longer allowed end.",
		Example: "  pandastack sandbox network sbx...\n  pandastack sandbox network sbx... --no-internet --allow-out packages.example.com --allow-out '*.files.example.com'\n" +
			"  pandastack sandbox network sbx... --open",
	}
	f := c.Flags()
	reach.register(f)
	f.BoolVar(&open, "open", false, "everything may be reached")
	c.MarkFlagsMutuallyExclusive("open", "no-internet")
	c.MarkFlagsMutuallyExclusive("open", "allow-out")
	c.MarkFlagsMutuallyExclusive("open", "deny-out")
	c.RunE = func(c *cobra.Command, args []string) error {
		want, err := reach.network()
		if err != nil {
			return err
		}
		cl, id, err := a.dialSandbox(args[0])
		if err != nil {
			return err
		}
		var n api.Network
		if open || !want.IsDefault() {
			n, err = cl.Sandboxes.SetNetwork(c.Context(), id, want)
		} else {
			n, err = cl.Sandboxes.Network(c.Context(), id)
		}
		if err != nil {
			return err
		}
		return a.print(n, func(w io.Writer) error {
			ports := "everybody who knows the id"
			if n.PrivatePorts {
				ports = "holders of a key, a signed preview or the traffic token"
			}
			_, err := fmt.Fprintf(w, "may reach: %s\nports are reached by: %s\n", reachable(&n), ports)
			return err
		})
	}
	return c
}
