package app

import (
	"context"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

// secretFile reads a secret from a file.
func secretFile(name string) (string, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return "", api.Errorf(api.Invalid, "%v", err)
	}
	return strings.TrimSpace(string(data)), nil
}

func environment(f *cmdutil.Factory) *cobra.Command {
	return cmdutil.Group("env", "Set the environment variables of an app, for deployments to come",
		listVariables(f), setVariables(f), unsetVariables(f), importVariables(f))
}

func listVariables(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{Use: "list APP", Aliases: []string{"ls"}, Short: "List variables; secrets are masked"}
	return run(f, c, func(ctx context.Context, a *client.Apps, args []string) error {
		all, err := a.Env(ctx, args[0])
		if err != nil {
			return err
		}
		head := []string{"NAME", "SCOPE", "SECRET", "VALUE"}
		return cmdutil.PrintTable(f, all, head, func(v api.AppVariable) []string {
			secret := ""
			if v.Secret {
				secret = "yes"
			}
			return []string{v.Key, string(v.Scope), secret, brief(v.Value, 40)}
		})
	})
}

// scope has the flags of a variable.
type scope struct {
	name   string
	secret bool
}

func (s *scope) register(c *cobra.Command) {
	c.Flags().StringVar(&s.name, "scope", "", "all, production or preview (default all)")
	c.Flags().BoolVar(&s.secret, "secret", false, "show the value to no caller, and mask it in logs")
}

func setVariables(f *cmdutil.Factory) *cobra.Command {
	var s scope
	c := &cobra.Command{
		Use:   "set APP NAME=VALUE... | APP NAME",
		Short: "Set variables; the value of a NAME alone is read from standard input",
		Args:  cobra.MinimumNArgs(2),
		Example: "  pandastack app env set shop LOG_LEVEL=debug\n" +
			"  pandastack app env set shop --secret API_TOKEN < token.txt",
	}
	s.register(c)
	return run(f, c, func(ctx context.Context, a *client.Apps, args []string) error {
		values, err := assignments(f, args[1:])
		if err != nil {
			return err
		}
		for _, v := range values {
			req := api.SetVariableRequest{Value: v[1], Secret: s.secret, Scope: api.EnvScope(s.name)}
			if err := a.SetVariable(ctx, args[0], v[0], req); err != nil {
				return err
			}
		}
		return applied(f, args[0], len(values))
	})
}

// applied says how variables that were set take effect.
func applied(f *cmdutil.Factory, app string, n int) error {
	f.Statusf("'pandastack app deploy %s --restart' starts the app with them", app)
	return f.Print(map[string]int{"set": n}, func(io.Writer) error { return nil })
}

// assignments returns the names and values of arguments like NAME=VALUE.
func assignments(f *cmdutil.Factory, args []string) (out [][2]string, err error) {
	for _, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		if !ok {
			if len(args) > 1 {
				return nil, api.Errorf(api.Invalid, "%q is not NAME=VALUE", arg)
			}
			data, err := io.ReadAll(io.LimitReader(f.Stdin, api.MaxEnvValue+2))
			if err != nil {
				return nil, err
			}
			value = strings.TrimRight(string(data), "\r\n")
		}
		if err := api.ValidateAppVariable(name, value); err != nil {
			return nil, err
		}
		out = append(out, [2]string{name, value})
	}
	return out, nil
}

func unsetVariables(f *cmdutil.Factory) *cobra.Command {
	var name string
	c := &cobra.Command{Use: "unset APP NAME...", Short: "Remove variables", Args: cobra.MinimumNArgs(2)}
	c.Flags().StringVar(&name, "scope", "", "only from this scope (default from all)")
	return run(f, c, func(ctx context.Context, a *client.Apps, args []string) error {
		for _, key := range args[1:] {
			if err := a.DeleteVariable(ctx, args[0], key, api.EnvScope(name)); err != nil {
				return err
			}
		}
		return applied(f, args[0], len(args)-1)
	})
}

func importVariables(f *cmdutil.Factory) *cobra.Command {
	var s scope
	c := &cobra.Command{
		Use:     "import APP FILE",
		Short:   "Set the variables of a dotenv file; - is standard input",
		Args:    cobra.ExactArgs(2),
		Example: "  pandastack app env import shop .env --secret",
	}
	s.register(c)
	return run(f, c, func(ctx context.Context, a *client.Apps, args []string) error {
		in := f.Stdin
		if args[1] != "-" {
			file, err := os.Open(args[1])
			if err != nil {
				return api.Errorf(api.Invalid, "%v", err)
			}
			defer file.Close() //nolint:errcheck // it is only read
			in = file
		}
		data, err := io.ReadAll(io.LimitReader(in, api.MaxDotenv+1))
		if err != nil {
			return err
		}
		req := api.ImportEnvRequest{Dotenv: string(data), Secret: s.secret, Scope: api.EnvScope(s.name)}
		if err := req.Validate(); err != nil {
			return err
		}
		got, err := a.ImportEnv(ctx, args[0], req)
		if err != nil {
			return err
		}
		return applied(f, args[0], got.Imported)
	})
}
