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
	"github.com/pandastack/pandastack/internal/demo"
)

func (a *app) demo() *cobra.Command {
	var opt demo.Options
	c := &cobra.Command{
		Use:   "demo",
		Short: "Do the main job in front of you: create, run, fork live, hibernate, wake",
		Long: "Do the main job in front of you, on the node that answers or on one started for it: bake the template if needed, create a\n" +
			"sandbox, run Python, write and read a file, fork it live, hibernate and wake it. Every step is checked; nothing is left running.",
		Args: cobra.NoArgs,
	}
	c.Flags().StringVarP(&opt.Template, "template", "t", "base", "template; its guests need Python")
	c.Flags().IntVarP(&opt.Children, "children", "n", 4, "children of the fork")
	c.RunE = func(c *cobra.Command, _ []string) (err error) {
		cl, stop, err := a.printAccess(c.Context(), slog.LevelWarn)
		defer func() { err = errors.Join(err, stop()) }()
		if err != nil {
			return err
		}
		if _, err := a.bake(c.Context(), cl, opt.Template, api.BakeRequest{}, true); err != nil {
			return err
		}
		if !a.json {
			opt.Tell = func(s demo.Step) {
				_, _ = fmt.Fprintf(
					a.Stdout,
					"%-24s %8.1f ms   %s\n",
					s.Name,
					s.TookMS,
					s.Text,
				) // the run matters, not who reads
			}
		}
		steps, err := demo.Run(c.Context(), cl, opt)
		if a.json {
			err = errors.Join(err, writeJSON(a.Stdout, steps))
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
		Short: "Measure a node over HTTP, with a cold boot and a container beside it",
		Long: "Measure the node that answers, or one started for it, over HTTP. Prints a table with the targets of SPECIFICATION.md; --json or\n" +
			"--output give every value. Measure on a quiet machine: the load when the run began is in the report.",
		Args: cobra.NoArgs,
	}
	f := c.Flags()
	f.StringVarP(&opt.Template, "template", "t", "base", "template that most series use")
	f.StringSliceVar(
		&opt.Sizes,
		"also",
		[]string{"mini", "mini.1g"},
		"templates of the fork and hibernate series, baked if needed",
	)
	f.StringSliceVar(&opt.Only, "only", nil, "only these groups of series: "+strings.Join(bench.Groups(), ", "))
	f.Float64Var(&opt.Scale, "scale", 1, "of the numbers of measurements")
	f.IntVar(&opt.Most, "most", 100, "sandboxes at once in the idle series")
	f.StringVarP(&output, "output", "o", "", "write the report as JSON to this file too")
	c.RunE = func(c *cobra.Command, _ []string) (err error) {
		if err := bench.CheckGroups(opt.Only); err != nil {
			return fmt.Errorf("--only: %w", err)
		}
		if opt.Scale <= 0 || opt.Most < 1 {
			return errors.New("--scale and --most must be more than 0")
		}
		if output, err = writable(output); err != nil {
			return err
		}
		if opt.Work, err = os.MkdirTemp("", "pandastack-bench-"); err != nil {
			return local(err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(opt.Work)) }()
		cl, stop, err := a.printAccess(c.Context(), slog.LevelError) // it kills monitors, which the node warns of
		defer func() { err = errors.Join(err, stop()) }()
		if err != nil {
			return err
		}
		for _, name := range opt.Templates() {
			if _, err := a.bake(c.Context(), cl, name, api.BakeRequest{}, true); err != nil {
				return err
			}
		}
		opt.Tell = func(name string) { a.statusf("measuring %s", name) }
		if opt.More, err = a.hostSeries(c.Context(), cl, &opt); err != nil {
			return err
		}
		report, err := bench.Run(c.Context(), cl, opt)
		if report == nil {
			return err
		}
		return errors.Join(err, a.report(report, output))
	}
	return c
}

// hostSeries gives the groups of series that are measured on this machine itself, by nodes like the one that answers.
func (a *app) hostSeries(ctx context.Context, cl *client.Client, opt *bench.Options) (map[string]bench.HostSeries, error) {
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
		Config: &l.Node, Version: a.Version, Template: opt.Template, Driver: capacity.Driver, Accelerator: capacity.Accelerator,
		Log: slog.New(slog.NewTextHandler(a.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	groups := two.Groups()
	groups["pager"] = func(ctx context.Context, s *bench.Sheet) error { return pagefault.Measure(ctx, opt.Work, s) }
	return groups, nil
}

// writable makes a file's name absolute and refuses one in a directory that is not there, before minutes are spent.
func writable(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	full, err := filepath.Abs(name)
	if err != nil {
		return "", local(err)
	}
	if info, err := os.Stat(filepath.Dir(full)); err != nil || !info.IsDir() {
		return "", fmt.Errorf("--output: %s is no directory", filepath.Dir(full))
	}
	return full, nil
}

// report shows a report, and writes it to a file if one is named.
func (a *app) report(r *bench.Report, output string) error {
	if output != "" {
		f, err := os.Create(output)
		if err != nil {
			return err
		}
		if err := errors.Join(writeJSON(f, r), f.Close()); err != nil {
			return local(err)
		}
	}
	return a.print(r, func(w io.Writer) error { return r.Table(w) })
}
