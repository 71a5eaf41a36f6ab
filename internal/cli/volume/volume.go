// Package volume has the commands for volumes.
package volume

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

// Command returns the group of commands for volumes.
func Command(f *cmdutil.Factory) *cobra.Command {
	c := cmdutil.Group("volume", "Keep files on disks that outlive sandboxes",
		create(f), list(f), show(f), remove(f), resize(f), clone(f),
		snapshot(f), snapshots(f), deleteSnapshot(f), restore(f),
		attach(f), detach(f), promote(f),
		listFiles(f), cat(f), copyFile(f), removeFile(f), importTar(f), exportTar(f),
		backup(f), backups(f), deleteBackup(f), keep(f),
	)
	c.Aliases = []string{"vol"}
	return c
}

// run sets what a command does with a client of the API and its arguments.
func run(
	f *cmdutil.Factory,
	c *cobra.Command,
	do func(ctx context.Context, v *client.Volumes, args []string) error,
) *cobra.Command {
	return cmdutil.WithClient(f, c, func(ctx context.Context, cl *client.Client, args []string) error {
		return do(ctx, cl.Volumes, args)
	})
}

// changed prints a volume that was made or changed.
func changed(f *cmdutil.Factory, v api.Volume, err error) error {
	if err != nil {
		return err
	}
	return f.PrintLine(v, fmt.Sprintf("%s\t%s\t%s", v.ID, v.Name, cmdutil.Size(v.SizeBytes)))
}

func create(f *cmdutil.Factory) *cobra.Command {
	var req api.CreateVolumeRequest
	var fromSnapshot, fromBackup string
	var policy policyFlags
	c := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a volume, empty or as a copy",
		Args:  cobra.ExactArgs(1),
		Example: "  pandastack volume create data --size 1024\n" +
			"  pandastack volume create data2 --from-backup bkp...",
	}
	c.Flags().IntVar(&req.SizeMB, "size", 0, "size in MiB (default 256, or that of the source)")
	c.Flags().StringVar(&req.FromVolume, "from-volume", "", "copy this volume, by name or id, as it is now")
	c.Flags().StringVar(&fromSnapshot, "from-snapshot", "", "copy this snapshot of a volume")
	c.Flags().StringVar(&fromBackup, "from-backup", "", "restore this backup, of any node with the same object store")
	policy.add(c)
	return run(f, c, func(ctx context.Context, v *client.Volumes, args []string) error {
		req.Name, req.Backup = args[0], policy.get(c)
		req.FromSnapshot, req.FromBackup = api.VolumeSnapshotID(fromSnapshot), api.BackupID(fromBackup)
		made, err := v.Create(ctx, req)
		return changed(f, made, err)
	})
}

func list(f *cmdutil.Factory) *cobra.Command {
	get := func(ctx context.Context, cl *client.Client) ([]api.Volume, error) { return cl.Volumes.List(ctx) }
	head := []string{"NAME", "SIZE", "USED", "IN USE BY", "LAST BACKUP", "AGE"}
	return cmdutil.ListCommand(f, "List volumes", get, head, func(v api.Volume) []string {
		now := time.Now()
		return []string{
			v.Name, cmdutil.Size(v.SizeBytes), cmdutil.Size(v.UsedBytes), user(v), lastBackup(v, now),
			cmdutil.Age(v.CreatedAt, now),
		}
	}, "LAST BACKUP")
}

// user returns what uses a volume.
func user(v api.Volume) string {
	if v.AttachedTo != "" {
		return string(v.AttachedTo)
	}
	return v.InUseBy
}

func lastBackup(v api.Volume, now time.Time) string {
	if v.Backup == nil || v.Backup.LastBackupAt == nil {
		return ""
	}
	return cmdutil.Age(*v.Backup.LastBackupAt, now)
}

func show(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{Use: "get NAME", Short: "Show one volume", Args: cobra.ExactArgs(1)}
	return run(f, c, func(ctx context.Context, vs *client.Volumes, args []string) error {
		v, err := vs.Get(ctx, args[0])
		if err != nil {
			return err
		}
		return f.Print(v, func(w io.Writer) error {
			all := []cmdutil.Fact{
				{"id", string(v.ID)},
				{"name", v.Name},
				{"size", cmdutil.Size(v.SizeBytes)},
				{"used", cmdutil.Size(v.UsedBytes)},
				{"in use by", user(v)},
				{"created", v.CreatedAt.Format(time.RFC3339)},
			}
			if v.WrittenAt != nil {
				all = append(all, cmdutil.Fact{"last detached", v.WrittenAt.Format(time.RFC3339)})
			}
			if v.Dirty {
				all = append(all, cmdutil.Fact{"state", "it was not unmounted and is checked when it is attached"})
			}
			if v.Check != nil {
				all = append(all, cmdutil.Fact{"last check", v.Check.Result + " at " + v.Check.At.Format(time.RFC3339)})
			}
			return cmdutil.Facts(w, append(all, backupFacts(v.Backup)...))
		})
	})
}

