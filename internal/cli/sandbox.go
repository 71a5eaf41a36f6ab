package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
	"github.com/pandastack/pandastack/internal/cli/process"
	"github.com/pandastack/pandastack/internal/cli/values"
)

func (a *app) sandbox() *cobra.Command {
	c := cmdutil.Group(
		"sandbox",
		"Create sandboxes and work in them",
		a.sandboxCreate(),
		a.sandboxList(),
		a.sandboxGet(),
		a.sandboxDelete(),
		a.sandboxRun(),
		a.sandboxExec(),
		a.sandboxShell(),
		a.sandboxCopy(),
		process.List(a.Factory),
		process.Signal(a.Factory),
		a.sandboxLogs(),
		a.sandboxPorts(),
		a.sandboxPreview(),
		process.PortForward(a.Factory),
		a.sandboxMetrics(),
		a.sandboxLifecycle(),
		a.sandboxNetwork(),
		a.sandboxFork(),
		a.sandboxForkTree(),
		a.sandboxPromote(),
		a.sandboxSnapshot(),
		a.sandboxHibernate(),
		a.sandboxWake(),
		a.sandboxPause(),
		a.sandboxResume(),
	)
	c.Aliases = []string{"sb"}
	return c
}

func (a *app) sandboxCreate() *cobra.Command {
	var req api.CreateRequest
	var from string
	var ttl, timeout time.Duration
	var reach reachFlags
	var limits values.LimitFlags
	var volumes []string
	c := &cobra.Command{
		Use:   "create",
		Short: "Create a sandbox from a template or a snapshot",
		Long:  "Create a sandbox from a template or a snapshot, and print its id.",
		Example: "  pandastack sandbox create\n" +
			"  pandastack sandbox create --template base --persistent --env KEY=value\n" +
			"  pandastack sandbox create --no-internet --allow-out packages.example.com --allow-out " +
			"'*.files.example.com'\n" +
			"  pandastack sandbox create --volume data:/data --volume models:/models:ro\n" +
			"  pandastack sandbox create --from-snapshot snp...",
		Args: cobra.NoArgs,
	}
	f := c.Flags()
	f.StringVarP(&req.Template, "template", "t", "", "template (default: sandbox.template of the server)")
	f.StringVar(&from, "from-snapshot", "", "create from this snapshot instead")
	f.DurationVar(&ttl, "ttl", 0, "delete after this time without use; 0s is never (default: sandbox.ttl of the "+
		"server)")
	f.DurationVar(&timeout, "timeout", 0, "delete after this time, used or not")
	f.BoolVar(
		&req.Persistent,
		"persistent",
		false,
		"never delete when idle; hibernate instead of deleting when the node stops",
	)
	f.StringToStringVar(&req.Metadata, "metadata", nil, "metadata, key=value")
	f.StringToStringVarP(&req.Env, "env", "e", nil, "environment of every process, KEY=value")
	f.StringVar(&req.User, "user", "", "default user of commands and files")
	f.StringVar(&req.Workdir, "workdir", "", "default working directory of commands")
	f.IntVar(&req.DiskMB, "disk-mb", 0, "minimum size of the root disk in MiB")
	f.StringArrayVar(&volumes, "volume", nil, "attach a volume, as NAME[:DIRECTORY][:ro] (default directory /mnt/NAME)")
	reach.register(f)
	limits.Register(f)
	f.BoolVar(&reach.noInternet, "no-egress", false, "same as --no-internet")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if f.Changed("ttl") {
			req.TTLSeconds = seconds(ttl)
		}
		req.TimeoutSeconds, req.Limits = *seconds(timeout), limits.Given()
		n, err := reach.network()
		if err != nil {
			return err
		}
		if req.Volumes, err = values.VolumeMounts(volumes); err != nil {
			return err
		}
		if !n.AllowsAll() {
			req.Network = &n
		}
		cl, err := a.Dial()
		if err != nil {
			return err
		}
		if from != "" {
			if req.FromSnapshot, err = cmdutil.FindSnapshot(c.Context(), cl.Snapshots, from); err != nil {
				return err
			}
		}
		sb, err := cl.Sandboxes.Create(c.Context(), req)
		if err != nil {
			return err
		}
		if req.Template != "" && sb.Template != req.Template {
			a.explainAlias(c.Context(), cl, req.Template, sb.Template)
		}
		a.Statusf("%s is running from template %s (%s, %d ms)", sb.ID, sb.Template, sb.BootMode, sb.BootMS)
		return a.PrintLine(sb, string(sb.ID))
	}
	return c
}

