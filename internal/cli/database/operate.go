package database

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

func psql(f *cmdutil.Factory) *cobra.Command {
	var pooler bool
	var program string
	c := &cobra.Command{
		Use:     "psql ID [-- ARGUMENT...]",
		Short:   "Run psql of this machine with a database, which is woken if it sleeps",
		Args:    cobra.MinimumNArgs(1),
		Example: "  pandastack db psql dbs... -- -c 'select now()'",
	}
	c.Flags().BoolVar(&pooler, "pooler", false, "through the connection pooler")
	c.Flags().StringVar(&program, "program", "psql", "the program, which gets the URL as its option -d")
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, err := f.Dial()
		if err != nil {
			return err
		}
		id, err := cmdutil.FindDatabase(c.Context(), cl.Databases, args[0])
		if err != nil {
			return err
		}
		conn, err := cl.Databases.Connection(c.Context(), id)
		if err != nil {
			return err
		}
		target := conn.ConnectionURL
		if pooler {
			target = conn.PoolerURL
		}
		return runClient(c.Context(), f, program, target, args[1:])
	}
	return c
}

// runClient runs a client of PostgreSQL. The password is in its environment: other users can read arguments.
func runClient(ctx context.Context, f *cmdutil.Factory, program, target string, args []string) error {
	u, err := url.Parse(target)
	if err != nil || u.User == nil {
		return api.Errorf(api.Internal, "the server returned no URL of the database")
	}
	password, _ := u.User.Password()
	u.User = url.User(u.User.Username())
	// An interrupt is the client's: psql cancels the query and continues.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program, append([]string{"-d", u.String()}, args...)...)
	cmd.Env = append(cmd.Environ(), "PGPASSWORD="+password)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = f.Stdin, f.Stdout, f.Stderr
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 {
		return cmdutil.ExitCode(exit.ExitCode())
	}
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%s is not installed on this machine: install PostgreSQL's client, or name another program "+
			"with --program", program)
	}
	return err
}

// changed prints a database that was changed.
func changed(f *cmdutil.Factory, db api.Database, err error) error {
	if err != nil {
		return err
	}
	return f.Print(db, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s\t%s\n", db.ID, db.Status)
		return err
	})
}

func update(f *cmdutil.Factory) *cobra.Command {
	var label, durability string
	var alwaysOn bool
	var idle, ttl time.Duration
	var storage, replicas int
	var networks []string
	c := &cobra.Command{
		Use:     "update ID",
		Short:   "Change a database",
		Example: "  pandastack db update dbs... --always-on=false --idle 10m",
	}
	flags := c.Flags()
	flags.StringVar(&label, "label", "", "name for people")
	flags.BoolVar(&alwaysOn, "always-on", false, "never let it sleep")
	flags.DurationVar(&idle, "idle", 0, "time without sessions after which it sleeps")
	flags.StringVar(&durability, "durability", "", "async or sync")
	flags.IntVar(&storage, "storage-max", 0, "limit of its storage in MiB")
	flags.StringSliceVar(&networks, "network", nil, "network that clients may connect from; '' allows every network")
	flags.IntVar(&replicas, "replicas", 0, "read replicas")
	flags.DurationVar(&ttl, "ttl", 0, "delete it after this time from now; 0s keeps it")
	return run(f, c, func(ctx context.Context, d *client.Databases, id api.DatabaseID) error {
		var req api.UpdateDatabaseRequest
		seconds := func(name string, v time.Duration) *int64 { s := int64(v.Seconds()); return given(c, name, s) }
		req.Label, req.AlwaysOn = given(c, "label", label), given(c, "always-on", alwaysOn)
		req.IdleSeconds, req.TTLSeconds = seconds("idle", idle), seconds("ttl", ttl)
		req.Durability = given(c, "durability", api.Durability(durability))
		req.StorageMaxMB, req.Replicas = given(c, "storage-max", storage), given(c, "replicas", replicas)
		if c.Flags().Changed("network") {
			kept := []string{}
			for _, n := range networks {
				if n != "" {
					kept = append(kept, n)
				}
			}
			req.Networks = &kept
		}
		db, err := d.Update(ctx, id, req)
		return changed(f, db, err)
	})
}

