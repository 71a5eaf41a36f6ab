package app

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

func deployFromSource(f *cmdutil.Factory) *cobra.Command {
	var req api.DeployRequest
	var detach bool
	c := &cobra.Command{
		Use:   "deploy APP",
		Short: "Deploy an app from its repository, or start what is live again",
		Long: "Deploy an app from its repository, from what was pushed, or from its image, show the build, and\n" +
			"print the URL. 'pandastack deploy' deploys a directory.",
		Example: "  pandastack app deploy shop --ref v1.2\n  pandastack app deploy shop --restart # new variables",
	}
	c.Flags().StringVar(&req.GitRef, "ref", "", "branch, tag or commit (default that of the app)")
	c.Flags().BoolVar(&req.NoCache, "no-cache", false, "run every step of the build")
	c.Flags().BoolVar(&req.Restart, "restart", false, "start what is live with the variables of today, unbuilt")
	c.Flags().BoolVar(&detach, "detach", false, "print the id of the deployment at once, and do not wait")
	return run(f, c, func(ctx context.Context, a *client.Apps, args []string) error {
		if err := req.Validate(); err != nil {
			return err
		}
		d, err := a.Deploy(ctx, args[0], req)
		if err != nil {
			return err
		}
		return finish(ctx, f, a, args[0], d, detach)
	})
}

// finish follows a deployment to its end and prints the URL of the app, or with detach its id at once.
func finish(
	ctx context.Context,
	f *cmdutil.Factory,
	a *client.Apps,
	app string,
	d api.Deployment,
	detach bool,
) error {
	if detach {
		return f.PrintLine(d, string(d.ID))
	}
	d, err := follow(ctx, f, a, app, d)
	if err != nil {
		return err
	}
	got, err := a.Get(ctx, app)
	if err != nil {
		return err
	}
	f.Statusf("deployment %d of %s is %s", d.Number, got.Name, d.Status)
	return f.PrintLine(got, got.URL)
}

// follow shows the log of a deployment on standard error until the deployment has ended, and returns the deployment. It
// returns an error with the code of the deployment if the deployment failed.
func follow(
	ctx context.Context,
	f *cmdutil.Factory,
	a *client.Apps,
	app string,
	d api.Deployment,
) (api.Deployment, error) {
	after, show := int64(0), printer(f.Statusf, time.Now())
	for again := 0; ; again++ {
		err := a.DeployLogs(ctx, app, d.ID, after, true, func(l api.AppLogLine) error {
			after, again = l.Seq, 0
			show(l)
			return nil
		})
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			f.Statusf("the server continues the deployment: 'pandastack app logs %s --deployment %s' follows it, "+
				"'pandastack app cancel %[1]s %[2]s' cancels it", app, d.ID)
			return d, err
		}
		if code := api.CodeOf(err); code != api.Unavailable && code != api.Unreachable || again == 5 {
			return d, err
		}
	}
	d, err := a.Deployment(ctx, app, d.ID)
	if err == nil && d.Status == api.DeploymentFailed {
		where := ""
		if d.Step != "" {
			where = " at " + d.Step
		}
		code := d.Code
		if code == "" {
			code = api.WrongState
		}
		err = api.Errorf(code, "deployment %d failed%s: %s", d.Number, where, d.Error)
	}
	return d, err
}

// printer returns a function that prints lines of a log below the title of their step, with the time since began.
func printer(printf func(format string, args ...any), began time.Time) func(api.AppLogLine) {
	const width = 60
	step := ""
	return func(l api.AppLogLine) {
		at := time.Since(began).Round(100 * time.Millisecond).Seconds()
		if l.Step != step && l.Step != "" {
			title := []rune(strings.Join(strings.Fields(l.Step), " "))
			if len(title) > width {
				title = append(title[:width-3], '.', '.', '.')
			}
			printf("%6.1fs %s", at, string(title))
		}
		step = l.Step
		if l.Line != "" {
			printf("%6.1fs   %s", at, l.Line)
		}
	}
}

func deployments(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{Use: "deploys APP", Aliases: []string{"deployments"}, Short: "List deployments, newest first"}
	return run(f, c, func(ctx context.Context, a *client.Apps, args []string) error {
		all, err := a.Deployments(ctx, args[0])
		if err != nil {
			return err
		}
		head := []string{"ID", "STATUS", "KEPT", "AGE", "WHAT"}
		return cmdutil.PrintTable(f, all, head, func(d api.Deployment) []string {
			kept := ""
			if d.Kept {
				kept = "yes"
			}
			what := strings.TrimSpace(fmt.Sprintf("%.8s %s", d.GitCommit, d.Message))
			if d.Error != "" {
				what = d.Error
			}
			return []string{
				string(d.ID), string(d.Status), kept, cmdutil.Age(d.CreatedAt, time.Now()), brief(what, 24),
			}
		})
	})
}

// brief returns the beginning of a text on one line.
func brief(text string, most int) string {
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-3]) + "..."
	}
	return text
}

func cancel(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{
		Use:   "cancel APP DEPLOYMENT",
		Short: "Cancel a deployment that is not live yet",
		Args:  cobra.ExactArgs(2),
	}
	return run(f, c, func(ctx context.Context, a *client.Apps, args []string) error {
		d, err := a.Cancel(ctx, args[0], api.DeploymentID(args[1]))
		if err != nil {
			return err
		}
		return f.PrintLine(d, string(d.ID))
	})
}

