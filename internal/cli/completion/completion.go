// Package completion makes shells complete the names of what a node has.
package completion

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

// candidates lists what an argument or a flag can be.
type candidates func(context.Context, *client.Client) ([]string, error)

// Register completes arguments of the commands below root, and flags for templates and snapshots.
func Register(f *cmdutil.Factory, root *cobra.Command) {
	groups := map[string]candidates{
		"sandbox": sandboxNames, "snapshot": snapshotNames, "template": templateNames, "ssh": sandboxNames,
		"volume": func(ctx context.Context, cl *client.Client) ([]string, error) {
			return names(cl.Volumes.List(ctx))(func(v api.Volume) string { return v.Name })
		},
		"db": func(ctx context.Context, cl *client.Client) ([]string, error) {
			return names(cl.Databases.List(ctx))(func(d api.Database) string { return string(d.ID) + "\t" + d.Label })
		},
		"schedule": func(ctx context.Context, cl *client.Client) ([]string, error) {
			return names(cl.Schedules.List(ctx))(func(s api.Schedule) string { return s.Name })
		},
		"app": func(ctx context.Context, cl *client.Client) ([]string, error) {
			return names(cl.Apps.List(ctx))(func(one api.App) string { return one.Name })
		},
	}
	flags := map[string]candidates{"template": templateNames, "from-snapshot": snapshotNames}
	for _, group := range root.Commands() {
		list, ok := groups[group.Name()]
		for _, c := range append(group.Commands(), group) {
			if _, argument, _ := strings.Cut(c.Use, " "); ok && c.ValidArgsFunction == nil && c.Name() != "create" &&
				argument != "" && argument[0] != '[' && c.RunE != nil {
				c.ValidArgsFunction = completion(f, list, !strings.Contains(argument, "ID..."))
			}
			for flag, list := range flags {
				if c.Flags().Lookup(flag) != nil && group.Name() != "volume" {
					_ = c.RegisterFlagCompletionFunc(flag, completion(f, list, false)) // fails if it has one
				}
			}
		}
	}
}

// completion returns a function that completes with candidates; only the first argument if first is set.
func completion(f *cmdutil.Factory, list candidates, first bool) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if first && len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		cl, err := f.Dial()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		all, err := list(c.Context(), cl)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var found []string
		for _, one := range all {
			if strings.HasPrefix(one, begun) {
				found = append(found, one)
			}
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// names returns a function that applies name to a list, unless there is an error.
func names[T any](list []T, err error) func(name func(T) string) ([]string, error) {
	return func(name func(T) string) ([]string, error) {
		var all []string
		for _, one := range list {
			all = append(all, name(one))
		}
		return all, err
	}
}

func templateNames(ctx context.Context, cl *client.Client) ([]string, error) {
	return names(cl.Templates.List(ctx))(func(t api.Template) string { return t.Name })
}

func snapshotNames(ctx context.Context, cl *client.Client) ([]string, error) {
	return names(cl.Snapshots.List(ctx, api.SnapshotFilter{}))(func(s api.Snapshot) string {
		return string(s.ID) + "\t" + s.Name
	})
}

// sandboxNames returns the ids of sandboxes, described by state and template, and the names in their metadata.
func sandboxNames(ctx context.Context, cl *client.Client) ([]string, error) {
	list, err := cl.Sandboxes.List(ctx, api.SandboxFilter{})
	var all []string
	for _, s := range list {
		all = append(all, string(s.ID)+"\t"+string(s.Status)+", "+s.Template)
		if name := s.Metadata["name"]; name != "" {
			all = append(all, name+"\t"+string(s.ID))
		}
	}
	return all, err
}
