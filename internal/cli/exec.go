package cli

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

func (a *app) sandboxExec() *cobra.Command {
	var req api.ExecRequest
	var timeout time.Duration
	var stdin, tty bool
	c := &cobra.Command{
		Use:   "exec ID [flags] COMMAND [ARG...]",
		Short: "Run a command and return its output and exit code",
		Long: "Run a command and return its output and exit code. A single argument is a line for the shell;\n" +
			"several arguments are a command and its arguments, passed unchanged. Flags end where the command\n" +
			"begins, or at --. The exit code is that of the command, or 124 after the timeout.",
		Example: "  pandastack sandbox exec sbx... ls -la\n  pandastack sandbox exec -it sbx... bash\n" +
			"  pandastack sandbox exec sbx... 'cd /tmp && ls | wc -l'\n" +
			"  echo data | pandastack sandbox exec sbx... --stdin -- cat",
		Args: cobra.MinimumNArgs(2),
	}
	f := c.Flags()
	f.SetInterspersed(false) // what follows the command is its own; flags after the id are parsed below
	f.DurationVar(&timeout, "timeout", 0, "kill the command and its process group after this time")
	f.StringToStringVarP(&req.Env, "env", "e", nil, "environment in addition to the sandbox's, KEY=value")
	f.StringVar(&req.Cwd, "cwd", "", "working directory")
	f.StringVar(&req.User, "user", "", "user to run as")
	f.StringVar(&req.Tag, "tag", "", "tag of the process, to find it by")
	f.BoolVar(&req.Background, "background", false, "return at once; the command keeps running")
	f.BoolVarP(&stdin, "stdin", "i", false, "pass standard input to the command")
	f.BoolVarP(&tty, "tty", "t", false, "run the command in a terminal")
	c.RunE = func(c *cobra.Command, args []string) error {
		command, err := behindID(c, args)
		if err != nil || command == nil {
			return err
		}
		if tty && (a.JSON || req.Background || timeout > 0 || len(req.Env) > 0 || req.Tag != "") {
			return errors.New("--tty: is not possible with --json, --background, --timeout, --env or --tag")
		}
		cl, id, err := a.dialSandbox(c.Context(), args[0])
		if err != nil {
			return err
		}
		req.Cmd, req.TimeoutSeconds = cmdutil.CommandLine(command), timeout.Seconds()
		if tty {
			return a.terminal(c.Context(), cl, id, client.TerminalRequest{Cmd: req.Cmd, Cwd: req.Cwd, User: req.User})
		}
		if stdin {
			data, err := io.ReadAll(a.Stdin)
			if err != nil {
				return local(err)
			}
			text := string(data)
			req.Stdin = &text
		}
		if a.JSON || req.Background {
			res, err := cl.Sandboxes.Exec(c.Context(), id, req)
			if err != nil {
				return err
			}
			return a.ended(res)
		}
		exit, err := cl.Sandboxes.ExecStream(c.Context(), id, req, client.Output{
			// A closed standard output is not a failure of the command.
			Stdout: func(text string) { _, _ = io.WriteString(a.Stdout, text) },
			Stderr: func(text string) { _, _ = io.WriteString(a.Stderr, text) },
		})
		if err != nil {
			return err
		}
		if exit.OutOfMemory {
			_, _ = io.WriteString(a.Stderr, noMemory) // as above
		}
		return code(exit.ExitCode)
	}
	return c
}

// behindID parses the flags between the id, which is the first of args, and the command, and returns the command. It
// returns nil if it printed the help.
func behindID(c *cobra.Command, args []string) ([]string, error) {
	f := c.Flags()
	if err := f.Parse(args[1:]); err != nil {
		return nil, err
	}
	if help, err := f.GetBool("help"); err == nil && help {
		return nil, c.Help()
	}
	if f.NArg() == 0 {
		return nil, fmt.Errorf("no command was given; usage: %s", c.UseLine())
	}
	return f.Args(), nil
}

// noMemory is printed for a command that was killed because the sandbox was out of memory.
const noMemory = "pandastack: the command was killed: the sandbox is out of memory\n"

func (a *app) ended(res api.ExecResult) error {
	err := a.PrintLine(res, fmt.Sprint(res.PID))
	if err != nil {
		return err
	}
	return code(res.ExitCode)
}

// code returns an exit code as an error, or nil for 0.
func code(n int) error {
	if n == 0 {
		return nil
	}
	return exitCode(n)
}
