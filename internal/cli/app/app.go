// Package app has the commands for apps, and the one that deploys a directory.
package app

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

// Command returns the group of commands for apps.
func Command(f *cmdutil.Factory) *cobra.Command {
	c := cmdutil.Group("app", "Run apps that are built from git or from a directory",
		create(f), list(f), show(f), update(f), remove(f), open(f), scale(f), stats(f),
		deployFromSource(f), deployments(f), cancel(f), rollback(f), logs(f), runOnce(f),
		environment(f), domains(f), webhook(f),
	)
	c.Aliases = []string{"apps"}
	return c
}

// run sets what a command does with a client of the API and the app in its first argument.
func run(
	f *cmdutil.Factory,
	c *cobra.Command,
	do func(ctx context.Context, a *client.Apps, args []string) error,
) *cobra.Command {
	if c.Args == nil {
		c.Args = cobra.ExactArgs(1)
	}
	return cmdutil.WithClient(f, c, func(ctx context.Context, cl *client.Client, args []string) error {
		return do(ctx, cl.Apps, args)
	})
}

// settings has the flags that create and update have in common.
type settings struct {
	git, branch, token, hostKeys, image, framework, install, build, start string
	release, root, output, template, health                               string

	port, cpu, memory int
	databases, warm   []string
	idle              time.Duration
	auto              bool
}

func (s *settings) register(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&s.framework, "framework", "", "framework (default: found by the build)")
	fl.StringVar(&s.install, "install", "", "command that installs what the app needs")
	fl.StringVar(&s.build, "build", "", "command that builds the app")
	fl.StringVar(&s.start, "start", "", "command that starts the app")
	fl.StringVar(&s.release, "release", "", "command that runs before each deployment goes live, such as a migration")
	fl.StringVar(&s.root, "root", "", "directory of the app in its repository")
	fl.StringVar(&s.output, "output", "", "directory of the static files that the build makes")
	fl.IntVar(&s.port, "port", 0, "port that the app listens on; PORT in its environment (default 3000)")
	fl.StringVar(&s.template, "template", "", "template of its machines")
	fl.IntVar(&s.cpu, "cpu", 0, "processors of each machine")
	fl.IntVar(&s.memory, "memory", 0, "memory of each machine in MiB")
	fl.StringVar(&s.health, "health", "", "path whose status is below 400 once it is ready (default: the port is open)")
	fl.StringArrayVar(&s.warm, "warm", nil, "path to request before the app is captured; may be repeated")
	fl.StringArrayVar(&s.databases, "database", nil, "id of a database, whose URL is in DATABASE_URL; may be repeated")
	fl.DurationVar(&s.idle, "idle", 0, "time without requests after which the app sleeps")
}

// registerSource adds the flags of where an app comes from.
func (s *settings) registerSource(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&s.git, "git", "", "repository: https://..., or user@host:path with the deploy key of the app")
	fl.StringVar(&s.branch, "branch", "", "branch, tag or commit (default that of the repository)")
	fl.StringVar(&s.token, "git-token-file", "", "file with the token for a private repository over https")
	fl.StringVar(&s.hostKeys, "git-host-keys-file", "",
		"file with the keys that git servers must have, as ssh-keyscan prints them (default those of the first build)")
	fl.StringVar(&s.image, "image", "", "deploy an image of a registry; nothing is built")
	fl.BoolVar(&s.auto, "auto-deploy", true, "deploy when the branch changes")
}

// given returns a pointer to a value if its flag was given, else nil.
func given[T any](c *cobra.Command, flag string, value T) *T {
	if !c.Flags().Changed(flag) {
		return nil
	}
	return &value
}

func (s *settings) databaseIDs() []api.DatabaseID {
	ids := make([]api.DatabaseID, 0, len(s.databases))
	for _, id := range s.databases {
		if id != "" {
			ids = append(ids, api.DatabaseID(id))
		}
	}
	return ids
}

// request returns the settings that were given as a change of an app.
func (s *settings) request(c *cobra.Command) (req api.UpdateAppRequest, err error) {
	req = api.UpdateAppRequest{
		GitURL: given(c, "git", s.git), GitBranch: given(c, "branch", s.branch), Image: given(c, "image", s.image),
		Framework: given(c, "framework", s.framework), InstallCommand: given(c, "install", s.install),
		BuildCommand: given(c, "build", s.build), StartCommand: given(c, "start", s.start),
		ReleaseCommand: given(c, "release", s.release), RootDirectory: given(c, "root", s.root),
		OutputDirectory: given(c, "output", s.output), Port: given(c, "port", s.port),
		Template: given(c, "template", s.template), CPU: given(c, "cpu", s.cpu),
		MemoryMB: given(c, "memory", s.memory), Warm: given(c, "warm", s.warm),
		Databases: given(c, "database", s.databaseIDs()), AutoDeploy: given(c, "auto-deploy", s.auto),
		IdleTimeoutSeconds: given(c, "idle", int64(s.idle.Seconds())),
	}
	if c.Flags().Changed("health") {
		req.Health = &api.AppHealth{Path: s.health}
	}
	if s.token != "" {
		token, err := secretFile(s.token)
		if err != nil {
			return req, err
		}
		req.GitToken = &token
	}
	if s.hostKeys != "" {
		keys, err := os.ReadFile(s.hostKeys)
		if err != nil {
			return req, err
		}
		text := string(keys)
		req.GitHostKeys = &text
	}
	return req, req.Validate()
}

