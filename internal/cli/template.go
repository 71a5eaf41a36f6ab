package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
	"github.com/pandastack/pandastack/internal/cli/values"
	"github.com/pandastack/pandastack/internal/lib/config"
)

func (a *app) template() *cobra.Command {
	c := cmdutil.Group(
		"template",
		"List, build and bake templates",
		a.templateList(),
		a.templateGet(),
		a.templateBuild(),
		a.templateBuilds(),
		a.templateLogs(),
		a.templateCancel(),
		a.templateRetry(),
		a.templateDelete(),
		a.templateTag(),
		a.templateBake(),
	)
	c.Aliases = []string{"tpl"}
	return c
}

func (a *app) templateList() *cobra.Command {
	get := func(ctx context.Context, cl *client.Client) ([]api.Template, error) { return cl.Templates.List(ctx) }
	head := []string{"NAME", "BAKED", "CPU", "MEMORY", "DISK", "DISK USAGE", "DESCRIPTION"}
	return cmdutil.ListCommand(a.Factory, "List templates", get, head, func(t api.Template) []string {
		return []string{
			t.Name, baked(t), strconv.Itoa(t.CPU), strconv.Itoa(t.MemoryMB) + " MiB", strconv.Itoa(t.DiskMB) + " MiB",
			diskUsage(t), t.Description,
		}
	}, "DISK", "CPU", "DISK USAGE")
}

// diskUsage returns the disk usage of a template and its apparent size.
func diskUsage(t api.Template) string {
	if t.ApparentBytes == 0 {
		return cmdutil.Size(t.SizeBytes)
	}
	return cmdutil.Size(t.SizeBytes) + " of " + cmdutil.Size(t.ApparentBytes)
}

func baked(t api.Template) string {
	switch {
	case t.Bake != nil && t.Bake.State == "running":
		return fmt.Sprintf("%s %d%%", t.Bake.Step, t.Bake.Percent)
	case t.Baked:
		return "yes"
	case t.Bake != nil && t.Bake.State == "failed":
		return "failed"
	}
	return "no"
}

func (a *app) templateGet() *cobra.Command {
	return &cobra.Command{
		Use:   "get NAME",
		Short: "Show one template",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := a.Dial()
			if err != nil {
				return err
			}
			t, err := cl.Templates.Get(c.Context(), args[0])
			if err != nil {
				return err
			}
			return a.Print(t, func(w io.Writer) error {
				fails := ""
				if t.Bake != nil {
					fails = t.Bake.Error
				}
				return cmdutil.Facts(w, []cmdutil.Fact{
					{"name", t.Name},
					{"description", t.Description},
					{"baked", baked(t)},
					{"bake error", fails},
					{"size", fmt.Sprintf("%d vCPU, %d MiB memory, %d MiB disk", t.CPU, t.MemoryMB, t.DiskMB)},
					{"data disks", dataDisks(t.DataDisks)},
					{"limits", values.Bounds(t.Limits)},
					{"disk usage", diskUsage(t)},
					{"base", t.Base},
					{"user", t.User},
					{"workdir", t.Workdir},
					{"tools", strings.Join(t.Tools, ", ")},
				})
			})
		},
	}
}

func dataDisks(disks []api.DataDisk) string {
	var all []string
	for _, d := range disks {
		all = append(all, fmt.Sprintf("%s: %d MiB at %s", d.Name, d.SizeMB, d.MountPath))
	}
	return strings.Join(all, ", ")
}

func (a *app) templateBake() *cobra.Command {
	var req api.BakeRequest
	var noWait bool
	c := &cobra.Command{
		Use:   "bake NAME",
		Short: "Bake a template: build its image and snapshot",
		Long: "Bake a template: build its image and snapshot, or join a bake in progress, and wait for it to\n" +
			"finish. A template that is already baked is baked again only with --force.",
		Args: cobra.ExactArgs(1),
	}
	c.Flags().BoolVar(&req.Force, "force", false, "bake a template that is already baked again")
	c.Flags().BoolVar(&noWait, "no-wait", false, "start the bake and do not wait for it")
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, err := a.Dial()
		if err != nil {
			return err
		}
		t, err := a.bake(c.Context(), cl, args[0], req, !noWait)
		if c.Context().Err() != nil {
			a.Statusf("the node continues the bake; pandastack template bake %s follows it again", args[0])
		}
		if err != nil {
			return err
		}
		return a.Print(t, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%s: baked %s\n", t.Name, baked(t))
			return err
		})
	}
	return c
}

