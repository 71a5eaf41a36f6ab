package database

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

func backups(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{
		Use:   "backups ID",
		Short: "Show the state of a database's backups, what can be restored, and rehearsals",
	}
	return run(f, c, func(ctx context.Context, d *client.Databases, id api.DatabaseID) error {
		b, err := d.Backups(ctx, id)
		if err != nil {
			return err
		}
		return f.Print(b, func(w io.Writer) error { return writeBackups(w, b) })
	})
}

// when returns a time as text, "" for none.
func when(at *time.Time) string {
	if at == nil {
		return ""
	}
	return at.UTC().Format(time.RFC3339)
}

func backupFacts(b api.DatabaseBackups) []cmdutil.Fact {
	all := []cmdutil.Fact{{"log", "not received: the database sleeps, or its backups have not begun"}}
	if r := b.Relay; r != nil {
		all = []cmdutil.Fact{
			{"log", r.State},
			{"behind the server", cmdutil.Size(r.LagBytes)},
			{"not in the archive", cmdutil.Size(r.UploadLagBytes)},
			{"all commits until", when(r.CoveredUntil)},
			{"spool", cmdutil.Size(r.SpoolBytes)},
			{"connection", r.ConnectError},
			{"upload", r.UploadError},
		}
		if h := r.Hole; h != nil {
			lost := fmt.Sprintf("from %s to %s of timeline %d", h.From, h.To, h.Timeline)
			all = append(all, cmdutil.Fact{"lost", lost})
		}
	}
	return append(all, []cmdutil.Fact{
		{"last base backup", when(b.LastBaseAt)},
		{"next base backup", when(b.NextBaseAt)},
		{"base backup", b.BaseError},
		{"verified", when(b.VerifiedAt)},
		{"verification", b.VerifyError},
		{"archive", cmdutil.Size(b.StoredBytes)},
		{"archive unreadable", b.ArchiveError},
	}...)
}

func writeBackups(w io.Writer, b api.DatabaseBackups) error {
	windows := section{title: "can be restored", head: []string{"FROM", "TO", "FROM POSITION", "TO POSITION"}}
	for _, x := range b.Windows {
		windows.rows = append(windows.rows, []string{when(&x.From), when(x.To), x.FromLSN, x.ToLSN})
	}
	bases := section{title: "base backups", head: []string{"ID", "FINISHED", "SIZE", "POSITION"}}
	for _, x := range b.Bases {
		bases.rows = append(bases.rows, []string{x.ID, when(&x.FinishedAt), cmdutil.Size(x.Bytes), x.LSN})
	}
	rehearsals := section{title: "rehearsals", head: []string{"ID", "STARTED", "STATE", "SIZE", "ERROR"}}
	for _, x := range b.Rehearsals {
		rehearsals.rows = append(rehearsals.rows, []string{
			x.ID, when(&x.StartedAt), x.State, cmdutil.Size(x.Bytes), short(x.Error),
		})
	}
	if err := cmdutil.Facts(w, backupFacts(b)); err != nil {
		return err
	}
	return writeSections(w, windows, bases, rehearsals)
}

func backUp(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{Use: "backup ID", Short: "Order a base backup, which is taken when the database runs"}
	return run(f, c, func(ctx context.Context, d *client.Databases, id api.DatabaseID) error {
		a, err := d.BackUp(ctx, id)
		if err != nil {
			return err
		}
		return f.Print(a, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%s\t%s\n", a.ID, a.Status)
			return err
		})
	})
}

func rehearse(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{
		Use:   "rehearse ID",
		Short: "Begin to restore a database into a machine of its own, where everything is verified",
	}
	return run(f, c, func(ctx context.Context, d *client.Databases, id api.DatabaseID) error {
		r, err := d.Rehearse(ctx, id)
		if err != nil {
			return err
		}
		return f.Print(r, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%s\t%s\n", r.ID, r.State)
			return err
		})
	})
}