func create(f *cmdutil.Factory) *cobra.Command {
	var s settings
	var env map[string]string
	c := &cobra.Command{
		Use:   "create NAME",
		Short: "Create an app; 'pandastack app deploy' or a push deploys it",
		Args:  cobra.ExactArgs(1),
		Example: "  pandastack app create shop --git https://git.example.com/shop.git --branch main\n" +
			"  pandastack app create api --image registry.example.com/api:3 --port 8080",
	}
	s.registerSource(c)
	s.register(c)
	c.Flags().StringToStringVarP(&env, "env", "e", nil, "variable, NAME=value; may be repeated")
	return run(f, c, func(ctx context.Context, a *client.Apps, args []string) error {
		u, err := s.request(c)
		if err != nil {
			return err
		}
		app, err := a.Create(ctx, creation(args[0], u, env))
		if err != nil {
			return err
		}
		return f.PrintLine(app, app.Name)
	})
}

// creation returns the request for an app with the settings of a change.
func creation(name string, u api.UpdateAppRequest, env map[string]string) api.CreateAppRequest {
	return api.CreateAppRequest{
		Name: name, GitURL: value(u.GitURL), GitBranch: value(u.GitBranch), GitToken: value(u.GitToken),
		GitHostKeys: value(u.GitHostKeys),
		Image:       value(u.Image), Framework: value(u.Framework), InstallCommand: value(u.InstallCommand),
		BuildCommand: value(u.BuildCommand), StartCommand: value(u.StartCommand),
		ReleaseCommand: value(u.ReleaseCommand), RootDirectory: value(u.RootDirectory),
		OutputDirectory: value(u.OutputDirectory), Port: value(u.Port), Template: value(u.Template),
		CPU: value(u.CPU), MemoryMB: value(u.MemoryMB), Health: u.Health, Warm: value(u.Warm),
		Databases: value(u.Databases), AutoDeploy: u.AutoDeploy, IdleTimeoutSeconds: value(u.IdleTimeoutSeconds),
		Env: env,
	}
}

// value returns what p points to, or the zero value.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func update(f *cmdutil.Factory) *cobra.Command {
	var s settings
	c := &cobra.Command{
		Use:   "update APP",
		Short: "Change the settings of an app, for deployments to come",
		Example: "  pandastack app update shop --build 'npm run build:prod'\n" +
			"  pandastack app update shop --start= # what the build finds",
	}
	s.registerSource(c)
	s.register(c)
	return run(f, c, func(ctx context.Context, a *client.Apps, args []string) error {
		req, err := s.request(c)
		if err != nil {
			return err
		}
		app, err := a.Update(ctx, args[0], req)
		if err != nil {
			return err
		}
		return f.Print(app, func(w io.Writer) error { return cmdutil.Facts(w, facts(app)) })
	})
}

func list(f *cmdutil.Factory) *cobra.Command {
	get := func(ctx context.Context, cl *client.Client) ([]api.App, error) { return cl.Apps.List(ctx) }
	head := []string{"NAME", "STATUS", "AGE", "URL"}
	return cmdutil.ListCommand(f, "List apps", get, head, func(a api.App) []string {
		return []string{
			a.Name, state(&a), cmdutil.Age(a.CreatedAt, time.Now()), a.URL,
		}
	})
}

func show(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{Use: "get APP", Short: "Show one app"}
	return run(f, c, func(ctx context.Context, a *client.Apps, args []string) error {
		app, err := a.Get(ctx, args[0])
		if err != nil {
			return err
		}
		return f.Print(app, func(w io.Writer) error { return cmdutil.Facts(w, facts(app)) })
	})
}

// state returns what an app does.
func state(a *api.App) string { return cmp.Or(string(a.Transition), string(a.Status)) }

