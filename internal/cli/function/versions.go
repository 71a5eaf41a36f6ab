package function

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

func sorted(names []string) []string {
	slices.Sort(names)
	return names
}

func versions(f *cmdutil.Factory) *cobra.Command {
	var log int64
	c := &cobra.Command{
		Use:     "versions FUNCTION",
		Short:   "List the versions of a function, or show the log of a build",
		Example: "  pandastack fn versions hello\n  pandastack fn versions hello --log 3",
	}
	c.Flags().Int64Var(&log, "log", 0, "show the log of the build of this version")
	return run(f, c, func(ctx context.Context, fns *client.Functions, args []string) error {
		if log != 0 {
			return buildLog(ctx, f.Stdout, fns, args[0], log)
		}
		all, err := fns.Versions(ctx, args[0])
		if err != nil {
			return err
		}
		head := []string{"VERSION", "STATUS", "STYLE", "ENTRYPOINT", "SIZE", "AGE", "ERROR"}
		return cmdutil.PrintTable(f, all, head, func(v api.FunctionVersion) []string {
			return []string{
				number(v.Number), string(v.Status), v.Style, v.Entrypoint, cmdutil.Size(v.CodeSize),
				cmdutil.Age(v.CreatedAt, time.Now()), firstLine(v.Error),
			}
		})
	})
}

func buildLog(ctx context.Context, w io.Writer, fns *client.Functions, fn string, version int64) error {
	log, err := fns.BuildLog(ctx, fn, version)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, log)
	return errors.Join(err, log.Close())
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

func rollback(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{
		Use:     "rollback FUNCTION [VERSION]",
		Short:   "Go back to a version at once (default: the ready one before)",
		Example: "  pandastack fn rollback hello\n  pandastack fn rollback hello 3",
		Args:    cobra.RangeArgs(1, 2),
	}
	return run(f, c, func(ctx context.Context, fns *client.Functions, args []string) error {
		var to int64
		if len(args) == 2 {
			var err error
			if to, err = parseVersion(args[1]); err != nil {
				return err
			}
		}
		fn, err := fns.Rollback(ctx, args[0], to)
		if err != nil {
			return err
		}
		return f.PrintLine(fn, fmt.Sprintf("%s is at version %d", fn.Name, fn.Version))
	})
}

func parseVersion(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, api.Errorf(api.Invalid, "%q is not a version: 'pandastack fn versions FUNCTION' lists them", text)
	}
	return n, nil
}

func alias(f *cmdutil.Factory) *cobra.Command {
	var drop bool
	c := &cobra.Command{
		Use:   "alias FUNCTION [NAME [VERSION[=WEIGHT]]...]",
		Short: "List aliases, or set one to a version or to two with weights",
		Long: "List the aliases of a function, or set one. Invocations that name no alias go to the alias \"live\"\n" +
			"if there is one, and otherwise to the version that was deployed last.",
		Example: "  pandastack fn alias hello\n  pandastack fn alias hello staging 4\n" +
			"  pandastack fn alias hello live 3=90 4=10\n  pandastack fn alias hello staging --delete",
		Args: cobra.RangeArgs(1, 4),
	}
	c.Flags().BoolVar(&drop, "delete", false, "delete the alias")
	return run(f, c, func(ctx context.Context, fns *client.Functions, args []string) error {
		switch {
		case drop && len(args) == 2:
			if err := fns.DeleteAlias(ctx, args[0], args[1]); err != nil {
				return err
			}
			f.Statusf("deleted alias %s of %s", args[1], args[0])
			return nil
		case drop:
			return api.Errorf(api.Invalid, "--delete needs the name of one alias and nothing else")
		case len(args) > 2:
			return setAlias(ctx, f, fns, args)
		}
		all, err := fns.Aliases(ctx, args[0])
		if err != nil {
			return err
		}
		if len(args) == 2 {
			all = slices.DeleteFunc(all, func(a api.FunctionAlias) bool { return a.Name != args[1] })
		}
		return cmdutil.PrintTable(f, all, []string{"ALIAS", "VERSIONS", "AGE"}, func(a api.FunctionAlias) []string {
			return []string{a.Name, weights(a), cmdutil.Age(a.UpdatedAt, time.Now())}
		})
	})
}

func setAlias(ctx context.Context, f *cmdutil.Factory, fns *client.Functions, args []string) error {
	var req api.SetAliasRequest
	for _, text := range args[2:] {
		version, share, weighted := strings.Cut(text, "=")
		n, err := parseVersion(version)
		if err != nil {
			return err
		}
		w := api.FunctionWeight{Version: n}
		if weighted {
			if w.Weight, err = strconv.Atoi(strings.TrimSuffix(share, "%")); err != nil {
				return api.Errorf(api.Invalid, "%q is not a weight: use hundredths, such as %d=90", share, n)
			}
		}
		req.Versions = append(req.Versions, w)
	}
	if err := req.Validate(); err != nil {
		return err
	}
	a, err := fns.SetAlias(ctx, args[0], args[1], req)
	if err != nil {
		return err
	}
	return f.PrintLine(a, a.Name+" -> "+weights(a))
}

// weights returns the versions of an alias, with their weights if there are two.
func weights(a api.FunctionAlias) string {
	var out []string
	for _, w := range a.Versions {
		text := number(w.Version)
		if len(a.Versions) > 1 {
			text += "=" + strconv.Itoa(w.Weight)
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}