func rollback(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{
		Use:   "rollback APP [DEPLOYMENT]",
		Short: "Go back to the deployment before the live one, or to one that is kept",
		Args:  cobra.RangeArgs(1, 2),
	}
	return run(f, c, func(ctx context.Context, a *client.Apps, args []string) error {
		var to api.DeploymentID
		if len(args) == 2 {
			to = api.DeploymentID(args[1])
		}
		d, err := a.Rollback(ctx, args[0], to)
		if err != nil {
			return err
		}
		return f.PrintLine(d, fmt.Sprintf("%s\t%s", d.ID, d.Status))
	})
}

func webhook(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{
		Use:   "webhook APP",
		Short: "Make the secret with which a repository notifies the app of changes, and print how",
		Long: "Make the secret with which a repository at GitHub, GitLab, Gitea or Forgejo notifies the app of\n" +
			"changes, and print what to enter there. It replaces the secret before.",
	}
	return run(f, c, func(ctx context.Context, a *client.Apps, args []string) error {
		h, err := a.Webhook(ctx, args[0])
		if err != nil {
			return err
		}
		return f.Print(h, func(w io.Writer) error {
			return cmdutil.Facts(w, []cmdutil.Fact{
				{"url", h.URL}, {"secret", h.Secret}, {"content type", h.ContentType},
				{"events", strings.Join(h.Events, ", ")},
			})
		})
	})
}

func logs(f *cmdutil.Factory) *cobra.Command {
	var following, build bool
	var id string
	c := &cobra.Command{
		Use:     "logs APP",
		Short:   "Show what the replicas of an app printed, or the log of a deployment",
		Example: "  pandastack app logs shop --follow\n  pandastack app logs shop --build # of the last deployment",
	}
	c.Flags().BoolVarP(&following, "follow", "f", false, "continue with new lines")
	c.Flags().BoolVar(&build, "build", false, "of the last deployment, whatever came of it")
	c.Flags().StringVar(&id, "deployment", "", "of this deployment")
	c.MarkFlagsMutuallyExclusive("build", "deployment")
	return run(f, c, func(ctx context.Context, a *client.Apps, args []string) error {
		if build {
			all, err := a.Deployments(ctx, args[0])
			if err != nil {
				return err
			}
			if len(all) == 0 {
				return api.Errorf(api.NotFound, "app %s has no deployment: 'pandastack app deploy %[1]s' makes one",
					args[0])
			}
			id = string(all[0].ID)
		}
		if id != "" {
			return a.DeployLogs(ctx, args[0], api.DeploymentID(id), 0, following, func(l api.AppLogLine) error {
				return f.PrintLine(l, l.Line)
			})
		}
		return a.RuntimeLogs(ctx, args[0], following, func(l api.AppOutput) error { return f.PrintLine(l, l.Line) })
	})
}

func runOnce(f *cmdutil.Factory) *cobra.Command {
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "run APP [flags] -- COMMAND [ARG...]",
		Short: "Run a command once in a machine of the live deployment, with its variables",
		Long: "Run a command once in a machine of the live deployment, with its variables. The machine is one of\n" +
			"its own and is removed afterwards. The exit code is that of the command.",
		Example: "  pandastack app run shop -- python manage.py migrate\n  pandastack app run shop 'env | sort'",
		Args:    cobra.MinimumNArgs(2),
	}
	c.Flags().DurationVar(&timeout, "timeout", 0, "kill the command after this time (default 10m)")
	return run(f, c, func(ctx context.Context, a *client.Apps, args []string) error {
		req := api.AppRunRequest{Command: cmdutil.CommandLine(args[1:]), TimeoutSeconds: int(timeout.Seconds())}
		exit, err := a.Run(ctx, args[0], req, client.Output{
			// A closed standard output is not a failure of the command.
			Stdout: func(text string) { _, _ = io.WriteString(f.Stdout, text) },
			Stderr: func(text string) { _, _ = io.WriteString(f.Stderr, text) },
		})
		if err != nil {
			return err
		}
		if exit.ExitCode != 0 {
			return cmdutil.ExitCode(exit.ExitCode)
		}
		return nil
	})
}

func open(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{Use: "open APP", Short: "Print the URL of an app and, at a terminal, open it in a browser"}
	return run(f, c, func(ctx context.Context, a *client.Apps, args []string) error {
		app, err := a.Get(ctx, args[0])
		if err != nil {
			return err
		}
		if err := f.PrintLine(app, app.URL); err != nil {
			return err
		}
		if _, ok := cmdutil.Terminal(f.Stdout); !ok || f.JSON {
			return nil
		}
		return browse(ctx, app.URL)
	})
}

// browse opens a page in the browser of the desktop, if this machine has one.
func browse(ctx context.Context, url string) error {
	name := "xdg-open"
	if runtime.GOOS == "darwin" {
		name = "open"
	}
	if _, err := exec.LookPath(name); err != nil || !strings.HasPrefix(url, "http") {
		return nil //nolint:nilerr // the URL is printed
	}
	return exec.CommandContext(ctx, name, url).Run() //nolint:gosec // the URL is one argument
}
