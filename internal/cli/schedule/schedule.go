// Package schedule has the commands for schedules.
package schedule

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

// Command returns the group of commands for schedules.
func Command(f *cmdutil.Factory) *cobra.Command {
	return cmdutil.Group("schedule", "Run commands, invoke functions and send requests on time",
		create(f), list(f), show(f), update(f), pause(f, true), pause(f, false), trigger(f), runs(f), remove(f))
}

// run sets what a command does with the schedule that its first argument names.
func run(
	f *cmdutil.Factory,
	c *cobra.Command,
	do func(ctx context.Context, s *client.Schedules, id api.ScheduleID) error,
) *cobra.Command {
	c.Args = cobra.ExactArgs(1)
	return cmdutil.WithClient(f, c, func(ctx context.Context, cl *client.Client, args []string) error {
		id, err := find(ctx, cl.Schedules, args[0])
		if err != nil {
			return err
		}
		return do(ctx, cl.Schedules, id)
	})
}

// find returns the id of the schedule with an id or a name.
func find(ctx context.Context, s *client.Schedules, name string) (api.ScheduleID, error) {
	if id := api.ScheduleID(name); id.Valid() {
		return id, nil
	}
	all, err := s.List(ctx)
	if err != nil {
		return "", err
	}
	for _, one := range all {
		if one.Name == name {
			return one.ID, nil
		}
	}
	return "", api.Errorf(api.NotFound, "schedule %q not found: list them with 'pandastack schedule list'", name)
}

// settings are the flags that say what a schedule is.
type settings struct {
	cron, app, function, payload         string
	sandbox, template, url, method, body string
	command                              []string
	env, headers                         []string
	timeout, deadline, jitter            time.Duration
	zone, catchup, overlap               string
	maxCatchup, attempts                 int
}

func (s *settings) flags(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&s.cron, "cron", "", "cron expression, @daily and its like, or @every 90s")
	flags.StringVar(&s.app, "app", "", "app, by name or id, in a new machine of which the command runs")
	flags.StringVar(&s.function, "function", "", "function to invoke, by name or id")
	flags.StringVar(&s.payload, "payload", "", "event of the function, as JSON (default the moment of the schedule)")
	flags.StringVar(&s.sandbox, "sandbox", "", "sandbox to run the command in, by name or id; it is woken")
	flags.StringVar(&s.template, "template", "", "template of a new sandbox for each run")
	flags.StringVar(&s.url, "url", "", "URL to send a signed request to, in place of a command")
	flags.StringVar(&s.method, "method", "", "method of the request (default POST)")
	flags.StringVar(&s.body, "body", "", "body of the request")
	flags.StringArrayVarP(&s.env, "env", "e", nil, "variable of the command, NAME=VALUE")
	flags.StringArrayVar(&s.headers, "header", nil, "header of the request, NAME: VALUE")
	flags.DurationVar(&s.timeout, "timeout", 0, "limit of one attempt, up to 15m (default 5m)")
	flags.StringVar(&s.zone, "timezone", "", "time zone of the expression, such as Europe/Berlin (default UTC)")
	flags.StringVar(&s.catchup, "catchup", "", "missed moments: skip, latest or all (default latest)")
	flags.IntVar(&s.maxCatchup, "max-catchup", 0, "with --catchup all, at most so many (default 10)")
	flags.DurationVar(&s.deadline, "start-deadline", 0, "leave out runs that would begin later than this")
	flags.StringVar(&s.overlap, "overlap", "", "during another run: allow, forbid, replace or queue (default allow)")
	flags.DurationVar(&s.jitter, "jitter", 0, "begin each run up to so much later")
	flags.IntVar(&s.attempts, "attempts", 0, "attempts of a run that fails (default 1)")
}

func (s *settings) target() (api.ScheduleTarget, error) {
	t := api.ScheduleTarget{
		Template: s.template, Command: strings.Join(s.command, " "),
		URL: s.url, Method: strings.ToUpper(s.method), Body: s.body, TimeoutSeconds: int(s.timeout.Seconds()),
	}
	switch {
	case s.payload == "":
	case s.function == "":
		return t, api.Errorf(api.Invalid, "--payload is the event of a function: name one with --function")
	case !json.Valid([]byte(s.payload)):
		return t, api.Errorf(api.Invalid, "--payload is not JSON: quote texts, such as '\"text\"' or '{\"key\": 1}'")
	default:
		t.Input = json.RawMessage(s.payload)
	}
	var err error
	if t.Env, err = pairs(s.env, "=", "--env"); err != nil {
		return t, err
	}
	t.Headers, err = pairs(s.headers, ":", "--header")
	return t, err
}

// find sets the ids of what the flags name.
func (s *settings) find(ctx context.Context, cl *client.Client, t *api.ScheduleTarget) error {
	if s.app != "" {
		app, err := cl.Apps.Get(ctx, s.app)
		if err != nil {
			return err
		}
		t.AppID = app.ID
	}
	if s.function != "" {
		fn, err := cl.Functions.Get(ctx, s.function)
		if err != nil {
			return err
		}
		t.FunctionID = fn.ID
	}
	if s.sandbox != "" {
		id, err := cmdutil.FindSandbox(ctx, cl.Sandboxes, s.sandbox)
		if err != nil {
			return err
		}
		t.SandboxID = id
	}
	return nil
}

