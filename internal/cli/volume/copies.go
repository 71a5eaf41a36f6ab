package volume

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

func snapshot(f *cmdutil.Factory) *cobra.Command {
	var req api.VolumeSnapshotRequest
	c := &cobra.Command{
		Use:   "snapshot NAME",
		Short: "Keep what a volume has now on its host",
		Args:  cobra.ExactArgs(1),
	}
	c.Flags().StringVar(&req.Name, "name", "", "name of the snapshot, for people")
	return run(f, c, func(ctx context.Context, v *client.Volumes, args []string) error {
		s, err := v.Snapshot(ctx, args[0], req)
		if err != nil {
			return err
		}
		return f.PrintLine(s, string(s.ID))
	})
}

func snapshots(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{Use: "snapshots NAME", Short: "List the snapshots of a volume", Args: cobra.ExactArgs(1)}
	return run(f, c, func(ctx context.Context, v *client.Volumes, args []string) error {
		all, err := v.Snapshots(ctx, args[0])
		if err != nil {
			return err
		}
		head := []string{"ID", "NAME", "SIZE", "AGE"}
		return cmdutil.PrintTable(f, all, head, func(s api.VolumeSnapshot) []string {
			size := cmdutil.Size(int64(s.SizeMB) << 20)
			return []string{string(s.ID), s.Name, size, cmdutil.Age(s.CreatedAt, time.Now())}
		})
	})
}

func deleteSnapshot(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{
		Use:   "delete-snapshot NAME SNAPSHOT",
		Short: "Delete a snapshot of a volume",
		Args:  cobra.ExactArgs(2),
	}
	return run(f, c, func(ctx context.Context, v *client.Volumes, args []string) error {
		return done(f, "deleted", args[1], v.DeleteSnapshot(ctx, args[0], api.VolumeSnapshotID(args[1])))
	})
}

func restore(f *cmdutil.Factory) *cobra.Command {
	var fromSnapshot, fromBackup string
	c := &cobra.Command{
		Use:   "restore NAME",
		Short: "Replace what a detached volume has by a snapshot or a backup",
		Args:  cobra.ExactArgs(1),
	}
	c.Flags().StringVar(&fromSnapshot, "from-snapshot", "", "one of its snapshots")
	c.Flags().StringVar(&fromBackup, "from-backup", "", "a backup of the workspace")
	return run(f, c, func(ctx context.Context, v *client.Volumes, args []string) error {
		req := api.VolumeRestoreRequest{Snapshot: api.VolumeSnapshotID(fromSnapshot), Backup: api.BackupID(fromBackup)}
		got, err := v.Restore(ctx, args[0], req)
		return changed(f, got, err)
	})
}

func backup(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{
		Use:   "backup NAME",
		Short: "Begin a backup of a volume to the object store",
		Args:  cobra.ExactArgs(1),
	}
	return run(f, c, func(ctx context.Context, v *client.Volumes, args []string) error {
		b, err := v.Backup(ctx, args[0])
		if err != nil {
			return err
		}
		return f.PrintLine(b, string(b.ID))
	})
}

func backups(f *cmdutil.Factory) *cobra.Command {
	var everywhere bool
	c := &cobra.Command{
		Use:   "backups [NAME]",
		Short: "List the backups of a volume, or of all",
		Args:  cobra.MaximumNArgs(1),
	}
	c.Flags().BoolVar(&everywhere, "everywhere", false,
		"without NAME: also those that other nodes left in the object store")
	return run(f, c, func(ctx context.Context, v *client.Volumes, args []string) error {
		name := ""
		if len(args) > 0 {
			name = args[0]
		}
		all, err := v.Backups(ctx, name, everywhere)
		if err != nil {
			return err
		}
		head := []string{"ID", "VOLUME", "STATUS", "REASON", "STORED", "AGE", "ERROR"}
		return cmdutil.PrintTable(f, all, head, func(b api.VolumeBackup) []string {
			return []string{
				string(b.ID), b.VolumeName, b.Status, b.Reason, cmdutil.Size(b.StoredBytes),
				cmdutil.Age(b.Moment, time.Now()), b.Error,
			}
		})
	})
}

func deleteBackup(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{
		Use:   "delete-backup BACKUP",
		Short: "Delete a backup from the object store",
		Args:  cobra.ExactArgs(1),
	}
	return run(f, c, func(ctx context.Context, v *client.Volumes, args []string) error {
		return done(f, "deleted", args[0], v.DeleteBackup(ctx, api.BackupID(args[0])))
	})
}

func keep(f *cmdutil.Factory) *cobra.Command {
	var policy policyFlags
	c := &cobra.Command{
		Use:     "keep NAME",
		Short:   "Set when a volume is backed up, and which backups are kept",
		Long:    "Set when a volume is backed up, and which backups are kept. Without flags there are no more backups.",
		Example: "  pandastack volume keep data --hourly 24 --daily 7 --weekly 4",
		Args:    cobra.ExactArgs(1),
	}
	policy.add(c)
	return run(f, c, func(ctx context.Context, v *client.Volumes, args []string) error {
		p := policy.get(c)
		if p == nil {
			p = &api.BackupPolicy{}
		}
		got, err := v.Update(ctx, args[0], api.VolumePatch{Backup: p})
		return changed(f, got, err)
	})
}

// policyFlags are the flags of a backup policy.
type policyFlags struct {
	keep     api.Keep
	every    time.Duration
	atDetach bool
}

func (p *policyFlags) add(c *cobra.Command) {
	c.Flags().IntVar(&p.keep.Hourly, "hourly", 0, "keep the newest backup of each of so many hours")
	c.Flags().IntVar(&p.keep.Daily, "daily", 0, "keep the newest backup of each of so many days")
	c.Flags().IntVar(&p.keep.Weekly, "weekly", 0, "keep the newest backup of each of so many weeks")
	c.Flags().DurationVar(&p.every, "every", 0, "time between backups while a sandbox has it (default 1h)")
	c.Flags().BoolVar(&p.atDetach, "at-detach", true, "also back it up when its sandbox gives it back")
}

// get returns the policy, or nil if the command has no flag of one.
func (p *policyFlags) get(c *cobra.Command) *api.BackupPolicy {
	set := false
	for _, name := range []string{"hourly", "daily", "weekly", "every", "at-detach"} {
		set = set || c.Flags().Changed(name)
	}
	if !set {
		return nil
	}
	return &api.BackupPolicy{Keep: p.keep, EverySeconds: int64(p.every.Seconds()), AtDetach: &p.atDetach}
}