// given returns the value of a flag, nil if it was not given.
func given[T any](c *cobra.Command, name string, v T) *T {
	if !c.Flags().Changed(name) {
		return nil
	}
	return &v
}

func suspend(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{Use: "suspend ID", Short: "End the sessions of a database and let it sleep"}
	return run(f, c, func(ctx context.Context, d *client.Databases, id api.DatabaseID) error {
		db, err := d.Suspend(ctx, id)
		return changed(f, db, err)
	})
}

func wake(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{Use: "wake ID", Short: "Wake a database that sleeps, and wait until it runs"}
	return run(f, c, func(ctx context.Context, d *client.Databases, id api.DatabaseID) error {
		if _, err := d.Wake(ctx, id); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeoutCause(ctx, waitLimit, api.Errorf(api.Timeout,
			"database %s is not running after %v", id, waitLimit))
		defer cancel()
		db, err := d.WaitUntilRunning(ctx, id)
		return changed(f, db, err)
	})
}

func rotate(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{
		Use:   "rotate ID",
		Short: "Replace the password and the broker token of a database, and print its URL",
	}
	return run(f, c, func(ctx context.Context, d *client.Databases, id api.DatabaseID) error {
		db, err := d.ResetCredentials(ctx, id)
		if err != nil {
			return err
		}
		return f.Print(db, func(w io.Writer) error {
			_, err := fmt.Fprintln(w, db.ConnectionURL)
			return err
		})
	})
}

func reset(f *cmdutil.Factory) *cobra.Command {
	var at string
	var detach bool
	c := &cobra.Command{
		Use:     "reset ID",
		Short:   "Give a branch what its database has; what the branch has is lost, its id and URL stay",
		Example: "  pandastack db reset dbs...\n  pandastack db reset dbs... --at 10m",
	}
	c.Flags().StringVar(&at, "at", "", "time: RFC 3339, or how long ago, such as 10m (default now)")
	c.Flags().BoolVar(&detach, "detach", false, "do not wait")
	return run(f, c, func(ctx context.Context, d *client.Databases, id api.DatabaseID) error {
		var when api.CloneDatabaseRequest
		if err := (&moment{at: at}).set(&when, time.Now()); err != nil {
			return err
		}
		db, err := d.Reset(ctx, id, api.ResetDatabaseRequest{TargetTime: when.TargetTime})
		if err == nil && !detach {
			db, err = waitReplaced(ctx, d, id)
		}
		return changed(f, db, err)
	})
}

func upgrade(f *cmdutil.Factory) *cobra.Command {
	var req api.UpgradeDatabaseRequest
	var keep time.Duration
	var detach bool
	c := &cobra.Command{
		Use:   "upgrade ID",
		Short: "Give a database a newer major version of PostgreSQL; its id and URL stay",
		Long: "Upgrade gives a database a newer major version of PostgreSQL, by dump and restore into a server of " +
			"another template. Id, URL and credentials stay, and connections are refused meanwhile. What the " +
			"database had stays as a branch, with the old version, for the time of --keep.",
		Example: "  pandastack db upgrade dbs...\n  pandastack db upgrade dbs... --keep 24h",
	}
	c.Flags().StringVar(&req.Template, "template", "", "template with the version (default postgres-17)")
	c.Flags().DurationVar(&keep, "keep", 0, "how long what it had stays as a branch (default 168h)")
	c.Flags().BoolVar(&detach, "detach", false, "do not wait")
	return run(f, c, func(ctx context.Context, d *client.Databases, id api.DatabaseID) error {
		req.KeepSeconds = int64(keep / time.Second)
		db, err := d.Upgrade(ctx, id, req)
		if err == nil && !detach {
			db, err = waitReplaced(ctx, d, id)
		}
		return changed(f, db, err)
	})
}

// waitReplaced waits until the server of a database has been replaced.
func waitReplaced(ctx context.Context, d *client.Databases, id api.DatabaseID) (api.Database, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, waitLimit, api.Errorf(api.Timeout,
		"database %s has no new server after %v", id, waitLimit))
	defer cancel()
	return d.WaitWhileRestoring(ctx, id)
}

