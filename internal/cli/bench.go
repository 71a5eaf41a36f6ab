package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/bench"
	"github.com/pandastack/pandastack/internal/bench/pagefault"
	"github.com/pandastack/pandastack/internal/bench/twonode"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
	"github.com/pandastack/pandastack/internal/demo"
)

func (a *app) demo() *cobra.Command {
	var opt demo.Options
	c := &cobra.Command{
		Use:   "demo",
		Short: "Show the main features: create, run code, live fork, hibernate, wake",
		Long: "Show the main features on the configured node, or on one that is started for this command: bake\n" +
			"the template if needed, create a sandbox, run Python, write and read a file, fork the sandbox\n" +
			"while it runs, hibernate and wake it. Every step is checked, and nothing is left running.",
		Args: cobra.NoArgs,
	}
	c.Flags().StringVarP(&opt.Template, "template", "t", "base", "template of the sandbox; it needs Python")
	c.Flags().IntVarP(&opt.Children, "children", "n", 4, "number of children of the fork")
	c.RunE = func(c *cobra.Command, _ []string) (err error) {
		cl, stop, err := a.useNode(c.Context(), slog.LevelWarn)
		defer func() { err = errors.Join(err, stop()) }()
		if err != nil {
			return err
		}
		if _, err := a.bake(c.Context(), cl, opt.Template, api.BakeRequest{}, true); err != nil {
			return err
		}
		if !a.JSON {
			opt.Report = func(s demo.Step) {
				_, _ = fmt.Fprintf(
					a.Stdout,
					"%-24s %8.1f ms   %s\n",
					s.Name,
					s.TookMS,
					s.Text,
				) // a closed standard output does not end the demo
			}
		}
		steps, err := demo.Run(c.Context(), cl, opt)
		if a.JSON {
			err = errors.Join(err, cmdutil.WriteJSON(a.Stdout, steps))
		}
		return err
	}
	return c
}

func (a *app) bench() *cobra.Command {
	opt := bench.Options{}
	var output string
	c := &cobra.Command{
		Use:   "bench",
		Short: "Benchmark a node over HTTP, with a cold boot and a container for comparison",
		Long: "Benchmark the configured node, or one that is started for this command, over HTTP. The table\n" +
			"compares with the targets of SPECIFICATION.md; --json and --output write every value. Measure on a\n" +
			"quiet machine: the report has the load at the start of the run. The command bakes the templates it\n" +
			"needs, and fails if a group of series could not be measured; pandastack setup --bench installs the\n" +
			"container runtime of the comparison.",
		Args: cobra.NoArgs,
	}
	f := c.Flags()
	f.StringVarP(&opt.Template, "template", "t", "base", "template of most series")
	f.StringSliceVar(
		&opt.Sizes,
		"templates",
		[]string{"mini", "mini.1g"},
		"templates of the fork and hibernate series; they are baked if needed",
	)
	f.StringSliceVar(&opt.Only, "only", nil, "measure only these groups of series: "+strings.Join(bench.Groups(), ", "))
	f.Float64Var(&opt.Scale, "scale", 1, "factor for the number of measurements")
	f.IntVar(&opt.MaxIdle, "max-idle", 100, "number of sandboxes in the idle series")
	f.StringSliceVar(&opt.Sizes, "also", nil, "old name of --templates")
	f.IntVar(&opt.MaxIdle, "most", 100, "old name of --max-idle")
	for name, now := range map[string]string{"also": "templates", "most": "max-idle"} {
		f.Lookup(name).Hidden = true
		f.Lookup(name).Deprecated = "use --" + now
	}
	f.StringVarP(&output, "output", "o", "", "also write the report as JSON to this file")
	c.RunE = func(c *cobra.Command, _ []string) (err error) {
		if err := bench.CheckGroups(opt.Only); err != nil {
			return fmt.Errorf("--only: %w", err)
		}
		if opt.Scale <= 0 || opt.MaxIdle < 1 {
			return errors.New("--scale and --max-idle must be positive")
		}
		if output, err = writable(output); err != nil {
			return err
		}
		if opt.Work, err = os.MkdirTemp("", "pandastack-bench-"); err != nil {
			return local(err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(opt.Work)) }()
		// the node logs a warning for every monitor that the benchmark kills
		cl, stop, err := a.useNode(c.Context(), slog.LevelError)
		defer func() { err = errors.Join(err, stop()) }()
		if err != nil {
			return err
		}
		for _, name := range opt.Templates() {
			_, err := a.bake(c.Context(), cl, name, api.BakeRequest{}, true)
			if err != nil && (!opt.Optional(name) || c.Context().Err() != nil) {
				return err
			}
			if err != nil {
				a.Statusf("bake %s: %v", name, err) // the report names the group that is not measured
			}
		}
		opt.Report = func(name string) { a.Statusf("measuring %s", name) }
		if opt.HostSeries, err = a.hostSeries(c.Context(), cl, &opt); err != nil {
			return err
		}
		report, err := bench.Run(c.Context(), cl, opt)
		if report == nil {
			return err
		}
		return errors.Join(err, a.report(report, output), report.Missing())
	}
	return c
}

// hostSeries returns the groups of series that run nodes of their own on this machine, configured like the given one.
func (a *app) hostSeries(
	ctx context.Context, cl *client.Client, opt *bench.Options,
) (map[string]bench.HostSeries, error) {
	l, err := a.node(nil)
	if err != nil {
		return nil, err
	}
	capacity, err := cl.Capacity(ctx)
	if err != nil {
		return nil, err
	}
	for _, address := range l.Node.Build.Registries() {
		if strings.HasPrefix(address, "127.0.0.1:") {
			opt.Registry = address
		}
	}
	two := &twonode.Pair{
		Config: &l.Node, Version: a.Version, Template: opt.Template,
		Driver: capacity.Driver, Accelerator: capacity.Accelerator,
		Log: slog.New(slog.NewTextHandler(a.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	groups := two.Groups()
	groups["pager"] = func(ctx context.Context, s *bench.Sheet) error { return pagefault.Measure(ctx, opt.Work, s) }
	return groups, nil
}

// writable returns the absolute path of a file. It fails if the directory does not exist, before the long run starts.
func writable(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	full, err := filepath.Abs(name)
	if err != nil {
		return "", local(err)
	}
	if info, err := os.Stat(filepath.Dir(full)); err != nil || !info.IsDir() {
		return "", fmt.Errorf("--output: %s is not a directory", filepath.Dir(full))
	}
	return full, nil
}

// report prints a report, and writes it to the file output unless that is empty.
func (a *app) report(r *bench.Report, output string) error {
	if output != "" {
		f, err := os.Create(output)
		if err != nil {
			return err
		}
		if err := errors.Join(cmdutil.WriteJSON(f, r), f.Close()); err != nil {
			return local(err)
		}
	}
	return a.Print(r, func(w io.Writer) error { return r.Table(w) })
}
