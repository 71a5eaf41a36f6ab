package cli

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

// deleteTimeout bounds the deletion of a sandbox whose command has ended.
const deleteTimeout = time.Minute

func (a *app) sandboxRun() *cobra.Command {
	var req api.CreateRequest
	var remove, tty bool
	c := &cobra.Command{
		Use:   "run [flags] COMMAND [ARG...]",
		Short: "Create a sandbox and run a command in it",
		Long: "Create a sandbox and run a command in it, whose exit code is the result. Without --rm the sandbox\n" +
			"stays, and its id is printed to standard error.",
		Example: "  pandastack sandbox run --rm python3 -c 'print(6*7)'\n" +
			"  pandastack sandbox run --rm -t --template base bash",
		Args: cobra.MinimumNArgs(1),
	}
	f := c.Flags()
	f.SetInterspersed(false) // what follows the command is its own
	f.StringVar(&req.Template, "template", "", "template (default: sandbox.template of the server)")
	f.StringToStringVarP(&req.Env, "env", "e", nil, "environment of every process, KEY=value")
	f.StringVar(&req.User, "user", "", "user to run as")
	f.StringVar(&req.Workdir, "workdir", "", "working directory")
	f.BoolVar(&remove, "rm", false, "delete the sandbox when the command has ended")
	f.BoolVarP(&tty, "tty", "t", false, "run the command in a terminal")
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		if tty && a.JSON {
			return errors.New("--tty: is not possible with --json")
		}
		cl, err := a.Dial()
		if err != nil {
			return err
		}
		box, err := cl.Sandboxes.Create(c.Context(), req)
		if err != nil {
			return err
		}
		if remove {
			defer func() { err = errors.Join(err, deleteEnded(c.Context(), cl, box.ID)) }()
		} else {
			a.Statusf("%s", box.ID)
		}
		line := cmdutil.CommandLine(args)
		switch {
		case tty:
			return a.terminal(c.Context(), cl, box.ID, client.TerminalRequest{Cmd: line})
		case a.JSON:
			res, err := cl.Sandboxes.Exec(c.Context(), box.ID, api.ExecRequest{Cmd: line})
			if err != nil {
				return err
			}
			return a.ended(res)
		}
		exit, err := cl.Sandboxes.ExecStream(c.Context(), box.ID, api.ExecRequest{Cmd: line}, client.Output{
			// A closed standard output is not a failure of the command.
			Stdout: func(text string) { _, _ = io.WriteString(a.Stdout, text) },
			Stderr: func(text string) { _, _ = io.WriteString(a.Stderr, text) },
		})
		if err != nil {
			return err
		}
		return code(exit.ExitCode)
	}
	return c
}

// deleteEnded deletes a sandbox also if the user has interrupted the command.
func deleteEnded(ctx context.Context, cl *client.Client, id api.SandboxID) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteTimeout)
	defer cancel()
	return cl.Sandboxes.Delete(ctx, id)
}
