// Package backup has the commands for backups of a node and for its disk, which root runs on its host.
package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/internal/cli/cmdutil"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/config"
	"github.com/pandastack/pandastack/internal/node"
	"github.com/pandastack/pandastack/internal/nodebackup"
)

// Host is what the commands need of the machine that they run on.
type Host struct {
	Settings func() (*config.Node, error)
	Local    func(error) error // marks a failure of this machine
	Release  string
}

// Command returns the group of commands for backups of the node.
func Command(f *cmdutil.Factory, h Host) *cobra.Command {
	g := &group{Factory: f, Host: h}
	c := cmdutil.Group("backup", "Back up and restore the node on this machine",
		g.create(), g.list(), g.verify(), g.restore(), g.delete())
	c.Long = "Back up and restore the node on this machine, as root. A backup has everything that the node\n" +
		"keeps: the database, all keys, sandboxes with their disks, snapshots, templates, volumes, apps and\n" +
		"functions. It is encrypted: anybody with the passphrase and the backup can read all of that, and\n" +
		"without the passphrase nothing can be read. Backups are in a directory or an object store: --at, or\n" +
		"the setting backup.url."
	p := c.PersistentFlags()
	p.StringVar(&g.place, "at", "", "directory, or URL such as s3://bucket (default: the setting backup.url)")
	p.StringVar(&g.passphrase, "passphrase-file", "",
		"file with the passphrase, of mode 0600 (default: the setting backup.passphrase_file)")
	return c
}

type group struct {
	*cmdutil.Factory
	Host
	place, passphrase string
}

// with calls do with the repository and the settings of the node. create makes a repository if there is none.
func (g *group) with(ctx context.Context, create bool,
	do func(r *nodebackup.Repository, cfg *config.Node) error) (err error) {
	cfg, err := g.Settings()
	if err != nil {
		return err
	}
	at, err := nodebackup.Location(cfg, g.place)
	if err != nil {
		return err
	}
	file := g.passphrase
	if file == "" {
		file = cfg.Backup.PassphraseFile
	}
	passphrase, err := nodebackup.ReadPassphrase(file)
	if err != nil {
		return g.Local(err)
	}
	objects, err := blob.Open(ctx, at, blob.Options{Timeout: cfg.ObjectStore.Timeout})
	if err != nil {
		return g.Local(err)
	}
	defer func() { err = errors.Join(err, g.Local(objects.Close())) }()
	r, err := nodebackup.Open(ctx, objects, nodebackup.Options{
		Passphrase: passphrase, Create: create, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return g.Local(fmt.Errorf("%s: %w", at, err))
	}
	defer func() { err = errors.Join(err, g.Local(r.Close())) }()
	return g.Local(do(r, cfg))
}

func (g *group) create() *cobra.Command {
	keep := 0
	c := &cobra.Command{
		Use:   "create",
		Short: "Make a backup of the node, which may run, and print its id",
		Args:  cobra.NoArgs,
	}
	c.Flags().IntVar(&keep, "keep", 0, "then remove all but so many backups of this node; 0 removes none")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if keep < 0 {
			return fmt.Errorf("--keep: %d is negative; use 0 to remove no backup", keep)
		}
		return g.with(c.Context(), true, func(r *nodebackup.Repository, cfg *config.Node) error {
			b, err := r.Create(c.Context(), nodebackup.Source{
				DataDir: cfg.DataDir, Key: cfg.ObjectStore.Key, Release: g.Release,
			})
			if err != nil {
				return err
			}
			removed, err := r.Clean(c.Context(), b.Host, keep)
			if err != nil {
				return fmt.Errorf("backup %s is complete, but older ones could not be removed: %w", b.ID, err)
			}
			for _, id := range removed {
				g.Statusf("removed %s", id)
			}
			return g.PrintLine(b, string(b.ID))
		})
	}
	return c
}

func (g *group) list() *cobra.Command {
	c := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List backups, oldest first", Args: cobra.NoArgs}
	c.RunE = func(c *cobra.Command, _ []string) error {
		return g.with(c.Context(), false, func(r *nodebackup.Repository, _ *config.Node) error {
			all, err := r.List(c.Context())
			if err != nil {
				return err
			}
			head := []string{"ID", "AGE", "RELEASE", "FILES", "SIZE", "STORED"}
			return cmdutil.PrintTable(g.Factory, all, head, func(b nodebackup.Backup) []string {
				return []string{
					string(b.ID), cmdutil.Age(b.Created, time.Now()), b.Release, fmt.Sprint(b.Files),
					cmdutil.Size(b.Bytes), cmdutil.Size(b.Stored),
				}
			})
		})
	}
	return c
}

func (g *group) verify() *cobra.Command {
	c := &cobra.Command{
		Use:   "verify [ID]",
		Short: "Read all of a backup and check that it is what was stored",
		Long: "Read all of a backup and check that it is what was stored. Nothing is restored.\n" +
			"Without an ID it is the newest one.",
		Args: cobra.MaximumNArgs(1),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		return g.with(c.Context(), false, func(r *nodebackup.Repository, _ *config.Node) error {
			b, err := r.Verify(c.Context(), latest(args))
			if err != nil {
				return err
			}
			return g.PrintLine(b, fmt.Sprintf("%s is complete: %d files, %s", b.ID, b.Files, cmdutil.Size(b.Bytes)))
		})
	}
	return c
}

func (g *group) restore() *cobra.Command {
	c := &cobra.Command{
		Use:   "restore [ID]",
		Short: "Restore a backup into an empty data directory",
		Long: "Restore a backup into the data directory, which must be empty (as 'pandastack setup' makes it).\n" +
			"Without an ID it is the newest one. The node that it was made of must not run again with the same\n" +
			"object store: both would write to the archives of the same databases.",
		Args: cobra.MaximumNArgs(1),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		return g.with(c.Context(), false, func(r *nodebackup.Repository, cfg *config.Node) error {
			var b nodebackup.Backup
			err := node.UseDataDir(c.Context(), cfg.DataDir, func() (err error) {
				b, err = r.Restore(c.Context(), latest(args), nodebackup.Target{DataDir: cfg.DataDir})
				return err
			})
			if err != nil {
				return err
			}
			return g.Print(b, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "restored %s to %s: %d files, %s\n", b.ID, cfg.DataDir, b.Files,
					cmdutil.Size(b.Bytes))
				return err
			})
		})
	}
	return c
}

func (g *group) delete() *cobra.Command {
	c := &cobra.Command{
		Use: "delete ID", Aliases: []string{"rm"}, Short: "Delete a backup; its space is free three days later",
		Args: cobra.ExactArgs(1),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		return g.with(c.Context(), false, func(r *nodebackup.Repository, _ *config.Node) error {
			if err := r.Delete(c.Context(), nodebackup.ID(args[0])); err != nil {
				return err
			}
			_, err := r.Clean(c.Context(), "", 0)
			return err
		})
	}
	return c
}

// latest returns the backup that is named, or the newest one.
func latest(args []string) nodebackup.ID {
	if len(args) == 0 {
		return "latest"
	}
	return nodebackup.ID(args[0])
}
