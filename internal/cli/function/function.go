// Package function has the commands for functions.
package function

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
)

// Command returns the group of commands for functions.
func Command(f *cmdutil.Factory) *cobra.Command {
	c := cmdutil.Group("fn", "Run functions: code in, answer out",
		initialize(f), create(f), deploy(f), list(f), show(f), update(f), invoke(f), logs(f), runs(f), versions(f),
		alias(f), rollback(f), metrics(f), remove(f),
	)
	c.Aliases = []string{"function", "functions"}
	return c
}

// run sets what a command does with a client of the API and the function in its first argument, whose name is
// completed.
func run(
	f *cmdutil.Factory,
	c *cobra.Command,
	do func(ctx context.Context, fns *client.Functions, args []string) error,
) *cobra.Command {
	if c.Args == nil {
		c.Args = cobra.ExactArgs(1)
	}
	c.ValidArgsFunction = complete(f)
	return cmdutil.WithClient(f, c, func(ctx context.Context, cl *client.Client, args []string) error {
		return explain(do(ctx, cl.Functions, args))
	})
}

// explain adds the remedy to an error about a function.
func explain(err error) error {
	e := api.AsError(err)
	if err == nil || e.Code != api.NotFound || strings.Contains(e.Message, "pandastack fn") ||
		!strings.Contains(e.Message, "function") {
		return err
	}
	out := *e
	out.Message += ": list them with 'pandastack fn list'"
	return &out
}

// complete completes the first argument with the names of functions.
func complete(f *cmdutil.Factory) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		cl, err := f.Dial()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		all, err := cl.Functions.List(c.Context())
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, fn := range all {
			if strings.HasPrefix(fn.Name, begun) {
				names = append(names, fn.Name)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// settings are the flags that say what a function is.
type settings struct {
	runtime, entrypoint, template, mode, auth string
	memory, concurrency, maxConcurrency       int
	timeout, idle                             time.Duration
	env                                       map[string]string
}

func (s *settings) register(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&s.entrypoint, "entrypoint", "", "file of the handler (default handler.py or index.js)")
	fl.StringVar(&s.template, "template", "", "template of its machines (default code-interpreter)")
	fl.StringVar(&s.mode, "mode", "", "isolated: a machine for each invocation (default); shared: machines are kept")
	fl.StringVar(&s.auth, "auth", "", "who may call its URL: key (default), signed or public")
	fl.IntVar(&s.memory, "memory", 0, "memory of each machine in MiB")
	fl.DurationVar(&s.timeout, "timeout", 0, "limit of one invocation, up to 15m (default 30s)")
	fl.IntVar(&s.concurrency, "concurrency", 0, "invocations at once in a shared machine (default 10)")
	fl.IntVar(&s.maxConcurrency, "max-concurrency", 0, "invocations of the function at once (default 100)")
	fl.DurationVar(&s.idle, "idle", 0, "time without invocations after which a shared machine sleeps (default 5m)")
	fl.StringToStringVarP(&s.env, "env", "e", nil, "variable, NAME=value; may be repeated")
}

// apply puts the flags that were given into settings.
func (s *settings) apply(c *cobra.Command, to *api.FunctionSettings) (changed bool) {
	fl := c.Flags()
	set := func(flag string, apply func()) {
		if fl.Changed(flag) {
			apply()
			changed = true
		}
	}
	set("mode", func() { to.Mode = api.FunctionMode(s.mode) })
	set("auth", func() { to.Auth = api.FunctionAuth(s.auth) })
	set("memory", func() { to.MemoryMB = s.memory })
	set("timeout", func() { to.TimeoutSeconds = int(s.timeout.Seconds()) })
	set("concurrency", func() { to.Concurrency = s.concurrency })
	set("max-concurrency", func() { to.MaxConcurrency = s.maxConcurrency })
	set("idle", func() { to.IdleSeconds = int64(s.idle.Seconds()) })
	return changed
}

// change returns the flags that were given as a change of a function. ok is false if there were none.
func (s *settings) change(c *cobra.Command, fn api.Function) (req api.UpdateFunctionRequest, ok bool) {
	if c.Flags().Changed("entrypoint") {
		req.Entrypoint, ok = &s.entrypoint, true
	}
	if c.Flags().Changed("template") {
		req.Template, ok = &s.template, true
	}
	if len(s.env) > 0 {
		env := map[string]string{}
		for name := range fn.Env {
			env[name] = api.MaskedValue // which stays
		}
		for name, value := range s.env {
			env[name] = value
		}
		req.Env, ok = &env, true
	}
	if to := fn.Settings; s.apply(c, &to) {
		req.Settings, ok = &to, true
	}
	return req, ok
}

func create(f *cmdutil.Factory) *cobra.Command {
	var s settings
	c := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a function without code; 'pandastack fn deploy' deploys it",
		Example: "  pandastack fn create hello --runtime python --auth public\n" +
			"  pandastack fn create resize --runtime nodejs --mode shared --memory 1024 -e BUCKET=photos",
	}
	c.Flags().StringVar(&s.runtime, "runtime", "", "python, nodejs or provided")
	s.register(c)
	return run(f, c, func(ctx context.Context, fns *client.Functions, args []string) error {
		req := api.CreateFunctionRequest{
			Name: args[0], Runtime: api.FunctionRuntime(s.runtime), Entrypoint: s.entrypoint, Template: s.template,
			Env: s.env,
		}
		s.apply(c, &req.Settings)
		if err := req.Validate(); err != nil {
			return err
		}
		fn, err := fns.Create(ctx, req)
		if err != nil {
			return err
		}
		return f.PrintLine(fn, fn.Name)
	})
}

