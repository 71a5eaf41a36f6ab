package cli

import (
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
	var stdin bool
	c := &cobra.Command{
		Use:   "exec ID [flags] -- COMMAND [ARG...]",
		Short: "Run a command and return its output and exit code",
		Long: "Run a command and return its output and exit code. A single argument is a line for the shell;\n" +
			"several arguments are a command and its arguments, passed unchanged. The exit code is that of the\n" +
			"command, or 124 after the timeout.",
		Example: "  pandastack sandbox exec sbx... -- uname -a\n  pandastack sandbox exec sbx... 'cd /tmp && ls | wc " +
			"-l'\n" +
			"  echo data | pandastack sandbox exec sbx... --stdin -- cat",
		Args: cobra.MinimumNArgs(2),
	}
	f := c.Flags()
	f.SetInterspersed(true)
	f.DurationVar(&timeout, "timeout", 0, "kill the command and its process group after this time")
	f.StringToStringVarP(&req.Env, "env", "e", nil, "environment in addition to the sandbox's, KEY=value")
	f.StringVar(&req.Cwd, "cwd", "", "working directory")
	f.StringVar(&req.User, "user", "", "user to run as")
	f.StringVar(&req.Tag, "tag", "", "tag of the process, to find it by")
	f.BoolVar(&req.Background, "background", false, "return at once; the command keeps running")
	f.BoolVarP(&stdin, "stdin", "i", false, "pass standard input to the command")
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, id, err := a.dialSandbox(args[0])
		if err != nil {
			return err
		}
		req.Cmd, req.TimeoutSeconds = cmdutil.CommandLine(args[1:]), timeout.Seconds()
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