// backupFacts describes how well a volume is backed up.
func backupFacts(b *api.BackupStatus) []cmdutil.Fact {
	if b == nil {
		return nil
	}
	var all []cmdutil.Fact
	if p := b.Policy; p != nil && !p.Keep.IsZero() {
		all = append(all, cmdutil.Fact{"backups", fmt.Sprintf("every %s; kept: %d hourly, %d daily, %d weekly",
			p.Interval(), p.Keep.Hourly, p.Keep.Daily, p.Keep.Weekly)})
	}
	if b.LastBackupAt != nil {
		all = append(all, cmdutil.Fact{"last backup", b.LastBackupAt.Format(time.RFC3339)})
	}
	if b.RPOSeconds != nil {
		at := time.Duration(*b.RPOSeconds) * time.Second
		all = append(all, cmdutil.Fact{"lost with the host", "the last " + at.String()})
	}
	return append(all, cmdutil.Fact{"backup error", b.LastError})
}

func remove(f *cmdutil.Factory) *cobra.Command {
	var snapshots bool
	c := &cobra.Command{
		Use:     "delete NAME",
		Aliases: []string{"rm"},
		Short:   "Delete a volume that no sandbox has",
		Args:    cobra.ExactArgs(1),
	}
	c.Flags().BoolVar(&snapshots, "snapshots", false, "also delete its snapshots; its backups stay")
	return run(f, c, func(ctx context.Context, v *client.Volumes, args []string) error {
		return done(f, "deleted", args[0], v.Delete(ctx, args[0], snapshots))
	})
}

// done prints what was done to something, and nothing else without --json.
func done(f *cmdutil.Factory, what, name string, err error) error {
	if err != nil {
		return err
	}
	return f.Print(map[string]string{what: name}, func(io.Writer) error { return nil })
}

func resize(f *cmdutil.Factory) *cobra.Command {
	var mb int
	c := &cobra.Command{
		Use:   "resize NAME --size MIB",
		Short: "Grow a volume, also while a sandbox has it",
		Args:  cobra.ExactArgs(1),
	}
	c.Flags().IntVar(&mb, "size", 0, "new size in MiB, at least the old one")
	_ = c.MarkFlagRequired("size") // the flag exists
	return run(f, c, func(ctx context.Context, v *client.Volumes, args []string) error {
		got, err := v.Update(ctx, args[0], api.VolumePatch{SizeMB: mb})
		return changed(f, got, err)
	})
}

func clone(f *cmdutil.Factory) *cobra.Command {
	var mb int
	c := &cobra.Command{Use: "clone NAME COPY", Short: "Copy a volume as it is now", Args: cobra.ExactArgs(2)}
	c.Flags().IntVar(&mb, "size", 0, "size of the copy in MiB (default that of the volume)")
	return run(f, c, func(ctx context.Context, v *client.Volumes, args []string) error {
		got, err := v.Clone(ctx, args[0], api.VolumeCloneRequest{Name: args[1], SizeMB: mb})
		return changed(f, got, err)
	})
}

func attach(f *cmdutil.Factory) *cobra.Command {
	var req api.VolumeMount
	c := &cobra.Command{
		Use:   "attach NAME SANDBOX",
		Short: "Attach a volume to a sandbox that runs",
		Args:  cobra.ExactArgs(2),
	}
	c.Flags().StringVar(&req.MountPath, "at", "", "directory where it is mounted (default /mnt/NAME)")
	c.Flags().BoolVar(&req.ReadOnly, "read-only", false, "attach a private copy as of now")
	return run(f, c, func(ctx context.Context, v *client.Volumes, args []string) error {
		req.Name = args[0]
		s, err := v.Attach(ctx, api.SandboxID(args[1]), req)
		if err != nil {
			return err
		}
		return f.PrintLine(s, fmt.Sprintf("%s at %s of %s", req.Name, req.Where(), s.ID))
	})
}

func detach(f *cmdutil.Factory) *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use:   "detach NAME SANDBOX",
		Short: "Detach a volume from a sandbox",
		Args:  cobra.ExactArgs(2),
	}
	c.Flags().BoolVar(&force, "force", false,
		"although programs use it; a sandbox that does not run loses its memory")
	return run(f, c, func(ctx context.Context, v *client.Volumes, args []string) error {
		_, err := v.Detach(ctx, api.SandboxID(args[1]), args[0], force)
		return done(f, "detached", args[0], err)
	})
}

func promote(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{
		Use:   "promote NAME SANDBOX NEW",
		Short: "Make a volume of the private copy that a fork has of one",
		Args:  cobra.ExactArgs(3),
	}
	return run(f, c, func(ctx context.Context, v *client.Volumes, args []string) error {
		got, err := v.Promote(ctx, api.SandboxID(args[1]), args[0], api.VolumeCloneRequest{Name: args[2]})
		return changed(f, got, err)
	})
}
