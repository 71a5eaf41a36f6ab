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

// reachFlags are the flags for the egress rules and ports of a sandbox.
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
		"allow an address, network, domain or *.domain; overrides the other flags",
	)
	f.StringSliceVar(&r.deny, "deny-out", nil, "deny an address, network, domain or *.domain")
	f.BoolVar(&r.noInternet, "no-internet", false, "deny everything except --allow-out")
	f.BoolVar(
		&r.private,
		"private-ports",
		false,
		"require a key, a signed preview URL or the traffic token for ports of the sandbox",
	)
}

// network returns the rules that the flags describe.
func (r *reachFlags) network() (api.Network, error) {
	if len(r.allow) > 0 && len(r.deny) == 0 && !r.noInternet {
		return api.Network{}, errors.New("--allow-out alone denies nothing: add --no-internet to deny everything else")
	}
	n := api.Network{AllowOut: r.allow, DenyOut: r.deny, DenyOthers: r.noInternet, PrivatePorts: r.private}
	return n, n.Validate()
}

// reachable describes egress rules.
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
		Use: "network ID", Short: "Show or replace the egress rules of a sandbox", Args: cobra.ExactArgs(1),
		Long: "Show the egress rules of a sandbox. With flags, replace all of them with immediate effect:\n" +
			"connections that are no longer allowed are closed.",
		Example: "  pandastack sandbox network sbx...\n" +
			"  pandastack sandbox network sbx... --no-internet --allow-out packages.example.com --allow-out " +
			"'*.files.example.com'\n" +
			"  pandastack sandbox network sbx... --open",
	}
	f := c.Flags()
	reach.register(f)
	f.BoolVar(&open, "open", false, "allow everything")
	c.MarkFlagsMutuallyExclusive("open", "no-internet")
	c.MarkFlagsMutuallyExclusive("open", "allow-out")
	c.MarkFlagsMutuallyExclusive("open", "deny-out")
	c.RunE = func(c *cobra.Command, args []string) error {
		want, err := reach.network()
		if err != nil {
			return err
		}
		cl, id, err := a.dialSandbox(c.Context(), args[0])
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
		return a.Print(n, func(w io.Writer) error {
			ports := "everyone who knows the id"
			if n.PrivatePorts {
				ports = "holders of a key, a signed preview URL or the traffic token"
			}
			_, err := fmt.Fprintf(w, "may reach: %s\nports are open to: %s\n", reachable(&n), ports)
			return err
		})
	}
	return c
}
