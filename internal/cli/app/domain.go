package app

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

func domains(f *cmdutil.Factory) *cobra.Command {
	return cmdutil.Group("domain", "Serve an app under domains of your own",
		addDomain(f), listDomains(f), showDomain(f), removeDomain(f))
}

func writeDomain(w io.Writer, d api.AppDomain) error {
	err := cmdutil.Facts(w, []cmdutil.Fact{
		{"domain", d.Domain},
		{"status", string(d.Status)},
		{"certificate", d.CertStatus},
		{"note", d.DNSNote},
		{"error", d.Error},
	})
	if err != nil || len(d.Records) == 0 {
		return err
	}
	if _, err := fmt.Fprintln(w, "\nrecords to set:"); err != nil {
		return err
	}
	rows := make([][]string, 0, len(d.Records))
	for _, r := range d.Records {
		rows = append(rows, []string{r.Type, r.Name, r.Value})
	}
	return cmdutil.Table(w, []string{"TYPE", "NAME", "VALUE"}, rows)
}

func addDomain(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{
		Use:   "add APP DOMAIN",
		Short: "Add a domain, and print the records to set at its registrar",
		Args:  cobra.ExactArgs(2),
	}
	return run(f, c, func(ctx context.Context, a *client.Apps, args []string) error {
		d, err := a.AddDomain(ctx, args[0], args[1])
		if err != nil {
			return err
		}
		return f.Print(d, func(w io.Writer) error { return writeDomain(w, d) })
	})
}

func listDomains(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{Use: "list APP", Aliases: []string{"ls"}, Short: "List the domains of an app"}
	return run(f, c, func(ctx context.Context, a *client.Apps, args []string) error {
		all, err := a.Domains(ctx, args[0])
		if err != nil {
			return err
		}
		head := []string{"DOMAIN", "STATUS", "CERTIFICATE", "ERROR"}
		return cmdutil.PrintTable(f, all, head, func(d api.AppDomain) []string {
			return []string{d.Domain, string(d.Status), d.CertStatus, brief(d.Error, 40)}
		})
	})
}

func showDomain(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{Use: "get APP DOMAIN", Short: "Show a domain with its state", Args: cobra.ExactArgs(2)}
	return run(f, c, func(ctx context.Context, a *client.Apps, args []string) error {
		d, err := a.Domain(ctx, args[0], args[1])
		if err != nil {
			return err
		}
		return f.Print(d, func(w io.Writer) error { return writeDomain(w, d) })
	})
}

func removeDomain(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{
		Use:     "remove APP DOMAIN",
		Aliases: []string{"rm"},
		Short:   "Remove a domain and its certificate",
		Args:    cobra.ExactArgs(2),
	}
	return run(f, c, func(ctx context.Context, a *client.Apps, args []string) error {
		if err := a.DeleteDomain(ctx, args[0], args[1]); err != nil {
			return err
		}
		return f.Print(map[string]string{"removed": args[1]}, func(io.Writer) error { return nil })
	})
}
