package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

func (a *app) sandboxFork() *cobra.Command {
	var req api.ForkRequest
	c := &cobra.Command{
		Use:   "fork ID",
		Short: "Fork a running sandbox with its memory and disk; it keeps running",
		Long:  "Fork a running sandbox with its memory and disk; it keeps running. Prints the ids of the children.",
		Args:  cobra.ExactArgs(1),
	}
	c.Flags().IntVarP(&req.Count, "count", "n", 1, "number of children")
	c.Flags().StringToStringVar(&req.Metadata, "metadata", nil, "metadata in addition to the parent's, key=value")
	c.Flags().StringToStringVarP(&req.Env, "env", "e", nil, "environment in addition to the parent's, KEY=value")
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, id, err := a.dialSandbox(c.Context(), args[0])
		if err != nil {
			return err
		}
		ans, err := cl.Sandboxes.Fork(c.Context(), id, req)
		if err != nil {
			return err
		}
		return a.children(ans, ans.Children, ans.Errors, ans.PauseMS)
	}
	return c
}

func (a *app) sandboxForkTree() *cobra.Command {
	var req api.ForkTreeRequest
	c := &cobra.Command{
		Use:   "fork-tree ID",
		Short: "Fork several children from one moment, with a common tree id",
		Args:  cobra.ExactArgs(1),
	}
	c.Flags().IntVarP(&req.Count, "count", "n", 2, "number of children")
	c.Flags().StringToStringVar(&req.Metadata, "metadata", nil, "metadata in addition to the parent's, key=value")
	c.Flags().StringToStringVarP(&req.Env, "env", "e", nil, "environment in addition to the parent's, KEY=value")
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, id, err := a.dialSandbox(c.Context(), args[0])
		if err != nil {
			return err
		}
		ans, err := cl.Sandboxes.ForkTree(c.Context(), id, req)
		if err != nil {
			return err
		}
		a.Statusf("tree %s", ans.TreeID)
		return a.children(ans, ans.Children, ans.Errors, ans.PauseMS)
	}
	return c
}

