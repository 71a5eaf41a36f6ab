package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

func (a *app) sandboxShell() *cobra.Command {
	var req client.TerminalRequest
	c := &cobra.Command{
		Use:   "shell ID",
		Short: "Open a terminal",
		Long: "Open a terminal in a sandbox: a login shell, or the program given with --cmd. The exit code is the\n" +
			"program's.",
		Args: cobra.ExactArgs(1),
	}
	c.Flags().StringVar(&req.Cmd, "cmd", "", "program to run instead of a login shell")
	c.Flags().StringVar(&req.Cwd, "cwd", "", "working directory")
	c.Flags().StringVar(&req.User, "user", "", "user to run as")
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, id, err := a.dialSandbox(c.Context(), args[0])
		if err != nil {
			return err
		}
		return a.terminal(c.Context(), cl, id, req)
	}
	return c
}

// terminal opens a terminal in a sandbox, of the size of the user's, until its program ends.
func (a *app) terminal(ctx context.Context, cl *client.Client, id api.SandboxID, req client.TerminalRequest) error {
	screen, isTerminal := cmdutil.Terminal(a.Stdin)
	if isTerminal {
		if cols, rows, err := term.GetSize(int(screen.Fd())); err == nil {
			req.Rows, req.Cols = uint16(rows), uint16(cols)
		}
	}
	t, err := cl.Sandboxes.Terminal(ctx, id, req)
	if err != nil {
		return err
	}
	if isTerminal {
		old, err := term.MakeRaw(int(screen.Fd()))
		if err != nil {
			return errors.Join(local(err), t.Close())
		}
		// The program ends, so a failure to restore the terminal cannot be handled.
		defer func() { _ = term.Restore(int(screen.Fd()), old) }()
	}
	return a.runTerminal(ctx, t, screen, isTerminal)
}

// runTerminal copies bytes between standard input and output and the terminal until the program ends.
func (a *app) runTerminal(ctx context.Context, t *client.Terminal, screen *os.File, isTerminal bool) error {
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel()
	if isTerminal {
		wait.Go(func() { resize(ctx, t, screen) })
	}
	// This goroutine is not waited for: a read of a terminal cannot be interrupted, and it ends with the process.
	go a.typed(ctx, t)
	for {
		data, err := t.Receive(ctx)
		if exited, ok := errors.AsType[*client.Exited](err); ok {
			_ = t.Close() // the program has ended; the code is what matters
			return code(exited.Code)
		}
		if err != nil {
			return errors.Join(err, t.Close())
		}
		if _, err := a.Stdout.Write(data); err != nil {
			return errors.Join(local(err), t.Close())
		}
	}
}

// typed sends standard input to the terminal, and Ctrl-D at its end.
func (a *app) typed(ctx context.Context, t *client.Terminal) {
	buf := make([]byte, 32<<10)
	for {
		n, err := a.Stdin.Read(buf)
		if n > 0 && t.Send(ctx, buf[:n]) != nil {
			return
		}
		if err != nil {
			_ = t.Send(ctx, []byte{4}) // the program may have ended already
			return
		}
	}
}

func resize(ctx context.Context, t *client.Terminal, screen *os.File) {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	defer signal.Stop(changed)
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			if cols, rows, err := term.GetSize(int(screen.Fd())); err == nil {
				_ = t.Resize(ctx, uint16(rows), uint16(cols)) // the size is only a hint
			}
		}
	}
}