// bake starts to bake a template and, if wait is set, shows its progress until it has finished.
func (a *app) bake(
	ctx context.Context,
	cl *client.Client,
	name string,
	req api.BakeRequest,
	wait bool,
) (api.Template, error) {
	if !wait {
		return cl.Templates.Bake(ctx, name, req)
	}
	report, baked := a.progress("bake "+name), false
	t, err := cl.Templates.BakeAndWait(ctx, name, req, func(b api.Bake) {
		baked = true
		report(b.Step, b.Percent)
	})
	switch {
	case baked && err == nil:
		report("", 100)
	case baked:
		a.endLine()
	}
	return t, err
}

// progress returns a function that shows steps on standard error: in place on a terminal, otherwise one line per step.
func (a *app) progress(what string) func(step string, percent int) {
	_, screen := cmdutil.Terminal(a.Stderr)
	last, began := "", time.Now()
	return func(step string, percent int) {
		switch {
		case a.JSON:
		case screen && step == "":
			fmt.Fprintf(a.Stderr, "\r\x1b[K%s: done in %s\n", what, time.Since(began).Round(time.Second))
		case screen:
			full := percent * 30 / 100
			fmt.Fprintf(
				a.Stderr,
				"\r\x1b[K%s [%s%s] %3d%% %s",
				what,
				strings.Repeat("=", full),
				strings.Repeat(" ", 30-full),
				percent,
				step,
			)
		case step != last:
			if step == "" {
				step = "done"
			}
			fmt.Fprintf(a.Stderr, "%s: %s (%d%%, %s)\n", what, step, percent, time.Since(began).Round(time.Second))
		}
		last = step
	}
}

// endLine ends the line that progress has shown in place.
func (a *app) endLine() {
	if _, screen := cmdutil.Terminal(a.Stderr); screen && !a.JSON {
		fmt.Fprintln(a.Stderr)
	}
}

func (a *app) me() *cobra.Command {
	return &cobra.Command{
		Use:   "me",
		Short: "Show the workspace and user of the key",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := a.Dial()
			if err != nil {
				return err
			}
			m, err := cl.Me(c.Context())
			if err != nil {
				return err
			}
			return a.Print(m, func(w io.Writer) error {
				return cmdutil.Facts(w, []cmdutil.Fact{
					{"workspace", string(m.Workspace)},
					{"user", m.UserID},
					{"key", m.TokenPrefix},
					{"role", m.Role},
					{"server", cl.URL()},
				})
			})
		},
	}
}

func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version of this program and of the node",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			out := struct {
				Version string       `json:"version"`
				Node    *api.Version `json:"node,omitempty"`
			}{Version: a.Version}
			if cl, err := a.Dial(); err == nil {
				ctx, cancel := context.WithTimeout(c.Context(), time.Second)
				defer cancel()
				if v, err := cl.Version(ctx); err == nil {
					out.Node = &v
				}
			}
			return a.Print(out, func(w io.Writer) error {
				node := "not reachable"
				if v := out.Node; v != nil {
					node = strings.TrimSpace(v.Version + " " + v.Driver + " " + v.Accel)
				}
				return cmdutil.Facts(w, []cmdutil.Fact{{"pandastack", a.Version}, {"node", node}})
			})
		},
	}
}

func (a *app) config() *cobra.Command {
	explain := &cobra.Command{
		Use:   "explain",
		Short: "Print every setting with its value and the origin of the value",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			l, err := a.node(nil)
			if err != nil {
				return err
			}
			if a.JSON {
				type setting struct {
					Path, Value, Origin, Doc string
				}
				all := map[string]setting{}
				for _, f := range l.Fields() {
					all[f.Path] = setting{f.Path, f.Text(), l.Origin[f.Path], f.Doc}
				}
				return cmdutil.WriteJSON(a.Stdout, all)
			}
			return l.Explain(a.Stdout)
		},
	}
	example := &cobra.Command{
		Use:   "example",
		Short: "Print a configuration file with every default",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return config.Example(a.Stdout)
		},
	}
	return cmdutil.Group("config", "Explain the settings of the node on this machine", explain, example)
}
