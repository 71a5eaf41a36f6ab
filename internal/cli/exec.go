package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
)

func (a *app) sandboxExec() *cobra.Command {
	var req api.ExecRequest
	var timeout time.Duration
	var stdin bool
	c := &cobra.Command{
		Use:   "exec ID [flags] -- COMMAND [ARG...]",
		Short: "Run a command and give its output and exit code",
		Long: "Run a command and give its output and exit code. One argument is a line for the shell; several are a\n" +
			"command and its arguments, passed as they are. The exit code of pandastack is the command's, 124 when its time was over.",
		Example: "  pandastack sandbox exec sbx... -- uname -a\n  pandastack sandbox exec sbx... 'cd /tmp && ls | wc -l'\n  echo data | pandastack sandbox exec sbx... --stdin -- cat",
		Args:    cobra.MinimumNArgs(2),
	}
	f := c.Flags()
	f.SetInterspersed(true)
	f.DurationVar(&timeout, "timeout", 0, "kill the command and all it started after so long")
	f.StringToStringVarP(&req.Env, "env", "e", nil, "environment on top of the sandbox's, KEY=value")
	f.StringVar(&req.Cwd, "cwd", "", "working directory")
	f.StringVar(&req.User, "user", "", "user")
	f.StringVar(&req.Tag, "tag", "", "a name to find the process by")
	f.BoolVar(&req.Background, "background", false, "answer at once; the command goes on")
	f.BoolVarP(&stdin, "stdin", "i", false, "give the command this program's standard input")
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, id, err := a.dialSandbox(args[0])
		if err != nil {
			return err
		}
		req.Cmd, req.TimeoutSeconds = commandLine(args[1:]), timeout.Seconds()
		if stdin {
			data, err := io.ReadAll(a.Stdin)
			if err != nil {
				return local(err)
			}
			text := string(data)
			req.Stdin = &text
		}
		if a.json || req.Background {
			res, err := cl.Sandboxes.Exec(c.Context(), id, req)
			if err != nil {
				return err
			}
			return a.ended(res)
		}
		exit, err := cl.Sandboxes.ExecStream(c.Context(), id, req, client.Output{
			Stdout: func(text string) { _, _ = io.WriteString(a.Stdout, text) }, // a reader that left is not the command's failure
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

// noMemory is what a person is told of a command that was killed without a word of its own.
const noMemory = "pandastack: the command was killed: the sandbox has no memory left\n"

func (a *app) ended(res api.ExecResult) error {
	err := a.print(res, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, res.PID)
		return err
	})
	if err != nil {
		return err
	}
	return code(res.ExitCode)
}

// code is nil for 0, else the exit code as an error.
func code(n int) error {
	if n == 0 {
		return nil
	}
	return exitCode(n)
}

// commandLine makes the text for the sandbox's shell: one argument is such a text, several are quoted.
func commandLine(args []string) string {
	if len(args) == 1 {
		return args[0]
	}
	quoted := make([]string, len(args))
	for i, arg := range args {
		quoted[i] = quote(arg)
	}
	return strings.Join(quoted, " ")
}

// quote makes one word of a POSIX shell that stands for text.
func quote(text string) string {
	if text != "" && strings.IndexFunc(text, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./=:,+@%", r))
	}) < 0 {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