func failover(f *cmdutil.Factory) *cobra.Command {
	var force bool
	c := &cobra.Command{Use: "failover ID", Short: "Replace the server of a database; its id and URL stay"}
	c.Flags().BoolVar(&force, "force", false, "although the server responds, or commits may be lost")
	return run(f, c, func(ctx context.Context, d *client.Databases, id api.DatabaseID) error {
		db, err := d.Failover(ctx, id, api.FailoverRequest{Force: force})
		return changed(f, db, err)
	})
}

func adopt(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{
		Use:   "adopt ID",
		Short: "Take a database over from a lost node with the same object store",
		Long: "Take a database over from a node that is lost and shares the object store, and its key, with this " +
			"one. Id, credentials and settings stay, and so does the URL when its name leads here. It has what was " +
			"in the object store. The other node stops the database when it comes back. Needs an operator's key.",
	}
	return run(f, c, func(ctx context.Context, d *client.Databases, id api.DatabaseID) error {
		db, err := d.Adopt(ctx, id)
		return changed(f, db, err)
	})
}

func remove(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{
		Use:     "delete ID",
		Aliases: []string{"rm"},
		Short:   "Delete a database with all its data and backups",
	}
	return run(f, c, func(ctx context.Context, d *client.Databases, id api.DatabaseID) error {
		if err := d.Delete(ctx, id); err != nil {
			return err
		}
		return f.Print(map[string]api.DatabaseID{"deleted": id}, func(io.Writer) error { return nil })
	})
}

func logs(f *cmdutil.Factory) *cobra.Command {
	var lines int
	c := &cobra.Command{Use: "logs ID", Short: "Print the end of the log of a database's server"}
	c.Flags().IntVarP(&lines, "lines", "n", 100, "at most so many lines")
	return run(f, c, func(ctx context.Context, d *client.Databases, id api.DatabaseID) error {
		text, err := d.Logs(ctx, id, lines)
		if err != nil {
			return err
		}
		return f.Print(api.DatabaseLogs{Logs: text}, func(w io.Writer) error {
			_, err := io.WriteString(w, text)
			return err
		})
	})
}

func stats(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{Use: "stats ID", Short: "Show measurements of a database's server"}
	return run(f, c, func(ctx context.Context, d *client.Databases, id api.DatabaseID) error {
		s, err := d.Stats(ctx, id)
		if err != nil {
			return err
		}
		return f.Print(s, func(w io.Writer) error {
			return cmdutil.Facts(w, []cmdutil.Fact{
				{"version", s.PostgresVersion},
				{"up", (time.Duration(s.UptimeSeconds) * time.Second).String()},
				{"data", cmdutil.Size(s.DBSizeBytes)},
				{"disk", fmt.Sprintf("%s of %s (%.0f %%)", cmdutil.Size(s.DiskUsedBytes), cmdutil.Size(s.DiskSizeBytes),
					s.DiskUsedPct)},
				{"connections", fmt.Sprintf("%d of %d", s.Connections, s.MaxConnections)},
				{"cache hits", fmt.Sprintf("%.1f %%", 100*s.CacheHitRatio)},
			})
		})
	})
}

func metrics(f *cmdutil.Factory) *cobra.Command {
	var span, bucket string
	c := &cobra.Command{Use: "metrics ID", Short: "Show what a database's server used over time"}
	c.Flags().StringVar(&span, "range", "", "1h, 24h, 7d or 30d (default 1h)")
	c.Flags().StringVar(&bucket, "bucket", "", "15s, 1m, 5m, 30m or 2h (default one that fits the range)")
	return run(f, c, func(ctx context.Context, d *client.Databases, id api.DatabaseID) error {
		m, err := d.Metrics(ctx, id, span, bucket)
		if err != nil {
			return err
		}
		return f.Print(m, func(w io.Writer) error {
			rows := make([][]string, 0, len(m.Points))
			for _, p := range m.Points {
				rows = append(rows, []string{
					p.TS.UTC().Format(time.RFC3339), fmt.Sprintf("%.1f %%", p.CPUPct), cmdutil.Size(p.MemBytes),
					cmdutil.Size(p.NetRxBytes), cmdutil.Size(p.NetTxBytes), cmdutil.Size(p.DiskRead),
					cmdutil.Size(p.DiskWrite),
				})
			}
			head := []string{"TIME", "CPU", "MEMORY", "RECEIVED", "SENT", "READ", "WRITTEN"}
			return cmdutil.Table(w, head, rows)
		})
	})
}