// explainAlias says which template another name has given: ubuntu-24.04 may be of another distribution.
func (a *app) explainAlias(ctx context.Context, cl *client.Client, alias, name string) {
	if t, err := cl.Templates.Get(ctx, name); err == nil { // the sandbox runs, whatever its template is
		a.Statusf("%s is an alias of %s: %s", alias, name, t.Description)
	}
}

func seconds(d time.Duration) *int64 {
	s := int64(d / time.Second)
	return &s
}

func (a *app) sandboxList() *cobra.Command {
	var f api.SandboxFilter
	var states []string
	var quiet bool
	c := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List sandboxes, newest first", Args: cobra.NoArgs}
	c.Flags().StringVarP(&f.Template, "template", "t", "", "only sandboxes of this template")
	cmdutil.QuietFlag(c, &quiet, "ID")
	c.Flags().StringSliceVar(&states, "status", nil, "only sandboxes in one of these states")
	c.Flags().StringToStringVar(&f.Metadata, "metadata", nil, "only sandboxes with all of this metadata")
	c.RunE = func(c *cobra.Command, _ []string) error {
		for _, s := range states {
			if !api.Status(s).Valid() {
				return fmt.Errorf("--status: %q is not a state", s)
			}
			f.Statuses = append(f.Statuses, api.Status(s))
		}
		cl, err := a.Dial()
		if err != nil {
			return err
		}
		list, err := cl.Sandboxes.List(c.Context(), f)
		if err != nil {
			return err
		}
		if quiet && !a.JSON {
			return cmdutil.PrintFirst(a.Factory, list, func(s api.Sandbox) string { return string(s.ID) })
		}
		head := []string{"ID", "STATUS", "TEMPLATE", "MEMORY", "AGE", "PERSISTENT", "METADATA"}
		return cmdutil.PrintTable(a.Factory, list, head, sandboxRow, "PERSISTENT", "METADATA", "MEMORY")
	}
	return c
}

func sandboxRow(s api.Sandbox) []string {
	persistent := ""
	if s.Persistent {
		persistent = "yes"
	}
	return []string{
		string(s.ID), status(s), s.Template, strconv.Itoa(s.MemoryMB) + " MiB", cmdutil.Age(s.CreatedAt, time.Now()),
		persistent, pairs(s.Metadata),
	}
}

func (a *app) sandboxGet() *cobra.Command {
	return &cobra.Command{
		Use:   "get ID",
		Short: "Show one sandbox",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cl, id, err := a.dialSandbox(c.Context(), args[0])
			if err != nil {
				return err
			}
			s, err := cl.Sandboxes.Get(c.Context(), id)
			if err != nil {
				return err
			}
			return a.Print(s, func(w io.Writer) error { return sandboxFacts(w, s) })
		},
	}
}