func update(f *cmdutil.Factory) *cobra.Command {
	var s settings
	var name string
	c := &cobra.Command{
		Use:     "update FUNCTION",
		Short:   "Change a function; what concerns its machines applies from the next deployment on",
		Example: "  pandastack fn update hello --auth public --timeout 1m\n  pandastack fn update hello -e LEVEL=debug",
	}
	c.Flags().StringVar(&name, "name", "", "new name")
	s.register(c)
	return run(f, c, func(ctx context.Context, fns *client.Functions, args []string) error {
		fn, err := fns.Get(ctx, args[0])
		if err != nil {
			return err
		}
		req, ok := s.change(c, fn)
		if name != "" {
			req.Name, ok = &name, true
		}
		if !ok {
			return api.Errorf(api.Invalid, "nothing to change: give a flag, such as --timeout 1m or --auth public")
		}
		if err := req.Validate(); err != nil {
			return err
		}
		if fn, err = fns.Update(ctx, args[0], req); err != nil {
			return err
		}
		return f.Print(fn, func(w io.Writer) error { return cmdutil.Facts(w, facts(fn)) })
	})
}

func list(f *cmdutil.Factory) *cobra.Command {
	get := func(ctx context.Context, cl *client.Client) ([]api.Function, error) { return cl.Functions.List(ctx) }
	head := []string{"NAME", "RUNTIME", "STATUS", "VERSION", "AGE", "URL"}
	return cmdutil.ListCommand(f, "List functions", get, head, func(fn api.Function) []string {
		return []string{
			fn.Name, string(fn.Runtime), string(fn.Status), number(fn.Version),
			cmdutil.Age(fn.CreatedAt, time.Now()), fn.URL,
		}
	})
}

func show(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{Use: "get FUNCTION", Short: "Show one function"}
	return run(f, c, func(ctx context.Context, fns *client.Functions, args []string) error {
		fn, err := fns.Get(ctx, args[0])
		if err != nil {
			return err
		}
		return f.Print(fn, func(w io.Writer) error { return cmdutil.Facts(w, facts(fn)) })
	})
}

func facts(fn api.Function) []cmdutil.Fact {
	var names []string
	for name := range fn.Env {
		names = append(names, name)
	}
	var aliases []string
	for _, a := range fn.Aliases {
		aliases = append(aliases, a.Name+" -> "+weights(a))
	}
	return []cmdutil.Fact{
		{"name", fn.Name},
		{"id", string(fn.ID)},
		{"status", string(fn.Status)},
		{"error", fn.Error},
		{"url", fn.URL},
		{"auth", string(fn.Settings.Auth)},
		{"secret", fn.Secret},
		{"runtime", string(fn.Runtime)},
		{"entrypoint", fn.Entrypoint},
		{"template", fn.Template},
		{"mode", string(fn.Settings.Mode)},
		{"version", number(fn.Version)},
		{"latest", number(fn.Latest)},
		{"aliases", strings.Join(aliases, ", ")},
		{"variables", strings.Join(sorted(names), " ")},
		{"code", cmdutil.Size(fn.CodeSize)},
		{"created", cmdutil.Age(fn.CreatedAt, time.Now()) + " ago"},
	}
}

// number returns the text of a version, "-" if there is none.
func number(version int64) string {
	if version == 0 {
		return "-"
	}
	return strconv.FormatInt(version, 10)
}

func remove(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{
		Use: "delete FUNCTION", Aliases: []string{"rm"}, Short: "Delete a function with its versions and runs",
	}
	return run(f, c, func(ctx context.Context, fns *client.Functions, args []string) error {
		if err := fns.Delete(ctx, args[0]); err != nil {
			return err
		}
		f.Statusf("deleted function %s", args[0])
		return nil
	})
}

func metrics(f *cmdutil.Factory) *cobra.Command {
	var hours int
	c := &cobra.Command{Use: "metrics FUNCTION", Short: "Show how many invocations there were, and how long they took"}
	c.Flags().IntVar(&hours, "period", 24, "of the last so many hours")
	return run(f, c, func(ctx context.Context, fns *client.Functions, args []string) error {
		m, err := fns.Metrics(ctx, args[0], hours)
		if err != nil {
			return err
		}
		return f.Print(m, func(w io.Writer) error {
			return cmdutil.Facts(w, []cmdutil.Fact{
				{"period", (time.Duration(m.Period) * time.Hour).String()},
				{"invocations", strconv.FormatInt(m.Total, 10)},
				{"errors", fmt.Sprintf("%d (%.1f%%)", m.Errors, 100*m.ErrorRate)},
				{"p50", fmt.Sprintf("%.0f ms", m.P50MS)},
				{"p95", fmt.Sprintf("%.0f ms", m.P95MS)},
				{"p99", fmt.Sprintf("%.0f ms", m.P99MS)},
				{"cold", fmt.Sprintf("%.1f%%", 100*m.ColdStartRate)},
			})
		})
	})
}
