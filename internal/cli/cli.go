// Package cli implements the command line.
//
// A command parses its arguments, makes one call, and prints the result. Data goes to standard output, messages and
// progress go to standard error. Every command has --json, with the shapes of package api. A failure is one line on
// standard error and the exit code of its api.Code; exec returns the exit code of the command in the sandbox. Only
// setup asks questions, and only at a terminal, so that every command works in scripts. The package has no state, and
// knows nothing of a node except how to start one.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	apps "github.com/pandastack/pandastack/internal/cli/app"
	"github.com/pandastack/pandastack/internal/cli/backup"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
	"github.com/pandastack/pandastack/internal/cli/completion"
	"github.com/pandastack/pandastack/internal/cli/database"
	"github.com/pandastack/pandastack/internal/cli/function"
	"github.com/pandastack/pandastack/internal/cli/process"
	"github.com/pandastack/pandastack/internal/cli/schedule"
	"github.com/pandastack/pandastack/internal/cli/service"
	"github.com/pandastack/pandastack/internal/cli/ssh"
	"github.com/pandastack/pandastack/internal/cli/volume"
	"github.com/pandastack/pandastack/internal/lib/config"
)

// Process is the environment of a run. Stdin, Stdout and Stderr may be terminals.
type Process struct {
	Version        string
	Env            []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// app is one run of the command line.
type app struct {
	*cmdutil.Factory
	Version string   // of the program
	Env     []string // as of Process
	apiURL  string
	key     string
	dataDir string
	file    string
}

func newApp(p Process) *app {
	a := &app{Version: p.Version, Env: p.Env}
	a.Factory = &cmdutil.Factory{Stdin: p.Stdin, Stdout: p.Stdout, Stderr: p.Stderr, Dial: a.dial}
	return a
}

// exitCode ends a run with a code and no message.
type exitCode = cmdutil.ExitCode

// Run runs the program and returns its exit code.
func Run(ctx context.Context, p Process, args []string) int {
	a := newApp(p)
	root := a.root()
	root.SetArgs(args)
	root.SetIn(p.Stdin)
	root.SetOut(p.Stdout)
	root.SetErr(p.Stderr)
	cmdutil.ExplainArguments(root)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	return a.fail(ctx, err)
}

// fail prints an error and returns the exit code.
func (a *app) fail(ctx context.Context, err error) int {
	if code, ok := errors.AsType[exitCode](err); ok {
		return int(code)
	}
	e, ok := errors.AsType[*api.Error](err)
	switch {
	case ctx.Err() != nil:
		e = api.Wrap(api.Canceled, err, "interrupted")
	case !ok:
		e = api.Wrap(localCode(err), err, err.Error())
	default:
		whole := *e
		whole.Message = err.Error() // with the context that was wrapped around it
		e = &whole
	}
	if a.JSON {
		_ = cmdutil.WriteJSON(a.Stderr, e) // a broken standard error cannot be reported
	} else {
		message := e.Message
		if e.Code == api.Unavailable && strings.HasPrefix(message, "cannot reach") {
			message += "; is a node running? pandastack up starts one"
		}
		if e.Code == api.Unauthenticated {
			message += "; give a key of this node with --key or PANDASTACK_API_KEY, or, as root on its machine, its " +
				"--data-dir"
		}
		if e.RequestID != "" && e.Code == api.Internal {
			message += " (request " + string(e.RequestID) + ")"
		}
		fmt.Fprintln(a.Stderr, "pandastack: "+strings.ReplaceAll(message, "\n", "\npandastack: "))
	}
	return e.Code.Info().Exit
}

// localCode returns the code of an error that did not come from a server. It is invalid usage of the command line
// unless the error is known to be another one.
func localCode(err error) api.Code {
	var path *os.PathError
	if errors.As(err, &path) || errors.Is(err, errLocal) {
		return api.Internal
	}
	return api.Invalid
}

// errLocal marks failures of this machine, in contrast to wrong arguments.
var errLocal = errors.New("failed")

// local marks err as a failure of this machine without changing its text.
func local(err error) error {
	if err == nil {
		return nil
	}
	return localError{err}
}

type localError struct{ error }

// Unwrap returns the error and its mark.
func (e localError) Unwrap() []error { return []error{e.error, errLocal} }

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "pandastack",
		Short:         "Run untrusted code in microVMs that start from memory snapshots and fork while they run.",
		Version:       a.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cmdutil.OnlyCommands,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.CompletionOptions.HiddenDefaultCmd = false
	f := root.PersistentFlags()
	f.BoolVar(&a.JSON, "json", false, "print JSON instead of tables")
	f.VarP(a.OutputFlag(), "output", "o", "text, json, or wide: whole tables in a narrow terminal, too")
	f.StringVar(
		&a.apiURL,
		"api",
		"",
		"address of the API (PANDASTACK_API or PANDASTACK_API_URL; else ~/.config/pandastack/config.json, "+
			"else the node on this machine)",
	)
	f.StringVar(&a.key, "key", "", "API key (PANDASTACK_API_KEY)")
	f.StringVar(
		&a.dataDir,
		"data-dir",
		"",
		"data directory of the node on this machine (PANDASTACK_DATA_DIR; default /var/lib/pandastack)",
	)
	f.StringVar(&a.file, "config", "", "configuration file of the node")
	root.AddGroup(
		&cobra.Group{ID: "node", Title: "Node:"},
		&cobra.Group{ID: "use", Title: "Sandboxes:"},
		&cobra.Group{ID: "apps", Title: "Apps:"},
		&cobra.Group{ID: "measure", Title: "Measure:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("node", a.up(), a.setup(), a.service(), a.doctor(), a.config(), a.version(),
		process.Capacity(a.Factory), backup.Command(a.Factory, a.backupHost()), backup.Disk(a.Factory, a.backupHost()))
	add("use", a.sandbox(), a.template(), a.snapshot(), volume.Command(a.Factory), database.Command(a.Factory),
		schedule.Command(a.Factory))
	add("use", ssh.Commands(a.Factory)...)
	add("use", a.keys(), a.workspaces(), a.audit(), a.me())
	add("apps", apps.Deploy(a.Factory), apps.Command(a.Factory), function.Command(a.Factory))
	add("measure", a.demo(), a.bench(), a.conformance())
	completion.Register(a.Factory, root)
	return root
}

// backupHost is what the commands for backups need of this machine.
func (a *app) backupHost() backup.Host {
	return backup.Host{Release: a.Version, Local: local, Settings: func() (*config.Node, error) {
		l, err := a.node(nil)
		if err != nil {
			return nil, err
		}
		return &l.Node, nil
	}}
}

// node loads the configuration of the node on this machine.
func (a *app) node(flags map[string]string) (*config.Loaded, error) {
	all := map[string]string{}
	for k, v := range flags {
		all[k] = v
	}
	if a.dataDir != "" {
		all["data_dir"] = a.dataDir
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, local(err)
	}
	l, err := config.Load(config.Sources{File: a.file, Env: a.Env, Flags: all, WorkDir: dir})
	if err != nil {
		return nil, err
	}
	for _, w := range l.Warnings {
		fmt.Fprintln(a.Stderr, "pandastack: warning: "+w)
	}
	return l, nil
}

func (a *app) service() *cobra.Command {
	return service.Command(a.Factory, service.Options{
		Load: func() (*config.Loaded, error) { return a.node(nil) },
		File: func() string { return a.file },
		Fail: local,
	})
}

// dial returns a client of the API.
func (a *app) dial() (*client.Client, error) {
	c, err := config.LoadClient(
		config.ClientSources{URL: a.apiURL, Key: a.key, Env: a.Env, DataDir: config.DataDir(a.dataDir, a.Env)},
	)
	if err != nil {
		return nil, err
	}
	return client.New(c.URL, c.Key, client.WithUserAgent("pandastack-cli/"+a.Version))
}