func facts(a api.App) []cmdutil.Fact {
	sleeps := "never"
	if a.AutoHibernate && a.Scale.Min == 0 {
		sleeps = "after " + (time.Duration(a.IdleTimeoutSeconds) * time.Second).String() + " without requests"
	}
	var databases []string
	for _, id := range a.Databases {
		databases = append(databases, string(id))
	}
	source := a.GitURL
	if a.GitBranch != "" {
		source += " " + a.GitBranch
	}
	return []cmdutil.Fact{
		{"name", a.Name},
		{"id", string(a.ID)},
		{"status", state(&a)},
		{"error", a.Error},
		{"url", a.URL},
		{"git", strings.TrimSpace(source)},
		{"image", a.Image},
		{"git push to", a.PushURL},
		{"deploy key", a.DeployKey},
		{"framework", a.Framework},
		{"runtime", strings.TrimSpace(a.Runtime + " " + a.RuntimeVersion)},
		{"install", a.InstallCommand},
		{"build", a.BuildCommand},
		{"start", a.StartCommand},
		{"release", a.ReleaseCommand},
		{"directory", a.RootDirectory},
		{"static files", a.OutputDirectory},
		{"port", fmt.Sprint(a.Port)},
		{"health", a.Health.Path},
		{"machines", machines(a)},
		{"replicas", fmt.Sprintf("%d running, %d to %d, another for %d requests at once",
			a.Replicas, a.Scale.Min, a.Scale.Max, a.Scale.Concurrency)},
		{"sleeps", sleeps},
		{"databases", strings.Join(databases, " ")},
		{"deployment", string(a.ActiveDeploymentID)},
		{"created", a.CreatedAt.UTC().Format(time.RFC3339)},
	}
}

func machines(a api.App) string {
	text := "template " + a.Template
	if a.CPU > 0 {
		text += fmt.Sprintf(", %d CPU", a.CPU)
	}
	if a.MemoryMB > 0 {
		text += fmt.Sprintf(", %d MiB", a.MemoryMB)
	}
	return text
}

func remove(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{
		Use:     "delete APP",
		Aliases: []string{"rm"},
		Short:   "Delete an app with all its deployments; its databases and volumes stay",
	}
	return run(f, c, func(ctx context.Context, a *client.Apps, args []string) error {
		if err := a.Delete(ctx, args[0]); err != nil {
			return err
		}
		return f.Print(map[string]string{"deleted": args[0]}, func(io.Writer) error { return nil })
	})
}

func scale(f *cmdutil.Factory) *cobra.Command {
	var s api.AppScale
	var idle time.Duration
	c := &cobra.Command{
		Use:   "scale APP",
		Short: "Change how many replicas an app has, at once",
		Long: "Change how many replicas an app has, at once. With --min 0 an idle app sleeps and the next request\n" +
			"wakes it; with --max 0 it is stopped.",
		Example: "  pandastack app scale shop --min 1 --max 4 --concurrency 50",
	}
	c.Flags().IntVar(&s.Min, "min", 0, "replicas that run always")
	c.Flags().IntVar(&s.Max, "max", 0, "replicas that run at most")
	c.Flags().IntVar(&s.Concurrency, "concurrency", 0, "requests at once in one replica before another starts")
	c.Flags().DurationVar(&idle, "idle", 0, "time without requests after which the app sleeps")
	c.MarkFlagsOneRequired("min", "max", "concurrency", "idle")
	return run(f, c, func(ctx context.Context, a *client.Apps, args []string) error {
		app, err := a.Get(ctx, args[0])
		if err != nil {
			return err
		}
		for flag, field := range map[string]struct{ to, from *int }{
			"min": {&app.Scale.Min, &s.Min}, "max": {&app.Scale.Max, &s.Max},
			"concurrency": {&app.Scale.Concurrency, &s.Concurrency},
		} {
			if c.Flags().Changed(flag) {
				*field.to = *field.from
			}
		}
		if !c.Flags().Changed("max") {
			app.Scale.Max = max(app.Scale.Max, app.Scale.Min)
		}
		app, err = a.Update(ctx, args[0], api.UpdateAppRequest{
			Scale: &app.Scale, IdleTimeoutSeconds: given(c, "idle", int64(idle.Seconds())),
		})
		if err != nil {
			return err
		}
		return f.PrintLine(app, fmt.Sprintf("%s: %d to %d replicas, another for %d requests at once",
			app.Name, app.Scale.Min, app.Scale.Max, app.Scale.Concurrency))
	})
}

func stats(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{Use: "stats APP", Short: "Show requests, latencies, replicas and sleeps of an app"}
	return run(f, c, func(ctx context.Context, a *client.Apps, args []string) error {
		s, err := a.Stats(ctx, args[0])
		if err != nil {
			return err
		}
		return f.Print(s, func(w io.Writer) error {
			var classes []string
			for _, class := range []string{"1xx", "2xx", "3xx", "4xx", "5xx"} {
				if n := s.Statuses[class]; n > 0 {
					classes = append(classes, fmt.Sprintf("%s %d", class, n))
				}
			}
			return cmdutil.Facts(w, []cmdutil.Fact{
				{"since", s.Since.UTC().Format(time.RFC3339)},
				{"requests", fmt.Sprint(s.Requests)},
				{"statuses", strings.Join(classes, ", ")},
				{"latency", fmt.Sprintf("p50 %.1f ms, p95 %.1f ms, p99 %.1f ms", s.P50Ms, s.P95Ms, s.P99Ms)},
				{"in flight", fmt.Sprint(s.InFlight)},
				{"replicas", fmt.Sprint(s.Replicas)},
				{"wakes", fmt.Sprint(s.Wakes)},
				{"sleeps", fmt.Sprint(s.Hibernates)},
				{"restarts", fmt.Sprint(s.Restarts)},
			})
		})
	})
}