// children prints the children of a fork. It returns an error if some could not be created, after it has printed the
// others.
func (a *app) children(answer any, children []api.Sandbox, failed []api.ForkError, pause int64) error {
	a.Statusf("%d children; the parent was paused for %d ms", len(children), pause)
	err := a.Print(answer, func(w io.Writer) error {
		for _, child := range children {
			if _, err := fmt.Fprintln(w, child.ID); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || len(failed) == 0 {
		return err
	}
	return api.Errorf(failed[0].Code, "%d children could not be created; the first: %s", len(failed), failed[0].Err)
}

func (a *app) sandboxPromote() *cobra.Command {
	var req api.PromoteRequest
	var tree string
	c := &cobra.Command{
		Use:   "promote ID",
		Short: "Keep a child as the winner of its fork tree",
		Args:  cobra.ExactArgs(1),
	}
	c.Flags().BoolVar(&req.CleanupSiblings, "cleanup", false, "delete the other children of the tree")
	c.Flags().StringVar(&tree, "tree", "", "tree (default: that of the child)")
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, id, err := a.dialSandbox(c.Context(), args[0])
		if err != nil {
			return err
		}
		req.TreeID = api.TreeID(tree)
		ans, err := cl.Sandboxes.Promote(c.Context(), id, req)
		if err != nil {
			return err
		}
		return a.Print(ans, func(w io.Writer) error {
			_, err := fmt.Fprintf(
				w,
				"%s won tree %s; %d siblings deleted, %d could not be\n",
				ans.Winner,
				ans.TreeID,
				len(ans.Deleted),
				len(ans.Failures),
			)
			return err
		})
	}
	return c
}

func (a *app) sandboxSnapshot() *cobra.Command {
	var req api.SnapshotRequest
	c := &cobra.Command{
		Use:   "snapshot ID",
		Short: "Take a snapshot of a sandbox with its memory and disk; it keeps running",
		Args:  cobra.ExactArgs(1),
	}
	c.Flags().StringVar(&req.Name, "name", "", "name of the snapshot")
	c.Flags().StringToStringVar(&req.Metadata, "metadata", nil, "metadata, key=value")
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, id, err := a.dialSandbox(c.Context(), args[0])
		if err != nil {
			return err
		}
		s, err := cl.Sandboxes.Snapshot(c.Context(), id, req)
		if err != nil {
			return err
		}
		a.Statusf("%s of %s; it was paused for %d ms", cmdutil.Size(s.SizeBytes), id, s.PauseMS)
		return a.PrintLine(s, string(s.ID))
	}
	return c
}

func (a *app) snapshot() *cobra.Command {
	return cmdutil.Group(
		"snapshot",
		"List, push, pull and delete snapshots",
		a.snapshotList(),
		a.snapshotGet(),
		a.snapshotDelete(),
		a.snapshotPush(),
		a.snapshotPull(),
	)
}

func (a *app) snapshotList() *cobra.Command {
	var sandbox string
	var quiet bool
	c := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List snapshots, newest first", Args: cobra.NoArgs}
	c.Flags().StringVar(&sandbox, "sandbox", "", "only snapshots of this sandbox")
	cmdutil.QuietFlag(c, &quiet, "ID")
	c.RunE = func(c *cobra.Command, _ []string) error {
		cl, err := a.Dial()
		if err != nil {
			return err
		}
		list, err := cl.Snapshots.List(c.Context(), api.SnapshotFilter{SandboxID: api.SandboxID(sandbox)})
		if err != nil {
			return err
		}
		if quiet && !a.JSON {
			return cmdutil.PrintFirst(a.Factory, list, func(s api.Snapshot) string { return string(s.ID) })
		}
		head := []string{"ID", "NAME", "SANDBOX", "TEMPLATE", "SIZE", "AGE"}
		return cmdutil.PrintTable(a.Factory, list, head, func(s api.Snapshot) []string {
			return []string{
				string(s.ID), s.Name, string(s.SandboxID), s.Template, cmdutil.Size(s.SizeBytes),
				cmdutil.Age(s.CreatedAt, time.Now()),
			}
		}, "SANDBOX")
	}
	return c
}

func (a *app) snapshotGet() *cobra.Command {
	return &cobra.Command{
		Use:   "get ID",
		Short: "Show one snapshot",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := a.Dial()
			if err != nil {
				return err
			}
			id, err := cmdutil.FindSnapshot(c.Context(), cl.Snapshots, args[0])
			if err != nil {
				return err
			}
			s, err := cl.Snapshots.Get(c.Context(), id)
			if err != nil {
				return err
			}
			return a.Print(s, func(w io.Writer) error {
				return cmdutil.Facts(w, []cmdutil.Fact{
					{"id", string(s.ID)},
					{"name", s.Name},
					{"sandbox", string(s.SandboxID)},
					{"template", s.Template},
					{"disk usage", cmdutil.Size(s.SizeBytes)},
					{"memory", strconv.Itoa(s.MemoryMB) + " MiB"},
					{"disk", strconv.Itoa(s.DiskMB) + " MiB"},
					{"created", s.CreatedAt.Format(time.RFC3339)},
					{"metadata", pairs(s.Metadata)},
				})
			})
		},
	}
}

func (a *app) snapshotDelete() *cobra.Command {
	return &cobra.Command{
		Use:     "delete ID...",
		Aliases: []string{"rm"},
		Short:   "Delete snapshots",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := a.Dial()
			if err != nil {
				return err
			}
			return a.deleteAll(c.Context(), args, func(ctx context.Context, arg string) error {
				id, err := cmdutil.FindSnapshot(ctx, cl.Snapshots, arg)
				if err != nil {
					return err
				}
				return cl.Snapshots.Delete(ctx, id)
			})
		},
	}
}
