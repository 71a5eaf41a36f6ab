package cli

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

func (a *app) snapshotPush() *cobra.Command {
	var remove bool
	c := &cobra.Command{
		Use:   "push ID",
		Short: "Push a snapshot to the object store for other nodes",
		Args:  cobra.ExactArgs(1),
	}
	c.Flags().BoolVar(&remove, "delete", false, "delete the snapshot from the object store instead; nodes that have "+
		"it keep it")
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, err := a.Dial()
		if err != nil {
			return err
		}
		id, err := cmdutil.FindSnapshot(c.Context(), cl.Snapshots, args[0])
		if err != nil {
			return err
		}
		if remove {
			if err := cl.Snapshots.DeletePushed(c.Context(), id); err != nil {
				return err
			}
			a.Statusf("%s is deleted from the object store", id)
			return a.Print(api.SnapshotDeleted{Deleted: id}, func(io.Writer) error { return nil })
		}
		m, err := cl.Snapshots.Push(c.Context(), id)
		if err != nil {
			return err
		}
		a.Statusf(
			"%s new, %s uploaded in %d ms; %s in the object store",
			cmdutil.Size(m.NewBytes),
			cmdutil.Size(m.UploadedBytes),
			m.TookMS,
			cmdutil.Size(m.StoredBytes),
		)
		return a.printTransfer(m)
	}
	return c
}

func (a *app) snapshotPull() *cobra.Command {
	var req api.PullRequest
	c := &cobra.Command{
		Use:   "pull ID",
		Short: "Pull a snapshot from the object store to this node",
		Args:  cobra.ExactArgs(1),
	}
	c.Flags().BoolVar(&req.Stream, "stream", false,
		"return as soon as sandboxes can be created from it, and download the rest in the background")
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, err := a.Dial()
		if err != nil {
			return err
		}
		id, err := api.ParseSnapshotID(args[0])
		if err != nil {
			return err
		}
		m, err := cl.Snapshots.Pull(c.Context(), id, req)
		if err != nil {
			return err
		}
		a.Statusf("%s downloaded in %d ms", cmdutil.Size(m.FetchedBytes), m.TookMS)
		return a.printTransfer(m)
	}
	return c
}

// printTransfer prints the result of a transfer: the id, for scripts.
func (a *app) printTransfer(m api.TransferResult) error {
	return a.PrintLine(m, string(m.Snapshot.ID))
}