// pairs reads pairs of name and value.
func pairs(list []string, between, flag string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil
	}
	out := map[string]string{}
	for _, text := range list {
		name, value, ok := strings.Cut(text, between)
		if !ok || name == "" {
			return nil, api.Errorf(api.Invalid, "%s: %q is not NAME%sVALUE", flag, text, between)
		}
		if between == ":" {
			value = strings.TrimSpace(value)
		}
		out[name] = value
	}
	return out, nil
}

func (s *settings) options() api.ScheduleOptions {
	return api.ScheduleOptions{
		Timezone: s.zone, Catchup: api.Catchup(s.catchup), MaxCatchup: s.maxCatchup,
		StartDeadlineSeconds: int64(s.deadline.Seconds()), Overlap: api.Overlap(s.overlap),
		JitterSeconds: int64(s.jitter.Seconds()), MaxAttempts: s.attempts,
	}
}

func create(f *cmdutil.Factory) *cobra.Command {
	var s settings
	var paused bool
	c := &cobra.Command{
		Use:   "create NAME --cron EXPRESSION [-- COMMAND...]",
		Short: "Create a schedule",
		Args:  cobra.MinimumNArgs(1),
		Example: "  pandastack schedule create report --cron '0 9 * * 1-5' --timezone Europe/Berlin \\\n" +
			"    --template base -- python3 -c 'print(42)'\n" +
			"  pandastack schedule create nightly --cron @daily --app shop -- python manage.py clearsessions\n" +
			"  pandastack schedule create digest --cron '0 7 * * *' --function digest --payload '{\"days\": 1}'\n" +
			"  pandastack schedule create ping --cron '@every 10m' --url https://example.com/hook",
	}
	s.flags(c)
	c.Flags().BoolVar(&paused, "paused", false, "do not run it before 'schedule resume'")
	c.RunE = func(c *cobra.Command, args []string) error {
		s.command = args[1:]
		target, err := s.target()
		if err != nil {
			return err
		}
		cl, err := f.Dial()
		if err != nil {
			return err
		}
		if err := s.find(c.Context(), cl, &target); err != nil {
			return err
		}
		out, err := cl.Schedules.Create(c.Context(), api.CreateScheduleRequest{
			Name: args[0], Cron: s.cron, Target: target, Options: s.options(), Paused: paused,
		})
		return printed(f, out, err)
	}
	return c
}

// printed prints a schedule that was made or changed.
func printed(f *cmdutil.Factory, out api.Schedule, err error) error {
	if err != nil {
		return err
	}
	return f.Print(out, func(w io.Writer) error { return cmdutil.Facts(w, facts(out)) })
}

func list(f *cmdutil.Factory) *cobra.Command {
	get := func(ctx context.Context, cl *client.Client) ([]api.Schedule, error) { return cl.Schedules.List(ctx) }
	head := []string{"ID", "NAME", "CRON", "NEXT", "LAST"}
	return cmdutil.ListCommand(f, "List schedules", get, head, func(s api.Schedule) []string {
		return []string{string(s.ID), s.Name, s.Cron, next(s), string(s.LastStatus)}
	}, "ID")
}

func next(s api.Schedule) string {
	switch {
	case s.Paused:
		return "paused"
	case s.NextRunAt == nil:
		return "never"
	}
	return moment(*s.NextRunAt)
}

// moment prints a time in the zone of this machine.
func moment(t time.Time) string { return t.Local().Format("Jan _2 15:04:05") }

func facts(s api.Schedule) []cmdutil.Fact {
	out := []cmdutil.Fact{
		{"id", string(s.ID)}, {"name", s.Name}, {"cron", s.Cron},
		{"timezone", s.Options.Timezone}, {"does", does(s.Target)},
		{"catchup", string(s.Options.Catchup)}, {"overlap", string(s.Options.Overlap)},
		{"attempts", fmt.Sprint(s.Options.MaxAttempts)}, {"last run", string(s.LastStatus)},
		{"next", next(s)},
	}
	for _, at := range s.NextRuns[min(1, len(s.NextRuns)):] {
		out = append(out, cmdutil.Fact{"then", moment(at)})
	}
	return append(out, cmdutil.Fact{"secret", s.Secret})
}

func does(t api.ScheduleTarget) string {
	switch {
	case t.FunctionID != "":
		return "invoke " + string(t.FunctionID)
	case t.URL != "":
		method := t.Method
		if method == "" {
			method = "POST"
		}
		return method + " " + t.URL
	case t.AppID != "":
		return "in a machine of " + string(t.AppID) + ": " + t.Command
	case t.Template != "":
		return "in a new sandbox of " + t.Template + ": " + t.Command
	}
	return "in " + string(t.SandboxID) + ": " + t.Command
}

func show(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{Use: "get ID|NAME", Short: "Show a schedule with its next moments"}
	return run(f, c, func(ctx context.Context, s *client.Schedules, id api.ScheduleID) error {
		out, err := s.Get(ctx, id)
		return printed(f, out, err)
	})
}

