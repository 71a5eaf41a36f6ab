package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

func (a *app) workspaces() *cobra.Command {
	return cmdutil.Group("workspace", "Manage workspaces and their quotas; needs an operator's key",
		a.workspaceCreate(), a.workspaceList(), a.workspaceSuspend(), a.workspaceResume(), a.workspaceQuota())
}

func (a *app) workspaceCreate() *cobra.Command {
	var req api.WorkspaceRequest
	var quotas []string
	c := &cobra.Command{
		Use:   "create WORKSPACE",
		Short: "Create a workspace and print its first key; it cannot be shown again",
		Args:  cobra.ExactArgs(1),
	}
	c.Flags().StringVar(&req.Name, "name", "", "name for people")
	c.Flags().StringSliceVar(&quotas, "quota", nil, "quota of its own, kind=number")
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		req.ID = api.Workspace(args[0])
		if req.Quotas, err = parseQuotas(quotas); err != nil {
			return err
		}
		cl, err := a.Dial()
		if err != nil {
			return err
		}
		made, err := cl.Workspaces.Create(c.Context(), req)
		if err != nil {
			return err
		}
		return a.PrintLine(made, made.Token)
	}
	return c
}

func (a *app) workspaceList() *cobra.Command {
	get := func(ctx context.Context, cl *client.Client) ([]api.WorkspaceInfo, error) {
		return cl.Workspaces.List(ctx)
	}
	head := []string{"WORKSPACE", "NAME", "STATUS", "AGE"}
	return cmdutil.ListCommand(a.Factory, "List workspaces", get, head, func(one api.WorkspaceInfo) []string {
		return []string{string(one.ID), one.Name, one.Status, cmdutil.Age(one.CreatedAt, time.Now())}
	})
}

func (a *app) workspaceSuspend() *cobra.Command {
	return a.changeWorkspace("suspend",
		"Refuse the requests of a workspace, cancel its builds and hibernate its sandboxes",
		"Refuse all requests of a workspace, cancel its builds and hibernate its sandboxes in the background. "+
			"Nothing is deleted; sandboxes with a fixed end still end.",
		func(ctx context.Context, cl *client.Client, id api.Workspace) (api.WorkspaceInfo, error) {
			return cl.Workspaces.Suspend(ctx, id)
		})
}

func (a *app) workspaceResume() *cobra.Command {
	return a.changeWorkspace("resume", "Make a suspended workspace active again",
		"Make a suspended workspace active again. Its sandboxes stay hibernated until they are used.",
		func(ctx context.Context, cl *client.Client, id api.Workspace) (api.WorkspaceInfo, error) {
			return cl.Workspaces.Resume(ctx, id)
		})
}

// changeWorkspace returns a command that makes one call on a workspace.
func (a *app) changeWorkspace(
	verb, short, long string,
	do func(context.Context, *client.Client, api.Workspace) (api.WorkspaceInfo, error),
) *cobra.Command {
	return &cobra.Command{
		Use:   verb + " WORKSPACE",
		Short: short,
		Long:  long,
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := a.Dial()
			if err != nil {
				return err
			}
			got, err := do(c.Context(), cl, api.Workspace(args[0]))
			if err != nil {
				return err
			}
			a.Statusf("%s is %s", got.ID, got.Status)
			if a.JSON {
				return cmdutil.WriteJSON(a.Stdout, got)
			}
			return nil
		},
	}
}

func (a *app) workspaceQuota() *cobra.Command {
	return &cobra.Command{
		Use:   "quota [WORKSPACE [KIND=VALUE...]]",
		Short: "Show or change what a workspace may have",
		Long: "Show what a workspace uses and may have, or change it. Without a workspace it shows that of the key, " +
			"for which any key will do.\n\nA value is a number, unlimited, or default. A quota below what is in use " +
			"removes nothing; it refuses more.",
		Example: "  pandastack workspace quota\n" +
			"  pandastack workspace quota acme vcpus=16 disk_mib=102400 templates=default",
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := a.Dial()
			if err != nil {
				return err
			}
			got, err := quotaOf(c.Context(), cl, args)
			if err != nil {
				return err
			}
			return a.Print(got, func(w io.Writer) error { return quotaTable(w, got.Quotas) })
		},
	}
}

// quotaOf performs the quota command.
func quotaOf(ctx context.Context, cl *client.Client, args []string) (api.WorkspaceInfo, error) {
	switch len(args) {
	case 0:
		return cl.Workspaces.Own(ctx)
	case 1:
		return cl.Workspaces.Get(ctx, api.Workspace(args[0]))
	}
	change, err := parseQuotas(args[1:])
	if err != nil {
		return api.WorkspaceInfo{}, err
	}
	return cl.Workspaces.SetQuotas(ctx, api.Workspace(args[0]), change)
}

// parseQuotas parses arguments of the form kind=value.
func parseQuotas(args []string) (map[string]*int64, error) {
	change := map[string]*int64{}
	for _, arg := range args {
		kind, value, ok := strings.Cut(arg, "=")
		if !ok || kind == "" {
			return nil, fmt.Errorf("%q is not a kind and a value, such as vcpus=16", arg)
		}
		switch value {
		case "default":
			change[kind] = nil
		case "unlimited":
			change[kind] = new(int64)
		default:
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %q is not a number, unlimited or default", kind, value)
			}
			change[kind] = &n
		}
	}
	return change, nil
}

func quotaTable(w io.Writer, quotas []api.Quota) error {
	rows := make([][]string, 0, len(quotas))
	for _, q := range quotas {
		used, allowed, from := "", "unlimited", "workspace"
		if q.Used != nil {
			used = strconv.FormatInt(*q.Used, 10)
		}
		if q.Allowed > 0 {
			allowed = strconv.FormatInt(q.Allowed, 10)
		}
		if q.IsDefault {
			from = "default"
		}
		rows = append(rows, []string{q.Kind, used, allowed, q.Unit, from, q.Summary})
	}
	return cmdutil.Table(w, []string{"KIND", "USED", "ALLOWED", "UNIT", "SET BY", "WHAT COUNTS"}, rows)
}