func top(f *cmdutil.Factory) *cobra.Command {
	var q api.InsightQuery
	c := &cobra.Command{Use: "top ID", Short: "Show the queries, sessions, locks and largest waste of a database"}
	c.Flags().StringVar(&q.Database, "database", "", "database of the server (default pandastack)")
	c.Flags().StringVar(&q.Order, "order", "",
		"of the queries: total_time, mean_time, calls, rows or reads (default total_time)")
	c.Flags().IntVarP(&q.Limit, "limit", "n", 10, "at most so many of each")
	return run(f, c, func(ctx context.Context, d *client.Databases, id api.DatabaseID) error {
		in, err := d.Insights(ctx, id, q)
		if err != nil {
			return err
		}
		return f.Print(in, func(w io.Writer) error { return writeInsights(w, in) })
	})
}

// width is how much of a query is shown in a table.
const width = 72

func short(query string) string {
	query = strings.Join(strings.Fields(query), " ")
	if r := []rune(query); len(r) > width {
		return string(r[:width-1]) + "…"
	}
	return query
}

// section is a table with a title, left out if it is empty.
type section struct {
	title string
	head  []string
	rows  [][]string
}

func writeInsights(w io.Writer, in api.DatabaseInsights) error {
	seconds := func(s float64) string { return fmt.Sprintf("%.1fs", s) }
	queries := section{title: "queries", head: []string{"CALLS", "TOTAL", "MEAN", "ROWS", "QUERY"}}
	for _, q := range in.TopQueries {
		queries.rows = append(queries.rows, []string{
			fmt.Sprint(q.Calls), seconds(q.TotalMS / 1000), fmt.Sprintf("%.2fms", q.MeanMS), fmt.Sprint(q.Rows),
			short(q.Query),
		})
	}
	sessions := section{title: "sessions", head: []string{"PID", "ROLE", "STATE", "FOR", "QUERY"}}
	for _, s := range in.Connections.Sessions {
		sessions.rows = append(sessions.rows, []string{
			fmt.Sprint(s.PID), s.Role, s.State, seconds(s.StateSeconds), short(s.Query),
		})
	}
	locks := section{title: "waiting for locks", head: []string{"PID", "BLOCKED BY", "LOCK", "FOR", "QUERY"}}
	for _, l := range in.Locks {
		by := strings.Trim(fmt.Sprint(l.BlockedBy), "[]")
		locks.rows = append(locks.rows, []string{
			fmt.Sprint(l.PID), by, strings.TrimSpace(l.Mode + " " + l.Relation), seconds(l.WaitSeconds), short(l.Query),
		})
	}
	bloat := section{title: "tables", head: []string{"TABLE", "SIZE", "DEAD ROWS", "WASTE"}}
	for _, b := range in.Bloat {
		bloat.rows = append(bloat.rows, []string{
			b.Schema + "." + b.Table, cmdutil.Size(b.SizeBytes), fmt.Sprint(b.DeadRows),
			fmt.Sprintf("%s (%.0f %%)", cmdutil.Size(b.BloatBytes), b.BloatPct),
		})
	}
	slow := section{title: "slow queries", head: []string{"TIME", "TOOK", "QUERY"}}
	for _, s := range in.SlowQueries {
		at := ""
		if s.At != nil {
			at = s.At.UTC().Format(time.RFC3339)
		}
		slow.rows = append(slow.rows, []string{at, seconds(s.DurationMS / 1000), short(s.Query)})
	}
	_, err := fmt.Fprintf(w, "%d of %d connections, %.1f %% of reads from the cache\n",
		in.Connections.Total, in.Connections.Max, 100*in.Cache.HitRatio)
	if err != nil {
		return err
	}
	return writeSections(w, queries, sessions, locks, bloat, slow)
}

func writeSections(w io.Writer, all ...section) (err error) {
	for _, s := range all {
		if err == nil && len(s.rows) > 0 {
			if _, err = fmt.Fprintf(w, "\n%s\n", s.title); err == nil {
				err = cmdutil.Table(w, s.head, s.rows)
			}
		}
	}
	return err
}
