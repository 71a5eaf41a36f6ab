package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
)

func (a *app) snapshotPush() *cobra.Command {
	var remove bool
	c := &cobra.Command{
		Use:   "push ID",
		Short: "Put a snapshot into the object store, where other nodes find it",
		Args:  cobra.ExactArgs(1),
	}
	c.Flags().BoolVar(&remove, "delete", false, "remove it from the object store instead; nodes that have it keep it")
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, err := a.dial()
		if err != nil {
			return err
		}
		id, err := api.ParseSnapshotID(args[0])
		if err != nil {
			return err
		}
		if remove {
			if err := cl.Snapshots.DeletePushed(c.Context(), id); err != nil {
				return err
			}
			a.statusf("%s is in the object store no more", id)
			return a.print(api.SnapshotDeleted{Deleted: id}, func(io.Writer) error { return nil })
		}
		m, err := cl.Snapshots.Push(c.Context(), id)
		if err != nil {
			return err
		}
		a.statusf(
			"%s new, %s uploaded in %d ms; it takes %s in the object store",
			size(m.NewBytes),
			size(m.UploadedBytes),
			m.TookMS,
			size(m.StoredBytes),
		)
		return a.printTransfer(m)
	}
	return c
}

func (a *app) snapshotPull() *cobra.Command {
	var req api.PullRequest
	c := &cobra.Command{
		Use:   "pull ID",
		Short: "Bring a snapshot from the object store to this node",
		Args:  cobra.ExactArgs(1),
	}
	c.Flags().
		BoolVar(&req.Stream, "stream", false, "answer as soon as sandboxes can be made of it; the content follows")
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, err := a.dial()
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
		a.statusf("%s fetched in %d ms", size(m.FetchedBytes), m.TookMS)
		return a.printTransfer(m)
	}
	return c
}

// printTransfer prints what a move answered: the id, for scripts.
func (a *app) printTransfer(m api.TransferResult) error {
	return a.print(m, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, m.Snapshot.ID)
		return err
	})
}
