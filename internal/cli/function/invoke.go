package function

import (
	"context"
	"encoding/json"
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

func invoke(f *cmdutil.Factory) *cobra.Command {
	var req api.InvokeRequest
	var data, file string
	var delay time.Duration
	c := &cobra.Command{
		Use:   "invoke FUNCTION",
		Short: "Invoke a function; the result goes to stdout, what it printed to stderr",
		Long: "Invoke a function with an event and wait for the result, which goes to standard output; what the\n" +
			"function printed goes to standard error. The exit code is 1 if it failed.",
		Example: "  pandastack fn invoke hello -d '{\"name\": \"Ada\"}'\n" +
			"  pandastack fn invoke hello --file event.json\n" +
			"  pandastack fn invoke hello --async --delay 5m",
	}
	fl := c.Flags()
	fl.StringVarP(&data, "data", "d", "", "event, JSON")
	fl.StringVar(&file, "file", "", "file with the event; - is standard input")
	fl.BoolVar(&req.Async, "async", false, "print the id of the run at once, and do not wait; failures are retried")
	fl.DurationVar(&delay, "delay", 0, "with --async: begin so much later")
	fl.StringVar(&req.Alias, "alias", "", "invoke the version of this alias")
	fl.Int64Var(&req.Version, "version", 0, "invoke this version")
	fl.StringVar(&req.IdempotencyKey, "idempotency-key", "", "invocations with the same key are one, for 24 hours")
	c.MarkFlagsMutuallyExclusive("data", "file")
	c.MarkFlagsMutuallyExclusive("alias", "version")
	return run(f, c, func(ctx context.Context, fns *client.Functions, args []string) error {
		req.DelaySeconds = int64(delay.Seconds())
		var err error
		if req.Input, err = event(f, data, file); err != nil {
			return err
		}
		if err := req.Validate(); err != nil {
			return err
		}
		one, err := fns.Invoke(ctx, args[0], req)
		switch {
		case err != nil:
			return err
		case f.JSON:
			if err := cmdutil.WriteJSON(f.Stdout, one); err != nil {
				return err
			}
		case req.Async:
			f.Statusf("queued: 'pandastack fn runs %s %s' shows what becomes of it", args[0], one.ID)
			_, err := fmt.Fprintln(f.Stdout, one.ID)
			return err
		default:
			if err := printRun(f, one); err != nil {
				return err
			}
		}
		if one.Status.Ended() && one.Status != api.RunSuccess {
			return cmdutil.ExitCode(1)
		}
		return nil
	})
}

// event returns the event of an invocation.
func event(f *cmdutil.Factory, data, file string) (json.RawMessage, error) {
	from, text := "--data", []byte(data)
	if file != "" {
		in := f.Stdin
		if from = file; file != "-" {
			opened, err := os.Open(file)
			if err != nil {
				return nil, api.Errorf(api.Invalid, "--file: %v", err)
			}
			defer opened.Close() //nolint:errcheck // it was only read
			in = opened
		}
		var err error
		if text, err = io.ReadAll(io.LimitReader(in, api.MaxFunctionPayload+1)); err != nil {
			return nil, api.Errorf(api.Invalid, "--file: %v", err)
		}
	}
	if len(strings.TrimSpace(string(text))) == 0 {
		return nil, nil
	}
	if !json.Valid(text) {
		return nil, api.Errorf(api.Invalid, `%s is not JSON: quote texts, such as -d '"text"' or -d '{"a": 1}'`, from)
	}
	return text, nil
}

// printRun prints the result of a run, and what it printed and why it failed as notes.
func printRun(f *cmdutil.Factory, one api.FunctionRun) error {
	printOutput(f.Stderr, one)
	printFailure(f.Stderr, one)
	if one.Status != api.RunSuccess || len(one.Result) == 0 {
		return nil
	}
	return cmdutil.WriteJSON(f.Stdout, one.Result)
}

// printOutput prints what a run printed.
func printOutput(w io.Writer, one api.FunctionRun) {
	for _, text := range []string{one.Stdout, one.Stderr} {
		if text != "" {
			_, _ = fmt.Fprintln(w, strings.TrimSuffix(text, "\n")) // it is only a note
		}
	}
	if one.Truncated {
		_, _ = fmt.Fprintln(w, "... there was more output than is kept")
	}
}

// printFailure prints why a run did not succeed.
func printFailure(w io.Writer, one api.FunctionRun) {
	if one.Error == nil {
		if one.Status == api.RunTimeout {
			_, _ = fmt.Fprintln(w, "error: it took too long: 'pandastack fn update FUNCTION --timeout' allows more")
		}
		return
	}
	_, _ = fmt.Fprintf(w, "error: %s: %s\n", one.Error.Type, one.Error.Message)
	if one.Error.Stack != "" {
		_, _ = fmt.Fprintln(w, strings.TrimSuffix(one.Error.Stack, "\n"))
	}
}

func logs(f *cmdutil.Factory) *cobra.Command {
	var follow bool
	var last int
	c := &cobra.Command{
		Use:     "logs FUNCTION",
		Short:   "Show what the last invocations printed",
		Example: "  pandastack fn logs hello\n  pandastack fn logs hello -f --tail 0",
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "continue with the invocations that end from now on")
	c.Flags().IntVar(&last, "tail", 20, "begin with so many of the last invocations")
	return run(f, c, func(ctx context.Context, fns *client.Functions, args []string) error {
		return fns.Logs(ctx, args[0], last, follow, func(one api.FunctionRun) error {
			if f.JSON {
				return cmdutil.WriteJSON(f.Stdout, one)
			}
			if _, err := fmt.Fprintln(f.Stdout, headline(one)); err != nil {
				return err
			}
			printOutput(f.Stdout, one)
			printFailure(f.Stdout, one)
			return nil
		})
	})
}

// headline describes a run on one line.
func headline(one api.FunctionRun) string {
	start := "warm"
	if one.Cold {
		start = "cold"
	}
	return fmt.Sprintf("%s %s %s v%d %s %.0f ms", one.CreatedAt.UTC().Format("2006-01-02T15:04:05.000Z"), one.ID,
		one.Status, one.Version, start, one.DurationMS)
}

func runs(f *cmdutil.Factory) *cobra.Command {
	var filter api.RunFilter
	var status string
	var stop bool
	c := &cobra.Command{
		Use:   "runs FUNCTION [RUN]",
		Short: "List the last runs of a function, or show one",
		Example: "  pandastack fn runs hello --status error\n  pandastack fn runs hello invwmxk3lq2vbt6r7ynp4cd\n" +
			"  pandastack fn runs hello invwmxk3lq2vbt6r7ynp4cd --cancel",
		Args: cobra.RangeArgs(1, 2),
	}
	c.Flags().StringVar(&status, "status", "", "only queued, running, success, error, timeout or canceled ones")
	c.Flags().Int64Var(&filter.Version, "version", 0, "only of this version")
	c.Flags().IntVar(&filter.Limit, "limit", 20, "at most so many")
	c.Flags().BoolVar(&stop, "cancel", false, "cancel the run, an asynchronous one that has not ended")
	return run(f, c, func(ctx context.Context, fns *client.Functions, args []string) error {
		if len(args) == 2 {
			return oneRun(ctx, f, fns, args[0], args[1], stop)
		}
		if stop {
			return api.Errorf(api.Invalid, "--cancel needs the id of a run: 'pandastack fn runs %s' lists them",
				args[0])
		}
		filter.Status = api.RunStatus(status)
		all, err := fns.Runs(ctx, args[0], filter)
		if err != nil {
			return err
		}
		head := []string{"RUN", "STATUS", "VERSION", "TRIGGER", "ATTEMPT", "TOOK", "AGE", "ERROR"}
		return cmdutil.PrintTable(f, all, head, func(r api.FunctionRun) []string {
			why := ""
			if r.Error != nil {
				why = r.Error.Type + ": " + firstLine(r.Error.Message)
			}
			return []string{
				string(r.ID), string(r.Status), number(r.Version), r.Trigger, fmt.Sprint(r.Attempt),
				fmt.Sprintf("%.0f ms", r.DurationMS), cmdutil.Age(r.CreatedAt, time.Now()), why,
			}
		})
	})
}

func oneRun(ctx context.Context, f *cmdutil.Factory, fns *client.Functions, fn, run string, stop bool) error {
	id, err := api.ParseInvocationID(run)
	if err != nil {
		return err
	}
	get := fns.Run
	if stop {
		get = fns.Cancel
	}
	one, err := get(ctx, fn, id)
	if err != nil {
		return err
	}
	return f.Print(one, func(w io.Writer) error {
		if _, err := fmt.Fprintln(w, headline(one)); err != nil {
			return err
		}
		printOutput(w, one)
		printFailure(w, one)
		if len(one.Result) > 0 {
			return cmdutil.WriteJSON(w, one.Result)
		}
		return nil
	})
}