func sandboxFacts(w io.Writer, s api.Sandbox) error {
	ttl := "never"
	if s.TTLSeconds > 0 {
		ttl = (time.Duration(s.TTLSeconds) * time.Second).String()
	}
	phases := make([]string, 0, len(s.Phases))
	for _, p := range s.Phases {
		phases = append(phases, fmt.Sprintf("%s %.1f ms", p.Name, p.TookMS))
	}
	expires := ""
	if s.ExpiresAt != nil {
		expires = s.ExpiresAt.Format(time.RFC3339)
	}
	return cmdutil.Facts(w, []cmdutil.Fact{
		{"id", string(s.ID)},
		{"status", status(s)},
		{"failure", s.FailureReason},
		{"template", s.Template},
		{"size", fmt.Sprintf("%d vCPU, %d MiB memory, %d MiB disk", s.CPU, s.MemoryMB, s.DiskMB)},
		{"data disks", dataDisks(s.DataDisks)},
		{"isolation", strings.Trim(s.Isolation+" "+s.Accelerator, " ")},
		{"address", s.GuestIP},
		{"last start", fmt.Sprintf("%s, %d ms", s.BootMode, s.BootMS)},
		{"phases", strings.Join(phases, ", ")},
		{"created", s.CreatedAt.Format(time.RFC3339)},
		{"from snapshot", string(s.FromSnapshot)},
		{"parent", string(s.ParentID)},
		{"tree", string(s.TreeID)},
		{"deleted when idle for", ttl},
		{"deleted at", expires},
		{"persistent", strconv.FormatBool(s.Persistent)},
		{"may reach", reachable(s.Network)},
		{"limits", values.Bounds(s.Limits)},
		{"user", s.User},
		{"workdir", s.Workdir},
		{"metadata", pairs(s.Metadata)},
	})
}

// status returns the state of a sandbox, with why its host has paused it, or that it does not answer.
func status(s api.Sandbox) string {
	if s.UnresponsiveSince != nil {
		return string(s.Status) + " (unresponsive)"
	}
	if s.PauseReason == "" {
		return string(s.Status)
	}
	return string(s.Status) + " (" + s.PauseReason + ")"
}

func (a *app) sandboxDelete() *cobra.Command {
	var all, yes bool
	c := &cobra.Command{
		Use:     "delete ID...",
		Aliases: []string{"rm", "kill"},
		Short:   "Delete sandboxes in any state",
	}
	c.Flags().BoolVar(&all, "all", false, "all sandboxes of the workspace; asks first if there is a terminal")
	c.Flags().BoolVarP(&yes, "yes", "y", false, "with --all: do not ask")
	c.RunE = func(c *cobra.Command, args []string) error {
		if all != (len(args) == 0) {
			return fmt.Errorf("give the ids of sandboxes, or --all")
		}
		cl, err := a.Dial()
		if err != nil {
			return err
		}
		if all {
			list, err := cl.Sandboxes.List(c.Context(), api.SandboxFilter{})
			if err != nil {
				return err
			}
			for _, s := range list {
				args = append(args, string(s.ID))
			}
			question := fmt.Sprintf("Delete %d sandboxes with everything in them?", len(args))
			if _, terminal := cmdutil.Terminal(a.Stdin); terminal && !yes && len(args) > 0 &&
				!cmdutil.Confirm(a.Stdin, a.Stderr, question) {
				return errors.New("nothing was deleted")
			}
		}
		return a.deleteAll(c.Context(), args, func(ctx context.Context, arg string) error {
			id, err := cmdutil.FindSandbox(ctx, cl.Sandboxes, arg)
			if err != nil {
				return err
			}
			return cl.Sandboxes.Delete(ctx, id)
		})
	}
	return c
}

// deleteAll deletes objects one after the other, continues after failures, and prints which are deleted.
func (a *app) deleteAll(ctx context.Context, names []string, remove func(context.Context, string) error) error {
	deleted := []string{}
	var all error
	for _, name := range names {
		if err := remove(ctx, name); err != nil {
			all = errors.Join(all, err)
			continue
		}
		deleted = append(deleted, name)
		a.Statusf("%s deleted", name)
	}
	if a.JSON {
		all = errors.Join(all, cmdutil.WriteJSON(a.Stdout, map[string][]string{"deleted": deleted}))
	}
	return all
}

func pairs(m map[string]string) string {
	all := make([]string, 0, len(m))
	for _, k := range sortedKeys(m) {
		all = append(all, k+"="+m[k])
	}
	return strings.Join(all, ",")
}