func update(f *cmdutil.Factory) *cobra.Command {
	var expression, zone string
	c := &cobra.Command{Use: "update ID|NAME", Short: "Change when a schedule runs"}
	c.Flags().StringVar(&expression, "cron", "", "cron expression")
	c.Flags().StringVar(&zone, "timezone", "", "time zone of the expression")
	return run(f, c, func(ctx context.Context, s *client.Schedules, id api.ScheduleID) error {
		var req api.UpdateScheduleRequest
		if c.Flags().Changed("cron") {
			req.Cron = &expression
		}
		if c.Flags().Changed("timezone") {
			was, err := s.Get(ctx, id)
			if err != nil {
				return err
			}
			was.Options.Timezone = zone
			req.Options = &was.Options
		}
		out, err := s.Update(ctx, id, req)
		return printed(f, out, err)
	})
}

// pause is the command that pauses a schedule, or lets it go on.
func pause(f *cmdutil.Factory, on bool) *cobra.Command {
	c := &cobra.Command{Use: "pause ID|NAME", Short: "Add no runs until it is resumed"}
	if !on {
		c = &cobra.Command{Use: "resume ID|NAME", Short: "Let a paused schedule go on"}
	}
	return run(f, c, func(ctx context.Context, s *client.Schedules, id api.ScheduleID) error {
		out, err := s.Update(ctx, id, api.UpdateScheduleRequest{Paused: &on})
		if err != nil {
			return err
		}
		return f.PrintLine(out, out.Name+"\t"+next(out))
	})
}

// Pauses between looks at a run that has not ended.
const (
	firstPause = 100 * time.Millisecond
	maxPause   = 2 * time.Second
)

func trigger(f *cmdutil.Factory) *cobra.Command {
	var detach bool
	c := &cobra.Command{Use: "trigger ID|NAME", Short: "Run a schedule now, and print what it prints"}
	c.Flags().BoolVar(&detach, "detach", false, "print the id of the run at once, and do not wait")
	return run(f, c, func(ctx context.Context, s *client.Schedules, id api.ScheduleID) error {
		r, err := s.Trigger(ctx, id)
		if err != nil {
			return err
		}
		if detach {
			return f.PrintLine(r, string(r.ID))
		}
		for pause := firstPause; !r.Status.Ended(); pause = min(2*pause, maxPause) {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(pause):
			}
			if r, err = get(ctx, s, id, r.ID); err != nil {
				return err
			}
		}
		return ended(f, r)
	})
}

// get reads a run of a schedule.
func get(ctx context.Context, s *client.Schedules, id api.ScheduleID, run api.RunID) (api.ScheduleRun, error) {
	all, err := s.Runs(ctx, id, 100)
	if err != nil {
		return api.ScheduleRun{}, err
	}
	i := slices.IndexFunc(all, func(r api.ScheduleRun) bool { return r.ID == run })
	if i < 0 {
		return api.ScheduleRun{}, api.Errorf(api.NotFound, "run %s not found: its schedule has had 100 runs since", run)
	}
	return all[i], nil
}

// ended prints a run that has ended, and fails as it did.
func ended(f *cmdutil.Factory, r api.ScheduleRun) error {
	err := f.Print(r, func(w io.Writer) error {
		if _, err := io.WriteString(f.Stderr, r.Stderr); err != nil {
			return err
		}
		_, err := io.WriteString(w, r.Stdout)
		return err
	})
	switch {
	case err != nil || r.Status == api.RunSuccess:
		return err
	case r.Status == api.RunError && r.ExitCode != nil && *r.ExitCode > 0 && *r.ExitCode < 256:
		return cmdutil.ExitCode(*r.ExitCode)
	}
	return fmt.Errorf("run %s: %s: %s", r.ID, r.Status, r.Error)
}

func runs(f *cmdutil.Factory) *cobra.Command {
	var limit int
	c := &cobra.Command{Use: "runs ID|NAME", Short: "List the last runs of a schedule, newest first"}
	c.Flags().IntVar(&limit, "limit", 20, "at most so many")
	return run(f, c, func(ctx context.Context, s *client.Schedules, id api.ScheduleID) error {
		all, err := s.Runs(ctx, id, limit)
		if err != nil {
			return err
		}
		head := []string{"ID", "FOR", "STATUS", "ATTEMPT", "TOOK", "ERROR"}
		return cmdutil.PrintTable(f, all, head, func(r api.ScheduleRun) []string {
			took := (time.Duration(r.DurationMS) * time.Millisecond).String()
			return []string{
				string(r.ID), moment(r.ScheduledFor), string(r.Status), fmt.Sprint(r.Attempt), took, r.Error,
			}
		})
	})
}

func remove(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{
		Use: "delete ID|NAME", Aliases: []string{"rm"}, Short: "Delete a schedule and its runs",
	}
	return run(f, c, func(ctx context.Context, s *client.Schedules, id api.ScheduleID) error {
		if err := s.Delete(ctx, id); err != nil {
			return err
		}
		return f.PrintLine(map[string]any{"deleted": id}, string(id))
	})
}
